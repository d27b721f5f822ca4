"""tools/compare_table.py with programs in place of llama.cpp's: rows, limits, going on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tool_modules import tool_module

from rocmforge.gguf.reader import GGUFFile

# Answers as llama-bench or llama-batched-bench does, the first repetition cold; `trouble` first.
PROGRAM = """#!{python}
import json, sys, time
{trouble}
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
with open({log!r}, "a") as log:
    log.write(json.dumps(options) + chr(10))
if "-npl" in options:
    print("main: n_kv_max = 512")
    for index, count in enumerate(options["-npl"].split(",")):
        print(json.dumps({{"pl": int(count), "speed_tg": 10.0 if index == 0 else 200.0}}))
else:
    samples = [30.0] + [100.0] * (int(options["-r"]) - 1)
    print(json.dumps([{{"build_commit": "abc123", "samples_ts": samples}}]))
"""


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, with small cases of a small model."""
    module = tool_module("compare_table")
    decode = module.Case("tiny:Q4_K_M", decode=4, depth=8)
    batch = module.Case("tiny:Q4_K_M", decode=4, depth=8, sequences=2)
    prompt = module.Case("tiny:Q4_K_M", prompt=16)
    monkeypatch.setattr(module, "CASES", (decode, batch, prompt))
    return module


def programs(folder: Path, trouble: str = "") -> tuple[Path, Path]:
    build, log = folder / "build", folder / "asked.jsonl"
    (build / "bin").mkdir(parents=True, exist_ok=True)
    for name in ("llama-bench", "llama-batched-bench"):
        text = PROGRAM.format(python=sys.executable, log=str(log), trouble=trouble)
        (build / "bin" / name).write_text(text, "utf-8")
        (build / "bin" / name).chmod(0o755)
    return build, log


def options(folder: Path, build: Path, *more: str) -> list[str]:
    common = ["--llama-cpp", str(build), "--json", str(folder / "table.json"), "--device", "cpu"]
    return [*common, "--models", str(folder / "models"), "--threads", "1", "--rounds", "2", *more]


def test_all_cases_are_measured_once(tool: Any, tmp_path: Path) -> None:
    build, log = programs(tmp_path)
    assert tool.main(options(tmp_path, build)) == 0
    report = json.loads((tmp_path / "table.json").read_text())
    assert report["versions"]["llama.cpp"] == {"build_commit": "abc123"}
    names = ["decode 4 of tiny:Q4_K_M at 8", "decode 4 of tiny:Q4_K_M at 8, 2 sequences"]
    assert [row["case"] for row in report["rows"]] == [*names, "prefill 16 of tiny:Q4_K_M at 0"]
    for row, speed in zip(report["rows"], (100.0, 200.0, 100.0), strict=True):
        assert row["llama.cpp"] == speed  # without the cold repetition
        assert row["ratio"] == pytest.approx(row["rocmforge"] / speed, rel=0.3)
        assert len(row["samples"]["rocmforge"]) == len(row["samples"]["llama.cpp"]) == 2
    asked = [json.loads(line) for line in log.read_text().splitlines()]
    single, batch, prompt = asked[0], asked[2], asked[4]
    wanted = {"-p": "0", "-n": "4", "-d": "8", "-r": "4", "-fa": "1"}
    assert wanted.items() <= single.items()
    wanted = {"-npp": "8", "-ntg": "4", "-npl": "2,2,2,2", "-c": "512", "--output-format": "jsonl"}
    assert wanted.items() <= batch.items()
    assert {"-p": "16", "-n": "0"}.items() <= prompt.items()
    assert "-d" not in prompt
    (model,) = (tmp_path / "models").iterdir()
    with GGUFFile(model) as file:
        assert file.get("llama.context_length", int) == tool.CONTEXT

    before = (tmp_path / "table.json").read_bytes()
    assert tool.main(options(tmp_path, build)) == 0
    assert (tmp_path / "table.json").read_bytes() == before
    assert len(log.read_text().splitlines()) == len(asked)


def test_a_case_that_fails_is_kept_and_measured_again(tool: Any, tmp_path: Path) -> None:
    build, log = programs(tmp_path, "if '-npl' in sys.argv: sys.exit('out of memory')")
    assert tool.main(options(tmp_path, build)) == 1
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert ["error" in row for row in rows] == [False, True, False]
    assert "exit code 1, wanted one result in JSON (out of memory)" in rows[1]["error"]
    log.unlink()
    programs(tmp_path)
    assert tool.main(options(tmp_path, build)) == 0
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert sorted(row["llama.cpp"] for row in rows) == [100.0, 100.0, 200.0]
    assert len(log.read_text().splitlines()) == 2  # only the missing case's rounds


def test_a_case_has_a_time_limit(tool: Any, tmp_path: Path) -> None:
    build, _ = programs(tmp_path, "time.sleep(600)")
    limit = ("--case-seconds", "3", "--only", "prefill")
    assert tool.main(options(tmp_path, build, *limit)) == 1
    (row,) = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert "took more than the" in row["error"]


def test_our_worker_has_a_time_limit(tool: Any, tmp_path: Path) -> None:
    build, _ = programs(tmp_path)
    limit = ("--case-seconds", "0.001", "--only", "prefill")
    assert tool.main(options(tmp_path, build, *limit)) == 1
    (row,) = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert row["error"] == "rocmforge: took more than the 0 s that were left"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--only", "70B"], "--only: got 70B, wanted a part of a case: see --list"),
        (["--rounds", "0"], "--rounds: got 0, wanted more than 0"),
        (["--device", "auto"], "--device: got 'auto', wanted hip or cuda"),
        (["--llama-cpp", "/nowhere"], "--llama-cpp /nowhere: no bin/llama-bench there"),
    ],
)
def test_what_is_refused(
    tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: list[str], message: str
) -> None:
    build, _ = programs(tmp_path)
    assert tool.main(options(tmp_path, build, *change)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("content", ["{}", "[]", "no JSON", '{"commit": "another"}'])
def test_a_file_of_something_else_is_left_alone(
    tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    build, _ = programs(tmp_path)
    (tmp_path / "table.json").write_text(content)
    assert tool.main(options(tmp_path, build)) == 2
    assert "it holds no results of this program" in capsys.readouterr().err
    assert (tmp_path / "table.json").read_text() == content


def test_results_of_another_commit_are_left_alone(
    tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build, _ = programs(tmp_path)
    only = ("--only", "prefill")
    assert tool.main(options(tmp_path, build, *only, "--commit", "aaa")) == 0
    before = (tmp_path / "table.json").read_bytes()
    assert tool.main(options(tmp_path, build, *only, "--commit", "bbb")) == 2
    assert "commit 'aaa' instead of 'bbb'; name another file" in capsys.readouterr().err
    assert (tmp_path / "table.json").read_bytes() == before


def test_the_cases_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    tool = tool_module("compare_table")
    assert tool.main(["--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(set(listed)) == len(listed) == len(tool.CASES)
    assert "decode 128 of 7B:Q4_K_M at 128, 64 sequences" in listed
    assert "prefill 512 of 8B:Q4_K_M at 32768" in listed
