"""Statistics of one benchmark's samples: mean, extremes, percentiles, interval of the median.

Pure Python on a list of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.99


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics of a benchmark, all but ``iterations`` in the unit of the samples.

    Parameters
    ----------
    mean, minimum, maximum, p95, p99
        None where only the median was kept and the samples were not.
    p50
        Median.
    iterations
        Number of samples; None where unknown.
    ci_low, ci_high
        99 % interval of the median; ``-inf`` and ``inf`` where there are too few samples.
    """

    mean: float | None
    minimum: float | None
    maximum: float | None
    p50: float
    p95: float | None
    p99: float | None
    iterations: int | None
    ci_low: float
    ci_high: float


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """Interpolate linearly between order statistics: position ``fraction * (n - 1)``.

    Parameters
    ----------
    ordered
        Samples in ascending order, (n,), any unit.
    fraction
        0 … 1.

    Raises
    ------
    ValueError
        No samples, or a fraction outside 0 … 1.
    """
    if not ordered:
        raise ValueError("samples: got none, wanted at least one")
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"fraction: got {fraction}, wanted 0 to 1")
    position = fraction * (len(ordered) - 1)
    below = math.floor(position)
    low = ordered[below]
    high = ordered[min(below + 1, len(ordered) - 1)]
    weight = position - below
    between = (1.0 - weight) * low + weight * high
    return min(max(between, low), high)


def median_interval(
    ordered: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Interval that holds the median with at least the given probability, for any distribution.

    Of n independent samples, the number below the median is Binomial(n, 1/2). With the largest k
    for which ``P(X < k) <= (1 - confidence) / 2``, the interval runs from the k-th smallest to the
    k-th largest sample. At 99 % that takes 8 samples.

    Parameters
    ----------
    ordered
        Samples in ascending order, (n,), any unit.
    confidence
        Between 0 and 1, exclusive.

    Returns
    -------
    tuple of float
        Low and high end; ``(-inf, inf)`` where n is too small.

    Raises
    ------
    ValueError
        A confidence outside 0 … 1.

    Notes
    -----
    Source: David and Nagaraja, Order Statistics, 3rd ed., section 7.1.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence: got {confidence}, wanted between 0 and 1")
    n = len(ordered)
    tail = math.floor((1.0 - confidence) / 2.0 * 2.0**53) * 2**n  # exact integers: no underflow
    k, term, cumulated = 0, 1, 1
    while k < n and cumulated * 2**53 <= tail:
        term = term * (n - k) // (k + 1)
        cumulated += term
        k += 1
    if k == 0:
        return -math.inf, math.inf
    return ordered[k - 1], ordered[n - k]


def summarize(samples: Sequence[float]) -> Summary:
    """Compute all statistics of one benchmark's samples.

    Parameters
    ----------
    samples
        At least one finite number, (n,), any order, any unit.

    Raises
    ------
    ValueError
        No samples, or one that is not finite.
    """
    ordered = sorted(samples)
    if not all(math.isfinite(sample) for sample in ordered):
        raise ValueError("samples: got a NaN or an infinity, wanted finite numbers")
    p50 = percentile(ordered, 0.50)
    low, high = median_interval(ordered)
    largest = max(abs(ordered[0]), abs(ordered[-1])) or 1.0  # a sum of shares cannot overflow
    mean = largest * (math.fsum(sample / largest for sample in ordered) / len(ordered))
    return Summary(
        mean=min(max(mean, ordered[0]), ordered[-1]),
        minimum=ordered[0],
        maximum=ordered[-1],
        p50=p50,
        p95=percentile(ordered, 0.95),
        p99=percentile(ordered, 0.99),
        iterations=len(ordered),
        ci_low=low,
        ci_high=high,
    )
