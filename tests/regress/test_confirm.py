"""Suspects measured again: what is settled and how, on a machine that drifts, and with asv."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from asv_tree import Tools
from test_with_asv import CONFIG, Project

from rocmforge.regress.compare import Row
from rocmforge.regress.confirm import (
    FEWEST_BLOCKS,
    MOST_BLOCKS,
    TOGETHER,
    confirm,
    suspects,
)
from rocmforge.regress.decision import Verdict
from rocmforge.regress.records import Direction

BEFORE, AFTER = "a" * 40, "b" * 40


def row(
    name: str = "m.x",
    before: float | None = 10.0,
    after: float | None = 12.0,
    verdict: Verdict = Verdict.REGRESSION,
    direction: Direction = Direction.LOWER,
) -> Row:
    return Row(name, {}, before, after, None, None, None, "ms", direction, verdict)


class Machine:
    """Measures made-up benchmarks: a true value of each commit, noise of a process, a drift."""

    def __init__(
        self,
        truth: Callable[[str, str], float],
        noise: float = 0.02,
        drift: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.truth, self.noise, self.drift = truth, noise, drift
        self.random = np.random.default_rng(seed)
        self.calls: list[tuple[str, list[str]]] = []

    def __call__(self, commit: str, labels: Sequence[str]) -> Mapping[str, Sequence[float]]:
        self.calls.append((commit, list(labels)))
        slower = math.exp(self.drift * len(self.calls))
        found = {}
        for label in labels:
            value = self.truth(label, commit)
            if not math.isnan(value):
                middle = value * slower * math.exp(self.noise * self.random.standard_normal())
                found[label] = [middle * (1 + i / 1000) for i in range(-3, 4)]
        return found


def settle(machine: Machine, *rows: Row) -> list[Row]:
    settled: dict[str, Row] = {}
    confirm(rows, (BEFORE, AFTER), machine, settled)
    return [settled[row.label] for row in rows]


def test_what_is_slower_is_confirmed_in_turns() -> None:
    machine = Machine(lambda label, commit: 10.0 if commit == BEFORE else 11.8)
    (found,) = settle(machine, row())
    assert found.verdict is Verdict.REGRESSION
    assert found.note == "confirmed by 8 processes of either commit in turns"
    assert found.ratio == pytest.approx(1.18, rel=0.03)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1.18 < found.high
    assert [commit for commit, _ in machine.calls[:4]] == [BEFORE, AFTER, AFTER, BEFORE]


def test_where_higher_is_better_too() -> None:
    machine = Machine(lambda label, commit: 100.0 if commit == BEFORE else 80.0)
    (found,) = settle(machine, row(before=100.0, after=80.0, direction=Direction.HIGHER))
    assert found.verdict is Verdict.REGRESSION
    assert found.ratio == pytest.approx(0.8, rel=0.03)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.8 < found.high


def test_what_is_the_same_is_not_confirmed_though_the_machine_drifts() -> None:
    machine = Machine(lambda label, commit: 10.0, drift=0.03)  # 43 % over three blocks
    (found,) = settle(machine, row())
    assert found.verdict is Verdict.OK
    assert "not confirmed" in found.note


def test_only_what_is_open_is_measured_again() -> None:
    def truth(label: str, commit: str) -> float:
        return 10.0 * {"clear": 1.5, "close": 1.10}[label] if commit == AFTER else 10.0

    machine = Machine(truth, noise=0.05, seed=3)
    clear, close = settle(machine, row("clear"), row("close"))
    assert clear.verdict is Verdict.REGRESSION
    assert f"by {2 * MOST_BLOCKS} processes of either commit in turns" in close.note
    assert machine.calls[0][1] == ["clear", "close"]
    assert machine.calls[-1][1] == ["close"]
    assert len(machine.calls) > 4 * FEWEST_BLOCKS


@pytest.mark.parametrize("slowdown", [1.0, 1.18])
def test_it_ends_after_some_blocks_and_says_what_would_settle_it(slowdown: float) -> None:
    unsettled = 0
    for seed in range(10):
        machine = Machine(lambda _, c: 10.0 * (slowdown if c == AFTER else 1.0), 0.6, seed=seed)
        (found,) = settle(machine, row())
        if found.verdict is Verdict.CANNOT_TELL:
            unsettled += 1
            assert len(machine.calls) == 4 * MOST_BLOCKS
            assert f"not settled by {2 * MOST_BLOCKS} processes" in found.note
    assert unsettled >= 7


def test_a_wide_interval_is_no_pass() -> None:
    """Of changes of 18 % under noise that hides them, hardly any may be called ok."""
    called = [
        settle(Machine(lambda _, c: 11.8 if c == AFTER else 10.0, 0.3, seed=seed), row())[0]
        for seed in range(40)
    ]
    assert sum(found.verdict is Verdict.OK for found in called) <= 2


def test_few_at_a_time_so_that_twins_are_close() -> None:
    machine = Machine(lambda label, commit: 10.0)
    names = [f"m{number}" for number in range(TOGETHER + 2)]
    settle(machine, *(row(name) for name in names))
    first, second = names[:TOGETHER], names[TOGETHER:]
    assert [labels for _, labels in machine.calls[:8]] == [first] * 4 + [second] * 4
    assert [commit for commit, _ in machine.calls[4:8]] == [BEFORE, AFTER, AFTER, BEFORE]


@pytest.mark.parametrize("direction", list(Direction))
def test_bursts_of_other_work_do_not_hide_a_slowdown(direction: Direction) -> None:
    """Three of ten processes are disturbed for 60 % of their samples, by half."""
    random = np.random.default_rng(5)
    slower = 1.15 if direction is Direction.LOWER else 1 / 1.15
    worse = 1.5 if direction is Direction.LOWER else 1 / 1.5

    def measure(commit: str, labels: Sequence[str]) -> Mapping[str, Sequence[float]]:
        value = slower if commit == AFTER else 1.0
        disturbed = 6 if random.random() < 0.3 else 0
        return {
            label: [value * (worse if i < disturbed else 1.0) * (1 + i / 500) for i in range(10)]
            for label in labels
        }

    before, after = (1.0, slower)
    settled: dict[str, Row] = {}
    one = row(before=before, after=after, direction=direction)
    confirm([one], (BEFORE, AFTER), measure, settled)
    assert settled[one.label].verdict is Verdict.REGRESSION
    assert settled[one.label].note == "confirmed by 8 processes of either commit in turns"


def test_what_fails_when_run_again_has_failed() -> None:
    machine = Machine(lambda label, commit: 10.0 if commit == BEFORE else math.nan)
    (found,) = settle(machine, row())
    assert found.verdict is Verdict.FAILED
    assert found.gates
    assert found.note == "gives no value when measured again at bbbbbbbb"


def test_what_the_earlier_commit_cannot_run_cannot_be_told() -> None:
    machine = Machine(lambda label, commit: 10.0 if commit == AFTER else math.nan)
    (found,) = settle(machine, row())
    assert found.verdict is Verdict.CANNOT_TELL
    assert not found.gates
    assert found.note == "gives no value when measured again at aaaaaaaa"


def test_what_was_settled_stays_where_measuring_is_cut_short() -> None:
    def truth(label: str, commit: str) -> float:
        return 10.0 * {"clear": 1.5, "close": 1.10}[label] if commit == AFTER else 10.0

    machine = Machine(truth, noise=0.05, seed=3)
    settled: dict[str, Row] = {}

    def measure(commit: str, labels: Sequence[str]) -> Mapping[str, Sequence[float]]:
        if len(machine.calls) >= 4 * FEWEST_BLOCKS and "clear" not in labels:
            raise KeyboardInterrupt
        return machine(commit, labels)

    with pytest.raises(KeyboardInterrupt):
        confirm([row("clear"), row("close")], (BEFORE, AFTER), measure, settled)
    assert settled["clear"].verdict is Verdict.REGRESSION
    assert "close" not in settled


def test_the_test_errs_as_rarely_as_it_says() -> None:
    """With next to no threshold the test alone decides: of 100 nothings it may call one."""
    wrong = 0
    for seed in range(150):
        machine = Machine(lambda label, commit: 10.0, noise=0.15, drift=0.02, seed=seed)
        rows = [replace(row(f"m.{i}"), threshold=1e-9) for i in range(3)]
        wrong += any(r.verdict is Verdict.REGRESSION for r in settle(machine, *rows))
    assert wrong <= 5


@pytest.mark.parametrize(
    ("slowdown", "least", "most"), [(1.08, 0.0, 0.1), (1.12, 0.8, 1.0), (1.25, 1.0, 1.0)]
)
def test_what_is_near_the_threshold_is_told_apart(
    slowdown: float, least: float, most: float
) -> None:
    called = 0
    for seed in range(40):
        machine = Machine(lambda _, c: 10.0 * (slowdown if c == AFTER else 1), 0.025, seed=seed)
        called += settle(machine, row())[0].verdict is Verdict.REGRESSION
    assert least <= called / 40 <= most


def test_suspects_are_what_may_be_slower() -> None:
    rows = [
        row("slow"),
        row("unsure", verdict=Verdict.CANNOT_TELL),
        row("fast", before=12.0, after=10.0, verdict=Verdict.CANNOT_TELL),
        row("fewer tokens", before=12.0, after=10.0, direction=Direction.HIGHER),
        row("half the threshold", after=10.51, verdict=Verdict.OK),
        row("less", after=10.49, verdict=Verdict.OK),
        row("other code", verdict=Verdict.NOT_COMPARABLE),
        replace(row("hidden by a burst", after=9.0, verdict=Verdict.OK), quiet_slowdown=1.12),
        row("new", before=None, verdict=Verdict.NEW),
        row("from nothing", before=0.0),
    ]
    assert [r.name for r in suspects(rows)] == [
        "slow",
        "unsure",
        "fewer tokens",
        "half the threshold",
        "hidden by a burst",
    ]
    assert settle(Machine(lambda label, commit: 1.0)) == []


BACKEND = '''\
"""Builds the wheel of `tiny`: two files."""
import zipfile


def build_wheel(folder, settings=None, metadata=None):
    name = "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.write("tiny/__init__.py")
        info = "tiny-1.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1\\n")
        tags = "Root-Is-Purelib: true\\nTag: py3-none-any\\n"
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\n" + tags)
        wheel.writestr(f"{info}/RECORD", "")
    return name
'''
PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "tiny"
version = "1"
"""
SUITE = """\
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # behind a package that is installed
from tiny import STEPS


def track_us(op):
    bad_luck = 1.3 if op == "rope" and (HERE / "bad_luck").exists() else 1.0
    return {"samples": [bad_luck * STEPS[op] * (1 + i / 1000) for i in range(9)], "number": 1}


track_us.params = [["rope", "matmul"]]
track_us.param_names = ["op"]
track_us.unit = "us"
"""


def test_with_asv_and_builds_of_both_commits(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path)
    for folder in ("tiny", "benchmarks"):
        (tmp_path / folder).mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    (tmp_path / "benchmarks" / "suite.py").write_text(SUITE)
    (tmp_path / "asv.conf.json").write_text(CONFIG)
    (tmp_path / "backend.py").write_text(BACKEND)
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    project.call("git", "init", "-q", "-b", "main", ".")
    project.call("git", "add", "backend.py", "pyproject.toml")
    for key in ("HOME", "GIT_CONFIG_GLOBAL"):
        monkeypatch.setenv(key, project.environment[key])
    tools = Tools(repo, tmp_path, timeout=300)
    machine = tools("register_machine.py").stdout.strip()
    project.measure(project.commit(1000), machine, codes=(0,))
    (tmp_path / "benchmarks" / "bad_luck").touch()
    project.measure(project.commit(1300), machine, codes=(0,))
    (tmp_path / "benchmarks" / "bad_luck").unlink()

    before = tools("check_regressions.py", "HEAD~1", "HEAD", "--machine", machine)
    assert before.returncode == 1, before.stderr
    assert "2 regression" in before.stdout
    done = tools("check_regressions.py", "HEAD~1", "HEAD", "--confirm", "--format", "json")
    assert done.returncode == 1, done.stderr
    for said in ("2 suspects", "building", "block 5: 0 open"):
        assert said in done.stderr
    assert '"regression": 1' in done.stdout
    assert "not confirmed by 6 processes" in done.stdout
    assert "confirmed by 10 processes" in done.stdout
