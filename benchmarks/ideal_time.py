"""A benchmark's time as a multiple of the least that the device's roofline allows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from rocmforge.errors import MeasurementError
from rocmforge.plan.protocols import Backend
from rocmforge.profiling.roofline import Peaks, measure_peaks
from rocmforge.timing import seconds_per_call

from .cold import cold_bytes
from .devices import backend, clock
from .samples import track

TIMES_IDEAL = "times ideal"
"""Unit of `inverse_roofline_fraction`."""
IMPOSSIBLE = 0.9
"""No work is so much faster than its roofline: the time, the bytes or the peaks are wrong."""
TRIES = 5
"""How often peaks and work are measured before a time is refused."""


class Roofline:
    """The best peaks of a device for one kind of work that this process has found so far.

    Parameters
    ----------
    on
        The backend.
    precision
        "f32", "f16" or "int8": what the operations are.
    working_set
        Bytes that the work reads again and again.
    """

    def __init__(self, on: Backend[Any], precision: str, working_set: int) -> None:
        self._asked = on, working_set, precision
        self.peaks = measure_peaks(*self._asked)

    def measure_again(self) -> Peaks:
        """Measure once more: other work may have lowered a peak, and nothing can raise it."""
        self.peaks = self.peaks.best(measure_peaks(*self._asked))
        return self.peaks


@functools.cache
def roofline(on: Backend[Any], precision: str, working_set: int) -> Roofline:
    """Measure, once a process, what this device reaches at best."""
    return Roofline(on, precision, working_set)


def inverse_roofline_fraction(
    call: Callable[[], object], n_bytes: int, operations: float, device: str, precision: str
) -> dict[str, Any]:
    """Time `call` in multiples of the least time that this device could take: lower is better.

    Peaks are measured in the same process: the value compares GPUs, and machines at another clock.
    About 1 is the best that a device can do. Peaks are the best of their samples, and the value is
    the median of its own: other load on the machine can raise it, but hardly lower it.

    Parameters
    ----------
    call
        The work, checked and cold.
    n_bytes, operations
        Of one call; multiply and add count as two.
    device
        "cpu" or "gpu".
    precision
        "f32", "f16" or "int8": what its operations are.

    Raises
    ------
    MeasurementError
        As of `over_ideal`.
    """
    on = backend(device)

    def timed() -> list[float]:
        return seconds_per_call(call, clock=clock)

    return over_ideal(timed, on, n_bytes, operations, precision, cold_bytes(on.name))


def over_ideal(
    timed: Callable[[], Sequence[float]],
    on: Backend[Any],
    n_bytes: int,
    operations: float,
    precision: str,
    working_set: int,
) -> dict[str, Any]:
    """Divide seconds by the least that the bytes and operations could take on a backend.

    Where that is impossible, other work may have lowered a peak while it was measured. So the peaks
    are measured again, of which the best count, and the work beside them, up to `TRIES` times.

    Parameters
    ----------
    timed
        Does the work and returns the seconds of each sample.
    on
        The backend.
    n_bytes, operations, precision
        As of `inverse_roofline_fraction`.
    working_set
        Bytes that the work reads again and again: a cache that holds them is faster than memory.

    Raises
    ------
    MeasurementError
        It stays faster than the roofline: nothing is recorded.
    """
    found = roofline(on, precision if operations else "f32", working_set)
    peaks = found.peaks
    samples: Sequence[float] = ()
    for left in reversed(range(TRIES)):
        samples = timed() or samples  # none where its turns beside another process are over
        ideal = peaks.ideal_seconds(n_bytes, operations)
        if median(samples) >= IMPOSSIBLE * ideal:
            return track([seconds / ideal for seconds in samples])
        if left:
            peaks = found.measure_again()
    raise MeasurementError(
        f"roofline: got {1e6 * median(samples):.3g} µs in {TRIES} tries, wanted no less than the "
        f"{1e6 * ideal:.3g} µs that {n_bytes} bytes and {operations:.3g} operations take at best"
    )
