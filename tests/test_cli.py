"""`generate`, `chat` and `perplexity`, as a person or a script meets them: output, interrupts."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from command_line import TIMINGS, expected, fails, misused_later
from model.gguf_files import write_gguf

from rocmforge.chat import Conversation
from rocmforge.cli import main
from rocmforge.engine import Engine
from rocmforge.info import read_info
from rocmforge.sampling import SamplingParams

pytestmark = pytest.mark.usefixtures("one_thread")


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
