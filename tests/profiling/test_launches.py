"""The host's cost of launches: what is recommended on either side of each limit, and sums."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from rocmforge.plan.observation import Interval, ObservedPass
from rocmforge.profiling.launches import Action, LaunchTracker, recommend
from rocmforge.profiling.timer import Times

QUICK = Times(
    count=100, total=1e-3, mean=10e-6, minimum=5e-6, maximum=90e-6,
    p50=8e-6, p95=20e-6, p99=80e-6,
)  # fmt: skip


def above(seconds: float) -> float:
    return math.nextafter(seconds, math.inf)


@pytest.mark.parametrize(
    ("mean", "median", "action"),
    [
        (0.0, 0.0, "nothing"),
        (20e-6, 8e-6, "nothing"),
        (20e-6, 50e-6, "nothing"),
        (above(20e-6), 8e-6, "defer synchronization"),
        (above(20e-6), 50e-6, "defer synchronization"),
        (200e-6, 50e-6, "defer synchronization"),
        (55e-6, above(50e-6), "batch operations"),
        (200e-6, 190e-6, "batch operations"),
        (above(200e-6), 190e-6, "capture a graph"),
        (above(200e-6), 8e-6, "capture a graph"),
    ],
)
def test_either_side_of_each_limit(mean: float, median: float, action: Action) -> None:
    assert recommend(replace(QUICK, mean=mean, p50=median)).action == action


@pytest.mark.parametrize(
    ("mean", "median", "numbers"),
    [
        (10, 8, ["10.0 µs", "20 µs"]),
        (30, 8, ["30.0 µs", "20 µs", "8.0 µs", "80.0 µs"]),
        (60, 58, ["58.0 µs", "50 µs"]),
        (250, 58, ["250.0 µs", "200 µs"]),
    ],
)
def test_the_reason_has_the_numbers(mean: float, median: float, numbers: list[str]) -> None:
    reason = recommend(replace(QUICK, mean=mean / 1e6, p50=median / 1e6)).reason
    assert all(number in reason for number in numbers)
    assert reason.endswith(".")


def test_graphs_and_nothing_need_nothing() -> None:
    graphs = recommend(None, replace(QUICK, mean=790e-6, p50=790e-6))
    assert graphs.action == "nothing"
    assert "replayed as graphs" in graphs.reason
    assert "790.0 µs" in graphs.reason
    assert recommend(None) == recommend(None, None)
    assert recommend(None).reason == "No kernel was launched."


def test_times_are_added_up_by_kernel() -> None:
    tracker = LaunchTracker()
    assert tracker.summary() is None
    assert tracker.by_name() == {}
    for name, us in (("rope", 4), ("matmul", 10), ("rope", 6), ("matmul", 40)):
        tracker.add(name, us / 1e6)
    whole = tracker.summary()
    assert whole is not None
    assert (whole.count, whole.maximum) == (4, 40e-6)
    assert whole.total == pytest.approx(60e-6)
    assert [(name, times.count) for name, times in tracker.by_name().items()] == [
        ("matmul", 2),
        ("rope", 2),
    ]
    assert tracker.by_name()["rope"].mean == pytest.approx(5e-6)
    assert tracker.graphs() is None


@pytest.mark.parametrize("seconds", [-1e-9, math.nan, math.inf])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"launch of rope: got .* s, wanted 0 or more"):
        LaunchTracker().add("rope", seconds)


def observed(graph: bool, *launches: Interval) -> ObservedPass:
    device = Interval("pass", 0.0, 1.0)
    return ObservedPass(0.0, 1.0, (), (), (), launches, device, graph, 0.0, list)


def test_graphs_are_not_single_launches() -> None:
    tracker = LaunchTracker()
    tracker(observed(True, Interval("graph", 0.5, 80e-6)))
    assert tracker.summary() is None
    tracker(observed(False, Interval("rope", 0.1, 4e-6), Interval("rope", 0.2, 6e-6)))
    tracker(observed(False))
    single, graphs = tracker.summary(), tracker.graphs()
    assert single is not None
    assert graphs is not None
    assert (single.count, graphs.count) == (2, 1)
    assert graphs.maximum == 80e-6
    assert list(tracker.by_name()) == ["rope"]
