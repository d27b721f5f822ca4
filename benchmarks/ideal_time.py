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


@functools.cache
def roofline(on: Backend[Any], precision: str) -> Peaks:
    """Measure, once a process, what this device reaches at best, reading what no cache holds."""
    return measure_peaks(on, cold_bytes(on.name), precision)


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
    samples = seconds_per_call(call, clock=clock)
    return over_ideal(samples, backend(device), n_bytes, operations, precision)


def over_ideal(
    samples: Sequence[float], on: Backend[Any], n_bytes: int, operations: float, precision: str
) -> dict[str, Any]:
    """Divide seconds by the least that the bytes and operations could take on a backend.

    Raises
    ------
    MeasurementError
        They are faster than the roofline, also after it was measured once more: nothing is
        recorded.
    """
    used = precision if operations else "f32"
    for _ in range(2):  # the machine may have been slower while the peaks were measured
        ideal = roofline(on, used).ideal_seconds(n_bytes, operations)
        if median(samples) >= IMPOSSIBLE * ideal:
            return track([seconds / ideal for seconds in samples])
        roofline.cache_clear()
    raise MeasurementError(
        f"roofline: got {1e6 * median(samples):.3g} µs, wanted no less than the "
        f"{1e6 * ideal:.3g} µs that {n_bytes} bytes and {operations:.3g} operations take at best"
    )
