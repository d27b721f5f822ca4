"""`rocmforge profile`: what it prints and writes, and how it answers what cannot be run."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rocmforge.arguments import parser
from rocmforge.cli import main
from rocmforge.model.synthetic import make_model
from rocmforge.profile_command import _generate
from rocmforge.profiling.bottleneck import NAMES


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return str(make_model(path, "tiny", "Q4_K_M", seed=5, layers=2))


def profiled(model: str, *words: str) -> int:
    options = ("--device", "cpu", "--ctx", "64", "--prompt-tokens", "20", "--tokens", "3")
    return main(["profile", model, *options, *words])


def left_with(model: str, *words: str) -> object:
    """The exit code, however it is told."""
    try:
        return profiled(model, *words)
    except SystemExit as end:
        return end.code


def test_the_answer_comes_first_and_lines_fit_a_terminal(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert profiled(model) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[1:])) <= 80
    text = "\n".join(lines)
    verdict = re.search("|".join(NAMES.values()).replace(" ", r"\s"), text)
    assert verdict is not None
    order = [
        verdict.start(),
        *map(text.index, ("First token:", "Prefill: 20", "Decode: 2", "roofline, measured")),
    ]
    assert order == sorted(order)
    assert re.search(r"target of 200 ms is (met|missed)", text)
    assert "request to first token" in text
    assert "nothing is copied" in text
    assert "22 tokens in 1 pages" in text
    assert re.search(r"^between the ops", text, re.M)
    assert re.search(r"^\d+ others \(--all\)", text, re.M)


def test_a_prompt_runs_in_passes_of_the_chosen_size(
    model: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    pass_sizes: list[int],
) -> None:
    page = tmp_path / "profile.html"
    assert profiled(model, "--prefill-chunk", "7", "--html", str(page)) == 0
    assert max(pass_sizes) == 7
    assert "prompts: at most 7 tokens a pass" in capsys.readouterr().out
    assert "at most 7" in page.read_text()
    assert profiled(model, "--prefill-chunk", "7", "--json") == 0
    assert json.loads(capsys.readouterr().out)["settings"]["prefill_chunk"] == 7


def test_all_shows_every_op_and_its_kernel(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert profiled(model, "--all") == 0
    text = capsys.readouterr().out
    assert "others (--all)" not in text
    for op in ("embed", "rmsnorm_last", "select_outputs"):
        assert len(re.findall(rf"^{op} ", text, re.M)) == 4  # both phases, times and kernels
    assert re.search(r"^attention +attention +attention.cpp$", text, re.M)
    assert not re.search(r"^op +kernel +file +grid", text, re.M)  # a CPU has none
    assert re.search(r"^memory of this process, MiB ", text, re.M)


def test_json_is_one_document(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert profiled(model, "--json", "--target-ms", "60000") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["settings"]["prompt_tokens"] == 20
    assert document["first_token"]["met"] is True
    assert [phase["name"] for phase in document["phases"]] == ["prefill", "decode"]
    assert document["settings"]["target_seconds"] == 60


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--prompt-tokens", "1"], 2, "--prompt-tokens: got '1', wanted an integer from 2"),
        (["--prompt-tokens", "many"], 2, "--prompt-tokens: got 'many', wanted an integer from 2"),
        (["--tokens", "0"], 2, "--tokens: got '0', wanted an integer from 1"),
        (["--target-ms", "-5"], 2, "--target-ms: got '-5', wanted a number above 0"),
        (["--target-ms", "nan"], 2, "--target-ms: got 'nan', wanted a number above 0"),
        (["--ctx", "30", "--prompt-tokens", "30"], 2, "context: got a prompt of 30 tokens and 3"),
        (["--ctx", "100000"], 2, "ctx: got 100000, wanted 1 to"),
        (["--recipe", "memory"], 2, "got --recipe without --with, wanted --with TOOL"),
        (["--", "true"], 2, "got -- COMMAND without --with, wanted --with TOOL"),
        (["--tools", "--with", "perf"], 2, "got --tools and --with, wanted one of them"),
        (["--with", "perf", "--html", "p.html"], 2, "got --html and --with, wanted one of them"),
        (["--tools", "--trace", "t.json"], 2, "got --trace and --tools, wanted one of them"),
        (["--with", "omniperf", "--", "true"], 2, "rocprof-compute"),
        (["--with", "perf", "--recipe", "no", "--", "true"], 2, "recipe: got 'no'"),
    ],
)
def test_what_cannot_be_run_is_told(
    model: str, words: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert left_with(model, *words) == code
    captured = capsys.readouterr()
    assert told in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_files_are_written_besides(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, picture, page = (tmp_path / name for name in ("t.json", "r.svg", "p.html"))
    words = ["--trace", str(trace), "--roofline", str(picture), "--html", str(page)]
    assert profiled(model, *words) == 0
    captured = capsys.readouterr()
    assert "First token:" in captured.out
    assert captured.err.count("written: ") == 3
    events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    assert {"prefill", "decode", "matmul_qkv"} <= {event["name"] for event in events}
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    assert "matmul_qkv" in page.read_text("utf-8")


def test_files_are_written_where_nobody_reads_the_report(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("rocmforge.profile_command.print_profile", gone)
    page = tmp_path / "p.html"
    assert left_with(model, "--html", str(page)) != 0
    assert "matmul_qkv" in page.read_text("utf-8")


def test_a_place_for_no_file_is_told_before_the_model_loads(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    wrong = {
        tmp_path / "no" / "p.html": f"got no folder {tmp_path / 'no'}",
        tmp_path: "got what is no file",
        pipe: "got what is no file",
    }
    for path, told in wrong.items():
        assert profiled(model, "--html", str(path)) == 2
        captured = capsys.readouterr()
        assert told in captured.err
        assert captured.out == ""
    assert pipe.is_fifo()


def test_an_output_takes_the_place_of_neither_the_model_nor_another_output(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path(model).read_bytes()
    link = tmp_path / "link.html"
    link.symlink_to(model)
    one, same = str(tmp_path / "one"), f"{tmp_path}/../{tmp_path.name}/one"
    for words, told in (
        (["--html", str(link)], "got the model's file, wanted a file of its own"),
        (["--trace", one, "--html", same], "got one file for two outputs, wanted a file of its"),
    ):
        assert profiled(model, *words) == 2
        captured = capsys.readouterr()
        assert told in captured.err
        assert captured.out == ""
    assert Path(model).read_bytes() == before
    assert not Path(one).exists()


def test_a_model_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "/nowhere/model.gguf"]) == 1
    assert "no such file: /nowhere/model.gguf" in capsys.readouterr().err


def test_the_tools_are_listed_and_old_names_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--tools"]) == 0
    text = capsys.readouterr().out
    for name in ("rocprofv3", "rocprof-compute", "perf", "amd-smi"):
        assert re.search(rf"^{name} ", text, re.M)
    assert "no tool called rocperf" in text
    assert "omniperf is called rocprof-compute" in text
    assert main(["profile", "--tools", "--json"]) == 0
    assert {"rocprofv3", "perf"} <= {
        tool["name"] for tool in json.loads(capsys.readouterr().out)["tools"]
    }


def test_the_command_under_another_profiler_runs_with_the_same_engine() -> None:
    words = ["profile", "m.gguf", "--prefill-chunk", "7", "--ctx", "64", "--threads", "2"]
    command = " ".join(_generate(parser().parse_args(words)))
    for option in ("--prefill-chunk 7", "--ctx 64", "--threads 2", "--page-size 32"):
        assert option in command
