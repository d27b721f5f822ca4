"""The stand-in of the HIP runtime does what a GPU does: waves, blocks, grids, order, faults.

What works also runs on a GPU, where there is one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from ctypes import CDLL
from pathlib import Path

import numpy as np
import pytest
from guarded import Gpu

from rocmforge.errors import DeviceError
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.hip import HipRuntime

SOURCE = """
#include "device.h"

struct Vectors { const float* x; float* y; int n; };
// y[i] = 2 x[i] + lanes of a wave
KERNEL(twice, Vectors, 128) {
    const int i = static_cast<int>(block_x() * 128 + thread_x());
    const float lanes = wave_sum(1.0f);
    if (i < a.n) a.y[i] = 2 * a.x[i] + lanes;
}
// Each wave's lanes in reverse, thrice; then the block's threads in reverse.
KERNEL(reverse, Vectors, 256) {
    SHARED float values[256];
    float value = a.x[thread_x()];
    for (int i = 0; i < 3; ++i) value = shuffle(value, WAVE - 1 - lane());
    for (int i = 0; i < 3; ++i) {
        values[thread_x()] = value;
        block_sync();
        value = values[255 - thread_x()];
        block_sync();
    }
    a.y[thread_x()] = value;
}
struct Grid { int* x; };
// x[z][y][x] of a grid (5, 3, z): the number of the block, and its threads
KERNEL(number, Grid, 64) {
    const unsigned i = (block_z() * 3 + block_y()) * 5 + block_x();
    const float threads = wave_sum(1.0f) * (64 / WAVE);
    if (thread_x() == 0) a.x[i] = static_cast<int>(i * 1000 + threads);
}
struct Shift { int* x; int step; };
// A value from a neighbour, without the barrier that it needs.
KERNEL(racy, Shift, 128) {
    SHARED int values[128];
    values[thread_x()] = -1;
    block_sync();
    values[thread_x()] = static_cast<int>(thread_x());
    a.x[thread_x()] = values[(thread_x() + a.step + 128) % 128];
}
KERNEL(past_the_end, Shift, 64) {
    a.x[static_cast<int>(thread_x()) + a.step] = 0;
}
KERNEL(returns_early, Grid, 128) {
    if (thread_x() == 5) return;
    block_sync();
    a.x[0] = 1;
}
KERNEL(wave_apart, Grid, 128) {
    if (lane() < 7) {
        block_sync();
    } else {
        wave_sum(1);
    }
}
"""


@pytest.fixture
def folder(repo: Path, tmp_path: Path) -> Path:
    """A folder of kernels with this file's."""
    text = (repo / "kernels" / "device.h").read_text("utf-8")
    (tmp_path / "device.h").write_text(text, "utf-8")
    (tmp_path / "own.hip").write_text(SOURCE, "utf-8")
    return tmp_path


@pytest.fixture
def own(kernels: Kernels, folder: Path) -> Iterator[Kernels]:
    own = Kernels(kernels.runtime, folder=folder, cache=folder / "cache")
    yield own
    own.close()


@pytest.fixture(params=[0, 1], ids=["wave32", "wave64"])
def faulty(request: pytest.FixtureRequest, standin: dict[str, CDLL], folder: Path) -> Iterator[Gpu]:
    """This file's kernels on the stand-in alone: after a fault a GPU has to be opened again."""
    own = Kernels(HipRuntime(request.param), folder=folder, cache=folder / "cache")
    yield Gpu(own)
    own.close()


def test_kernels_of_waves_blocks_and_grids(gpu: Gpu, own: Kernels) -> None:
    for size in (1, 127, 128, 300):
        x = np.arange(size, dtype=np.float32)
        source, target = gpu.upload(x), gpu.empty(x.nbytes)
        grid = (-(-size // 128), 1, 1)
        gpu.run(own.launch("own.hip", "twice", None, grid, 128, "PPi", source, target, size))
        lanes = gpu.runtime.properties.wave_size
        np.testing.assert_array_equal(gpu.download(target, size, np.float32), 2 * x + lanes)

    x = np.random.default_rng(0).standard_normal(256).astype(np.float32)
    source, target = gpu.upload(x), gpu.empty(x.nbytes)
    gpu.run(own.launch("own.hip", "reverse", None, (1, 1, 1), 256, "PPi", source, target, 0))
    turned = x.reshape(-1, gpu.runtime.properties.wave_size)[:, ::-1].reshape(-1)[::-1]
    np.testing.assert_array_equal(gpu.download(target, 256, np.float32), turned)

    target = gpu.empty(4 * 2 * 3 * 5)
    gpu.run(own.launch("own.hip", "number", None, (5, 3, 2), 64, "P", target))
    numbers = gpu.download(target, 30, np.int32)
    np.testing.assert_array_equal(numbers, np.arange(30) * 1000 + 64)


def test_a_missing_barrier_shows_in_one_of_the_orders(
    faulty: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = faulty.empty(4 * 128)
    for step in (1, -1):
        right = []
        for turn in (False, True):
            if turn:
                monkeypatch.setenv("STANDIN_TURN", "1")
            else:
                monkeypatch.delenv("STANDIN_TURN", raising=False)
            launch = faulty.kernels.launch("own.hip", "racy", None, (1, 1, 1), 128, "Pi", x, step)
            faulty.run(launch)
            expected = (np.arange(128) + step) % 128
            right.append(np.count_nonzero(faulty.download(x, 128, np.int32) == expected))
        assert sorted(right) == [1, 127]
    faulty.free()


def test_a_write_past_an_array_is_found(faulty: Gpu) -> None:
    for step, what in ((1, "after an array of 256 bytes: guard bytes .0 1 2 3."), (-1, "before")):
        x = faulty.empty(4 * 64)
        faulty.run(
            faulty.kernels.launch("own.hip", "past_the_end", None, (1, 1, 1), 64, "Pi", x, step)
        )
        with pytest.raises(AssertionError, match=f"a kernel wrote {what}"):
            faulty.check_guards()
        faulty.free()


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        ("returns_early", "127 threads wait at a block barrier .*, 1 threads have returned .*5"),
        ("wave_apart", "threads wait at a block barrier .*threads wait in a wave operation"),
    ],
)
def test_threads_that_wait_for_ever_are_an_error(
    faulty: Gpu, capfd: pytest.CaptureFixture[str], kernel: str, reason: str
) -> None:
    x = faulty.empty(4)
    launch = faulty.kernels.launch("own.hip", kernel, None, (1, 1, 1), 128, "P", x)
    launch.enqueue(faulty.runtime)  # the fault shows where the host waits
    with pytest.raises(DeviceError, match=r"hipErrorLaunchFailure: .* AMD_LOG_LEVEL"):
        faulty.runtime.synchronize()
    message = capfd.readouterr().err
    assert f"kernel {kernel}, block (0, 0, 0)" in message
    assert re.search(reason, message)
    faulty.runtime.synchronize()
    faulty.free()


def test_work_runs_when_the_host_waits(faulty: Gpu) -> None:
    runtime = faulty.runtime
    pinned, stream = runtime.allocate_pinned(4), runtime.create_stream()
    pinned[:] = 1
    x = faulty.upload(np.full(4, 2, np.uint8))
    runtime.copy_to_host(pinned, x, stream)
    assert pinned.tolist() == [1] * 4
    runtime.synchronize(stream)
    assert pinned.tolist() == [2] * 4
    event, later = runtime.create_event(), runtime.create_event()
    runtime.record_event(event, stream)
    runtime.record_event(later, stream)
    with pytest.raises(DeviceError, match="hipErrorNotReady"):
        runtime.elapsed_seconds(event, later)
    runtime.synchronize_event(later)
    assert runtime.elapsed_seconds(event, later) >= 0
    runtime.destroy_stream(stream)
    runtime.free_pinned(pinned)
    faulty.free()


def test_a_capture_spreads_over_streams_by_events(gpu: Gpu) -> None:
    runtime = gpu.runtime
    x, y = gpu.upload(np.zeros(4, np.uint8)), gpu.upload(np.zeros(4, np.uint8))
    stream, other = runtime.create_stream(), runtime.create_stream()
    fork, join = runtime.create_event(), runtime.create_event()
    runtime.begin_capture(stream)
    runtime.record_event(fork, stream)
    runtime.wait_event(other, fork)
    runtime.fill(x, 1, 4, stream)
    runtime.fill(y, 2, 4, other)
    runtime.record_event(join, other)
    runtime.wait_event(stream, join)
    graph = runtime.end_capture(stream)
    assert gpu.download(y, 4, np.uint8).tolist() == [0] * 4
    runtime.launch_graph(graph, stream)
    runtime.synchronize(stream)
    assert gpu.download(x, 4, np.uint8).tolist() == [1] * 4
    assert gpu.download(y, 4, np.uint8).tolist() == [2] * 4
    runtime.destroy_graph(graph)
    for event in (fork, join):
        runtime.destroy_event(event)
    for each in (stream, other):
        runtime.destroy_stream(each)


def test_captures_that_cannot_be_graphs_are_errors(faulty: Gpu) -> None:
    runtime = faulty.runtime
    stream, other = runtime.create_stream(), runtime.create_stream()
    with pytest.raises(DeviceError, match="hipErrorStreamCaptureUnmatched"):
        runtime.end_capture(stream)
    event = runtime.create_event()
    runtime.begin_capture(stream)
    runtime.record_event(event, stream)
    runtime.wait_event(other, event)
    with pytest.raises(DeviceError, match="hipErrorStreamCaptureUnjoined"):
        runtime.end_capture(stream)
    with pytest.raises(DeviceError, match="hipErrorCapturedEvent"):
        runtime.synchronize_event(event)
    runtime.begin_capture(stream)
    with pytest.raises(DeviceError, match="hipErrorStreamCaptureUnsupported"):
        runtime.allocate(100)
    with pytest.raises(DeviceError, match="hipErrorStreamCaptureInvalidated"):
        runtime.end_capture(stream)
    for each in (stream, other):
        runtime.destroy_stream(each)
    with pytest.raises(DeviceError, match="hipErrorInvalidHandle"):
        runtime.synchronize(stream)


@pytest.mark.skipif("STANDIN_ASAN" in os.environ, reason="AddressSanitizer reads modules' files")
def test_a_loaded_module_leaves_no_file(
    gpu: Gpu, own: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    target = gpu.empty(4 * 3 * 5)
    launch = own.launch("own.hip", "number", None, (5, 3, 1), 64, "P", target)
    assert not list(folder.iterdir())
    gpu.run(launch)
    assert gpu.download(target, 15, np.int32)[1] == 1064
