"""How benchmarks are sampled: by asv (`Timed`), or by themselves (`track`)."""

from __future__ import annotations

from typing import Any

from .devices import clock

ROUNDS = 2  # fresh processes whose samples are pooled


class Timed:
    """How asv times the `time_` benchmarks of ops."""

    repeat = (4, 20, 1.0)  # fewest and most samples a process, seconds
    timer = staticmethod(clock)
    rounds = ROUNDS


def track(samples: list[float]) -> dict[str, Any]:
    """Hand samples of our own to asv, which stores them with median and 99 % interval."""
    return {"samples": samples, "number": 1}
