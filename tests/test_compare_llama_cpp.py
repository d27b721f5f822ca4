"""tools/compare_llama_cpp.py: what it says where something is missing; one real comparison."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from tool_modules import tool_module

from rocmforge.demo import demo_model


@pytest.fixture(scope="module")
def tool() -> Any:
    """The script as a module."""
    return tool_module("compare_llama_cpp")


def test_without_llama_cpp_it_says_how_to_get_it(
    tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "python"  # an interpreter that has nothing but the standard library
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -I "$@"\n')
    bare.chmod(0o755)
    target = tmp_path / "report.json"
    options = ["--model", str(demo_model()), "--json", str(target), "--peer-python", str(bare)]
    assert tool.main(options) == 2
    shown = capsys.readouterr().err
    assert "No module named 'llama_cpp'" in shown
    assert f"{bare} -m pip install llama-cpp-python==" in shown
    assert "Traceback" not in shown
    assert not target.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "missing.gguf"], "missing.gguf: no such file"),
        (["--rounds", "0"], "--rounds: got 0, wanted at least 1"),
        (["--sequences", "0"], "--sequences: got 0, wanted at least 1"),
        (
            ["--sequences", "2", "--llama-bench", sys.executable],
            "--sequences: got 2, but llama-bench decodes one alone",
        ),
        (["--peer-python", "/nowhere/python"], "--peer-python /nowhere/python: No such file"),
        (
            ["--llama-bench", "/nowhere/llama-bench"],
            "--llama-bench /nowhere/llama-bench: no program",
        ),
        (["--device", "auto"], "--device: got 'auto', wanted cpu, hip or cuda"),
        (["--device", "hip:x"], "--device: got 'hip:x', wanted cpu, hip or cuda"),
        (["--device", "hip:1"], "the same one: HIP_VISIBLE_DEVICES=1 … --device hip"),
        (["--device", "cuda:2"], "the same one: CUDA_VISIBLE_DEVICES=2 … --device cuda"),
        (["--figure", "plot.jpg"], "--figure: got plot.jpg, wanted a name that ends in .svg"),
    ],
)
def test_what_is_refused(
    tool: Any, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert tool.main(["--model", str(demo_model()), *options]) == 2
    assert message in capsys.readouterr().err


# Answers as llama-bench does, half as fast at a depth, and notes what it was asked.
LLAMA_BENCH = """#!{python}
import json, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
with open({log!r}, "a") as log:
    log.write(json.dumps(options) + chr(10))
speed = 50.0 if "-d" in options else 100.0
samples = [speed * share for share in (0.6, 0.9, 1.0, 1.2)]  # the first one is cold
samples = samples[: int(options["-r"])] if int(options["-r"]) > 1 else [speed]
row = {{"n_prompt": int(options["-p"]), "n_gen": int(options["-n"]), "samples_ts": samples}}
row |= {{"build_commit": "abc123", "build_number": 7, "gpu_info": "none"}}
print({answer})
"""
SMALL = ("--prompt", "16", "--decode", "4", "--threads", "1")


def fake_llama_bench(folder: Path, answer: str = "json.dumps([row])") -> tuple[Path, Path]:
    program, log = folder / "llama-bench", folder / "asked.jsonl"
    program.write_text(
        LLAMA_BENCH.format(python=sys.executable, log=str(log), answer=answer), "utf-8"
    )
    program.chmod(0o755)
    return program, log


def test_beside_llama_bench(tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, log = fake_llama_bench(tmp_path)
    target, figure = tmp_path / "report.json", tmp_path / "rounds.svg"
    options = ["--model", str(demo_model()), *SMALL, "--rounds", "8", "--llama-bench", str(program)]
    options += ["--llama-bench-options=-fa 1", "--json", str(target), "--figure", str(figure)]
    assert tool.main(options) == 0
    asked = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(asked) == 2 * 9  # the first round warms up
    common = {"-m": str(demo_model()), "-t": "1", "-ngl": "0", "-r": "1", "-o": "json", "-fa": "1"}
    assert asked[0] == common | {"-p": "16", "-n": "0"}
    assert asked[1] == common | {"-p": "0", "-n": "4", "-d": "16"}
    report = json.loads(target.read_text())
    build = {"build_commit": "abc123", "build_number": 7, "gpu_info": "none"}
    assert report["versions"] == {"rocmforge": version("rocmforge"), "llama.cpp": build}
    phases = report["phases"]
    for phase, speed in (("prefill", 100.0), ("decode", 50.0)):
        row = phases[phase]
        assert row["llama.cpp"] == speed
        assert row["llama.cpp setting"] == "llama-bench"
        assert row["ratio"] == pytest.approx(row["rocmforge"] / speed, rel=1e-3)
        assert row["ratio_interval_99"] == [row["ratio_min"], row["ratio_max"]]
        assert len(row["samples"]["rocmforge"]) == 8
    assert "<svg" in figure.read_text()
    assert "99 % interval" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            "sys.exit('unknown option -d')",
            "got exit code 1, wanted one result in JSON (unknown opt",
        ),
        ("'[]'", "wanted one result in JSON"),
        ("json.dumps([{'speed': 1}])", "got 'samples_ts', wanted one result in JSON"),
        ("json.dumps([{'samples_ts': [0]}])", "got 0.0 tokens/s, wanted one result in JSON"),
        ("json.dumps([{'samples_ts': [9, 9]}])", "got 2 repetitions instead of 1, wanted one"),
    ],
)
def test_a_llama_bench_that_fails_is_named(
    tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: str, message: str
) -> None:
    program, _ = fake_llama_bench(tmp_path, answer)
    options = ["--model", str(demo_model()), *SMALL, "--llama-bench", str(program)]
    assert tool.main(options) == 1
    shown = capsys.readouterr().err
    assert str(program) in shown
    assert message in shown
    assert "Traceback" not in shown


def test_on_a_gpu_the_first_repetition_does_not_count(tool: Any, tmp_path: Path) -> None:
    program, log = fake_llama_bench(tmp_path)
    work = tool.Workload(demo_model(), "cuda", 1, 16, 4, 1, repetitions=tool.GPU_REPETITIONS)
    assert tool.LlamaBench(program, work).measure() == {"prefill": 100.0, "decode": 50.0}
    assert '"-r": "4"' in log.read_text()
    assert '"-ngl": "999"' in log.read_text()


def test_several_gpus_are_refused(tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocmforge.gpu.cuda.count", lambda: 2)
    wanted = "ours would run on one, llama.cpp on all. Show both the same one: CUDA_VISIBLE_DEV"
    assert wanted in tool.device_problem("cuda")
    monkeypatch.setattr("rocmforge.gpu.cuda.count", lambda: 1)
    assert tool.device_problem("cuda") is None
    assert tool.device_problem("cuda:0") is None


@pytest.mark.parametrize("failure", [RuntimeError("no process"), KeyboardInterrupt()])
def test_engines_that_started_are_closed_where_a_later_one_does_not_start(
    failure: BaseException, tool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    class Worker:
        def __init__(self, name: str, *_: Any) -> None:
            if name == tool.PLAIN:
                raise failure
            self.name = name

        def close(self) -> None:
            closed.append(self.name)

    monkeypatch.setattr(tool, "Worker", Worker)
    monkeypatch.setattr(tool, "_problem", lambda args: None)
    arguments = ["--model", str(demo_model())]
    if isinstance(failure, RuntimeError):
        assert tool.main(arguments) == 1
    else:
        with pytest.raises(KeyboardInterrupt):
            tool.main(arguments)
    assert closed == [tool.REPACKED, tool.OURS]


@pytest.mark.peer
def test_both_engines_are_measured(tool: Any, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    target = tmp_path / "report.json"
    sizes = [*SMALL, "--rounds", "2"]
    assert tool.main(["--model", str(demo_model()), *sizes, "--json", str(target)]) == 0
    report = json.loads(target.read_text())
    for phase in ("prefill", "decode"):
        row = report["phases"][phase]
        assert min(row["rocmforge"], row["llama.cpp"], row["ratio"]) > 0
        assert {len(samples) for samples in row["samples"].values()} == {2}
