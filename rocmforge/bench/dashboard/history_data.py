"""What history.html loads: every measurement of every benchmark, commit by commit.

One file has the commits and the names of the benchmarks; each benchmark has a file with its lines,
and others with their points, so that a page loads the points of what it draws alone.
Change points, their state and noise floors are those of `rocmforge bench history`.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.dashboard.machines import Machine
from rocmforge.bench.dashboard.points import BETTER, rounded
from rocmforge.bench.findings import Finding, judge, noise_floor
from rocmforge.bench.formatting import ends, iso, plain_params
from rocmforge.bench.git import Commit
from rocmforge.bench.history import History, read_history
from rocmforge.bench.noise import known_noise
from rocmforge.bench.results import Result, ResultSet
from rocmforge.errors import MeasurementError

FIRST = "history"
LINES = 64
"""Whose points are in a file: 1.5 MB of 500 commits."""

Findings = Mapping[str, list[dict[str, Any]]]


def history_data(
    machines: Sequence[Machine],
    runs: Mapping[str, Sequence[ResultSet]],
    commits: Mapping[str, Commit],
    baselines: Path,
    thresholds: Mapping[str, float],
) -> Iterator[tuple[str, Any]]:
    """Yield the name and the content of each data file, `FIRST` last.

    Parameters
    ----------
    machines
        All there is to show.
    runs
        The runs of each machine by its tag, oldest commit first.
    commits
        What git knows of commits, by hash.
    baselines
        Where the noise of each kind of machine lies.
    thresholds
        Of asv's configuration.
    """
    measured = sorted(
        {(run.commit_date or 0, run.commit) for found in runs.values() for run in found}
    )
    places = {commit: at for at, (_, commit) in enumerate(measured)}
    lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
    kinds: dict[str, Result] = {}
    for number, machine in enumerate(machines):
        own = runs[machine.tag]
        judged = _judged(machine, own, [commit for _, commit in measured], baselines, thresholds)
        for environment, results in _by_line(own):
            first = results[-1][1]
            kinds[first.name] = first
            named = " ".join([machine.tag, first.label, *([environment] if environment else [])])
            name = hashlib.sha256(named.encode()).hexdigest()[:8]
            findings, floors = judged
            if environment not in (None, own[-1].asv_environment):
                findings, floors = {}, {}  # only the newest run's environment is judged
            line = {"id": name, "machine": number, **_line(results, places, findings, floors)}
            if environment:
                line["params"]["environment"] = environment
            lines[first.name].append(line)
    files = {name: f"{FIRST}/{at}" for at, name in enumerate(sorted(lines))}
    for name, file in files.items():
        described = []
        for at in range(0, len(lines[name]), LINES):
            points = f"{file}-{at // LINES}"
            some = lines[name][at : at + LINES]
            yield points, [one["points"] for one in some]
            for place, one in enumerate(some):
                known = {key: value for key, value in one.items() if key != "points"}
                commits_of = len(one["points"])
                described.append({**known, "count": commits_of, "file": points, "at": place})
        yield file, {"name": name, "lines": described}
    yield (
        FIRST,
        {
            "machines": [machine.tag for machine in machines],
            "commits": [_commit(date, commit, commits.get(commit)) for date, commit in measured],
            "benchmarks": [
                [name, kinds[name].unit or "", BETTER[kinds[name].direction], len(lines[name])]
                for name in files
            ],
        },
    )


def _commit(date: int, commit: str, known: Commit | None) -> list[str | None]:
    """Hash, day, subject, author's date."""
    subject, authored = (known.subject, known.authored[:10]) if known else (None, None)
    return [commit, (iso(date) or "")[:10] or None, subject, authored]


def _by_line(
    runs: Sequence[ResultSet],
) -> Iterator[tuple[str | None, list[tuple[str, Result]]]]:
    """The results of each label that have a value, with their commits, oldest first.

    Those of each environment apart, with its name where a label has several.
    """
    found: dict[str, dict[str, list[tuple[str, Result]]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for result in run.results:
            if result.value is not None:
                found[result.label][run.asv_environment].append((run.commit, result))
    for lines in found.values():
        for environment, results in lines.items():
            yield environment if len(lines) > 1 else None, results


def _line(
    results: Sequence[tuple[str, Result]],
    places: Mapping[str, int],
    findings: Findings,
    floors: Mapping[str, float],
) -> dict[str, Any]:
    last = results[-1][1]
    versions = list(dict.fromkeys(result.version for _, result in results))
    points = []
    for commit, result in results:
        low, high = map(rounded, ends(result.summary))
        cells = (places[commit], rounded(result.value), low, high, versions.index(result.version))
        points.append([*cells, result.marked] if result.marked else [*cells])
    return {
        "params": plain_params(last),
        "floor": rounded(floors.get(last.label)),
        "points": points,
        "findings": findings.get(last.label, []),
    }


def _judged(
    machine: Machine,
    runs: Sequence[ResultSet],
    commits: Sequence[str],
    baselines: Path,
    thresholds: Mapping[str, float],
) -> tuple[Findings, Mapping[str, float]]:
    """The findings of each benchmark, and its noise floor; empty where there is too little."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    floors: dict[str, float] = {}
    if not runs:
        return found, floors
    folder = ResultsDirectory(machine.runs[0].path.parent.parent, machine.tag)
    noise = known_noise(baselines, machine.hardware)
    try:
        history = read_history(folder, commits)
        for one in judge(history, thresholds=thresholds, noise=noise):
            found[one.series.label].append(_finding(one, history))
    except MeasurementError:  # too few commits to judge, or none in one environment
        return found, floors
    for series in history.series:
        known = noise.get(series.label)
        floor = noise_floor(series, known, history.floors.get(series.label, 0.0))
        if math.isfinite(floor):
            floors[series.label] = floor
    return found, floors


def _finding(one: Finding, history: History) -> dict[str, Any]:
    commits = history.commits
    return {
        "kind": one.kind.value,
        "state": one.state.value,
        "good": commits[one.good],
        "bad": commits[one.bad],
        "mended": None if one.mended is None else commits[one.mended],
        "factor": rounded(one.factor) if math.isfinite(one.factor) else None,
        "note": one.note,
    }
