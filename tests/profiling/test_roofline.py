"""The roofline: ideal times from ceilings, the best of several samples, and that a CPU has some."""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator
from typing import Any

import pytest

from rocmforge.cpu.backend import CpuBackend
from rocmforge.errors import MeasurementError
from rocmforge.gpu.backend import GpuBackend
from rocmforge.profiling import roofline
from rocmforge.profiling.roofline import PRECISIONS, Measurable, Peaks, measure_peaks
from rocmforge.testing import ReferenceBackend


class Scripted:
    """A backend whose samples are given; after them the last one comes again and again."""

    name = "scripted"

    def __init__(self, reads: list[float], operations: list[float]) -> None:
        self._samples = {"read": reads, "operation": operations}
        self.taken = {"read": 0, "operation": 0}
        self.asked: list[object] = []
        self.closed: list[str] = []

    def read_rates(self, working_set: int) -> Generator[float, None, None]:
        self.asked.append(working_set)
        return self._rates("read")

    def operation_rates(self, precision: str) -> Generator[float, None, None]:
        self.asked.append(precision)
        return self._rates("operation")

    def _rates(self, kind: str) -> Generator[float, None, None]:
        samples = self._samples[kind]
        try:
            for rate in itertools.chain(samples, itertools.repeat(samples[-1])):
                self.taken[kind] += 1
                yield rate
        finally:
            self.closed.append(kind)


def measure(backend: Any, working_set: int = 1, precision: str = "f32") -> Peaks:
    return measure_peaks(backend, working_set, precision)


def test_the_slower_of_bytes_and_operations_is_the_ideal_time() -> None:
    peaks = Peaks(2e9, 8e9, 1 << 20, "f32")
    assert peaks.ideal_seconds(2e9, 4e9) == 1.0
    assert peaks.ideal_seconds(2e9, 24e9) == 3.0
    assert peaks.ideal_seconds(0, 8e9) == 1.0
    assert peaks.ideal_seconds(0, 0) == 0.0


def test_the_best_sample_counts_and_everything_is_closed() -> None:
    backend = Scripted([1.0, 5.0, 3.0], [2.0, 2.0, 7.0, 6.0])
    assert measure(backend, 4096, "int8") == Peaks(5.0, 7.0, 4096, "int8")
    assert backend.asked == [4096, "int8"]
    assert backend.closed == ["read", "operation"]


def let_samples_take(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count(step=seconds)
    monkeypatch.setattr("rocmforge.profiling.roofline.time.perf_counter", lambda: next(ticks))


def test_samples_end_when_none_was_better_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    let_samples_take(roofline.STABLE_S / 3.5, monkeypatch)  # four of them are long enough
    backend = Scripted([1.0], [1.0, 2.0, 3.0, 3.001])
    assert measure(backend).operations_per_second == 3.001
    assert backend.taken == {"read": 1 + 4, "operation": 3 + 4}


def test_a_core_that_is_free_only_later_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    let_samples_take(0.002, monkeypatch)
    backend = Scripted([1.0], [1.0] * 50 + [2.0])  # another library's threads spun for 0.1 s
    assert measure(backend).operations_per_second == 2.0


def test_samples_end_with_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    let_samples_take(roofline.BUDGET_S, monkeypatch)
    growing = [1.1**n for n in range(50)]
    backend = Scripted(growing, growing)
    measure(backend)
    assert backend.taken == {"read": 1 + roofline.FEWEST, "operation": 1 + roofline.FEWEST}


def test_a_wrong_sample_is_no_ceiling() -> None:
    class Wrong(Scripted):
        def _rates(self, kind: str) -> Generator[float, None, None]:
            yield 1.0
            raise MeasurementError(f"{kind}: got sum 1, wanted 2")

    with pytest.raises(MeasurementError, match="read: got sum 1"):
        measure(Wrong([], []))


@pytest.mark.parametrize(
    ("working_set", "precision", "message"),
    [
        (0, "f32", "working set: got 0 bytes, wanted at least 1"),
        (1, "f64", "precision: got 'f64', wanted one of f32, f16, int8"),
    ],
)
def test_what_cannot_be_measured_is_named(working_set: int, precision: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measure(Scripted([1.0], [1.0]), working_set, precision)


def test_the_reference_has_no_ceilings() -> None:
    with pytest.raises(ValueError, match="backend 'reference' has no read_rates"):
        measure(ReferenceBackend())


def test_both_backends_can_be_measured() -> None:
    assert isinstance(CpuBackend(1), Measurable)
    assert issubclass(GpuBackend, Measurable)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_cpu_has_ceilings(precision: str) -> None:
    begin = time.perf_counter()
    peaks = measure(CpuBackend(), 1 << 20, precision)
    assert time.perf_counter() - begin < 5  # 0.1 s where nothing else runs
    assert 1e8 < peaks.read_bytes_per_second < 1e14
    assert 1e8 < peaks.operations_per_second < 1e15
    assert (peaks.working_set, peaks.precision) == (1 << 20, precision)


def test_a_cpu_reads_a_cache_faster_than_memory_and_multiplies_bytes_faster_than_floats() -> None:
    backend = CpuBackend()
    near, far = measure(backend, 1 << 18, "int8"), measure(backend, 256 << 20, "f32")
    assert near.read_bytes_per_second > far.read_bytes_per_second
    if backend.isa != "portable":
        assert near.operations_per_second > far.operations_per_second
