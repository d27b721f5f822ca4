"""Readings of the CPUs that this process may run on, and of its memory."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from rocmforge.profiling.process_memory import resident_bytes
from rocmforge.profiling.run_environment import CpuTicks, load_average, read_mhz, read_ticks

LEAST_S = 0.05
"""Wall time of a share of busy time: the kernel counts in steps of 10 ms."""
CLOCK_S = 1.0
"""Between two readings of the frequencies, whose file is long where there are many CPUs."""
_STANDS_STILL_S = 0.02  # own CPU time that the kernel's counters must have seen


@dataclass(frozen=True, slots=True)
class CpuSample:
    """One look at the CPUs; None: this machine does not show it.

    Parameters
    ----------
    at
        When, by `time.perf_counter`.
    clock_mhz
        Mean frequency, at most `CLOCK_S` old.
    utilization
        Share of the CPUs' time that was busy since the last share, for any process, 0 … 1; None
        where that is less than `LEAST_S` ago.
    load_average
        Of the last minute.
    memory_used_bytes
        Resident memory of this process.
    """

    at: float
    clock_mhz: float | None
    utilization: float | None
    load_average: float | None
    memory_used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU time at one moment.

    Parameters
    ----------
    wall
        The moment, by `time.perf_counter`.
    own
        CPU seconds of this process.
    ticks
        Of the CPUs; None: the kernel does not show them.
    """

    wall: float
    own: float
    ticks: CpuTicks | None


class CpuReadings:
    """A source of `CpuSample`, whose first look begins the first share.

    Parameters
    ----------
    root
        Directory under which ``proc`` and ``sys`` are looked up.
    """

    name = "/proc"

    def __init__(self, root: Path) -> None:
        self._root = root
        self._cpus = tuple(sorted(os.sched_getaffinity(0)))
        self._since: Spent | None = None
        self._clock: tuple[float, float | None] | None = None  # when it was read, and what it was

    def samples(self) -> list[CpuSample]:
        """Look once."""
        now = Spent(time.perf_counter(), time.process_time(), read_ticks(self._root, self._cpus))
        busy = None
        if self._since is None:
            self._since = now
        elif now.wall - self._since.wall >= LEAST_S:
            busy, self._since = busy_share(self._since, now, len(self._cpus)), now
        return [
            CpuSample(
                at=now.wall,
                clock_mhz=self._mhz(now.wall),
                utilization=busy,
                load_average=load_average(self._root),
                memory_used_bytes=resident_bytes(self._root),
            )
        ]

    def end(self) -> None:
        """Nothing to do: files are open only while they are read."""

    def _mhz(self, now: float) -> float | None:
        if self._clock is None or now - self._clock[0] >= CLOCK_S:
            found = read_mhz(self._root, self._cpus)
            self._clock = now, sum(found) / len(found) if found else None
        return self._clock[1]


def busy_share(last: Spent, now: Spent, cpus: int) -> float | None:
    """Return the share of the time of some CPUs that was busy between two moments, 0 … 1.

    None without counters, or where they stood still although this process has worked.
    """
    wall = now.wall - last.wall
    if last.ticks is None or now.ticks is None or wall <= 0:
        return None
    busy = now.ticks.busy - last.ticks.busy
    if busy <= 0 and now.own - last.own > _STANDS_STILL_S:
        return None
    return min(max(busy / (wall * cpus), 0.0), 1.0)
