"""Judges a history: which benchmarks got worse, between which commits, and whether it still stands.

Thresholds and noise floors are those of a comparison of two commits. The more benchmarks are
judged, the surer each change point must be. The command that finds the guilty commit is here too.
"""

from __future__ import annotations

import enum
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rocmforge.bench.change_points import FEWEST, Values
from rocmforge.bench.compare import threshold_of
from rocmforge.bench.comparison import THRESHOLD
from rocmforge.bench.decision import ALPHA, slowdown
from rocmforge.bench.history import History, Series
from rocmforge.bench.machine_speed import explanation, middle_rates, unrecorded
from rocmforge.bench.noise import Noise
from rocmforge.bench.ranks import ratio_interval
from rocmforge.bench.results import Direction
from rocmforge.bench.statistics import CONFIDENCE, median_interval, percentile
from rocmforge.bench.worsening import Kind, Worsening, worsenings
from rocmforge.errors import MeasurementError

FEWEST_POINTS = 2 * FEWEST
"""Measured commits from which a series is judged at all."""
MOST_ALPHA = 1e-3
"""p-value of a change point, even where few benchmarks are judged."""


class State(str, enum.Enum):
    """What became of it, worst first."""

    STANDS = "stands"
    MENDED = "mended"
    OUTDATED = "benchmark changed since"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True)
class Level:
    """Median of some measurements with its 99 % interval, infinite where they are too few."""

    value: float
    low: float
    high: float
    points: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One change point or drift of one benchmark.

    Parameters
    ----------
    series
        What was measured.
    kind, state
        What it is, and what became of it.
    good, bad
        Positions of the last commit that surely had the old level and the first that surely has
        the new one.
    mended
        Position of the first commit that is back at the old level; None: none is.
    before, after
        The levels, in the unit of the series.
    factor, low, high
        How many times worse it got, with its 99 % interval. It is infinite from 0; the interval is
        0 to infinity where there are too few measurements.
    threshold
        The one that the benchmark was judged by.
    note
        Why it cannot be told whether the code or the machine got slower; empty: it can.
    """

    series: Series
    kind: Kind
    state: State
    good: int
    bad: int
    mended: int | None
    before: Level
    after: Level
    factor: float
    low: float
    high: float
    threshold: float
    note: str = ""


def judge(
    history: History,
    threshold: float = THRESHOLD,
    thresholds: Mapping[str, float] | None = None,
    noise: Mapping[str, Noise] | None = None,
) -> list[Finding]:
    """Find the change points and drifts of all series: first those that stand, the largest first.

    Parameters
    ----------
    history
        What was measured.
    threshold, thresholds, noise
        As of `rocmforge.bench.compare.compare`.

    Raises
    ------
    MeasurementError
        No series has as many measurements as it takes.
    """
    judged = [one for one in history.series if len(one.points) >= FEWEST_POINTS]
    if not judged:
        most = max((len(one.points) for one in history.series), default=0)
        raise MeasurementError(
            f"nothing to judge: no benchmark has more than {most} measured commits, wanted at "
            f"least {FEWEST_POINTS}; about 12 show a change of 25 % at the end, 24 one of 15 %"
        )
    own = {re.compile(name): value for name, value in (thresholds or {}).items()}
    alpha = min(MOST_ALPHA, ALPHA / len(judged))
    found: list[Finding] = []
    for series in judged:
        limit = threshold_of(series.label, threshold, own)
        known = (noise or {}).get(series.label)
        floor = math.log1p(noise_floor(series, known, history.floors.get(series.label, 0.0)))
        values = _logarithms(series)
        worse = worsenings(values, math.log1p(limit), floor, alpha, series.exact)
        found.extend(_finding(series, one, limit) for one in worse)
    order = list(State)
    return sorted(found, key=lambda f: (order.index(f.state), -f.factor, f.series.label, f.bad))


def noise_floor(series: Series, noise: Noise | None, of_processes: float) -> float:
    """Return the largest change between runs of one commit, if the same code was measured.

    Else what processes of one run differ by, `of_processes`.
    """
    if noise is None or noise.unit != series.unit:
        return of_processes
    known = bool(noise.version and series.version)
    return of_processes if known and noise.version != series.version else noise.floor


def _logarithms(series: Series) -> Values:
    """Logarithms in which more is worse; a count of 0 is far below every other."""
    worse = np.asarray(series.worse())
    least = float(worse[worse > 0].min(initial=1.0))
    logarithms: Values = np.log(np.maximum(worse, 1e-6 * least))
    return logarithms


def _finding(series: Series, found: Worsening, threshold: float) -> Finding:
    at = [point.position for point in series.points]
    before, after = (
        [point.value for point in series.points[slice(*side)]]
        for side in (found.before, found.after)
    )
    state = State.STANDS if found.mended is None else State.MENDED
    if note := _machine(series, found):
        state = State.CANNOT_TELL
    worse = series.worse()
    low, high = 0.0, math.inf
    if min(worse) > 0:
        good, bad = worse[slice(*found.before)], worse[slice(*found.after)]
        low, high = ratio_interval(good, bad, CONFIDENCE)
    return Finding(
        series=series,
        kind=found.kind,
        state=state if series.current else State.OUTDATED,
        note=note,
        good=at[found.good],
        bad=at[found.bad],
        mended=None if found.mended is None else at[found.mended],
        before=_level(before),
        after=_level(after),
        factor=slowdown(_middle(before), _middle(after), series.direction),
        low=low,
        high=high,
        threshold=threshold,
    )


def _machine(series: Series, found: Worsening) -> str:
    """Why the machine itself may have got slower between both levels; empty: it did not."""
    if series.exact or series.on_gpu:
        return ""
    before, after = (series.points[slice(*side)] for side in (found.before, found.after))
    old, new = (_middle([point.value for point in side]) for side in (before, after))
    rates = [middle_rates([point.reference for point in side]) for side in (before, after)]
    if all(rates):
        factor = slowdown(old, new, series.direction)
        return (math.isfinite(factor) and explanation(factor, *rates)) or ""
    good, bad = series.points[found.good], series.points[found.bad]
    return unrecorded(good.started_at, bad.started_at) or ""


def _middle(values: Sequence[float]) -> float:
    return percentile(sorted(values), 0.5)


def _level(values: Sequence[float]) -> Level:
    return Level(_middle(values), *median_interval(sorted(values)), len(values))


def exit_code(findings: Sequence[Finding]) -> int:
    """1 where a finding stands at the newest commit, else 0."""
    return int(any(one.state is State.STANDS for one in findings))


def bisect_command(finding: Finding, history: History, config: Path | None = None) -> str:
    """Return the command that searches the commits of a finding for the one that caused it.

    asv measures the first commit of a range and never names it: the range therefore begins at the
    last good commit. Where only one commit can have caused it, both are measured again,
    interleaved.

    Parameters
    ----------
    finding, history
        What was found, and where.
    config
        asv's configuration; default: the one in the current directory.
    """
    good, bad = (history.commits[at][:12] for at in (finding.good, finding.bad))
    if finding.bad == finding.good + 1:
        label = _expression(finding.series.label)
        return shlex.join(["rocmforge", "bench", "confirm", good, bad, "--bench", label])
    words = ["asv", *(["--config", str(config)] if config else []), "find"]
    words += ["--machine", history.machine]
    if finding.series.direction is Direction.HIGHER:
        words.append("--invert")
    span = f"{good}~1..{bad}" if finding.good else f"{bad} --not {good}^@"  # may have no parent
    return shlex.join([*words, span, _expression(finding.series.label)])


def _expression(label: str) -> str:
    """Return an expression that finds this benchmark alone; a dot stands for each quote."""
    return f"^{re.escape(label)}$".replace("\\ ", " ").replace("'", ".").replace('"', ".")
