"""What `record` gives runs the same ops again, on what their arrays hold by then."""

from __future__ import annotations

import functools
import gc
import threading

import numpy as np
import pytest

from rocmforge.cpu import _cpu
from rocmforge.cpu.backend import CpuBackend
from rocmforge.kv.batch import Slots
from rocmforge.ops import cases, reference


def test_ops_run_again_on_what_their_arrays_hold() -> None:
    backend = CpuBackend(2)
    x, out = np.arange(32, dtype=np.float32).reshape(2, 16), np.empty((2, 16), np.float32)
    weight = np.linspace(0.5, 2, 16, dtype=np.float32)

    def ops() -> None:
        backend.rmsnorm(x, weight, 1e-5, out)
        backend.swiglu(out, x, out)

    again = backend.record(ops)
    for values in (x.copy(), x[::-1] * 3):
        x[:] = values
        again()
        wanted = reference.swiglu(reference.rmsnorm(values, weight, 1e-5), values)
        np.testing.assert_allclose(out, wanted, rtol=1e-5)


def test_a_recorded_product_keeps_its_arrays_and_matrices() -> None:
    backend = CpuBackend(2)
    x, matrix = cases.MatmulCase(3, 40, 64, "Q8_0").inputs()
    packed = backend.pack(matrix.data, matrix.format, 64)
    outs = [np.empty((3, 40), np.float32)]
    product = functools.partial(backend.matmul, x.copy(), [packed], outs)
    again = backend.record(product)
    del product
    first = outs[0].copy()
    outs[0][:] = 0
    del packed
    gc.collect()
    np.empty((3, 64), np.float32).fill(np.nan)  # where the copy was, had it been given back
    again()
    np.testing.assert_array_equal(outs[0], first)


def test_what_fails_or_runs_on_another_thread_is_not_recorded() -> None:
    backend = CpuBackend(1)
    one, two = np.zeros((1, 16), np.float32), np.zeros((1, 16), np.float32)
    ones = np.ones((1, 16), np.float32)

    def fails() -> None:
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        backend.record(fails)

    def ops() -> None:
        other = threading.Thread(target=lambda: backend.softmax(ones, two))
        other.start()
        other.join()
        backend.softmax(ones, one)

    again = backend.record(ops)
    one[:] = two[:] = 7
    again()
    assert one[0, 0] == np.float32(1 / 16)
    assert two[0, 0] == 7


def test_pages_are_checked_each_time() -> None:
    backend = CpuBackend(1)
    pages, offsets = np.zeros(1, np.int32), np.zeros(1, np.int32)
    k_pages, v_pages = np.zeros((2, 1, 16, 16), np.float32), np.zeros((2, 1, 16, 16), np.float32)
    k = np.ones((1, 1, 16), np.float32)
    again = backend.record(lambda: backend.kv_append(k, k, k_pages, v_pages, Slots(pages, offsets)))
    pages[0] = 1
    again()
    assert k_pages[1, 0, :, 0].all()
    pages[0] = 2
    with pytest.raises(ValueError, match="page or offset out of range"):
        again()


def test_a_recording_belongs_to_its_kernels() -> None:
    one, two = _cpu.Kernels("", 1), _cpu.Kernels("", 1)
    recording = one.record(lambda: None)
    one.replay(recording)
    with pytest.raises(ValueError, match="other kernels made this recording"):
        two.replay(recording)


def test_one_recording_at_a_time() -> None:
    backend = CpuBackend(1)
    with pytest.raises(ValueError, match="one recording at a time"):
        backend.record(lambda: backend.record(lambda: None) and None)
