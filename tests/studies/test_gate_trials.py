"""studies/gate_trials.py: what is planted is slower, calls are counted, finished trials stay."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tool_modules import tool_module

from rocmforge.bench.interleaved import Pair
from rocmforge.bench.results import Direction, Result, ResultSet, Status
from rocmforge.bench.statistics import summarize
from rocmforge.hardware import detect, hardware_tag

SLOWED = "matmul.Dense.time_matmul"
planting = tool_module("planting", "studies")
SPARED = "memory.Append.time_append"


class Builds:
    """Measures made-up benchmarks of real commits: slower by what is planted in their files."""

    runs = 0

    def __init__(self, root: Path, work: Path, machine: str) -> None:
        self.root, self.random = root, np.random.default_rng(7)

    def prepare(self, commit: str) -> Path:
        """Nothing to build: the interpreter's name says which commit it would have."""
        return self.root / commit

    def run(self, commit: str, *more: str) -> ResultSet:
        Builds.runs += 1
        results = []
        for name in (SLOWED, SPARED):
            factor = planted_factor(self.root, commit) if name == SLOWED else 1.0
            noise = np.exp(0.01 * self.random.standard_normal(9))
            samples = [1e-3 * factor * x for x in noise.tolist()]
            summary = summarize(samples)
            given: dict[str, Any] = {"name": name, "param_names": (), "params": (), "unit": "s"}
            given |= {"status": Status.OK, "value": summary.p50, "summary": summary}
            given |= {"samples": tuple(samples), "direction": Direction.LOWER, "version": "v"}
            results.append(Result(**given, started_at=None))
        return ResultSet(self.root, "box", commit, None, "env", detect(), tuple(results))


def planted_factor(root: Path, commit: str) -> float:
    """What is planted in a file of the commit."""
    file = f"{commit}:rocmforge/ops/api.py"
    said = subprocess.run(
        ["git", "-C", str(root), "show", file], capture_output=True, text=True, check=True
    ).stdout
    planted = re.search(r"begin \+ ([\d.]+) \*", said)
    return float(planted[1]) if planted else 1.0


def measure_pair(
    pythons: tuple[Path, Path], benchmarks: tuple[Path, Path], label: str, *more: object
) -> Pair:
    """Two processes without noise."""
    assert [folder.name for folder in benchmarks] == ["benchmarks"] * 2
    before, after = (planted_factor(path.parent, path.name) for path in pythons)
    return Pair(after / before if label == SLOWED else 1.0, before, after)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, in a repository of its own."""
    pytest.importorskip("asv")
    module = tool_module("gate_trials", "studies")
    root = tmp_path / "root"
    for name in planting.HOST_PLACES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("matmul = None\n", encoding="utf-8")
    for name in (planting.POOL, planting.LAUNCHES, planting.KERNELS, "kernels/device.h"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(module.ROOT / name, root / name)
    (root / "asv.conf.json").write_text('{"version": 1}', encoding="utf-8")
    for words in (
        ["init", "-q", "-b", "main"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"],
    ):
        subprocess.run(["git", "-C", str(root), *words], check=True)
    monkeypatch.setattr(module, "ROOT", root)
    monkeypatch.setattr(module, "Builds", Builds)
    monkeypatch.setattr(module, "measure_pair", measure_pair)
    chosen = [".*"], {"demo-Q8_0": ("demo-Q8_0", None)}
    monkeypatch.setattr(module.project, "choose", lambda root, bench, profile: chosen)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    Builds.runs = 0
    return module


def test_a_planted_slowdown_is_counted_where_it_lies(
    tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--planted", "25", "--planted", "3", "--bench", ".*", "--work", str(tmp_path / "w")]
    report = tmp_path / "report.json"
    assert tool.main([*words, "--json", str(report)]) == 0, capsys.readouterr().err
    said = json.loads(report.read_text(encoding="utf-8"))
    assert said["hardware_tag"] == hardware_tag()
    small, large = said["trials"]
    assert (large["planted_percent"], large["verdicts"], large["suspects"]) == (25, 1, 1)
    found = {"regressions": 1, "comparisons_with_any": 1}
    assert large["rules"][tool.CONFIRMED] == found
    assert large["rules"]["medians differ by 10 %"] == found
    assert (small["planted_percent"], small["verdicts"]) == (3, 1)
    assert small["rules"][tool.CONFIRMED]["regressions"] == 0
    assert "1 of 1 (100.0 %)" in capsys.readouterr().out
    (kept,) = (tmp_path / "w").glob("*/planted-25-00.trial.json")
    stored = json.loads(kept.read_text(encoding="utf-8"))
    assert stored["benchmarks"] == [SLOWED]
    assert stored["ratios"][SLOWED] == pytest.approx(1.25, rel=0.03)
    (tree,) = (tmp_path / "w").glob("*/repository")
    words = ["git", "-C", str(tree), "show", f"planted-25:{planting.POOL}"]
    pool = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "kSpin = std::chrono::microseconds(20 * 200)" in pool


def test_later_runs_are_judged_by_one_that_was_stored(
    tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--stored", "--runs", "2", "--bench", ".*", "--work", str(tmp_path / "w")]
    report = tmp_path / "report.json"
    assert tool.main(words) == 0, capsys.readouterr().err
    assert tool.main([*words, "--planted", "25", "--json", str(report)]) == 0
    assert Builds.runs == 1 + 2 + 2
    same, slower = json.loads(report.read_text(encoding="utf-8"))["trials"]
    assert same["stored_baseline"]
    assert slower["stored_baseline"]
    assert (same["planted_percent"], same["comparisons"], same["verdicts"]) == (0, 2, 4)
    assert same["rules"][tool.CONFIRMED] == {"regressions": 0, "comparisons_with_any": 0}
    assert (same["unsure"], same["improved"]) == (0, 0)
    assert (slower["planted_percent"], slower["verdicts"]) == (25, 2)
    assert slower["rules"][tool.CONFIRMED] == {"regressions": 2, "comparisons_with_any": 2}
    assert "25 %, stored" in capsys.readouterr().out
    (folder,) = (tmp_path / "w").glob("*/stored-before.json")
    before = json.loads(folder.read_text(encoding="utf-8"))["metadata"]["commit"]
    (tree,) = (tmp_path / "w").glob("*/repository")
    for branch in ("planted-0", "equal", "planted-25"):
        words = ["git", "-C", str(tree), "rev-parse", branch]
        found = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
        assert (found == before) == (branch == "planted-0")


def test_same_commits_are_compared_both_ways_and_runs_are_kept(
    tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--runs", "3", "--bench", ".*", "--work", str(tmp_path / "w")]
    report = tmp_path / "report.json"
    for _ in range(2):
        assert tool.main([*words, "--json", str(report)]) == 0, capsys.readouterr().err
        said = json.loads(report.read_text(encoding="utf-8"))
        (same,) = said["trials"]
        assert said["commit"] == tool.project.head(tool.ROOT)[0]
        assert (same["comparisons"], same["verdicts"], same["planted_percent"]) == (4, 8, 0)
        assert same["rules"][tool.CONFIRMED] == {"regressions": 0, "comparisons_with_any": 0}
    assert Builds.runs == 3
    assert tool.main([str(tmp_path / "w")]) == 0
    assert "0 of 8 (0.0 %)" in capsys.readouterr().out
    assert tool.main([str(tmp_path / "nothing")]) == 3
    assert "no finished trial" in capsys.readouterr().err
    names = sorted(path.name for path in (tmp_path / "w").glob("*/*.trial.json"))
    assert names == [f"same-{pair}.trial.json" for pair in ("00-01", "01-00", "01-02", "02-01")]


def test_benchmarks_for_a_gpu_are_there(tool: Any, repo: Path) -> None:
    from asv_runner.discovery import disc_benchmarks

    names = {
        f"{one.name}({', '.join(params)})"
        for one in disc_benchmarks(str(repo / "benchmarks"))
        for params in itertools.product(*one.params)
    }
    for pattern in tool.GPU:
        (found,) = [name for name in names if re.search(pattern, name)]
        assert tool.SLOWED.match(found)


@pytest.mark.parametrize(
    ("label", "slowed"),
    [
        ("roofline.Matmul.track_inverse_roofline_fraction('Q4_K', 1, 'cpu')", True),
        ("roofline.Matmul.track_inverse_roofline_fraction('Q4_K', 1, 'gpu')", False),
        ("fusion.GateUpSwiglu.time_matmul('Q4_K', 1, 'fused', 'cpu')", False),
        ("fusion.GateUpSwiglu.time_matmul('Q4_K', 1, 'fused', 'gpu')", True),
        ("fusion.DecodeStep.track_launches('1.1B-Q4_K_M', 'none', 'gpu')", False),
        ("fusion.DecodeStep.track_activation_bytes('1.1B-Q4_K_M', 'none', 'cpu')", False),
        ("memory.Append.time_append_256(1, 32, 'cpu')", False),
    ],
)
def test_what_a_plant_slows(label: str, slowed: bool) -> None:
    assert bool(planting.SLOWED.match(label)) == slowed


def test_the_plant_makes_a_call_longer_by_its_share() -> None:
    taken = []

    def call(seconds: float) -> str:
        begin = time.perf_counter()
        time.sleep(seconds)
        taken.append(time.perf_counter() - begin)
        return "value"

    namespace: dict[str, Any] = {}
    exec(planting.HOST_PLANT.format(factor=1.5), namespace)
    begin = time.perf_counter()
    assert namespace["_slowed"](call)(0.05) == "value"
    assert time.perf_counter() - begin >= 1.5 * taken[0]


def test_places_to_plant_are_in_this_package() -> None:
    from rocmforge.cpu import executor as host
    from rocmforge.ops import api

    for module, ending in zip((api, host), planting.HOST_PLACES.values(), strict=True):
        namespace = dict(vars(module))
        exec(planting.HOST_PLANT.format(factor=1.1) + ending, namespace)
    assert host.HostExecutor.forward.__name__ == "slow"
    host.HostExecutor.forward = host.HostExecutor.forward.__closure__[0].cell_contents
    assert host.HostExecutor.forward.__name__ == "forward"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--runs", "1"], "got 1, wanted 2 or more"),
        (["--planted", "0"], "wanted percent above 0"),
        (["--planted", "nan"], "wanted percent above 0"),
    ],
)
def test_wrong_arguments_are_named(
    tool: Any, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        tool.main(words)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
