"""A pass of a host's executor for timing: the whole of it, and the same step of all its layers.

A step runs again and again while the rest of the pass does not. So it would add to the residual, or
scale what it changes in place, without end; subnormal numbers, which are slow, would come of it.
What a step writes is therefore what the pass left there whenever the step begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rocmforge.array_types import Floats
from rocmforge.plan.cost import Cost
from rocmforge.timing import SHORTEST_S


@dataclass(frozen=True)
class HostTimedStep:
    """The same step of all layers; see `TimedStep`.

    Parameters
    ----------
    label, calls, cost
        As of `TimedStep`.
    run
        Runs the calls of all layers.
    written
        Arrays that they write, and what those hold after a pass.
    """

    label: str
    calls: int
    cost: Cost
    run: Callable[[], object]
    written: Sequence[tuple[Floats, Floats]]

    def seconds(self) -> float:
        """Run the calls of all layers, for some milliseconds; return seconds of one call."""
        took, runs = 0.0, 0
        while took < SHORTEST_S:
            for array, kept in self.written:
                array[:] = kept
            begin = time.perf_counter()
            self.run()
            took += time.perf_counter() - begin
            runs += 1
        return took / (runs * self.calls)


@dataclass(frozen=True)
class HostTimedPass:
    """A pass; see `TimedPass`.

    Parameters
    ----------
    steps
        In the order in which the pass first runs them.
    run
        Runs all of it as the executor does.
    """

    steps: Sequence[HostTimedStep]
    run: Callable[[], object]

    def seconds(self) -> float:
        """Run the pass once; return its seconds."""
        begin = time.perf_counter()
        self.run()
        return time.perf_counter() - begin

    def copy_seconds(self) -> None:
        """Return None: there is no other memory to copy to."""

    def close(self) -> None:
        """Nothing to do: memory goes with the object."""
