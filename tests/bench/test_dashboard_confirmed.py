"""What bench confirm measured in turns stands on the history's page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rocmforge.bench.asv_results import read_benchmarks
from rocmforge.bench.dashboard.confirmed_data import confirmed_data
from rocmforge.bench.dashboard.machines import read_machines
from rocmforge.errors import ResultFileError

A, B = "a" * 40, "b" * 40
ROW: dict[str, Any] = {
    "benchmark": "suite.time_it('x', 1)",
    "slowdown": 1.5,
    "low": 1.4,
    "high": 1.6,
    "pairs": [1.4, 1.5, 1.6],
}


def confirmed(folder: Path, **changes: Any) -> list[dict[str, Any]]:
    own = folder / "baselines" / "box"
    own.mkdir(parents=True, exist_ok=True)
    report = {
        "commit": B,
        "date": "2026-11-22T03:46:41+00:00",
        "before": A,
        "after": B,
        "benchmarks": [ROW],
        **changes,
    }
    (own / "compare_commits-x.json").write_text(json.dumps(report), encoding="utf-8")
    machines = read_machines(folder / "none", folder / "baselines", {}, {})
    return confirmed_data(machines, folder / "baselines")


def test_each_benchmark_has_its_commits_and_samples(tmp_path: Path) -> None:
    (row,) = confirmed(tmp_path)
    assert (row["tag"], row["name"], row["label"]) == ("box", "suite.time_it", ROW["benchmark"])
    assert (row["before"], row["after"], row["date"]) == (A, B, "2026-11-22")
    assert (row["slowdown"], row["low"], row["high"]) == (1.5, 1.4, 1.6)
    assert row["pairs"] == [1.4, 1.5, 1.6]


def test_too_few_pairs_have_no_interval(tmp_path: Path) -> None:
    (row,) = confirmed(tmp_path, benchmarks=[{**ROW, "low": None, "high": None}])
    assert (row["low"], row["high"]) == (None, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"before": None},
        {"benchmarks": {}},
        {"benchmarks": ["x"]},
        {"benchmarks": [{**ROW, "pairs": "1.5"}]},
        {"benchmarks": [{**ROW, "slowdown": "fast"}]},
        {"benchmarks": [{**ROW, "pairs": [[]]}]},
    ],
)
def test_a_broken_report_is_named(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ResultFileError, match=r"compare_commits-x\.json"):
        confirmed(tmp_path, **changes)


def test_the_committed_reports_are_all_there(repo: Path) -> None:
    known = read_benchmarks(repo / "results" / "benchmarks.json")
    machines = read_machines(repo / "results", repo / "baselines", {}, known)
    rows = confirmed_data(machines, repo / "baselines")
    reports = sorted((repo / "baselines").glob("*/compare_commits*.json"))
    assert reports
    assert len(rows) == sum(len(json.loads(p.read_bytes())["benchmarks"]) for p in reports)
