"""What launching costs the host: the time of each call that enqueues a kernel, and what to do.

    tracker = LaunchTracker()
    with engine.observed(tracker):
        engine.prefill(sequence, ids)
    print(recommend(tracker.summary(), tracker.graphs()).reason)

A launch returns before its kernel runs: its time is the host's alone, as long as it need not wait.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

from rocmforge.gpu.replay import Enqueued
from rocmforge.gpu.runtime import Runtime
from rocmforge.plan.observation import ObservedPass
from rocmforge.profiling.timer import Times, times_of

GRAPH_S = 200e-6
"""Mean from which on kernels should be captured into a graph: 5000 launches take a second, which is
16 tokens of a 7B model with its 300 launches a token, whatever the device can do."""
BATCH_S = 50e-6
"""Median from which on there should be fewer launches: each is slow, and most kernels of a decode
step run for 5 to 50 µs, so that the device waits for the host at nearly every one."""
DEFER_S = 20e-6
"""Mean from which on something waits: a launch from Python that need not wait takes 3 to 15 µs.
Where the median is not above `BATCH_S`, it is some launches that wait, for a full queue or for a
synchronization between them."""

Action = Literal["nothing", "defer synchronization", "batch operations", "capture a graph"]


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to do about the host's cost of launches.

    Parameters
    ----------
    action
        One of four.
    reason
        A sentence with the numbers that say so.
    """

    action: Action
    reason: str


def recommend(launches: Times | None, graphs: Times | None = None) -> Recommendation:
    """Say what to do; the first of these rules that holds.

    =====================  =====================================
    capture a graph        mean above `GRAPH_S` (200 µs)
    batch operations       median above `BATCH_S` (50 µs)
    defer synchronization  mean above `DEFER_S` (20 µs)
    nothing                otherwise, or nothing but graphs ran
    =====================  =====================================

    Parameters
    ----------
    launches
        Of single kernels, from `LaunchTracker.summary`; None: there were none.
    graphs
        Of whole graphs, from `LaunchTracker.graphs`; None: there were none.
    """
    if launches is None:
        return Recommendation("nothing", _without_launches(graphs))
    mean, median = f"{launches.mean * 1e6:.1f} µs", f"{launches.p50 * 1e6:.1f} µs"
    tail = f"{launches.p99 * 1e6:.1f} µs"
    if launches.mean > GRAPH_S:
        return Recommendation(
            "capture a graph",
            f"A launch keeps the host for {mean} on average, above {GRAPH_S * 1e6:.0f} µs: "
            "capture the kernels of a pass into one graph and replay it.",
        )
    if launches.p50 > BATCH_S:
        return Recommendation(
            "batch operations",
            f"Half of the launches keep the host for {median} or more, above "
            f"{BATCH_S * 1e6:.0f} µs: launch fewer and larger kernels, by fusing ops or by larger "
            "batches.",
        )
    if launches.mean > DEFER_S:
        return Recommendation(
            "defer synchronization",
            f"A launch keeps the host for {mean} on average, above {DEFER_S * 1e6:.0f} µs, with a "
            f"median of {median} and a 99th percentile of {tail}: some wait for the device. "
            "Synchronize once behind all launches of a pass.",
        )
    return Recommendation(
        "nothing",
        f"A launch keeps the host for {mean} on average, not above {DEFER_S * 1e6:.0f} µs.",
    )


def _without_launches(graphs: Times | None) -> str:
    if graphs is None:
        return "No kernel was launched."
    return (
        f"All kernels were replayed as graphs, each of which one launch of {graphs.mean * 1e6:.1f} "
        "µs on average starts."
    )


class LaunchTracker:
    """Keeps what each launch took of the host's time.

    It is an observer of an engine: `Engine.observed`. For launches of your own call `enqueue`
    instead of theirs, or `add` what you have timed.
    """

    def __init__(self) -> None:
        self._launches: dict[str, list[float]] = {}
        self._graphs: list[float] = []

    def __call__(self, seen: ObservedPass) -> None:
        """Take in the launches of an observed pass; a CPU's has none."""
        for launch in seen.launches:
            if seen.graph:
                self._graphs.append(launch.seconds)
            else:
                self.add(launch.name, launch.seconds)

    def enqueue(self, name: str, launch: Enqueued, runtime: Runtime, stream: Any = None) -> None:
        """Enqueue a launch and keep the host's time for it; nothing is kept of one that fails."""
        begin = time.perf_counter()
        launch.enqueue(runtime, stream)
        self.add(name, time.perf_counter() - begin)

    def add(self, name: str, seconds: float) -> None:
        """Take in the host's time for one launch of the kernel of that name, in seconds.

        Raises
        ------
        ValueError
            The time is negative or no finite number.
        """
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"launch of {name}: got {seconds} s, wanted 0 or more")
        self._launches.setdefault(name, []).append(seconds)

    def summary(self) -> Times | None:
        """Return what launches of single kernels took; None where there were none."""
        return times_of([seconds for own in self._launches.values() for seconds in own])

    def by_name(self) -> dict[str, Times]:
        """Return the same for each kernel by its name, that of the longest total first."""
        found = {name: times for name, own in self._launches.items() if (times := times_of(own))}
        return dict(sorted(found.items(), key=lambda item: -item[1].total))

    def graphs(self) -> Times | None:
        """Return what launches of whole graphs took; None where there were none."""
        return times_of(self._graphs)
