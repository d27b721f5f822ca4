"""Samples: how many, how they are batched, and what is refused."""

from __future__ import annotations

import itertools
import math
import time

import pytest

from rocmforge.timing import collect, seconds_per_call


def test_collect_drops_the_warm_up_and_stops_at_most() -> None:
    values = itertools.count()
    assert collect(lambda: next(values), fewest=2, most=5, budget=60.0, warmup=3) == [
        3,
        4,
        5,
        6,
        7,
    ]


def test_collect_takes_the_fewest_where_the_budget_is_spent() -> None:
    assert collect(lambda: 1.0, fewest=3, most=9, budget=0.0) == [1.0] * 3


@pytest.mark.parametrize("wrong", [{"fewest": 0}, {"fewest": 5, "most": 4}, {"warmup": -1}])
def test_collect_refuses_counts_out_of_order(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="fewest"):
        collect(lambda: 1.0, **wrong)  # type: ignore[arg-type]


def test_collect_refuses_what_is_not_finite() -> None:
    with pytest.raises(ValueError, match="sample 0: got nan"):
        collect(lambda: math.nan, warmup=0)


def test_a_fast_call_is_batched() -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1

    samples = seconds_per_call(call, fewest=4, most=4, shortest=1e-3)
    assert len(samples) == 4
    assert calls > 4 * 100
    assert 0 < max(samples) < 1e-4


def test_a_slow_call_is_timed_alone() -> None:
    samples = seconds_per_call(lambda: time.sleep(5e-3), fewest=3, most=3, shortest=1e-3)
    assert all(5e-3 <= sample < 1.0 for sample in samples)
