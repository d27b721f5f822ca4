"""Change points of a series of measurements: E-divisive with means, each tested before it counts.

A window is split where the energy distance of both sides is largest. A split counts where a t-test
tells the stretches beside it apart. Series are logarithms, so that a difference is a factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

FEWEST = 2
"""Fewest points on either side of a change point: a single one may be an outlier."""
WINDOW = 50
"""Points of a window; windows overlap by half. Points that are farther away say little."""
WEAK = 100.0
"""A split is a candidate where its p-value is below this many times the final limit."""
PLAUSIBLE = 0.05
"""Likelihood, over that of the likeliest place, above which the change point may lie there too."""

Values = NDArray[np.float64]


def change_points(values: Values, alpha: float) -> list[int]:
    """Find where a series changes its level.

    Parameters
    ----------
    values
        (n,), finite: logarithms of measurements in their order.
    alpha
        p-value at which a change point counts, 0 … 1.

    Returns
    -------
    list of int
        Index of the first point of each new level, ascending.

    Notes
    -----
    Sources: Matteson and James, J. Am. Statist. Assoc. 109 (2014) 334-345 (E-divisive); Daly et
    al., ICPE 2020, 67-75 (its use on performance tests); Fleming et al., ICPE 2023, 199-206
    (windows, weak change points, and a t-test in place of permutations, which cannot tell two
    points at the end of a short series from chance).
    """
    n = len(values)
    found: set[int] = set()
    for start in range(0, max(1, n - WINDOW // 2), WINDOW // 2):
        found.update(_splits(values, start, min(n, start + WINDOW), alpha * WEAK))
    points = sorted(found)
    while points:
        edges = [0, *points, n]
        p_values = [
            _p_value(values[max(low, at - WINDOW) : at], values[at : min(high, at + WINDOW)])
            for low, at, high in zip(edges, points, edges[2:], strict=False)
        ]
        weakest = int(np.argmax(p_values))
        if p_values[weakest] <= alpha:
            break
        del points[weakest]
    return points


def plausible(values: Values, at: int) -> tuple[int, int]:
    """Return the range in which a change point may lie.

    The likelihood is that of a Laplace law around both medians.

    Parameters
    ----------
    values
        (n,), with one change point.
    at
        Its likeliest place, 1 … n − 1.

    Returns
    -------
    tuple of int
        The first and the last index at which the new level may begin.
    """
    costs = [_around_median(values[:k]) + _around_median(values[k:]) for k in range(1, len(values))]
    least = min(costs[at - 1], min(costs))
    limit = least + math.log(1 / PLAUSIBLE) * least / len(values)
    within = [k for k, cost in enumerate(costs, 1) if cost <= limit]
    return min(at, *within), max(at, *within)


def levels(values: Values, points: Sequence[int]) -> list[float]:
    """Return the median of each stretch between change points."""
    edges = [0, *points, len(values)]
    return [float(np.median(values[low:high])) for low, high in pairwise(edges)]


def energy(values: Values) -> Values:
    """Energy distance of both sides for a split before each point but the first.

    ``m k / (m + k) · (2 E|X − Y| − E|X − X′| − E|Y − Y′|)``, m and k being the points of the sides.

    Parameters
    ----------
    values
        (n,), at least two.

    Returns
    -------
    numpy.ndarray
        (n − 1,), at least 0.
    """
    n = len(values)
    sums = np.abs(np.subtract.outer(values, values)).cumsum(0).cumsum(1)
    left = np.arange(1, n)
    right = n - left
    within = np.diagonal(sums)[:-1]
    across = sums[:-1, -1] - within
    beyond = sums[-1, -1] - within - 2 * across
    distance = 2 * across / (left * right) - within / left**2 - beyond / right**2
    gains: Values = left * right / n * distance
    return gains


def _splits(values: Values, low: int, high: int, alpha: float) -> list[int]:
    """Split a stretch in two where that is best, then each part again, while the test allows."""
    if high - low < 2 * FEWEST:
        return []
    gains = energy(values[low:high])[FEWEST - 1 : high - low - FEWEST]
    at = low + FEWEST + int(np.argmax(gains))
    if _p_value(values[low:at], values[at:high]) > alpha:
        return []
    return [*_splits(values, low, at, alpha), at, *_splits(values, at, high, alpha)]


def _p_value(one: Values, other: Values) -> float:
    """Student's t-test, two-sided; 1 where a side has fewer than `FEWEST` points.

    The point of the shorter side that is farthest from the other does not count in its mean: an
    outlier and its neighbour are no level.
    """
    from scipy.special import stdtr

    n, m = len(one), len(other)
    if min(n, m) < FEWEST:
        return 1.0
    few, many = (one, other) if n < m else (other, one)
    apart = few - many.mean()
    rest = np.delete(apart, int(np.argmax(np.abs(apart))))
    difference = max(0.0, float(rest.mean()) * math.copysign(1.0, float(apart.mean())))
    variance = (n * one.var() + m * other.var()) / (n + m - 2)
    error = math.sqrt(variance * (1 / n + 1 / m))
    if difference <= 1e-12 * (1 + float(np.abs(one).max())):
        return 1.0  # equal but for rounding
    return float(2 * stdtr(n + m - 2, -difference / error)) if error else 0.0


def _around_median(values: Values) -> float:
    return float(np.abs(values - np.median(values)).sum())
