"""A named timer on the host's clock: what it adds up, and what it refuses."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest

from rocmforge.profiling import timer as module
from rocmforge.profiling.timer import KernelTimer, times_of


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Readings of the host's clock that are to come."""
    coming: list[float] = []
    monkeypatch.setattr(module.time, "perf_counter", lambda: coming.pop(0))
    return coming


def test_intervals_add_up(clock: list[float]) -> None:
    timer = KernelTimer("softmax")
    clock += [10.0, 10.5, 20.0, 20.25, 30.0, 33.0]
    with timer as entered:
        assert entered is timer
    assert timer.elapsed() == 0.5
    with timer:
        pass
    timer.start()
    timer.stop()
    assert timer.elapsed() == 3.0
    times = timer.summary()
    assert times is not None
    assert (times.count, times.total, times.mean) == (3, 3.75, 1.25)
    assert (times.minimum, times.maximum, times.p50) == (0.25, 3.0, 0.5)
    assert timer.name == "softmax"


def test_the_clock_is_the_hosts() -> None:
    begin = time.perf_counter()
    with KernelTimer("sleep") as timer:
        time.sleep(0.02)
    whole = time.perf_counter() - begin
    assert 0.02 <= timer.elapsed() <= whole


def test_percentiles_stand_between_the_times_beside_them() -> None:
    seconds = [float(n) for n in range(100, 0, -1)]
    times = times_of(seconds)
    assert times is not None
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    assert (times.p50, times.p95, times.p99) == pytest.approx((cuts[49], cuts[94], cuts[98]))
    assert times_of([]) is None
    one = times_of([7.0])
    assert one is not None
    assert {one.total, one.mean, one.minimum, one.maximum, one.p50, one.p99} == {7.0}


def test_an_interval_that_an_error_ends_is_dropped(clock: list[float]) -> None:
    clock += [1.0, 2.0, 2.5]
    timer = KernelTimer("rope")
    with pytest.raises(ZeroDivisionError), timer:
        _ = 1 / 0
    assert timer.summary() is None
    with timer:
        pass
    times = timer.summary()
    assert times is not None
    assert (times.count, times.total) == (1, 0.5)


def test_a_block_may_stop_its_interval_itself(clock: list[float]) -> None:
    clock += [1.0, 1.25]
    with KernelTimer("rope") as timer:
        timer.stop()
        assert timer.elapsed() == 0.25
    assert timer.elapsed() == 0.25


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (["stop"], r"timer 'rope': got stop\(\), wanted start\(\) before it"),
        (["start", "stop", "stop"], r"got stop\(\), wanted start\(\) before it"),
        (["start", "start"], r"got start\(\) twice, wanted stop\(\) between"),
        (["elapsed"], r"got elapsed\(\), wanted start\(\) and stop\(\) first"),
        (["start", "elapsed"], r"got elapsed\(\), wanted start\(\) and stop\(\) first"),
        (["close", "start"], r"got start\(\) after close\(\)"),
        (["start", "close", "stop"], r"got stop\(\) after close\(\)"),
        (["start", "stop", "close", "elapsed"], r"got elapsed\(\) after close\(\)"),
        (["close", "close", "summary"], r"got summary\(\) after close\(\)"),
    ],
)
def test_a_call_out_of_order_is_refused(calls: list[str], message: str) -> None:
    timer = KernelTimer("rope")
    methods: dict[str, Callable[[], object]] = {
        name: getattr(timer, name) for name in ("start", "stop", "elapsed", "summary", "close")
    }
    for name in calls[:-1]:
        methods[name]()
    with pytest.raises(ValueError, match=message):
        methods[calls[-1]]()


def test_a_stream_needs_its_device() -> None:
    with pytest.raises(ValueError, match=r"timer 'rope': got a stream, wanted the runtime"):
        KernelTimer("rope", stream=3)
