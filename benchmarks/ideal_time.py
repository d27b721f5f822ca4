"""A benchmark's time as a multiple of the least that the device's roofline allows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from rocmforge.plan.protocols import Backend
from rocmforge.profiling.roofline import Peaks, measure_peaks
from rocmforge.timing import seconds_per_call

from .devices import backend, clock
from .samples import track

TIMES_IDEAL = "times ideal"
"""Unit of `inverse_roofline_fraction`."""


@functools.cache
def roofline(on: Backend[Any], working_set: int, case_flops: float, precision: str) -> Peaks:
    """Measure, once a process, what this device reaches at best.

    Parameters
    ----------
    on
        The backend that the case runs on.
    working_set
        Bytes that are read again and again: they may fit a cache.
    case_flops
        Operations of the case; 0 where it only moves bytes.
    precision
        "f32", "f16" or "int8": what its operations are.
    """
    return measure_peaks(on, max(working_set, 1), precision if case_flops else "f32")


def inverse_roofline_fraction(
    call: Callable[[], object],
    n_bytes: int,
    operations: float,
    device: str,
    precision: str,
    working_set: int | None = None,
) -> dict[str, Any]:
    """Time `call` in multiples of the least time that this device could take: lower is better.

    Peaks are measured in the same process, by reads over the working set of the case: the value
    compares GPUs, and machines at another clock. About 1 is the best that a device can do. Peaks
    are the best of their samples, and the value is the median of its own: other load on the machine
    can raise it, but hardly lower it.

    Parameters
    ----------
    call
        The work, checked.
    n_bytes, operations
        Of one call; multiply and add count as two.
    device
        "cpu" or "gpu".
    precision
        "f32", "f16" or "int8".
    working_set
        Bytes that calls read in turns; None: each reads its own `n_bytes` again.
    """
    peaks = roofline(backend(device), working_set or n_bytes, operations, precision)
    ideal = peaks.ideal_seconds(n_bytes, operations)
    return track([seconds / ideal for seconds in seconds_per_call(call, clock=clock)])
