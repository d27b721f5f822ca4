"""Measures the most that a device can do: the roofline that a kernel's time is compared with.

A kernel moves bytes and computes operations. Its least time is the longer of bytes / read rate and
operations / compute rate. Both rates are measured in the same process, with the same threads and
instructions, and are not those of a data sheet.

A rate is the best of several samples; a kernel's time is a median. Other work on the machine makes
the kernel's time in multiples of the ideal larger, that is worse. It makes it smaller only where it
slows down all samples of a rate and then ends.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from rocmforge.plan.protocols import Backend

PRECISIONS = ("f32", "f16", "int8")
CEILINGS = {"exact": "f32", "half": "f16", "int8": "int8"}
"""How products round their operands, and the rate of operations that bounds them."""
FEWEST = 3
BUDGET_S = 0.6
"""Wall-clock seconds of one rate at most, without the first sample, which warms up."""
STABLE_S = 0.12
"""Seconds without a new best after which a rate counts as found: so long, threads of other
libraries may spin on our cores after their last work."""
GAIN = 1.005
"""How much better a sample must be to count as a new best."""


@runtime_checkable
class Measurable(Protocol):
    """A backend that can measure its own ceilings: each step of a generator is a sample."""

    def read_rates(self, working_set: int) -> Generator[float, None, None]:
        """Bytes a second of repeated reads of `working_set` bytes."""

    def operation_rates(self, precision: str) -> Generator[float, None, None]:
        """Operations a second of independent multiply-adds, each of which is two."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """The ceilings of a device for one kind of work.

    Parameters
    ----------
    read_bytes_per_second
        Of a working set of `working_set` bytes that is read again and again: a cache's rate where
        it fits one, else the memory's.
    operations_per_second
        Multiply and add count as two, in `precision`.
    working_set
        Bytes that the work touches.
    precision
        "f32", "f16" or "int8".
    """

    read_bytes_per_second: float
    operations_per_second: float
    working_set: int
    precision: str

    def ideal_seconds(self, n_bytes: float, operations: float) -> float:
        """Least time for that many bytes and operations, done side by side."""
        return max(n_bytes / self.read_bytes_per_second, operations / self.operations_per_second)

    def best(self, other: Peaks) -> Peaks:
        """Return the better rate of two measurements each: other work only lowers one."""
        return replace(
            self,
            read_bytes_per_second=max(self.read_bytes_per_second, other.read_bytes_per_second),
            operations_per_second=max(self.operations_per_second, other.operations_per_second),
        )


def measure_peaks(backend: Backend[Any], working_set: int, precision: str) -> Peaks:
    """Measure a device's ceilings: the best of several samples, in 0.3 to 1.2 s.

    Every sample's result is checked. Filling hundreds of MB before they are read may take as long
    again. On a CPU the time is the host's, with all threads of the backend, and other work on its
    cores lowers the ceilings where it lasts through all samples; on a GPU it is the device's,
    between events, and the kernels are compiled first.

    Parameters
    ----------
    backend
        Of the device; the numpy reference cannot be measured.
    working_set
        Bytes that the work in question touches, at least 1.
    precision
        "f32", "f16" or "int8": what its products are made in. On a CPU f16 is f32, see
        `CpuBackend.operation_rates`; for a GPU see `GpuBackend.operation_rates`.

    Raises
    ------
    ValueError
        The working set is empty, the precision unknown, or the backend cannot be measured.
    MeasurementError
        A sample's result is wrong.
    """
    if working_set < 1:
        raise ValueError(f"working set: got {working_set} bytes, wanted at least 1")
    if precision not in PRECISIONS:
        raise ValueError(f"precision: got {precision!r}, wanted one of {', '.join(PRECISIONS)}")
    if not isinstance(backend, Measurable):
        raise ValueError(f"backend {backend.name!r} has no read_rates and operation_rates")
    with closing(backend.read_rates(working_set)) as rates:
        read = _best(rates)
    with closing(backend.operation_rates(precision)) as rates:
        operations = _best(rates)
    return Peaks(read, operations, working_set, precision)


def _best(rates: Generator[float, None, None]) -> float:
    """Return the best of some samples, until no better one comes or the time is up."""
    best, taken = next(rates), 0
    now = begin = found = time.perf_counter()
    while taken < FEWEST or (now - found < STABLE_S and now - begin < BUDGET_S):
        rate = next(rates)
        now = time.perf_counter()
        if rate > GAIN * best:
            found = now
        best, taken = max(best, rate), taken + 1
    return best
