"""Device time of launches: planted times come back, whatever launching costs the host."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from guarded import Gpu

from rocmforge import ops
from rocmforge.errors import DeviceError
from rocmforge.gpu import replay
from rocmforge.gpu.arrays import F32
from rocmforge.gpu.backend import GpuBackend
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops.rmsnorm import rmsnorm
from rocmforge.gpu.replay import Replay
from rocmforge.gpu.runtime import Runtime
from rocmforge.ops import cases

LAUNCH_S = 30e-6  # of the host, planted
ROWS, COLUMNS = 2, 64
X = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), np.float32)
WEIGHT = np.ones(COLUMNS, np.float32)

Plant = Callable[[float], None]


@pytest.fixture
def plant(plant_times: Callable[[float, float], None]) -> Plant:
    """Let each kernel take so many seconds on the stand-in, and each launch LAUNCH_S."""
    return lambda seconds: plant_times(seconds, LAUNCH_S)


@pytest.fixture
def backend(kernels: Kernels) -> GpuBackend:
    return GpuBackend(kernels)


def norms(gpu: Gpu, count: int) -> tuple[list[Launch], list[int]]:
    """RMSNorms of rows of their own, and where their results go."""
    outs = [gpu.empty(X.nbytes) for _ in range(count)]
    x, weight = gpu.upload(X), gpu.upload(WEIGHT)
    shape = {"rows": ROWS, "columns": COLUMNS, "eps": 1e-5}
    return [rmsnorm(gpu.kernels, x=x, weight=weight, out=F32(out), **shape) for out in outs], outs


@pytest.mark.parametrize("seconds", [0.7e-6, 5.6e-6, 3e-3])
def test_planted_times_come_back(seconds: float, gpu: Gpu, plant: Plant) -> None:
    launches, _ = norms(gpu, 8)
    plant(seconds)
    one = Replay(gpu.runtime, launches, calls=8)
    two_each = Replay(gpu.runtime, launches, calls=4)
    assert one.seconds() == pytest.approx(seconds, rel=1e-3)
    assert two_each.seconds() == pytest.approx(2 * seconds, rel=1e-3)
    plant(2 * seconds)
    assert one.seconds() == pytest.approx(2 * seconds, rel=1e-3)
    one.close()
    two_each.close()


def test_the_clock_of_timed_calls_leaves_launching_out(backend: GpuBackend, plant: Plant) -> None:
    call = partial(ops.rmsnorm, X, WEIGHT, 1e-5, backend)
    plant(5.6e-6)
    begin = backend.seconds()
    call()
    alone = backend.seconds() - begin
    assert alone == pytest.approx(LAUNCH_S + 5.6e-6, rel=1e-3)  # events see the host launch it
    run = backend.timed([call, call, call])
    begin = backend.seconds()
    run()
    assert backend.seconds() - begin == pytest.approx(5.6e-6, rel=1e-3)


def test_what_only_converts_the_given_rows_is_not_timed(backend: GpuBackend, plant: Plant) -> None:
    case = cases.MatmulCase(1, 64, 256, "Q4_0")  # reads rows rounded to int8
    x, matrix = case.inputs()
    weights = ops.pack(matrix, backend)
    plant(5.6e-6)
    run = backend.timed([partial(ops.matmul, x, weights)])
    begin = backend.seconds()
    run()
    assert backend.seconds() - begin == pytest.approx(5.6e-6, rel=1e-3)


def test_a_replay_runs_every_launch(gpu: Gpu) -> None:
    launches, outs = norms(gpu, 3)
    made = Replay(gpu.runtime, launches, calls=3)
    for out in outs:
        gpu.runtime.fill(out, 0xFF, X.nbytes)
    assert 0 < made.seconds() < 1
    wanted = X / np.sqrt((X.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-5)
    for out in outs:
        np.testing.assert_allclose(gpu.download(out, X.shape, np.float32), wanted, rtol=1e-5)
    assert 0 < made.launch_seconds() < 1
    made.close()
    made.close()


def test_timed_calls_keep_their_memory_until_the_backend_closes(
    backend: GpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = backend.kernels.runtime
    monkeypatch.setattr(backend.kernels, "close", lambda: None)  # others use them
    monkeypatch.setattr(runtime, "close", lambda: None)
    held: list[int] = []
    kind = type(runtime)
    allocate, free = kind.allocate, kind.free

    def allocating(self: Runtime, nbytes: int) -> int:
        held.append(allocate(self, nbytes))
        return held[-1]

    def freeing(self: Runtime, address: int) -> None:
        held.remove(address)
        free(self, address)

    monkeypatch.setattr(kind, "allocate", allocating)
    monkeypatch.setattr(kind, "free", freeing)
    ops.swiglu(X, X, backend)
    assert held == []
    run = backend.timed([partial(ops.swiglu, X, X, backend)] * 2)
    assert len(held) >= 2
    run()
    backend.close()
    assert held == []


def test_calls_without_a_launch_are_refused(backend: GpuBackend) -> None:
    with pytest.raises(ValueError, match="got no launch"):
        backend.timed([lambda: None])


def test_a_launch_that_fails_leaves_the_device_usable(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches, _ = norms(gpu, 2)
    enqueue, count = Launch.enqueue, iter(range(9))

    def failing(self: Launch, runtime: Runtime, stream: object = None) -> None:
        if next(count) == 1:
            raise DeviceError("on purpose")
        enqueue(self, runtime, stream)

    monkeypatch.setattr(Launch, "enqueue", failing)
    with pytest.raises(DeviceError, match="on purpose"):
        Replay(gpu.runtime, launches, calls=2)
    monkeypatch.undo()
    made = Replay(gpu.runtime, launches, calls=2)
    assert made.seconds() > 0
    made.close()


def test_short_launches_are_repeated_until_they_can_be_timed(
    gpu: Gpu, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches, _ = norms(gpu, 2)
    lengths: list[int] = []
    kind = type(gpu.runtime)
    begin, enqueue = kind.begin_capture, Launch.enqueue

    def beginning(self: Runtime, stream: object) -> None:
        lengths.append(0)
        begin(self, stream)

    def counting(self: Launch, runtime: Runtime, stream: object = None) -> None:
        lengths[-1] += 1
        enqueue(self, runtime, stream)

    monkeypatch.setattr(kind, "begin_capture", beginning)
    monkeypatch.setattr(Launch, "enqueue", counting)
    plant(10e-6)
    Replay(gpu.runtime, launches, calls=2).close()
    assert lengths[-1] * 10e-6 >= replay.SHORTEST_S
    monkeypatch.setattr(replay, "MOST_LAUNCHES", 5)
    Replay(gpu.runtime, launches, calls=2).close()
    assert lengths[-1] == 4
