"""Ops over copies of their data that no cache holds, as in a model: each layer has data of its own.

Each copy is checked before it is timed. Where few rows go through an op, as between the matrices of
one token, a model finds them in a cache: such times are called hot, and are of one copy.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rocmforge.plan.protocols import Backend

from .checks import checked

GPU_BYTES = 512 << 20  # the largest cache that we know has 256 MiB (MI300X)
CACHES = 4  # of the CPU's last caches, which may keep a part of what runs through them
CPUS = Path("/sys/devices/system/cpu")


@functools.cache
def cold_bytes(device: str) -> int:
    """Bytes that no cache of a device holds; `device` is a backend's name."""
    if device != "cpu":
        return GPU_BYTES
    try:
        return CACHES * _last_caches()
    except (OSError, ValueError):  # no such cache, or the system does not tell
        return GPU_BYTES


def _last_caches() -> int:
    """Bytes of the last caches of all cores that this process may use; chiplets have their own."""
    found = {}
    for cpu in os.sched_getaffinity(0):
        cache = CPUS / f"cpu{cpu}/cache/index3"
        cores = (cache / "shared_cpu_list").read_text(encoding="ascii")
        found[cores] = 1024 * int((cache / "size").read_text(encoding="ascii").strip().rstrip("K"))
    return sum(found.values())


def copies(on: Backend[Any], nbytes: int) -> int:
    """How many calls that touch so many bytes each are cold together."""
    return -(-cold_bytes(on.name) // nbytes)


def own(on: Backend[Any], array: np.ndarray) -> np.ndarray:
    """Copy an array that the ops read where it lies; a GPU makes a copy for each call itself."""
    return array.copy() if on.name == "cpu" else array


def cold(
    what: str,
    on: Backend[Any],
    nbytes: int,
    copy: Callable[[], Callable[[], np.ndarray]],
    wanted: np.ndarray,
    tolerance: float,
) -> Callable[[], object]:
    """Return a call for timing that runs over copies in turn; each is checked before.

    Parameters
    ----------
    what
        Named where a result is wrong.
    on
        The backend.
    nbytes
        That one call reads and writes.
    copy
        Makes a call with data of its own.
    wanted, tolerance
        As of `checked`.
    """
    calls = [copy() for _ in range(copies(on, nbytes))]
    for call in calls:
        checked(what, call, wanted, tolerance)
    return on.timed(calls)
