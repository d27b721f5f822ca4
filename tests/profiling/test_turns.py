"""A turn's parts, by a planted clock: each is what the clock moved by, the rest what is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rocmforge.plan.observation import Interval, ObservedPass
from rocmforge.profiling.telemetry import Telemetry
from rocmforge.profiling.turns import phase_of, take_turn

HOST = {"prepare": 2.0, "compute": 10.0, "dispatch": 3.0, "observing": 4.0}
"""Seconds of one pass on a CPU; the engine takes one more before each pass, for its inputs."""
GPU = {"prepare": 2.0, "launch": 3.0, "wait": 20.0, "copy_out": 1.0, "observing": 4.0}
AFTER_PASSES, SAMPLING, TEXT = 0.5, 7.0, 6.0


class Clock:
    now = 100.0

    def read(self) -> float:
        return self.now


class Work:
    """Engine, sampler and text of a turn, which move the clock."""

    def __init__(self, clock: Clock, parts: dict[str, float], passes: int) -> None:
        self.clock, self.parts, self.count = clock, parts, passes
        self.passes: list[ObservedPass] = []

    def call(self) -> NDArray[np.float32]:
        for _ in range(self.count):
            self.clock.now += 1.0
            self.passes.append(observed(self.clock.now, self.parts))
            self.clock.now += sum(self.parts.values())
        self.clock.now += AFTER_PASSES
        return np.zeros(4, np.float32)

    def sample(self, logits: NDArray[np.float32], history: Sequence[int]) -> int:
        self.clock.now += SAMPLING
        return 3

    def push(self, token: int) -> str:
        self.clock.now += TEXT
        return ""


def observed(begin: float, parts: dict[str, float]) -> ObservedPass:
    end = begin + sum(parts.values()) - parts["observing"]
    first = begin + parts["prepare"]
    device = Interval("pass", first, end - first)
    steps: tuple[Interval, ...] = ()
    host = [Interval("prepare", begin, parts["prepare"])]
    if "compute" in parts:  # two steps, and time between them
        half = parts["compute"] / 2
        steps = (Interval("rope", first, half), Interval("rope", end - half, half))
    else:
        for name in ("launch", "wait", "copy_out"):
            host.append(Interval(name, host[-1].start + host[-1].seconds, parts[name]))
    reading = parts["observing"]
    return ObservedPass(begin, end, tuple(host), steps, (), (), device, False, reading, list)


@pytest.mark.parametrize("parts", [HOST, GPU])
@pytest.mark.parametrize(("turns", "passes"), [(1, 1), (1, 3), (4, 1)])
def test_each_part_is_what_was_planted(
    monkeypatch: pytest.MonkeyPatch, parts: dict[str, float], turns: int, passes: int
) -> None:
    clock = Clock()
    monkeypatch.setattr("rocmforge.profiling.turns.time.perf_counter", clock.read)
    work: Any = Work(clock, parts, passes)
    taken = [take_turn(work.call, work, [1], work, work.passes) for _ in range(turns)]
    phase = phase_of("decode", turns, taken, Telemetry().summary("cpu"), None, "passes", None)
    found = {part.name: part.seconds for part in phase.parts}
    wanted = {name: turns * passes * seconds for name, seconds in parts.items()}
    wanted["prepare"] += turns * passes * 1.0
    wanted |= {"sampling": turns * SAMPLING, "detokenize": turns * TEXT}
    wanted["rest"] = turns * AFTER_PASSES
    assert found == pytest.approx(wanted)
    assert phase.seconds == pytest.approx(sum(wanted.values()))
