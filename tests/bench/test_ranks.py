"""Rank statistics: against scipy, against counting by hand, and by how often they err."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocmforge.bench.ranks import (
    EXACT,
    above_zero_p_value,
    holm,
    larger_p_value,
    middle_interval,
    probability_larger,
    ratio_interval,
    samples_wanted,
)

few = st.lists(st.integers(1, 9).map(float), min_size=1, max_size=5)


def by_hand(before: list[float], after: list[float]) -> float:
    """Deal the pooled samples out in every way, and count those as extreme as ours."""

    def pairs(first: list[float], second: list[float]) -> float:
        return sum((b > a) + 0.5 * (b == a) for a in first for b in second)

    pooled, m = [*before, *after], len(after)
    observed = pairs(before, after)
    ways = [
        pairs([x for i, x in enumerate(pooled) if i not in chosen], [pooled[i] for i in chosen])
        for chosen in itertools.combinations(range(len(pooled)), m)
    ]
    return sum(way >= observed for way in ways) / len(ways)


@given(few, few)
def test_small_samples_are_counted_ties_and_all(before: list[float], after: list[float]) -> None:
    assert larger_p_value(before, after) == pytest.approx(by_hand(before, after))


@pytest.mark.parametrize(("n", "m"), [(4, 4), (8, 12), (20, 20), (30, 40), (200, 100)])
@pytest.mark.parametrize("decimals", [1, 9])
def test_p_values_are_those_of_scipy(n: int, m: int, decimals: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(n * m)
    for shift in (0.0, 0.5, -0.3):
        before = random.normal(0, 1, n).round(decimals)
        after = random.normal(shift, 1, m).round(decimals)
        tied = len({*before, *after}) < n + m
        method = "exact" if n + m <= EXACT and not tied else "asymptotic"
        wanted = stats.mannwhitneyu(after, before, alternative="greater", method=method).pvalue
        got = larger_p_value(before.tolist(), after.tolist())
        assert got == pytest.approx(wanted, rel=1e-6 if n + m > EXACT or not tied else 0.15)


def test_nothing_to_compare_proves_nothing() -> None:
    assert larger_p_value([], [1.0]) == larger_p_value([1.0], []) == 1.0
    assert larger_p_value([2.0] * 9, [2.0] * 9) == 1.0
    assert larger_p_value([2.0] * 90, [2.0] * 90) == 1.0


def test_the_share_of_larger_pairs() -> None:
    assert probability_larger([1.0, 2.0], [3.0]) == 1.0
    assert probability_larger([1.0, 3.0], [2.0, 3.0]) == pytest.approx(2.5 / 4)


def test_an_interval_of_five_and_five_at_99_percent_is_that_of_the_table() -> None:
    before = [1.0, 1.01, 1.02, 1.03, 1.04]
    after = [2.0, 2.1, 2.2, 2.3, 2.4]
    # P(U ≤ 0) = 1/252 = 0.0040 ≤ 0.005 < P(U ≤ 1): the extreme ratios are the ends
    assert ratio_interval(before, after, 0.99) == pytest.approx((2.0 / 1.04, 2.4 / 1.0))
    assert ratio_interval(before[:4], after, 0.99) == (0.0, math.inf)


@pytest.mark.parametrize(("n", "confidence"), [(8, 0.95), (20, 0.99), (60, 0.95)])
def test_an_interval_holds_the_true_ratio_as_often_as_it_says(n: int, confidence: float) -> None:
    random = np.random.default_rng(7)
    held = 0
    rounds = 600
    for _ in range(rounds):
        before = random.lognormal(0.0, 0.2, n)
        after = 1.1 * random.lognormal(0.0, 0.2, n)
        low, high = ratio_interval(before.tolist(), after.tolist(), confidence)
        held += low <= 1.1 <= high
    spread = math.sqrt(confidence * (1 - confidence) / rounds)
    assert held / rounds >= confidence - 4 * spread
    assert held / rounds <= min(1.0, confidence + 4 * spread + 0.01)


@given(st.lists(st.integers(-9, 9).map(float), max_size=8))
def test_signs_are_counted_by_hand(values: list[float]) -> None:
    """Give the absolute values their signs in every way, and count those as far above 0 as ours."""
    known = [value for value in values if value]
    below = [sum(abs(a) > abs(b) for b in known) for a in known]
    same = [sum(abs(a) == abs(b) for b in known) for a in known]
    ranks = [2 * low + ties + 1 for low, ties in zip(below, same, strict=True)]
    observed = sum(rank for rank, value in zip(ranks, known, strict=True) if value > 0)
    ways = [
        sum(rank for rank, plus in zip(ranks, signs, strict=True) if plus)
        for signs in itertools.product((False, True), repeat=len(known))
    ]
    expected = sum(way >= observed for way in ways) / len(ways)
    assert above_zero_p_value(values) == pytest.approx(expected)


def test_the_middle_of_a_few_by_hand() -> None:
    """Means of pairs of 1, 2, 4: 1, 1.5, 2, 2.5, 3, 4; three values have no interval of 95 %."""
    low, middle, high = middle_interval([4.0, 1.0, 2.0], 0.95)
    assert (low, middle, high) == (-math.inf, 2.25, math.inf)
    low, middle, high = middle_interval([4.0, 1.0, 2.0], 0.75)  # all of 8 ways but two
    assert (low, middle, high) == (1.0, 2.25, 4.0)
    assert middle_interval([3.0], 0.95)[1] == 3.0


@pytest.mark.parametrize("n", [6, 12, 16])
def test_the_interval_of_the_middle_has_it_as_often_as_it_says(n: int) -> None:
    random = np.random.default_rng(4)
    inside = 0
    for _ in range(1000):
        low, _middle, high = middle_interval(random.standard_t(3, n).tolist(), 0.95)
        inside += low <= 0.0 <= high
    assert inside >= 930


@pytest.mark.parametrize("samples", [[0.0, 1.0], [-1.0, 1.0]])
def test_ratios_need_positive_samples(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="not above 0"):
        ratio_interval(samples, [1.0, 2.0], 0.99)
    with pytest.raises(ValueError, match="confidence"):
        ratio_interval([1.0], [1.0], 1.0)


def test_holm_by_hand() -> None:
    assert holm([]) == []
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.001]) == pytest.approx([0.9, 0.002])
    assert holm([0.6, 0.7]) == [1.0, 1.0]


def test_the_wanted_samples_are_enough() -> None:
    """With so many, the test succeeds as often as was asked for."""
    random = np.random.default_rng(3)
    share = probability_larger(
        random.normal(0.0, 1.0, 2000).tolist(), random.normal(0.8, 1.0, 2000).tolist()
    )
    each = math.ceil(samples_wanted(share, alpha=0.01, power=0.9) / 2)
    assert 20 < each < 80
    found = sum(
        larger_p_value(
            random.normal(0.0, 1.0, each).tolist(), random.normal(0.8, 1.0, each).tolist()
        )
        <= 0.01
        for _ in range(300)
    )
    assert found / 300 == pytest.approx(0.9, abs=0.07)
    assert samples_wanted(0.5, 0.01) == math.inf
