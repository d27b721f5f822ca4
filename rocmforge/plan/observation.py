"""What an executor tells of a pass that is observed: when its parts began, and what its steps do.

Times are readings of `time.perf_counter`. A device's own times are laid on that clock so that the
pass ends on the device when the host has waited for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rocmforge.plan.cost import Cost


class Interval(NamedTuple):
    """A piece of time.

    Parameters
    ----------
    name
        What ran.
    start, seconds
        When it began, and how long it took.
    """

    name: str
    start: float
    seconds: float


@dataclass(frozen=True, slots=True)
class KernelUse:
    """A kernel that a step runs.

    Parameters
    ----------
    name, file
        The function and its source file.
    blocks, threads
        Blocks of the grid and threads of a block; None on a CPU.
    """

    name: str
    file: str
    blocks: int | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What a step does, whenever it runs.

    Parameters
    ----------
    label
        Its name, the same in all layers.
    cost
        Bytes and flops.
    precision
        Of its products; "exact" where it has none.
    kernels
        One for each launch.
    """

    label: str
    cost: Cost
    precision: str
    kernels: tuple[KernelUse, ...]


@dataclass(frozen=True, slots=True)
class ObservedPass:
    """One pass.

    Parameters
    ----------
    begin, end
        When the executor was called, and when it had the caller's logits.
    host
        Parts of that time on the host, in order: "prepare", "launch", "wait" and "copy_out" on a
        GPU, "prepare" on a CPU, where the steps follow.
    steps
        Each step that was timed, in order; empty where the pass was replayed as one graph.
    copies
        "host_to_device" and "device_to_host", of a pass whose steps were timed; a CPU has none.
    launches
        Each call of the host that gave the device a kernel, in order, by the kernel's name; "graph"
        where the pass was replayed as one. A CPU launches none.
    device
        From the first to the last of what the device did; on a CPU the steps.
    graph
        Whether the pass was replayed as one graph.
    reading_seconds
        Time that observing took after `end`, before the executor returned.
    facts
        Returns what each step does, in the order of `steps`. It takes time.
    """

    begin: float
    end: float
    host: tuple[Interval, ...]
    steps: Sequence[Interval]
    copies: tuple[Interval, ...]
    launches: tuple[Interval, ...]
    device: Interval
    graph: bool
    reading_seconds: float
    facts: Callable[[], Sequence[StepFacts]]


Observer = Callable[[ObservedPass], None]
"""Told of each pass, after it."""
