"""tools/compare_commits.py: each benchmark's ratio with its interval, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tool_modules import tool_module

from rocmforge.bench.interleaved import Pair
from rocmforge.bench.results import Direction
from rocmforge.hardware import hardware_tag

SLOWER, FASTER, FAILING, MISSING = "m.slower(1)", "m.faster", "m.failing", "m.missing"
TRUTH = {SLOWER: 1.25, FASTER: 0.8}


class Builds:
    """Builds nothing; the interpreter's name is the commit."""

    def __init__(self, root: Path, work: Path, machine: str) -> None:
        self.root = root

    def prepare(self, commit: str) -> Path:
        return self.root / commit


def pair(
    pythons: tuple[Path, Path], folder: Path, label: str, direction: Direction, leads: bool
) -> Pair:
    assert pythons[0].name != pythons[1].name
    if label in TRUTH:
        return Pair(TRUTH[label] * (1.01 if leads else 0.99), 1.0, TRUTH[label])
    return Pair(None, without=(1, "n/a" if label == MISSING else "ValueError: wrong"))


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, in a repository of two commits."""
    pytest.importorskip("asv")
    module = tool_module("compare_commits")
    root = tmp_path / "root"
    root.mkdir()
    (root / "asv.conf.json").write_text('{"version": 1}', encoding="utf-8")
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (
        ["init", "-q", "-b", "main"],
        ["add", "."],
        [*who, "commit", "-qm", "one"],
        [*who, "commit", "-qm", "two", "--allow-empty"],
    ):
        subprocess.run(["git", "-C", str(root), *words], check=True)
    known = {label: (label, None) for label in (*TRUTH, FAILING, MISSING)}
    monkeypatch.setattr(module, "ROOT", root)
    monkeypatch.setattr(module, "Builds", Builds)
    monkeypatch.setattr(module, "measure_pair", pair)
    monkeypatch.setattr(module, "labels", lambda: known)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    return module


def test_each_ratio_with_its_interval(
    tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    words = ["HEAD~1", "--bench", "er", "--bench", "missing", "--json", str(report)]
    assert tool.main(words) == 0
    said = capsys.readouterr().out
    assert re.search(r"m.slower\(1\): 1.250 times slower \(1.23\d … 1.26\d\)", said)
    assert re.search(r"m.faster: 1.250 times faster \(1.23\d … 1.26\d\)", said)
    assert re.search(r"m.missing: no value at \w{8}: n/a", said)
    assert "median of 2: 1.025 times slower" in said
    stored = json.loads(report.read_text(encoding="utf-8"))
    assert stored["hardware_tag"] == hardware_tag()
    assert len(stored["before"]) == len(stored["after"]) == 40
    first = stored["benchmarks"][0]
    assert (first["benchmark"], len(first["pairs"])) == (SLOWER, tool.PAIRS)
    assert first["low"] < first["slowdown"] < first["high"]


def test_few_pairs_have_no_interval(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["HEAD~1", "--bench", "slower", "--pairs", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "m.slower(1): 1.250 times slower"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["HEAD~1", "--bench", "failing|faster"], 1, "m.failing: no value at"),
        (["HEAD~1", "--bench", "failing"], 3, "no benchmark gave a value"),
        (["HEAD~1", "--bench", "nothing"], 3, "no benchmark is named so"),
        (["HEAD~7", "--bench", "faster"], 2, "commit: got HEAD~7, wanted one that git knows"),
    ],
)
def test_what_cannot_be_measured_is_said(
    tool: Any, words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main(words) == code
    printed = capsys.readouterr()
    assert said in printed.out + printed.err


def test_no_pairs_is_a_usage_error(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        tool.main(["HEAD~1", "--pairs", "0"])
    assert stopped.value.code == 2
    assert "--pairs: got 0, wanted 1 or more" in capsys.readouterr().err
