"""The command line, as a person or a script meets it: output, exit codes, errors, interrupts."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from command_line import TIMINGS, expected
from model.gguf_files import write_gguf

from rocmforge.chat import Conversation
from rocmforge.cli import PROMPT_WANTED, main
from rocmforge.engine import Engine
from rocmforge.gpu.runtime import DeviceProperties
from rocmforge.hardware import Hardware
from rocmforge.info import read_info
from rocmforge.model.synthetic import make_model
from rocmforge.sampling import SamplingParams


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_model(tmp_path_factory.mktemp("model") / "tiny.gguf", "tiny", "Q8_0", layers=2))


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCMFORGE_THREADS", "1")
    monkeypatch.setenv("ROCMFORGE_DEVICE", "cpu")


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Function that makes some bytes the standard input."""

    def pipe(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8"))

    return pipe


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


# --- generate


def test_generate_prints_the_text_and_one_line_of_timings(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", model, "Hello", "-n", "8"]) == 0
    captured = capsys.readouterr()
    assert captured.out == expected(model, "Hello", SamplingParams(max_tokens=8)) + "\n"
    assert captured.err.count("\n") == 1
    match = TIMINGS.fullmatch(captured.err.strip())
    assert match is not None
    assert match.groups() == ("5", None, match[3], "8", "")
    assert captured.err.startswith("tiny.gguf | TTFT ")


def test_generate_passes_every_option_on(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []

    def load(path: str, device: str, **options: Any) -> Engine:
        loaded.append({"device": device, **options})
        return Engine.from_gguf(path, device, **options)

    monkeypatch.setattr("rocmforge.commands.Engine", SimpleNamespace(from_gguf=load))
    sampling = {
        "temperature": 1.5,
        "top_k": 200,
        "top_p": 0.99,
        "min_p": 0.0001,
        "repetition_penalty": 1.2,
        "seed": 7,
    }
    options = [f"--{name.replace('_', '-')}={value}" for name, value in sampling.items()]
    options += ["--max-tokens=20", "--ignore-eos", "--stop", "\0", "--stop", "\1"]
    engine = ["--ctx", "64", "--threads", "1", "--device", "cpu", "--page-size", "16"]
    engine += ["--prefill-chunk", "3", "--kv-dtype", "f32"]
    assert main(["generate", *options, *engine, model, "Hello"]) == 0
    params = SamplingParams(max_tokens=20, ignore_eos=True, stop=("\0", "\1"), **sampling)
    out = capsys.readouterr().out
    assert out == expected(model, "Hello", params, kv_dtype="f32") + "\n"
    wanted = {
        "ctx": 64,
        "threads": 1,
        "device": "cpu",
        "page_size": 16,
        "kv_dtype": "f32",
        "prefill_chunk": 3,
    }
    assert wanted.items() <= loaded[0].items()
    assert out != expected(model, "Hello", replace(params, top_k=3), kv_dtype="f32") + "\n"


def test_generate_json_is_one_document(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", model, "-n", "5", "--json", "Hello"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    document = json.loads(captured.out)
    assert document["text"] == expected(model, "Hello", SamplingParams(max_tokens=5))
    assert len(document["ids"]) == 5
    assert document["finish_reason"] == "length"
    assert (document["model"], document["device"]) == (model, "cpu")
    stats = document["stats"]
    assert (stats["prompt_tokens"], stats["generated_tokens"]) == (5, 5)
    assert stats["prefill_tokens_per_second"] == pytest.approx(5 / stats["prefill_s"])
    assert stats["decode_tokens_per_second"] == pytest.approx(4 / stats["decode_s"])
    assert stats["ttft_s"] >= stats["prefill_s"] > 0
    assert stats["peak_memory_bytes"] > 10e6


def test_rates_that_were_not_measured(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", model, "Hello", "-n", "1"]) == 0
    assert "| decode n/a (1 tokens) |" in capsys.readouterr().err
    assert main(["generate", model, "Hello", "-n", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stats"]["decode_tokens_per_second"] is None


@pytest.mark.parametrize("data", [b"Hello", b"Hello\n", b"Hello\r\n"])
@pytest.mark.parametrize("source", ["stdin", "file", "dash"])
def test_prompt_from_elsewhere(
    model: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    pipe: Any,
    source: str,
    data: bytes,
) -> None:
    options = {"stdin": [], "file": ["--prompt-file", str(tmp_path / "p")]}
    (tmp_path / "p").write_bytes(data)
    pipe(data)
    argv = ["generate", model, "-n", "4", "--json"]
    assert main([*argv, *options.get(source, ["--prompt-file", "-"])]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["stats"]["prompt_tokens"] == 5
    assert document["text"] == expected(model, "Hello", SamplingParams(max_tokens=4))


def test_special_tokens_count_only_where_asked(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def prompt_tokens(*options: str) -> int:
        assert main(["generate", model, "</s>", "-n", "1", "--json", *options]) == 0
        return int(json.loads(capsys.readouterr().out)["stats"]["prompt_tokens"])

    assert prompt_tokens("--special") == 2
    assert prompt_tokens() > 2


def test_text_that_the_encoding_lacks_is_replaced(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["generate", model, "Hello", "-n", "60", "--ignore-eos"]) == 0
    text = expected(model, "Hello", SamplingParams(max_tokens=60, ignore_eos=True))
    assert not text.isascii()
    out.seek(0)
    assert out.read() == text.encode("ascii", "replace").decode() + "\n"


def test_ctrl_c_before_the_first_token(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "prefill_token", interrupt)
    assert main(["generate", model, "Hello"]) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(
        "tiny.gguf | TTFT n/a | prefill n/a (0 tokens) | decode n/a (0 tokens) | "
    )
    assert main(["generate", model, "Hello", "--json"]) == 130
    document = json.loads(capsys.readouterr().out)
    assert (document["text"], document["finish_reason"]) == ("", "interrupted")
    assert document["stats"]["ttft_s"] is None


# --- errors


def test_a_prompt_alone_is_for_the_demo_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "A hammer is", "-n", "8"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(" a hand tool with")
    assert captured.err.startswith("demo model | TTFT ")
    assert main(["info"]) == 0
    assert "demo.gguf" in capsys.readouterr().out
    assert main(["generate", "missing/model", "-n", "1"]) == 1  # looks like a path: no prompt
    assert "missing/model" in capsys.readouterr().err


def test_perplexity_of_a_text_and_of_formats(
    model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Some words to score, and some more of them. " * 4)
    options = [model, "--text", str(text), "--ctx", "64", "--weight-format", "Q4_0"]
    assert main(["perplexity", *options]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].endswith("tokens in windows of 64")
    assert [line.split()[0] for line in shown[1:]] == ["weights", "as", "Q4_0"]
    assert main(["perplexity", *options, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    own, other = document["rows"]
    assert own["kl_nats"] is None
    assert own["bits_per_weight"] == read_info(model).bits_per_weight
    assert other["bits_per_weight"] == 4.5
    assert other["kl_nats"] > 0
    assert own["perplexity"] > 1
    text.write_bytes(b"\xff")
    assert "wanted UTF-8" in fails(capsys, ["perplexity", model, "--text", str(text)])
    wrong = ["perplexity", *options[:1], *options[3:5], "--window", "65"]
    assert "window: got 65" in misused_later(capsys, wrong)


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


# --- chat


def test_chat_answers_piped_lines(
    model: str, capsys: pytest.CaptureFixture[str], pipe: Any
) -> None:
    pipe(b"Hello\n\n  More \n/reset\nHello\n/exit\nnever\n")
    argv = ["chat", model, "-n", "6", "--ignore-eos", "--system", "Be brief", "--seed", "1"]
    assert main(argv) == 0
    captured = capsys.readouterr()
    replies = captured.out.splitlines()
    assert len(replies) == 3
    assert replies[0] == replies[2] != replies[1]
    lines = captured.err.splitlines()
    assert lines[2] == "(a new conversation)"
    first, second, third = (TIMINGS.fullmatch(lines[i]) for i in (0, 1, 3))
    assert first is not None
    assert second is not None
    assert third is not None
    assert first[2] is None
    assert int(second[2]) == int(first[1]) + 5  # prompt and reply, but for its last token
    assert third[1] == first[1]
    assert first[5] == " | cut: see -n"


def test_chat_with_a_full_context_drops_what_is_oldest(
    model: str, capsys: pytest.CaptureFixture[str], pipe: Any
) -> None:
    pipe(b"Hello\nHello\n")
    argv = ["chat", model, "--ctx", "56", "-n", "100", "--ignore-eos", "--seed", "1"]
    assert main(argv) == 0
    captured = capsys.readouterr()
    replies = captured.out.removesuffix("\n").split("\n")
    assert len(replies[0]) > 5
    assert replies[0] == replies[-1]
    assert captured.err.count(" | cut: the context is full\n") == 2
    assert captured.err.count("(the context is full: the 2 oldest messages are dropped)\n") == 1


def test_a_message_longer_than_the_context_is_left_without_an_answer(
    model: str, capsys: pytest.CaptureFixture[str], pipe: Any
) -> None:
    pipe(b"Hello\n" + b"word " * 50 + b"\n")
    assert main(["chat", model, "--ctx", "56", "-n", "2"]) == 1
    wanted = r"^message: got \d+ tokens, wanted 1 to 56 \(ctx\); --ctx N raises that"
    assert re.search(wanted, capsys.readouterr().err, re.M)


def test_chat_lists_its_commands(model: str, capsys: pytest.CaptureFixture[str], pipe: Any) -> None:
    pipe(b"/help\n/quit\n/exit\n")
    assert main(["chat", model]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert all(f"\n{name} " in f"\n{captured.err}" for name in ("/help", "/reset", "/exit"))
    assert "/quit: no such command; /help lists them\n" in captured.err


FILE_SAMPLING = {
    "general.sampling.temp": 0.25,
    "general.sampling.top_k": 20,
    "general.sampling.top_p": 7.0,
    "general.sampling.penalty_repeat": 1.5,
}


@pytest.mark.parametrize(
    ("metadata", "options", "wanted"),
    [
        ({}, [], {"temperature": 0.5, "min_p": 0.05, "repetition_penalty": 1.1}),
        (
            {},
            ["--temperature", "0", "--repetition-penalty", "1", "-n", "9"],
            {"min_p": 0.05, "max_tokens": 9},
        ),
        (FILE_SAMPLING, [], {"temperature": 0.25, "top_k": 20, "repetition_penalty": 1.5}),
        (FILE_SAMPLING, ["--top-k", "0"], {"temperature": 0.25, "repetition_penalty": 1.5}),
        (
            {"general.sampling.top_k": 20, "general.sampling.top_p": 7.0},
            [],
            {"temperature": 0.5, "min_p": 0.05, "repetition_penalty": 1.1, "top_k": 20},
        ),
    ],
)
def test_chat_samples_as_asked_else_as_the_file_says_else_by_its_own_defaults(
    model: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    pipe: Any,
    metadata: dict[str, Any],
    options: list[str],
    wanted: dict[str, Any],
) -> None:
    used: list[SamplingParams] = []

    class Spy(Conversation):
        def __init__(self, engine: Any, tokenizer: Any, params: Any, *rest: Any) -> None:
            super().__init__(engine, tokenizer, params, *rest)
            used.append(params)

    file = MagicMock()
    file.__enter__.return_value.metadata = metadata
    monkeypatch.setattr("rocmforge.commands.GGUFFile", lambda path: file)
    monkeypatch.setattr("rocmforge.commands.Conversation", Spy)
    pipe(b"")
    assert main(["chat", model, *options]) == 0
    assert used == [SamplingParams(**{"max_tokens": 512, **wanted})]  # a quarter of the context
    ignored = "general.sampling.top_p of the file is ignored: top_p: got 7.0, wanted"
    assert (ignored in capsys.readouterr().err) == bool(metadata)


def test_chat_without_a_template(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    general = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>"]}
    path = write_gguf(tmp_path / "m.gguf", general=general)
    error = fails(capsys, ["chat", str(path)])
    assert "tokenizer.chat_template: the file has none; use a model tuned for chat" in error


def test_chat_greets_prompts_and_leaves_at_a_terminal(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, pipe: Any
) -> None:
    typed = iter(["  Hello ", "", "Stop", "More"])
    asked: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        line = next(typed, None)
        if line is None:
            raise EOFError
        monkeypatch.setattr(Engine, "prefill", interrupt if line == "Stop" else plain)
        return line

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    plain = Engine.prefill
    pipe(b"")
    monkeypatch.setattr("builtins.input", ask)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["chat", model, "-n", "4", "--ignore-eos"]) == 0
    assert asked == ["> "] * 5
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "tiny.gguf, context 2048 tokens; /help, /reset, /exit"
    remarks = [line.rpartition(" | ")[2] for line in lines[1:]]
    assert remarks == ["cut: see -n", "stopped", "cut: see -n"]
    assert "(0 tokens)" in lines[2]


# --- info and devices


def test_info_is_for_people(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", model]) == 0
    lines = capsys.readouterr().out.splitlines()
    facts = dict(
        re.split(r"  +|(?<=weight) |(?<=context) ", line, maxsplit=1) for line in lines[:12]
    )
    assert facts["architecture"] == "llama"
    assert facts["runs here"] == "yes"
    assert facts["bits per weight"] == "8.52"
    assert facts["KV per token"] == "1.0 KiB (f16)"
    assert facts["vocabulary"] == "1024 tokens, llama"
    assert facts["chat template"] == "yes"
    assert any(re.fullmatch(r"Q8_0 +16 +1\.\d\d M +1\.\d MiB", line) for line in lines)
    assert any(re.fullmatch(r"2048 +2\.0 MiB +\d\.\d MiB", line) for line in lines)


@pytest.mark.parametrize(
    ("scaling", "factor", "shown"),
    [
        ({"type": "linear", "factor": 4.0}, None, "linear × 4"),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 512},
            8.0,
            "yarn × 4 from 512 tokens, with frequency factors",
        ),
    ],
)
def test_info_names_rope_scaling(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    scaling: dict[str, str | float | int],
    factor: float | None,
    shown: str,
) -> None:
    path = tmp_path / "m.gguf"
    make_model(path, "tiny", "Q8_0", layers=1, rope_scaling=scaling, rope_factor=factor)
    assert main(["info", str(path)]) == 0
    assert re.search(rf"^rope scaling +{shown}$", capsys.readouterr().out, re.M)


def test_info_of_what_cannot_be_run_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    general = {"general.name": "\x1b[2Jevil"}
    path = write_gguf(tmp_path / "m.gguf", architecture="mamba", general=general)
    assert main(["info", str(path)]) == 0
    out = capsys.readouterr().out
    assert "runs here       no\n                - architecture 'mamba' is not supported" in out
    assert "name            \ufffd[2Jevil\n" in out
    assert main(["info", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["supported"] is False


def test_devices(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocmforge.devices.detect", lambda: Hardware(cpu_name="CPU X"))
    radeon = DeviceProperties(0, "RX", "gfx1100", 32, 84, 20 << 30, 65536, False)
    monkeypatch.setattr("rocmforge.devices._LISTS", {"hip": lambda: [radeon]})
    monkeypatch.setattr("rocmforge.devices._DRIVERS", {"hip": lambda: True})
    monkeypatch.delenv("ROCMFORGE_DEVICE", raising=False)
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^cpu +yes +CPU X +1?\d+ cores;", out, re.M)
    assert re.search(r"^hip:0 +yes +RX +gfx1100; 84 compute units; 20 GiB$", out, re.M)
    assert "\nauto is hip:0 RX (gfx1100" in out
    monkeypatch.setenv("ROCMFORGE_CPU_ISA", "portable")
    assert main(["devices"]) == 0
    assert "cores; portable (ROCMFORGE_CPU_ISA) of " in capsys.readouterr().out
    monkeypatch.setenv("ROCMFORGE_DEVICE", "cpu")
    assert main(["devices"]) == 0
    assert "ROCMFORGE_DEVICE=cpu, which is the CPU" in capsys.readouterr().out
    monkeypatch.setenv("ROCMFORGE_DEVICE", "hip:3")
    assert main(["devices"]) == 0
    assert "ROCMFORGE_DEVICE=hip:3, which is not usable: " in capsys.readouterr().out
    assert main(["devices", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["auto"] == "hip"
    assert [d["kind"] for d in document["devices"]] == ["cpu", "hip:0"]


def test_devices_without_a_gpu_says_why_for_each_kind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocmforge.devices.detect", lambda: Hardware(cpu_name="CPU X"))
    monkeypatch.setattr("rocmforge.devices._LISTS", {"hip": list, "cuda": list})
    no_driver = {"hip": lambda: False, "cuda": lambda: False}
    monkeypatch.setattr("rocmforge.devices._DRIVERS", no_driver)
    monkeypatch.delenv("ROCMFORGE_DEVICE", raising=False)
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^hip +no +none found +no AMD GPU driver: neither /dev/kfd", out, re.M)
    assert re.search(r"^cuda +no +none found +no NVIDIA driver: libcuda", out, re.M)


# --- help


def test_profile_says_which_models_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["profile", "--help"])
    assert "on one device, unless --with TOOL is given" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["generate", "chat", "info", "devices"])
def test_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([command, "--help"])
    assert exit_.value.code == 0
    assert f"examples:\n  rocmforge {command}" in capsys.readouterr().out
