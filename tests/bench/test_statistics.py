"""Statistics of samples, against numpy, asv's own interval and by simulation."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocmforge.bench.statistics import median_interval, percentile, summarize

fewer = settings(max_examples=60)

finite = st.floats(allow_nan=False, allow_infinity=False)
samples = st.lists(finite, min_size=1, max_size=60)


@fewer
@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=60))
def test_agrees_with_numpy(values: list[float]) -> None:
    summary = summarize(values)
    for got, q in ((summary.p50, 50), (summary.p95, 95), (summary.p99, 99)):
        assert got == pytest.approx(np.percentile(values, q), rel=1e-9, abs=1e-3)
    assert summary.mean == pytest.approx(np.mean(values), rel=1e-9, abs=1e-3)
    assert summary.iterations == len(values)


@fewer
@given(samples)
def test_order_holds_for_any_floats(values: list[float]) -> None:
    s = summarize(values)
    assert s.p95 is not None
    assert s.p99 is not None
    assert s.mean is not None
    ladder = [min(values), s.p50, s.p95, s.p99, max(values)]
    assert ladder == sorted(ladder)
    assert (s.minimum, s.maximum) == (min(values), max(values))
    assert min(values) <= s.mean <= max(values)
    assert s.ci_low <= s.p50 <= s.ci_high


@fewer
@given(samples, st.randoms(use_true_random=False))
def test_order_of_samples_does_not_matter(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert summarize(shuffled).p50 == summarize(values).p50
    assert summarize(shuffled).ci_low == summarize(values).ci_low


@fewer
@given(st.lists(st.floats(0.001, 1000.0), min_size=1, max_size=40))
def test_scaling_scales_everything(values: list[float]) -> None:
    one, thousand = summarize(values), summarize([1024.0 * v for v in values])
    assert thousand.p95 == pytest.approx(1024.0 * one.p95)
    assert thousand.mean == pytest.approx(1024.0 * one.mean)
    assert thousand.ci_high == pytest.approx(1024.0 * one.ci_high)


@pytest.mark.parametrize("n", [*range(1, 41), 100, 999])
def test_interval_equals_asv(n: int) -> None:
    asv = pytest.importorskip("asv_runner.statistics")
    values = [float(i) for i in range(n)]
    assert median_interval(values) == asv.quantile_ci(values, 0.5, 0.01)[1]


def test_interval_needs_eight_samples() -> None:
    assert median_interval([1.0] * 7) == (-math.inf, math.inf)
    assert median_interval([float(i) for i in range(8)]) == (0.0, 7.0)


def test_interval_of_very_many_samples_does_not_underflow() -> None:
    low, high = median_interval(range(20_000))
    half = 2.576 * math.sqrt(20_000) / 2
    assert low == pytest.approx(10_000 - half, abs=3)
    assert high == pytest.approx(10_000 + half, abs=3)


def test_interval_covers_the_median_of_a_skewed_distribution() -> None:
    rng = np.random.default_rng(1)
    draws = np.sort(rng.lognormal(size=(4000, 15)), axis=1)
    hits = sum(low < 1.0 < high for low, high in (median_interval(list(row)) for row in draws))
    assert 0.985 <= hits / 4000 < 1.0


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_refuses_what_is_no_sample(values: list[float]) -> None:
    with pytest.raises(ValueError, match="samples: got"):
        summarize(values)


def test_largest_and_smallest_floats() -> None:
    assert summarize([sys.float_info.max] * 3).mean == sys.float_info.max
    assert summarize([5e-324, 5e-324]).mean == 5e-324
    assert summarize([0.0, 0.0]).mean == 0.0


def test_refuses_bad_fractions() -> None:
    with pytest.raises(ValueError, match=r"fraction: got 1\.5"):
        percentile([1.0], 1.5)
    with pytest.raises(ValueError, match=r"confidence: got 1\.0"):
        median_interval([1.0], 1.0)


@fewer
@given(finite)
def test_one_sample_is_every_percentile(value: float) -> None:
    s = summarize([value])
    assert s.minimum == s.p50 == s.p95 == s.p99 == s.maximum == s.mean == value
