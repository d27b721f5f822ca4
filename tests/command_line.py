"""For tests of the command line: its line of timings, and what a model ought to say."""

from __future__ import annotations

import re
from typing import Any

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
