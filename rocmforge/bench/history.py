"""The series of every benchmark over a branch: asv's results in the order of git's first parents.

A failed, skipped or marked measurement is a gap, and so is a commit without a result. A new series
begins where the code of a benchmark changed (asv's hash of it).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rocmforge.bench.asv_results import MEASURE, ResultsDirectory, read_result_file
from rocmforge.bench.compare import differences
from rocmforge.bench.git import run_git
from rocmforge.bench.machine_speed import of_gpu
from rocmforge.bench.noise import process_floors
from rocmforge.bench.results import Direction, Result, ResultSet
from rocmforge.bench.run_environment import is_timed, with_stored_environments
from rocmforge.errors import MeasurementError

_SHARE = re.compile(r"(\d+) %")


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement.

    Parameters
    ----------
    position
        Of the commit, in `History.commits`.
    value
        Median of the samples, in the unit of the series.
    low, high
        Its 99 % interval; infinite where there are too few samples.
    reference
        Rates of the reference kernels measured beside it; None: not recorded.
    started_at
        Milliseconds since 1970, or None.
    """

    position: int
    value: float
    low: float
    high: float
    reference: Mapping[str, float] | None = None
    started_at: int | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """What one benchmark with one set of parameters measured, as long as its code was the same.

    Parameters
    ----------
    label, name
        With and without parameters, as asv prints them.
    unit, direction
        Of the values.
    version
        asv's hash of the benchmark's code; None: unknown.
    exact
        The values are counted, not timed.
    on_gpu
        It is the work of a GPU.
    points
        In the order of the branch.
    current
        No other version of this benchmark was measured later.
    """

    label: str
    name: str
    unit: str
    direction: Direction
    version: str | None
    exact: bool
    on_gpu: bool
    points: tuple[Point, ...]
    current: bool = True

    def worse(self) -> list[float]:
        """Values in which more is worse: themselves, or 1 / x where higher is better."""
        higher = self.direction is Direction.HIGHER
        return [1 / point.value if higher else point.value for point in self.points]


@dataclass(frozen=True, slots=True)
class History:
    """All series of one machine over one branch.

    Parameters
    ----------
    machine, environment
        asv's names.
    commits
        Full hashes, the oldest first, whether measured or not.
    measured
        Positions of the commits that have a result.
    series
        By label, each version by its last commit.
    latest
        The result set of the newest measured commit.
    floors
        Noise floors by label, as of `rocmforge.bench.noise.process_floors`.
    notes
        What was left out.
    """

    machine: str
    asv_environment: str
    commits: tuple[str, ...]
    measured: tuple[int, ...]
    series: tuple[Series, ...]
    latest: ResultSet
    floors: Mapping[str, float]
    notes: tuple[str, ...]


def first_parents(branch: str, since: str | None, repository: Path | None = None) -> list[str]:
    """Return the commits of a branch, the oldest first, by first parents.

    Parameters
    ----------
    branch
        As git names it.
    since
        The oldest one wanted; default: the first of all.
    repository
        Where git looks; default: the current directory.

    Raises
    ------
    ValueError
        git does not know them, or the branch does not contain `since`.
    """
    for what, name in (("branch", branch), ("since", since)):
        if name is not None and name.startswith("-"):
            raise ValueError(f"{what}: got {name!r}, wanted a name that git knows")
    commits = _git(["rev-list", "--first-parent", "--reverse", branch, "--"], branch, repository)
    if since is None:
        return commits
    oldest = _git(["rev-parse", "--verify", f"{since}^{{commit}}"], since, repository)[0]
    if oldest not in commits:
        raise ValueError(f"since: got {since}, wanted a commit of {branch} (by first parents)")
    return commits[commits.index(oldest) :]


def read_history(
    results: ResultsDirectory,
    commits: Sequence[str],
    asv_environment: str | None = None,
    select: Callable[[str], object] | None = None,
) -> History:
    """Collect the series of all benchmarks.

    Parameters
    ----------
    results
        asv's, of one machine.
    commits
        Full hashes of a branch, the oldest first.
    environment
        asv's name of the environment; default: the one in which the newest commit was measured.
    select
        Whether a benchmark counts, by its ``name(parameters)``; default: all do.

    Raises
    ------
    MeasurementError
        None of the commits was measured.
    ResultFileError
        A result file of one of them is broken.
    ValueError
        An unknown environment.
    """
    positions = {commit: position for position, commit in enumerate(commits)}
    short = {commit[:8] for commit in commits}
    files = [path for path in results.files() if path.name[:8] in short]
    sets = [read_result_file(path, results.benchmarks) for path in files]
    found = [one for one in sets if one.commit in positions]
    if not found:
        raise MeasurementError(
            f"{results.path}: nothing measured here yet, no commit of this branch on "
            f"{results.machine}: {MEASURE}"
        )
    found.sort(key=lambda one: positions[one.commit])
    chosen = _of_environment(found, asv_environment)
    latest = chosen[-1]
    same = [one for one in chosen if not differences(one.hardware, latest.hardware)]
    notes = []
    if left_out := len(found) - len(chosen):
        notes.append(
            f"{left_out} results left out: this is asv's environment {latest.asv_environment}, in "
            "which the newest was measured (--environment chooses)"
        )
    if elsewhere := len(results.files()) - len(files):
        notes.append(f"{elsewhere} result files are of commits outside this range")
    if other := len(chosen) - len(same):
        notes.append(f"{other} commits left out: measured on other hardware than the newest one")
    rows: dict[tuple[str, str, Direction, str | None], list[tuple[int, Result]]] = defaultdict(list)
    gaps: list[str] = []
    joined = [with_stored_environments(one) for one in same]
    for one in joined:
        for result in one.results:
            if result.value is None or (select and not select(result.label)):
                continue
            if result.unit is None or result.direction is None:
                gaps.append("not in benchmarks.json, unit and direction unknown")
            elif reason := _unusable(result, result.value):
                gaps.append(reason)
            else:
                key = result.label, result.unit, result.direction, result.version
                rows[key].append((positions[one.commit], result))
    notes += _gap_notes(gaps)
    return History(
        machine=latest.machine,
        asv_environment=latest.asv_environment,
        commits=tuple(commits),
        measured=tuple(positions[one.commit] for one in same),
        series=_with_current([_series(measured) for measured in rows.values()]),
        latest=latest,
        floors=process_floors(joined),
        notes=tuple(notes),
    )


def _git(arguments: Sequence[str], name: str, repository: Path | None) -> list[str]:
    done = run_git(repository, *arguments)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing"])[0]
        raise ValueError(f"git: got {said!r} for {name}, wanted a commit of this repository")
    return done.stdout.split()


def _of_environment(sets: Sequence[ResultSet], asv_environment: str | None) -> list[ResultSet]:
    """Those of one environment of asv; of the last one's where none is named."""
    names = sorted({one.asv_environment for one in sets})
    wanted = asv_environment or sets[-1].asv_environment
    if wanted not in names:
        raise ValueError(
            f"environment: got {wanted}, wanted one of {', '.join(names)} (--environment)"
        )
    return [one for one in sets if one.asv_environment == wanted]


def _unusable(result: Result, value: float) -> str | None:
    """Why a value counts as a gap; None: it does not."""
    if value < 0:
        return "below 0"
    if value == 0 and (is_timed(result) or result.direction is Direction.HIGHER):
        return "0, of which there is no ratio"
    return result.marked


def _gap_notes(reasons: Iterable[str]) -> list[str]:
    """Return a line for each kind of reason: those that differ in a percentage alone are one."""
    kinds: dict[str, list[int]] = defaultdict(list)
    for reason in reasons:
        share = _SHARE.search(reason)
        kinds[_SHARE.sub("{}", reason)].append(int(share[1]) if share else 0)
    notes = []
    for kind, shares in kinds.items():
        least, most = min(shares), max(shares)
        said = f"{most} %" if least == most else f"{least} to {most} %"
        count = f"{len(shares)} measurement{'s' * (len(shares) > 1)}"
        notes.append(f"{count} left out: {kind.replace('{}', said)}")
    return notes


def _series(rows: Sequence[tuple[int, Result]]) -> Series:
    """One series of results that share label, unit, direction and version."""
    first = rows[0][1]
    points = []
    for position, result in rows:
        if result.value is not None and result.summary is not None:
            ends = result.summary.ci_low, result.summary.ci_high
            beside = result.reference, result.started_at
            points.append(Point(position, result.value, *ends, *beside))
    return Series(
        label=first.label,
        name=first.name,
        unit=first.unit or "",
        direction=first.direction or Direction.LOWER,
        version=first.version,
        exact=not is_timed(first),
        on_gpu=of_gpu(first.params),
        points=tuple(points),
    )


def _with_current(series: Sequence[Series]) -> tuple[Series, ...]:
    """Sort by label and last commit, and say of each whether it is the last of its label."""
    ordered = sorted(series, key=lambda one: (one.label, one.points[-1].position))
    newest = {one.label: one for one in ordered}
    return tuple(replace(one, current=newest[one.label] is one) for one in ordered)
