"""The rule that decides whether a benchmark is a regression, is fine, or cannot be told.

It is a regression where all four hold: its median is worse by more than the threshold; a rank test,
which counts how many benchmarks are compared, tells the samples apart; the change exceeds the noise
floor, that is, the largest difference between runs of one commit; no other work or throttling
disturbed it. Where only some of the first three hold, the note says what would settle it. A
disturbed benchmark is not judged at all. Improvements obey the same rule.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rocmforge.bench.ranks import (
    larger_p_value,
    probability_larger,
    ratio_interval,
    samples_wanted,
)
from rocmforge.bench.results import Direction, Result
from rocmforge.bench.run_environment import is_timed
from rocmforge.bench.statistics import CONFIDENCE, percentile

ALPHA = 0.01
"""Probability of calling anything in a comparison changed where nothing has, by the test alone."""
_ROUNDING = 1e-9  # relative; a ratio of exactly 1 + threshold is no regression


class Verdict(str, enum.Enum):
    """What comparing says of one benchmark with one set of parameters, worst first."""

    REGRESSION = "regression"
    FAILED = "failed"
    CANNOT_TELL = "cannot tell"
    HARDWARE_MISMATCH = "hardware mismatch"
    NOT_COMPARABLE = "not comparable"
    MISSING = "missing"
    IMPROVED = "improved"
    NEW = "new"
    OK = "ok"
    SKIPPED = "n/a or not selected"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the samples of two runs say, in terms of worse: whichever way the metric is better.

    Parameters
    ----------
    slowdown
        Of the medians: above 1 is worse, infinite where only one of them is 0.
    low, high
        99 % interval of the typical slowdown; 0 and infinity where it is unknown.
    p_value
        Two-sided, of samples so different where nothing changed; None where the values need or
        allow no test.
    share_worse
        Of pairs of a sample before and one after, those in which the later is worse; ties half.
    fewest
        Samples on the side that has fewer.
    exact
        The figure is counted, not timed: any difference is one.
    """

    slowdown: float
    low: float
    high: float
    p_value: float | None
    share_worse: float
    fewest: int
    exact: bool

    @property
    def change(self) -> float:
        """How much, whichever way: 0.15 for a slowdown of 1.15 and for one of 1 / 1.15."""
        if self.slowdown <= 0:
            return math.inf
        return max(self.slowdown, 1 / self.slowdown) - 1


def slowdown(before: float, after: float, direction: Direction) -> float:
    """Factor by which a metric got worse: after / before, or before / after where higher is better.

    So ms/token and tokens/s of the same run give the same factor, and swapping before and after
    inverts it. 1 is unchanged, above 1 is worse.

    Parameters
    ----------
    before, after
        Same unit, at least 0.
    direction
        Which way the metric is better.

    Raises
    ------
    ValueError
        A negative value.
    """
    if before < 0 or after < 0:
        raise ValueError(f"before, after: got {before}, {after}, wanted values of at least 0")
    if before == after:
        return 1.0
    good, bad = (before, after) if direction is Direction.LOWER else (after, before)
    return bad / good if good > 0 else math.inf


def quiet(samples: Sequence[float], direction: Direction) -> float:
    """Return the quartile on the better side: what a machine does when it is let alone.

    Other work only ever makes samples worse, for seconds at a time: it moves the median of a
    process long before it reaches its better quarter.

    Parameters
    ----------
    samples
        (n,), at least one, any unit.
    direction
        Which way the metric is better.
    """
    return percentile(sorted(samples), 0.25 if direction is Direction.LOWER else 0.75)


def of_ratio(low: float, high: float, direction: Direction | None) -> tuple[float, float]:
    """Turn an interval of the slowdown into one of after / before, or back."""
    return (1 / high, 1 / low) if direction is Direction.HIGHER else (low, high)


def evidence(before: Result, after: Result) -> Evidence:
    """Weigh the samples of two runs of one benchmark.

    Where one side has no samples but their interval, two intervals that do not overlap count as a
    difference (p 0), and others as none (p 1).

    Parameters
    ----------
    before, after
        Measured, in one unit and direction, of at least 0.

    Raises
    ------
    ValueError
        A result has no value or no direction.
    """
    direction = after.direction
    if before.value is None or after.value is None or direction is None:
        raise ValueError(f"{after.label}: got no value or direction, wanted two measured ones")
    factor = slowdown(before.value, after.value, direction)
    good, bad = (before, after) if direction is Direction.LOWER else (after, before)
    one, other = good.samples, bad.samples
    exact = not is_timed(after)
    p_value: float | None = None
    low, high, share = 0.0, math.inf, 0.5
    if exact:
        low = high = factor
    elif len(one) > 1 and len(other) > 1:
        share = probability_larger(one, other)
        worse, better = larger_p_value(one, other), larger_p_value(other, one)
        p_value = min(1.0, 2 * min(worse, better))
        if min(*one, *other) > 0:
            low, high = ratio_interval(one, other, CONFIDENCE)
    elif not one or not other:
        p_value = _p_of_intervals(before, after)
    return Evidence(factor, low, high, p_value, share, min(len(one), len(other)), exact)


def decide(
    found: Evidence,
    p_value: float | None,
    threshold: float,
    floor: float,
    marked: str | None,
    tests: int,
    compared: str = "runs of one commit",
) -> tuple[Verdict, str]:
    """Apply the rule.

    Parameters
    ----------
    found
        Of the two runs.
    p_value
        Its p-value, adjusted for the other tests of the comparison; None: there was no test.
    threshold
        0.10 for 10 %: what counts as a change worth a verdict.
    floor
        Largest change between runs of one commit; 0 where none is known.
    marked
        Why the samples of either side are not to be trusted, or None.
    tests
        Number of tests in the comparison.
    compared
        What differs by the floor, in words.

    Returns
    -------
    tuple
        The verdict, and a note where it needs one.
    """
    if marked is not None:
        return Verdict.CANNOT_TELL, marked
    limit = (1 + threshold) * (1 + _ROUNDING)
    if 1 / limit <= found.slowdown <= limit:
        return Verdict.OK, ""
    verdict = Verdict.REGRESSION if found.slowdown > limit else Verdict.IMPROVED
    if found.change <= floor:
        note = f"{compared} differ by {100 * floor:.0f} %: measure both interleaved"
        return Verdict.CANNOT_TELL, note
    if found.exact:
        return verdict, ""
    if p_value is None:
        return Verdict.CANNOT_TELL, "a single sample: 7 more on either side may settle it"
    if p_value > ALPHA:
        return Verdict.CANNOT_TELL, _what_would_settle(found, tests)
    return verdict, ""


def _what_would_settle(found: Evidence, tests: int) -> str:
    if not found.fewest:
        return "the intervals do not settle it: record samples on both sides"
    alpha = ALPHA / (2 * max(1, tests))
    least = next(n for n in range(2, 64) if 1 / math.comb(2 * n, n) <= alpha)
    overlap = 0 < found.share_worse < 1
    wanted = max(least, samples_wanted(found.share_worse, alpha) / 2) if overlap else least
    if math.isinf(wanted):
        return "the samples do not differ"
    more = max(1, math.ceil(wanted) - found.fewest)
    return f"about {more} more samples on either side would settle it"


def _p_of_intervals(before: Result, after: Result) -> float | None:
    one, other = before.summary, after.summary
    if one is None or other is None or None in (one.iterations, other.iterations):
        return None
    if not all(math.isfinite(x) for x in (one.ci_low, one.ci_high, other.ci_low, other.ci_high)):
        return None
    return 0.0 if one.ci_high < other.ci_low or other.ci_high < one.ci_low else 1.0
