"""A named timer on a device's events: its times are the device's, and it leaves no event behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from guarded import Gpu

from rocmforge.errors import DeviceError
from rocmforge.gpu.arrays import F32
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops.rmsnorm import rmsnorm
from rocmforge.gpu.runtime import Runtime
from rocmforge.profiling import timer as module
from rocmforge.profiling.timer import KernelTimer

KERNEL_S, LAUNCH_S = 5e-6, 30e-6


class Events:
    """Counts the events of a runtime that are alive, and fails calls that a test names."""

    def __init__(self) -> None:
        self.alive = 0
        self.most = 0
        self.failing: set[str] = set()

    def watch(self, runtime: Runtime, patch: pytest.MonkeyPatch) -> None:
        kind = type(runtime)

        def wrap(name: str, change: int) -> None:
            call = getattr(kind, name)

            def counted(own: Runtime, *arguments: Any) -> Any:
                if name in self.failing:
                    raise DeviceError(f"{name}: planted")
                result = call(own, *arguments)
                self.alive += change
                self.most = max(self.most, self.alive)
                return result

            patch.setattr(kind, name, counted)

        wrap("create_event", 1)
        wrap("destroy_event", -1)
        wrap("record_event", 0)
        wrap("elapsed_seconds", 0)


@pytest.fixture
def events(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[Events]:
    found = Events()
    found.watch(gpu.runtime, monkeypatch)
    yield found
    assert found.alive == 0


@pytest.fixture
def launch(gpu: Gpu) -> Launch:
    x = np.ones((2, 64), np.float32)
    addresses = {"x": gpu.upload(x), "weight": gpu.upload(x[0]), "out": F32(gpu.empty(x.nbytes))}
    return rmsnorm(gpu.kernels, rows=2, columns=64, eps=1e-5, **addresses)


def test_planted_times_come_back(
    gpu: Gpu, launch: Launch, events: Events, plant_times: Callable[[float, float], None]
) -> None:
    timer = KernelTimer("rmsnorm", gpu.runtime)
    for count in (1, 4):
        plant_times(KERNEL_S, LAUNCH_S)  # host and device at the same moment
        with timer:
            for _ in range(count):
                launch.enqueue(gpu.runtime)
        assert timer.elapsed() == pytest.approx(count * LAUNCH_S + KERNEL_S, rel=1e-3)
    times = timer.summary()
    assert times is not None
    assert times.count == 2
    assert times.total == pytest.approx(5 * LAUNCH_S + 2 * KERNEL_S, rel=1e-3)


def test_a_stream_of_ones_own(gpu: Gpu, launch: Launch, events: Events) -> None:
    stream = gpu.runtime.create_stream()
    timer = KernelTimer("rmsnorm", gpu.runtime, stream)
    with timer:
        launch.enqueue(gpu.runtime, stream)
    assert 0 < timer.elapsed() < 10
    gpu.runtime.destroy_stream(stream)


def test_events_live_until_they_are_read(gpu: Gpu, launch: Launch, events: Events) -> None:
    timer = KernelTimer("rmsnorm", gpu.runtime)
    for _ in range(3):
        with timer:
            launch.enqueue(gpu.runtime)
    assert events.alive == 6
    times = timer.summary()
    assert times is not None
    assert times.count == 3
    assert times.minimum > 0
    assert events.alive == 0


def test_unread_events_do_not_pile_up(
    gpu: Gpu, launch: Launch, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_UNREAD", 2)
    timer = KernelTimer("rmsnorm", gpu.runtime)
    for _ in range(7):
        with timer:
            launch.enqueue(gpu.runtime)
    assert events.most == 4
    times = timer.summary()
    assert times is not None
    assert times.count == 7


def test_closing_ends_events_that_were_not_read(gpu: Gpu, launch: Launch, events: Events) -> None:
    timer = KernelTimer("rmsnorm", gpu.runtime)
    with timer:
        launch.enqueue(gpu.runtime)
    timer.start()
    assert events.alive == 4
    timer.close()
    assert events.alive == 0
    timer.close()
    with pytest.raises(ValueError, match=r"'rmsnorm': got elapsed\(\) after close\(\)"):
        timer.elapsed()


def test_stop_before_start_touches_no_event(gpu: Gpu, events: Events) -> None:
    with pytest.raises(ValueError, match=r"got stop\(\), wanted start\(\)"):
        KernelTimer("rmsnorm", gpu.runtime).stop()
    assert events.most == 0


def test_a_block_that_raises_leaves_no_event(gpu: Gpu, events: Events) -> None:
    timer = KernelTimer("rmsnorm", gpu.runtime)
    with pytest.raises(KeyboardInterrupt), timer:
        raise KeyboardInterrupt
    assert events.alive == 0
    assert timer.summary() is None


def test_a_device_that_refuses_an_event_leaves_none(gpu: Gpu, events: Events) -> None:
    timer = KernelTimer("rmsnorm", gpu.runtime)
    events.failing = {"record_event"}
    with pytest.raises(DeviceError, match="record_event: planted"):
        timer.start()
    assert events.alive == 0
    events.failing = set()
    timer.start()
    events.failing = {"record_event"}
    with pytest.raises(DeviceError, match="record_event: planted"):
        timer.stop()
    assert events.alive == 0
    events.failing = set()
    with timer:
        pass
    events.failing = {"elapsed_seconds"}
    with pytest.raises(DeviceError, match="elapsed_seconds: planted"):
        timer.elapsed()
    assert timer.summary() is None
    assert events.alive == 0
