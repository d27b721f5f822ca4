"""Compares two sets of samples by ranks alone: how much they differ, and how surely.

The Mann-Whitney test compares samples of two runs, the signed-rank test differences of pairs. The
intervals that belong to them are due to Hodges and Lehmann. All of them assume that samples are
independent, and no distribution.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

EXACT = 40
"""Samples in all up to which probabilities are counted; above, the normal law is close enough."""


def probability_larger(before: Sequence[float], after: Sequence[float]) -> float:
    """Share of pairs in which the sample of `after` is the larger one, ties counting half.

    Parameters
    ----------
    before, after
        (n,) and (m,), not empty, finite.
    """
    return _larger_pairs(before, after) / (len(before) * len(after))


def larger_p_value(before: Sequence[float], after: Sequence[float]) -> float:
    """One-sided Mann-Whitney test: how probable samples so much larger would be by chance alone.

    The number of pairs in which `after` is larger (ties half) is compared with what it is over all
    ways to deal the pooled samples out: all of them are counted up to `EXACT` samples, with ties as
    they are; above, the normal law with tie correction and continuity correction.

    Parameters
    ----------
    before, after
        (n,) and (m,), any unit, finite.

    Returns
    -------
    float
        P(U ≥ observed) where nothing differs; 1 where either is empty.

    Notes
    -----
    Source: Mann and Whitney, Ann. Math. Statist. 18 (1947) 50-60; ties as in Lehmann,
    Nonparametrics (1975), section 1.4.
    """
    n, m = len(before), len(after)
    if not n or not m:
        return 1.0
    doubled = _doubled_ranks([*before, *after])
    observed = sum(doubled[n:])
    if n + m <= EXACT:
        counts = _rank_sums(tuple(sorted(doubled)), m)
        return float(counts[observed:].sum() / counts.sum())
    total = n + m
    mean = m * (total + 1)  # of doubled ranks
    _, ties = np.unique(doubled, return_counts=True)
    spare = 1 - float((ties.astype(float) ** 3 - ties).sum()) / (total**3 - total)
    if spare <= 0:
        return 1.0  # all samples are equal
    deviation = 2 * math.sqrt(n * m * (total + 1) / 12 * spare)
    return 1 - NormalDist().cdf((observed - mean - 1) / deviation)


def ratio_interval(
    before: Sequence[float], after: Sequence[float], confidence: float
) -> tuple[float, float]:
    """Interval of the typical ratio after / before: of all n · m ratios, the middle ones.

    Parameters
    ----------
    before, after
        (n,) and (m,), above 0.
    confidence
        Between 0 and 1, exclusive.

    Returns
    -------
    tuple of float
        Low and high end; ``(0, inf)`` where there are too few samples.

    Raises
    ------
    ValueError
        A sample is not above 0, or the confidence out of range.

    Notes
    -----
    Source: Hodges and Lehmann, Ann. Math. Statist. 34 (1963) 598-611, on logarithms.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence: got {confidence}, wanted between 0 and 1")
    if min([*before, *after], default=0.0) <= 0:
        raise ValueError("samples: got one that is not above 0, wanted none such")
    n, m = len(before), len(after)
    end = _rank_of_end(n, m, (1 - confidence) / 2)
    if end < 1:
        return 0.0, math.inf
    with np.errstate(over="ignore"):
        ratios = np.divide.outer(np.asarray(after, float), np.asarray(before, float)).ravel()
    ratios.sort()
    return float(ratios[end - 1]), float(ratios[n * m - end])


def above_zero_p_value(values: Sequence[float]) -> float:
    """One-sided signed-rank test: how probable values so far above 0 would be by chance alone.

    The sum of the ranks (by absolute value, ties as they are, zeros left out) of those above 0 is
    compared with what it is over all ways to give the values their signs.

    Parameters
    ----------
    values
        (n,), n up to some hundred, finite.

    Returns
    -------
    float
        P(W ≥ observed) where the values lie about 0 symmetrically; 1 without a value.

    Notes
    -----
    Source: Wilcoxon, Biometrics Bull. 1 (1945) 80-83.
    """
    known = [value for value in values if value]
    doubled = _doubled_ranks([abs(value) for value in known])
    observed = sum(rank for rank, value in zip(doubled, known, strict=True) if value > 0)
    counts = _signed_sums(tuple(sorted(doubled)))
    return float(counts[observed:].sum() / counts.sum())


def middle_interval(values: Sequence[float], confidence: float) -> tuple[float, float, float]:
    """Typical value and its interval: of the means of all pairs, the middle ones.

    Parameters
    ----------
    values
        (n,), at least one, finite; each also pairs with itself.
    confidence
        Between 0 and 1, exclusive.

    Returns
    -------
    tuple of float
        Low end, middle, high end; the ends are infinite where there are too few values.

    Notes
    -----
    Source: Hodges and Lehmann, Ann. Math. Statist. 34 (1963) 598-611; the interval is that of the
    signed-rank test.
    """
    given = np.asarray(values, float)
    means = np.sort(np.add.outer(given, given)[np.triu_indices(len(given))] / 2)
    counts = _signed_sums(tuple(range(2, 2 * len(given) + 1, 2)))[::2]
    below = np.cumsum(counts) / counts.sum()  # P(W ≤ 0), P(W ≤ 1), …
    end = int(np.searchsorted(below, (1 - confidence) / 2, side="right"))
    middle = float(np.median(means))
    if end < 1:
        return -math.inf, middle, math.inf
    return float(means[end - 1]), middle, float(means[-end])


def samples_wanted(share_larger: float, alpha: float, power: float = 0.9) -> float:
    """How many samples, both sides together and as many on either, would show such a difference.

    Parameters
    ----------
    share_larger
        As `probability_larger`; infinitely many at 0.5.
    alpha
        Error probability of the one-sided test.
    power
        Probability that the test then succeeds.

    Notes
    -----
    Source: Noether, J. Am. Statist. Assoc. 82 (1987) 645-647.
    """
    distance = abs(share_larger - 0.5)
    if distance == 0:
        return math.inf
    normal = NormalDist()
    z = normal.inv_cdf(1 - alpha) + normal.inv_cdf(power)
    return z * z / (3 * distance * distance)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values of many tests: rejecting those at most α errs in any of them with at most α.

    Notes
    -----
    Source: Holm, Scand. J. Statist. 6 (1979) 65-70.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def _larger_pairs(before: Sequence[float], after: Sequence[float]) -> float:
    difference = np.subtract.outer(np.asarray(after, float), np.asarray(before, float))
    return float((difference > 0).sum() + 0.5 * (difference == 0).sum())


def _doubled_ranks(samples: Sequence[float]) -> list[int]:
    """Twice the rank of each sample, 1 being the smallest; ties share the mean of their ranks."""
    values = np.asarray(samples, float)
    ordered = np.sort(values)
    below = np.searchsorted(ordered, values, side="left")
    upto = np.searchsorted(ordered, values, side="right")
    return [int(total) for total in below + upto + 1]


@functools.lru_cache(maxsize=64)
def _rank_sums(doubled: tuple[int, ...], chosen: int) -> NDArray[np.float64]:
    """How many ways there are to choose so many of the ranks, by their (doubled) sum."""
    ways = np.zeros((chosen + 1, sum(doubled) + 1))
    ways[0, 0] = 1.0
    for rank in doubled:
        ways[1:, rank:] += ways[:-1, :-rank].copy()
    counts: NDArray[np.float64] = ways[chosen]
    return counts


@functools.lru_cache(maxsize=64)
def _signed_sums(doubled: tuple[int, ...]) -> NDArray[np.float64]:
    """How many ways there are to choose any of the ranks, by their (doubled) sum."""
    ways = np.zeros(sum(doubled) + 1)
    ways[0] = 1.0
    for rank in doubled:
        ways[rank:] += ways[:-rank].copy()
    return ways


def _rank_of_end(n: int, m: int, tail: float) -> int:
    """Which of the n · m ratios, counted from either side, ends the interval; 0: there is none."""
    if n + m > EXACT:
        z = NormalDist().inv_cdf(1 - tail)
        return math.floor(n * m / 2 - z * math.sqrt(n * m * (n + m + 1) / 12))
    if not n or not m:
        return 0
    counts = _rank_sums(tuple(range(2, 2 * (n + m) + 1, 2)), m)
    below = np.cumsum(counts[m * (m + 1) :: 2]) / counts.sum()  # P(U ≤ 0), P(U ≤ 1), …
    return int(np.searchsorted(below, tail, side="right"))
