"""Finds where a series got worse: at once, at a change point, or little by little, in a drift.

Change points that follow each other upwards form one stretch. The stretch is a drift where a ramp
explains it better than its change points do, or where it exceeds the limit as a whole and no single
change point does. The series are logarithms in which more is worse.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rocmforge.bench.change_points import FEWEST, Values, change_points, levels, plausible

SHORTEST_DRIFT = 5
"""Fewest points of a drift; a shorter change is a change point."""
RAMP_ENDS = 40
"""Places tried for either end of a ramp."""
DOUBT = 1.0
"""Log-likelihood by which a ramp must beat change points before it is called a drift."""


class Kind(str, enum.Enum):
    """How a benchmark got worse."""

    CHANGE_POINT = "change point"
    DRIFT = "drift"


@dataclass(frozen=True, slots=True)
class Worsening:
    """One change point or drift, by indices into the series.

    Parameters
    ----------
    kind
        A change point or a drift.
    good, bad
        Last point that surely has the old level, and first that surely has the new one.
    at
        Of a change point, where the new level most likely begins; of a drift, as ``bad``.
    before, after
        The stretches of points, from … to (exclusive), whose medians are the two levels.
    mended
        First point of the first later level that is no worse than the threshold allows; None: it
        stands at the end of the series.
    """

    kind: Kind
    good: int
    bad: int
    at: int
    before: tuple[int, int]
    after: tuple[int, int]
    mended: int | None


def worsenings(
    values: Values, limit: float, floor: float, alpha: float, exact: bool
) -> list[Worsening]:
    """Find the change points and drifts of a series.

    Parameters
    ----------
    values
        (n,), finite: logarithms, more is worse.
    limit
        Logarithm of the factor above which a change counts.
    floor
        Logarithm of the largest factor between runs of one commit; 0 where unknown. Medians of n
        and m points may differ by it times ``√((1/n + 1/m) / 2)``.
    alpha
        p-value of each change point.
    exact
        Values are counted, not timed: each difference of neighbours beyond the limit counts.
    """
    if not len(values):
        return []
    points = change_points(values, alpha)
    if exact:
        jumps = np.flatnonzero(np.abs(np.diff(values)) > limit * (1 + 1e-9)) + 1
        points = sorted({*points, *map(int, jumps)})
    edges = [0, *points, len(values)]
    heights = levels(values, points)
    found: list[Worsening] = []
    first = 0
    while first < len(points):
        last = first
        while last < len(points) and heights[last + 1] > heights[last]:
            last += 1
        found.extend(_of_run(values, edges, heights, (first, last), limit, floor))
        first = max(last, first + 1)
    if all(one.mended is not None for one in found):
        start = max((one.mended for one in found if one.mended is not None), default=0)
        found.extend(_trend(values[start:], start, limit, floor, alpha))
    return found


def _of_run(
    values: Values,
    edges: Sequence[int],
    heights: Sequence[float],
    run: tuple[int, int],
    limit: float,
    floor: float,
) -> list[Worsening]:
    """Judge levels that rise from the first to the last of a run."""
    first, last = run

    def exceeds(low: int, high: int) -> bool:
        sizes = (edges[low + 1] - edges[low], edges[high + 1] - edges[high])
        spread = floor * math.sqrt(sum(1 / size for size in sizes) / 2)
        return heights[high] - heights[low] > max(limit, spread) * (1 + 1e-9)

    if last == first or not exceeds(first, last):
        return []
    start, stop = edges[first], edges[last + 1]
    steps = [k for k in range(first, last) if exceeds(k, k + 1)]
    inner = [edge - start for edge in edges[first + 1 : last + 1]]
    ramp = _ramp(values[start:stop], inner)
    if ramp is None and not steps:
        ramp = inner[0] - 1, inner[-1]
    if ramp is not None:
        good, bad = start + ramp[0], start + ramp[1]
        before, after = (start, good + 1), (bad, stop)
        mended = _mended(edges, heights, last, heights[first] + limit)
        return [Worsening(Kind.DRIFT, good, bad, bad, before, after, mended)]
    found = []
    for k in steps:
        low, at, high = edges[k], edges[k + 1], edges[k + 2]
        earliest, latest = plausible(values[low:high], at - low)
        mended = _mended(edges, heights, k + 1, heights[k] + limit)
        sides = (low, at), (at, high)
        found.append(
            Worsening(Kind.CHANGE_POINT, low + earliest - 1, low + latest, at, *sides, mended)
        )
    return found


def _mended(
    edges: Sequence[int], heights: Sequence[float], level: int, allowed: float
) -> int | None:
    for later in range(level + 1, len(heights)):
        if heights[later] <= allowed:
            return edges[later]
    return None


def _ramp(values: Values, points: Sequence[int]) -> tuple[int, int] | None:
    """Last point before and first point after a ramp that explains the values better than jumps.

    Both are fitted by least absolute deviations: level, straight line, level. The likelihoods, of a
    Laplace law, count each level and each place as one parameter.
    """
    n = len(values)
    stride = max(1, n // RAMP_ENDS)
    goods = range(FEWEST - 1, n - SHORTEST_DRIFT - FEWEST + 1, stride)
    bads = range(FEWEST - 1 + SHORTEST_DRIFT, n - FEWEST + 1, stride)
    lows = {good: _level(values[: good + 1]) for good in goods}
    highs = {bad: _level(values[bad:]) for bad in bads}
    best, found = math.inf, (0, 0)
    for good, (low, before) in lows.items():
        for bad, (high, after) in highs.items():
            if bad - good < SHORTEST_DRIFT or high <= low:
                continue
            line = low + (high - low) * np.arange(1, bad - good) / (bad - good)
            cost = before + after + float(np.abs(values[good + 1 : bad] - line).sum())
            if cost < best:
                best, found = cost, (good, bad)
    steps = sum(_level(values[low:high])[1] for low, high in pairwise([0, *points, n]))
    if not math.isfinite(best) or steps <= 1e-12 * n:
        return None
    more = (4 - (2 * len(points) + 1)) * math.log(n) / 2
    return found if n * math.log(steps / max(best, 1e-300)) > more + DOUBT else None


def _level(values: Values) -> tuple[float, float]:
    """Median, and the sum of the distances from it."""
    middle = float(np.median(values))
    return middle, float(np.abs(values - middle).sum())


def _trend(values: Values, start: int, limit: float, floor: float, alpha: float) -> list[Worsening]:
    """Find a drift too slow for change points: a trend by ranks (Mann and Kendall), no single jump.

    The levels are the medians of the first and the last fifth.
    """
    from scipy.stats import kendalltau

    n = len(values)
    fifth = n // 5
    if fifth < SHORTEST_DRIFT or float(np.ptp(values)) == 0.0:
        return []
    found = kendalltau(np.arange(n), values)
    spread = max(limit, floor / math.sqrt(fifth)) * (1 + 1e-9)
    rise = _level(values[-fifth:])[0] - _level(values[:fifth])[0]
    if found.statistic <= 0 or found.pvalue > alpha or rise <= spread:
        return []
    splits = range(FEWEST, n - FEWEST + 1)
    step = min(splits, key=lambda at: _level(values[:at])[1] + _level(values[at:])[1])
    if _ramp(values, [step]) is None:
        return []
    good, bad, stop = start + fifth - 1, start + n - fifth, start + n
    return [Worsening(Kind.DRIFT, good, bad, bad, (start, good + 1), (bad, stop), None)]
