"""An observed pass of a GPU's executor: events between its steps, and what each step does.

A prompt's kernels are launched one by one, so that an event is recorded after each step and the
times are the device's own, in the pass. A replayed graph has an event at either end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from rocmforge.gpu.arrays import GROUP
from rocmforge.gpu.dtypes import F32, HALVES, NUMBER_BYTES, Q8, Convert, Step
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.release import release_all
from rocmforge.gpu.runtime import Runtime
from rocmforge.plan.cost import Cost, Costs
from rocmforge.plan.fused_records import GateUpSwiglu, MatmulRmsnorm
from rocmforge.plan.observation import Interval, KernelUse, ObservedPass, StepFacts
from rocmforge.plan.records import Attention, Matmul

PRECISIONS = {F32: "exact", Q8: "int8"} | dict.fromkeys(HALVES, "half")
"""How products round, by the dtype of the activations that they read."""
COPIES = ("host_to_device", "device_to_host")


class PassWatch:
    """Takes the times of one pass after another; its events are made once.

    Parameters
    ----------
    runtime, stream
        Where the passes run.
    """

    def __init__(self, runtime: Runtime, stream: Any) -> None:
        self._runtime = runtime
        self._stream = stream
        self._events: list[Any] = []
        self._names: list[str] = []  # of what ends with each event but the first
        self._host: list[tuple[str, float]] = []
        self._launches: list[Interval] = []

    def begin(self) -> None:
        """Begin a pass: its inputs are prepared now."""
        self._names = []
        self._host = []
        self._launches = []
        self.host("prepare")

    def host(self, part: str) -> None:
        """From now on the host does `part`."""
        self._host.append((part, time.perf_counter()))

    def launch(self, name: str, enqueue: Callable[[], object]) -> None:
        """Enqueue a kernel or a graph, and note how long the call keeps the host."""
        begin = time.perf_counter()
        enqueue()
        self._launches.append(Interval(name, begin, time.perf_counter() - begin))

    def mark(self, name: str = "") -> None:
        """Record an event behind what has been enqueued: `name`, or the beginning of all."""
        if len(self._names) == len(self._events):
            self._events.append(self._runtime.create_event())
        self._runtime.record_event(self._events[len(self._names)], self._stream)
        self._names.append(name)

    def end(self, told: Callable[[], Sequence[StepFacts]]) -> ObservedPass:
        """Read the events; the host has waited for the last one before its part after "wait"."""
        end = time.perf_counter()
        host = tuple(
            Interval(part, start, until - start)
            for (part, start), (_, until) in pairwise([*self._host, ("", end)])
        )
        done = next(part.start + part.seconds for part in host if part.name == "wait")
        between = [
            self._runtime.elapsed_seconds(*pair)
            for pair in pairwise(self._events[: len(self._names)])
        ]
        start = done - sum(between)
        device = Interval("pass", start, sum(between))
        found = []
        for name, seconds in zip(self._names[1:], between, strict=True):
            found.append(Interval(name, start, seconds))
            start += seconds
        graph = len(found) == 1
        return ObservedPass(
            begin=host[0].start,
            end=end,
            host=host,
            steps=() if graph else tuple(i for i in found if i.name not in COPIES),
            copies=() if graph else tuple(i for i in found if i.name in COPIES),
            launches=tuple(self._launches),
            device=device,
            graph=graph,
            reading_seconds=time.perf_counter() - end,
            facts=told,
        )

    def close(self) -> None:
        """End the events. Idempotent."""
        events, self._events = self._events, []
        release_all(*(partial(self._runtime.destroy_event, event) for event in events))


def facts(
    steps: Sequence[tuple[Step, Sequence[Launch]]], costs: Costs, single: bool
) -> list[StepFacts]:
    """Say what each step of a pass does; `single`: each sequence has one new token."""
    return [
        StepFacts(
            step.op.label, step_cost(step, costs), _precision(step, single), _kernels(launches)
        )
        for step, launches in steps
    ]


def step_cost(step: Step, costs: Costs) -> Cost:
    """Bytes and flops of a step of a batch."""
    if isinstance(step.op, Convert):
        return costs.moved(step.reads, step.writes)
    return costs.of(step.op, step.reads, step.writes)


def activation_bytes(dtype: str, rows: int, columns: int) -> int:
    """Bytes of activations: of int8, with the scale and the sums of each group."""
    values = rows * columns
    if dtype == Q8:
        return values + 8 * (values // GROUP)
    return NUMBER_BYTES[dtype] * values


def _precision(step: Step, single: bool) -> str:
    op = step.op
    if isinstance(op, Attention):
        return "exact" if single else "half"
    if isinstance(op, Matmul | GateUpSwiglu | MatmulRmsnorm):
        return next(PRECISIONS[dtype] for tensor, dtype in step.reads if tensor == op.x)
    return "exact"


def _kernels(launches: Sequence[Launch]) -> tuple[KernelUse, ...]:
    return tuple(
        KernelUse(
            launch.name,
            f"kernels/{launch.file}",
            launch.grid[0] * launch.grid[1] * launch.grid[2],
            launch.threads,
        )
        for launch in launches
    )
