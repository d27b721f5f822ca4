"""The state of a GPU while it was used, summed up: clocks, power, temperature, load, throttling.

Samples come from `nvidia_smi` and `amdgpu`. What a card does not report is None.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

PERIOD_S = 0.5  # between samples
LITTLE = 0.2  # utilization by others that is not looked at twice
SETTLE_S = 1.0
"""Seconds for which a utilization may still show a process that has ended (man nvidia-smi: 1)."""


class Spread(NamedTuple):
    """Minimum, mean and maximum of a few readings."""

    min: float
    mean: float
    max: float


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One look at a GPU; None: the card does not say.

    Parameters
    ----------
    clock_mhz, memory_clock_mhz
        Of the compute units or multiprocessors, and of the memory.
    utilization
        Share of the last moments in which a kernel ran, 0 … 1.
    throttle
        Why clocks are held down at this moment, in words.
    residencies
        Counters that grow while clocks are held down, by reason.
    at
        When, by `time.perf_counter`; NaN: not noted.
    """

    clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    utilization: float | None = None
    memory_used_bytes: int | None = None
    throttle: frozenset[str] | None = None
    residencies: dict[str, int] = field(default_factory=dict)
    at: float = field(default=math.nan, compare=False)


@dataclass(frozen=True, slots=True)
class GpuEnvironment:
    """A GPU from a start to an end, of `samples` looks at it.

    Parameters
    ----------
    device
        As the engine names it, ``"hip:0"``.
    utilization
        Share of the time in which a kernel ran, by any process, 0 … 1.
    throttle
        Every reason seen, sorted; empty: none was seen; None: the card does not say, or has only
        counters and was looked at less than twice, so that none could be seen to grow.
    utilization_before, other_processes
        Of the moment before its first use here: what others did with it.
    """

    device: str
    source: str
    samples: int
    clock_mhz: Spread | None
    memory_clock_mhz: Spread | None
    power_watts: Spread | None
    temperature_celsius: Spread | None
    utilization: Spread | None
    memory_used_bytes: int | None
    throttle: tuple[str, ...] | None
    utilization_before: float | None
    other_processes: int | None


def gpu_environment(
    device: str,
    source: str,
    samples: Collection[GpuSample],
    *,
    utilization_before: float | None = None,
    other_processes: int | None = None,
) -> GpuEnvironment:
    """Sum up samples in the order in which they were taken."""

    def over(name: str) -> Spread | None:
        return spread([v for s in samples if (v := getattr(s, name)) is not None])

    memory = [s.memory_used_bytes for s in samples if s.memory_used_bytes is not None]
    told = [s.throttle for s in samples if s.throttle is not None]
    reasons = frozenset().union(*told)
    counters = [s.residencies for s in samples if s.residencies]
    counted = len(counters) >= 2
    if counted:
        reasons |= {key for key, n in counters[-1].items() if n > counters[0].get(key, n)}
    return GpuEnvironment(
        device=device,
        source=source,
        samples=len(samples),
        clock_mhz=over("clock_mhz"),
        memory_clock_mhz=over("memory_clock_mhz"),
        power_watts=over("power_watts"),
        temperature_celsius=over("temperature_celsius"),
        utilization=over("utilization"),
        memory_used_bytes=max(memory, default=None),
        throttle=tuple(sorted(reasons)) if told or counted else None,
        utilization_before=utilization_before,
        other_processes=other_processes,
    )


def settled(utilization: Callable[[], float | None]) -> float | None:
    """Ask how much others use a GPU; where it is much, again later, and return the lower answer.

    The process that measured before this one has just ended, and is none of the others.
    """
    first = utilization()
    if first is None or first <= LITTLE:
        return first
    time.sleep(SETTLE_S)
    second = utilization()
    return first if second is None else min(first, second)


def spread(values: Collection[float]) -> Spread | None:
    """Minimum, mean and maximum; None of nothing."""
    return Spread(min(values), sum(values) / len(values), max(values)) if values else None
