"""Whether other work keeps this machine busy, asked before anything is measured.

What goes on while a benchmark runs is in the environment of its processes.
"""

from __future__ import annotations

import os
from statistics import fmean

import psutil

from rocmforge.errors import MeasurementError

SAMPLE_S = 1.0
SAMPLES = 5
"""Of which one below the limit is enough: a burst is over soon."""


def others_share() -> float:
    """Share of the CPU time of our CPUs that is spent while this process waits: 0 … 1."""
    shares = psutil.cpu_percent(SAMPLE_S, percpu=True)
    ours = [share for cpu, share in enumerate(shares) if cpu in os.sched_getaffinity(0)]
    return fmean(ours or shares) / 100


def refuse_busy(limit: float) -> None:
    """Raise MeasurementError where other work takes more than `limit` of the CPU time, 0 … 1."""
    least = 1.0
    for _ in range(SAMPLES):
        if least <= limit:
            return
        least = min(least, others_share())
    if least > limit:
        raise MeasurementError(
            f"other work takes {100 * least:.0f} % of the CPU time or more (limit "
            f"{100 * limit:.0f} %, --max-load), and nothing was measured yet: stop what else runs "
            "on this machine, and start again"
        )
