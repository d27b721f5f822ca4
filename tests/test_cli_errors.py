"""What the command line says of wrong usage, files and arguments: one line, and an exit code."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import fails, misused, misused_later

from rocmforge.cli import PROMPT_WANTED, main

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_prompt_alone_is_for_the_demo_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "A hammer is", "-n", "8"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(" a hand tool with")
    assert captured.err.startswith("demo model | TTFT ")
    assert main(["info"]) == 0
    assert "demo.gguf" in capsys.readouterr().out
    assert main(["generate", "missing/model", "-n", "1"]) == 1  # looks like a path: no prompt
    assert "missing/model" in capsys.readouterr().err


def test_perplexity_says_what_it_takes_and_what_is_wrong(
    model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["perplexity", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("--text", "--window", "--weight-format", "MXFP6_E2M3"))
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    wrong = ["perplexity", model, "--text", str(empty)]
    assert "text: got 0 tokens" in misused_later(capsys, wrong)
    missing = str(tmp_path / "missing")
    assert missing in fails(capsys, ["perplexity", model, "--text", missing])
    assert missing in fails(capsys, ["perplexity", f"{missing}.gguf"])
    assert "invalid choice: 'Q9'" in misused(capsys, ["perplexity", "--weight-format", "Q9"])
    assert "got 'x', wanted an integer from 4" in misused(capsys, ["perplexity", "--window", "x"])


def test_usage_errors(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, pipe: Any
) -> None:
    assert "unrecognized arguments: --nonsense" in misused(capsys, ["generate", "m", "--nonsense"])
    assert "unrecognized arguments: b" in misused(capsys, ["generate", "m", "a", "b"])
    assert "unrecognized arguments: a" in misused(capsys, ["info", "m", "a"])
    for option in ("--prompt", "--prompt-file"):
        shown = misused(capsys, ["generate", "m", "a", option, "b"])
        assert f"got PROMPT and {option}, wanted one of them" in shown
    wanted = "got 'gpu', wanted one of auto, cpu, hip, cuda"
    assert wanted in misused(capsys, ["generate", "m", "--device", "gpu"])
    assert "COMMAND" in misused(capsys, [])
    pipe(b"")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert f"prompt: got none, {PROMPT_WANTED}" in misused(capsys, ["generate", model])


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--temperature", "-1"], "argument --temperature: got -1.0, wanted a number from 0"),
        (["-n", "0"], "argument -n/--max-tokens: got 0, wanted an integer from 1"),
        (["--top-p", "2"], "argument --top-p: got 2.0, wanted a number above 0, at most 1"),
        (["--seed", "-1"], "argument --seed: got -1, wanted an integer from 0"),
        (["--stop", ""], "argument --stop: got ('',), wanted a tuple of strings, none empty"),
    ],
)
def test_settings_out_of_range_are_named_as_options(
    model: str, capsys: pytest.CaptureFixture[str], options: list[str], wanted: str
) -> None:
    assert wanted in misused(capsys, ["generate", model, "Hello", *options])


def test_settings_that_count_for_nothing_are_named(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", model, "Hello", "-n", "1", "--top-k", "3", "--seed", "1"]) == 0
    assert "--top-k and --seed: no effect at temperature 0" in capsys.readouterr().err
    sampled = ["--top-k", "3", "--seed", "1", "--temperature", "1"]
    assert main(["generate", model, "Hello", "-n", "1", *sampled]) == 0
    assert "no effect" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--ctx", "4096"], "ctx: got 4096, wanted 1 to 2048"),
        (
            ["--ctx", "3"],
            "prompt: got 5 tokens, wanted at most the 3 of the context; --ctx N raises that",
        ),
    ],
)
def test_arguments_that_a_model_refuses(
    model: str, capsys: pytest.CaptureFixture[str], options: list[str], wanted: str
) -> None:
    assert wanted in misused_later(capsys, ["generate", model, "Hello", *options])
    assert "device 'hip:99'" in fails(capsys, ["generate", model, "Hello", "--device", "hip:99"])


def test_a_prompt_beyond_what_the_model_was_trained_for_has_to_be_shorter(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = misused_later(capsys, ["generate", model, "Hello " * 2049, "--ctx", "2048"])
    assert "wanted at most the 2048 of the context; the model was trained for no more" in said


def test_files_that_cannot_be_used(
    model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, pipe: Any
) -> None:
    missing = str(tmp_path / "none")
    wanted = f"rocmforge: error: no such file: {missing}; wanted the path of a GGUF model"
    assert wanted in fails(capsys, ["generate", missing, "Hello"])
    assert wanted in fails(capsys, ["info", missing])
    deeper = str(tmp_path / "none" / "m.gguf")
    assert f"{deeper}, nor a folder {missing};" in fails(capsys, ["info", deeper])
    said = f"{missing}: no such file or directory, wanted a file of UTF-8 text\n"
    for command, option in (("generate", "--prompt-file"), ("perplexity", "--text")):
        error = fails(capsys, [command, model, option, missing])
        assert error == f"rocmforge: error: {option} {said}"
    assert "a directory" in fails(capsys, ["chat", str(tmp_path)])
    (tmp_path / "latin").write_bytes(b"caf\xe9!")
    assert "latin: byte 3: invalid continuation byte, wanted UTF-8" in fails(
        capsys, ["generate", model, "--prompt-file", str(tmp_path / "latin")]
    )
    pipe(b"\xff")
    assert "standard input: byte 0" in fails(capsys, ["generate", model])
    pipe(b"Hello\n\xff\n")
    assert main(["chat", model, "-n", "1"]) == 1  # the line before was answered
    captured = capsys.readouterr()
    assert captured.out
    assert "standard input, line 2: byte 0: invalid start byte, wanted UTF-8" in captured.err


def test_an_error_is_one_printable_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fails(capsys, ["info", "a\n\x1b[2Jb"]).startswith(
        "rocmforge: error: no such file: a  [2Jb;"
    )

    def exhausted(path: str) -> None:
        raise MemoryError

    monkeypatch.setattr("rocmforge.info_command.read_info", exhausted)
    assert fails(capsys, ["info"]) == "rocmforge: error: MemoryError\n"


@pytest.mark.parametrize("data", [b"", b"\n"])
def test_an_empty_prompt_is_refused(
    model: str, capsys: pytest.CaptureFixture[str], pipe: Any, data: bytes
) -> None:
    for prompt in ([""], [model, ""], ["--prompt", ""]):
        said = misused_later(capsys, ["generate", *prompt])
        assert f"prompt: got an empty text, {PROMPT_WANTED}" in said
    said = misused_later(capsys, ["generate", "--prompt-file", os.devnull])
    assert f"prompt: got an empty text in {os.devnull}, {PROMPT_WANTED}" in said
    for prompt in ([], [model], ["-"], ["--prompt-file", "-"]):
        pipe(data)
        said = misused_later(capsys, ["generate", *prompt])
        assert f"prompt: got an empty text on standard input, {PROMPT_WANTED}" in said
