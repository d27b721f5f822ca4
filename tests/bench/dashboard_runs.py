"""Machines and runs of a few results, for what the pages load: no file is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rocmforge.bench.dashboard.machines import Machine, Report, Run
from rocmforge.bench.results import Direction, Result, ResultSet, Status
from rocmforge.bench.statistics import summarize
from rocmforge.hardware import Hardware

DAY_MS = 24 * 3600 * 1000
FIRST_DAY = 1_700_000_000_000  # 2023-11-14


def result(
    name: str,
    params: Mapping[str, str] | None = None,
    value: float | None = 1.0,
    unit: str = "ms",
    samples: Sequence[float] = (),
    **more: Any,
) -> Result:
    """One benchmark as a run has it; without a value it was skipped."""
    fields: dict[str, Any] = {
        "name": name,
        "param_names": tuple(params or {}),
        "params": tuple(v if v.isdigit() else repr(v) for v in (params or {}).values()),
        "status": Status.SKIPPED if value is None else Status.OK,
        "value": value,
        "summary": summarize(samples) if samples else None,
        "samples": tuple(samples),
        "unit": unit,
        "direction": Direction.HIGHER if unit.endswith("/s") else Direction.LOWER,
        "version": "1",
        "started_at": FIRST_DAY + 30 * DAY_MS,
    }
    return Result(**{**fields, **more})


def run(commit: str, *results: Result, day: int = 0, machine: str = "box") -> ResultSet:
    """All results of a commit, which is so many days after the first."""
    return ResultSet(
        source=Path(f"{machine}/{commit}.json"),
        machine=machine,
        commit=commit * 8,
        commit_date=FIRST_DAY + day * DAY_MS,
        asv_environment="virtualenv-py3.11",
        hardware=Hardware(cpu_name="AMD EPYC", gpu_name="Card"),
        results=results,
    )


def machine(
    newest: ResultSet | None = None,
    *,
    earlier: Sequence[ResultSet] = (),
    baseline: ResultSet | None = None,
    formats: Report | None = None,
    tag: str = "box",
) -> Machine:
    """A machine that has those runs."""
    runs = sorted([*earlier, *([newest] if newest else [])], key=lambda one: one.commit_date or 0)
    return Machine(
        tag=tag,
        hardware=Hardware(cpu_name="AMD EPYC"),
        runs=tuple(
            Run(
                path=one.source,
                commit=one.commit,
                date=one.commit_date or 0,
                asv_environment=one.asv_environment,
                benchmarks=frozenset(r.name for r in one.results),
            )
            for one in runs
        ),
        newest=newest,
        previous=None,
        earlier=tuple(earlier),
        baseline=baseline,
        since_previous=None,
        since_baseline=None,
        peers=(),
        gpu_speed=None,
        formats=formats,
    )
