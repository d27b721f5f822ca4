"""studies/false_alarms.py: what each rule calls in runs of one commit, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tool_modules import tool_module

from rocmforge.bench.baseline import save_baseline
from rocmforge.bench.results import Direction, Result, ResultSet, Status
from rocmforge.bench.statistics import summarize
from rocmforge.hardware import detect, hardware_tag

COMMIT = "c" * 40


def save(path: Path, values: dict[str, float], commit: str = COMMIT) -> None:
    """Write a run: each benchmark with 13 samples close to its value, or one of its bytes."""
    results = []
    for name, value in values.items():
        bytes_ = name.endswith("bytes")
        samples = [value] if bytes_ else [value * (1 + i / 1000) for i in range(-6, 7)]
        summary = summarize(samples)
        results.append(
            Result(
                name=name,
                param_names=(),
                params=(),
                status=Status.OK,
                value=summary.p50,
                summary=summary,
                samples=tuple(samples),
                unit="bytes" if bytes_ else "ms",
                direction=Direction.LOWER,
                version="v",
                started_at=None,
            )
        )
    save_baseline(path, ResultSet(path, "box", commit, None, "env", detect(), tuple(results)))


@pytest.fixture
def tool() -> Any:
    """The script as a module."""
    pytest.importorskip("asv")
    return tool_module("false_alarms", "studies")


def test_noise_of_other_runs_keeps_a_loud_benchmark_quiet(
    tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loud = [10.0, 12.0, 10.0, 12.0, 10.0, 12.0]
    for number, value in enumerate(loud):
        save(tmp_path / f"{number}.json", {"m.loud": value, "m.quiet": 5.0, "m.bytes": 100.0})
    report = tmp_path / "out" / "report.json"
    assert tool.main([str(tmp_path), "--json", str(report)]) == 0
    found = json.loads(report.read_text(encoding="utf-8"))
    assert (found["runs"], found["comparisons"], found["verdicts"]) == (6, 30, 90)
    assert (found["commit"], found["hardware_tag"]) == (COMMIT, hardware_tag())
    worse = {"regressions": 9, "comparisons_with_any": 9}  # of each of 3 quick runs, 3 slow ones
    assert found["rules"]["medians differ by 10 %"] == worse
    assert found["rules"]["asv compare"] == worse
    assert found["rules"]["rank test, no noise known"] == worse
    none = {"regressions": 0, "comparisons_with_any": 0}
    assert found["rules"]["check_regressions.py"] == none
    shown = capsys.readouterr().out
    assert "9 (10.00 %)" in shown
    assert "9 (30.0 %)" in shown


def test_what_does_not_belong_together_is_refused(
    tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        save(tmp_path / f"{number}.json", {"m": 1.0})
    assert tool.main([str(tmp_path)]) == 3
    assert "got 3 runs, wanted at least 4" in capsys.readouterr().err
    save(tmp_path / "3.json", {"m": 1.0}, "d" * 40)
    assert tool.main([str(tmp_path)]) == 2
    assert "dddddddd" in capsys.readouterr().err
    (tmp_path / "3.json").write_text("{", encoding="utf-8")
    assert tool.main([str(tmp_path)]) == 2
    assert "3.json" in capsys.readouterr().err
