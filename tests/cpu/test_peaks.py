"""The loops of the CPU's ceilings on every instruction set: they do all of the work they claim."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rocmforge.cpu import _cpu
from rocmforge.cpu.backend import CpuBackend, instruction_sets
from rocmforge.errors import MeasurementError

VECTOR = 64  # bytes
SPAN = 1 << 14  # vectors that peaks.cpp sums in int32
ISAS = pytest.mark.parametrize("isa", instruction_sets())


@ISAS
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("vectors", [1, 2, 3, 7, 100, SPAN - 1, SPAN, SPAN + 1, 5 * SPAN + 13])
def test_every_word_is_read_as_often_as_asked(isa: str, threads: int, vectors: int) -> None:
    kernels = _cpu.Kernels(isa, threads)
    buffer = kernels.read_buffer(vectors * VECTOR)
    assert buffer.nbytes == vectors * VECTOR
    words = np.arange(vectors * VECTOR // 4) % 128
    for repeats in (1, 2, 5):
        assert kernels.peak_reads(buffer, repeats) == repeats * int(words.sum())


@ISAS
@pytest.mark.parametrize("int8", [False, True])
def test_the_sum_of_the_products_is_that_of_all_of_them(isa: str, int8: bool) -> None:
    counts = []
    for threads in (1, 2, 3):
        count, total = _cpu.Kernels(isa, threads).peak_products(int8)
        assert count > 0
        assert 2 * total == 3 * count  # the means of the factors are 1.5 and 1
        counts.append(count)
    assert counts == [counts[0], 2 * counts[0], 3 * counts[0]]


def test_a_buffer_is_of_whole_vectors() -> None:
    kernels = _cpu.Kernels("", 1)
    for wrong in (0, -64, 63, 65):
        with pytest.raises(ValueError, match="must be a multiple of 64"):
            kernels.read_buffer(wrong)


def test_rates_are_those_of_the_work_and_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count(step=0.5)
    monkeypatch.setattr("rocmforge.cpu.backend.time.perf_counter", lambda: float(next(ticks)))
    backend = CpuBackend(1)
    reads = backend.read_rates(1)  # rounded up to 64, and repeated to 32 MiB
    assert [next(reads), next(reads)] == [(32 << 20) / 0.5] * 2
    assert next(backend.read_rates(33 << 20)) == (33 << 20) / 0.5
    count, _ = _cpu.Kernels("", 1).peak_products(True)
    assert next(backend.operation_rates("int8")) == 2 * count / 0.5


def test_a_huge_working_set_is_read_from_less(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Kernels:
        threads = 1

        def read_buffer(self, nbytes: int) -> None:
            asked.append(nbytes)
            raise MemoryError

    backend = CpuBackend(1)
    monkeypatch.setattr(backend, "_kernels", Kernels())
    for threads, wanted in ((1, 1 << 50), (1, 65), (8, 1 << 50), (8, 300 << 20), (999, 1 << 50)):
        Kernels.threads = threads
        with pytest.raises(MemoryError):
            next(backend.read_rates(wanted))
    assert asked == [256 << 20, 128, 512 << 20, 300 << 20, 4 << 30]


def test_work_left_out_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Buffer:
        nbytes = 1 << 20

    class Lazy:
        threads = 1

        def read_buffer(self, nbytes: int) -> Buffer:
            return Buffer()

        def peak_reads(self, buffer: Buffer, repeats: int) -> int:
            return 1

        def peak_products(self, int8: bool) -> tuple[int, int]:
            return 1000, 1499

    backend = CpuBackend(1)
    monkeypatch.setattr(backend, "_kernels", Lazy())
    with pytest.raises(MeasurementError, match="read bandwidth: got sum 1, wanted "):
        next(backend.read_rates(1 << 20))
    with pytest.raises(MeasurementError, match=r"products: got sum 1499, wanted 1500"):
        next(backend.operation_rates("f32"))
