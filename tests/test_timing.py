"""Samples: how many, how they are batched, and what is refused."""

from __future__ import annotations

import math
import time

import pytest

from rocmforge.timing import collect, seconds_per_call


class Script:
    """A clock that moves only while something is measured, and what each measurement takes."""

    def __init__(self, *seconds: float) -> None:
        self.now = 0.0
        self.calls = 0
        self._seconds = seconds

    def clock(self) -> float:
        return self.now

    def measure(self) -> float:
        """Take the next duration of the script; its last one for ever."""
        took = self._seconds[min(self.calls, len(self._seconds) - 1)]
        self.calls += 1
        self.now += took
        return took


def test_collect_drops_the_warm_up_and_stops_at_most() -> None:
    script = Script(9.0, 8.0, 7.0, 3.0, 4.0, 5.0, 6.0, 7.0)
    samples = collect(script.measure, fewest=2, most=5, budget=60, warmup=3, clock=script.clock)
    assert samples == [3.0, 4.0, 5.0, 6.0, 7.0]


@pytest.mark.parametrize(
    ("script", "calls", "why"),
    [
        ((0.05, 0.02, 0.011, 0.010, 0.0105), 5, "the last three lie within 10 %"),
        ((0.010,), 3, "steady from the start, which three calls show"),
        ((0.010, 0.0112) * 8, 16, "never steady: no more than 16"),
        ((0.2, 0.05, 0.2, 0.01), 3, "never steady: the budget is spent"),
        ((5.0, 1.0), 1, "one long call spends the budget"),
    ],
)
def test_warm_up_goes_on_until_it_is_steady(
    script: tuple[float, ...], calls: int, why: str
) -> None:
    run = Script(*script)
    collect(run.measure, fewest=1, most=1, clock=run.clock)
    assert run.calls == calls + 1, why


def test_without_a_budget_the_warm_up_is_what_was_asked_for() -> None:
    script = Script(1.0, 2.0, 3.0)
    assert collect(script.measure, fewest=1, most=1, warmup_budget=0, clock=script.clock) == [2.0]
    assert collect(script.measure, fewest=1, most=1, warmup=0, warmup_budget=0) == [3.0]


def test_collect_takes_the_fewest_where_the_budget_is_spent() -> None:
    assert collect(lambda: 1.0, fewest=3, most=9, budget=0.0) == [1.0] * 3


@pytest.mark.parametrize("wrong", [{"fewest": 0}, {"fewest": 5, "most": 4}, {"warmup": -1}])
def test_collect_refuses_counts_out_of_order(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="fewest"):
        collect(lambda: 1.0, **wrong)  # type: ignore[arg-type]


def test_collect_refuses_what_is_not_finite() -> None:
    with pytest.raises(ValueError, match="sample 0: got nan"):
        collect(lambda: math.nan)


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


def test_what_the_clock_leaves_out_counts_for_how_many_are_batched() -> None:
    device, calls = 0.0, 0

    def call() -> None:  # 10 µs on the device, and copies that its clock does not show
        nonlocal device, calls
        device, calls = device + 1e-5, calls + 1
        time.sleep(2e-3)

    samples = seconds_per_call(call, fewest=4, most=4, shortest=1e-3, clock=lambda: device)
    assert samples == pytest.approx([1e-5] * 4)
    assert calls < 30
