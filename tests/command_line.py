"""For tests of the command line: its line of timings, what a model ought to say, wrong usage."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rocmforge.cli import main
from rocmforge.engine import Engine
from rocmforge.sampling import SamplingParams
from rocmforge.text.tokenizer import Tokenizer

TIMINGS = re.compile(
    r"(?:[^|]+ \| )?TTFT [\d.]+ ms \| prefill [\d.]+ tokens/s "
    r"\((\d+) tokens(?:, (\d+) kept)?\) \| "
    r"decode ([\d.]+ tokens/s|n/a) \((\d+) tokens\) \| peak memory [\d.]+ [KMG]iB(.*)"
)


def expected(model: str, prompt: str, params: SamplingParams, **options: Any) -> str:
    tokenizer = Tokenizer.from_gguf(model)
    with Engine.from_gguf(model, **options) as engine:
        tokens = engine.generate([tokenizer.encode(prompt)], params, tokenizer)
        return "".join(token.text for token in tokens)


def fails(capsys: pytest.CaptureFixture[str], argv: list[str], code: int = 1) -> str:
    """Run what has to end with an exit code; return its one line on standard error."""
    assert main(argv) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("rocmforge: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def misused_later(capsys: pytest.CaptureFixture[str], argv: list[str]) -> str:
    """Run what has to end as wrong usage, but is found wrong only after parsing."""
    return fails(capsys, argv, 2)


def misused(capsys: pytest.CaptureFixture[str], argv: list[str]) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    assert exit_.value.code == 2
    return capsys.readouterr().err
