"""`rocmforge bench confirm --bench`: each ratio with its interval, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from rocmforge.bench import remeasure
from rocmforge.bench.cli import main
from rocmforge.bench.commands.confirm import PAIRS
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

    def benchmarks(self, commit: str) -> Path:
        return self.root / "benchmarks"


def pair(
    pythons: tuple[Path, Path],
    folders: tuple[Path, Path],
    label: str,
    direction: Direction,
    leads: bool,
) -> Pair:
    assert pythons[0].name != pythons[1].name
    if label in TRUTH:
        return Pair(TRUTH[label] * (1.01 if leads else 0.99), 1.0, TRUTH[label])
    return Pair(None, without=(1, "n/a" if label == MISSING else "ValueError: wrong"))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of two commits, in which nothing is built and ratios are known."""
    pytest.importorskip("asv")
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
    (root / "benchmarks").mkdir()
    known = {label: (label, None) for label in (*TRUTH, FAILING, MISSING)}
    prepare = SimpleNamespace(select=lambda chosen, profile: chosen)
    monkeypatch.setattr(remeasure.project, "labels", lambda root: known)
    monkeypatch.setattr(remeasure.project, "preparation", lambda root: prepare)
    monkeypatch.setattr(remeasure, "Builds", Builds)
    monkeypatch.setattr(remeasure, "measure_pair", pair)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.chdir(root)
    return root


def test_each_ratio_with_its_interval(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    words = ["HEAD~1", "--bench", "er", "--bench", "missing", "--json", str(report)]
    assert main(["confirm", *words]) == 0
    said = capsys.readouterr().out
    assert re.search(r"m.slower\(1\): 1.250 times slower \(1.23\d … 1.26\d\)", said)
    assert re.search(r"m.faster: 1.250 times faster \(1.23\d … 1.26\d\)", said)
    assert re.search(r"m.missing: no value at \w{8}: n/a", said)
    assert "median of 2: 1.025 times slower" in said
    stored = json.loads(report.read_text(encoding="utf-8"))
    assert stored["hardware_tag"] == hardware_tag()
    assert len(stored["before"]) == len(stored["after"]) == 40
    first = stored["benchmarks"][0]
    assert (first["benchmark"], len(first["pairs"])) == (SLOWER, PAIRS)
    assert first["low"] < first["slowdown"] < first["high"]
    (saved,) = re.findall(r"^saved (\S+)\.json and \.md$", said, re.M)
    assert json.loads((root / f"{saved}.json").read_text(encoding="utf-8")) == stored
    markdown = (root / f"{saved}.md").read_text(encoding="utf-8")
    assert "- `m.slower(1): 1.250 times slower (1.23" in markdown


def test_few_pairs_have_no_interval(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["confirm", "HEAD~1", "--bench", "slower", "--pairs", "2"]) == 0
    assert "m.slower(1): 1.250 times slower" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["HEAD~1", "--bench", "failing|faster"], 1, "m.failing: no value at"),
        (["HEAD~1", "--bench", "failing"], 3, "no benchmark gave a value"),
        (["HEAD~1", "--bench", "nothing"], 2, "got nothing, found in no name of a benchmark"),
        (["HEAD~7", "--bench", "faster"], 2, "commit: got 'HEAD~7', wanted one that git knows"),
    ],
)
def test_what_cannot_be_measured_is_said(
    root: Path, words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["confirm", *words]) == code
    printed = capsys.readouterr()
    assert said in printed.out + printed.err


def test_no_pairs_is_a_usage_error(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["confirm", "HEAD~1", "--pairs", "0"])
    assert stopped.value.code == 2
    assert "--pairs: got '0', wanted 1 or more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--bench", "x", "--format", "json"], "--bench measures anew, and takes no --format"),
        (["--bench", "x", "--max-load", "50", "--all"], "takes no --max-load, --all"),
        (["--pairs", "9"], "--pairs goes with --bench"),
    ],
)
def test_an_option_of_the_other_way_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["confirm", "HEAD~1", *words])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
