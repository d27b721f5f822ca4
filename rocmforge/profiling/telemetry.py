"""Telemetry of ops: what each op of some passes took, moved and computed, beside the roofline.

`Telemetry` is an observer of an engine. It keeps what each pass told, and adds it up afterwards, so
that a pass is not kept waiting.

    telemetry = Telemetry()
    with engine.observed(telemetry):
        engine.prefill(sequence, ids)
    for op in telemetry.summary(engine.backend.name).ops:
        print(op.label, op.calls, op.seconds)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rocmforge.plan.cost import Cost
from rocmforge.plan.observation import KernelUse, ObservedPass, StepFacts
from rocmforge.plan.protocols import Backend, TimedPass
from rocmforge.profiling.profile import Ceiling, Kernel, Op
from rocmforge.profiling.roofline import CEILINGS, Peaks, measure_peaks


@dataclass
class _Sum:
    """All calls of one label so far."""

    calls: int = 0
    seconds: float = 0.0
    cost: Cost = field(default_factory=Cost)
    precision: str = "exact"
    launches: int = 0
    kernels: dict[KernelUse, None] = field(default_factory=dict)

    def add(self, fact: StepFacts, seconds: float) -> None:
        """Count one more call."""
        self.calls += 1
        self.seconds += seconds
        self.cost += fact.cost
        self.precision = fact.precision
        self.kernels |= dict.fromkeys(fact.kernels)
        self.launches += sum(kernel.blocks is not None for kernel in fact.kernels)


@dataclass(frozen=True, slots=True)
class ExecutionSummary:
    """What a backend did in some passes.

    Parameters
    ----------
    backend
        Its name: "cpu", "hip" or "cuda".
    passes, calls, launches
        Of the model, of ops, and of kernels; a CPU launches none.
    device_seconds
        Of the passes, from the first to the last step of each.
    op_seconds
        Of all ops; what is left of `device_seconds` are copies and gaps. NaN: not all are known.
    nbytes, flops
        What the ops had to move at least, and operations.
    ops
        Longest first.
    """

    backend: str
    passes: int
    calls: int
    launches: int
    device_seconds: float
    op_seconds: float
    nbytes: int
    flops: int
    ops: tuple[Op, ...]


class Telemetry:
    """An observer that keeps what each pass told; see `Engine.observed`.

    Attributes
    ----------
    passes : list of ObservedPass
        In their order. Clear it to begin anew.
    """

    def __init__(self) -> None:
        self.passes: list[ObservedPass] = []

    def __call__(self, seen: ObservedPass) -> None:
        """Keep a pass."""
        self.passes.append(seen)

    def summary(
        self,
        backend: str,
        step_seconds: Mapping[str, float] | None = None,
        ceilings: Sequence[Ceiling] = (),
    ) -> ExecutionSummary:
        """Add up all passes.

        Parameters
        ----------
        backend
            Its name.
        step_seconds
            Seconds of one call, by label, for passes that were replayed as one graph: from
            `step_seconds`. Without them the times of such ops, and their sum, are NaN.
        ceilings
            For the roofline, from `measure_ceilings`; without them ops have no least time.
        """
        sums = self._sums(step_seconds or {})
        device = sum(seen.device.seconds for seen in self.passes)
        total = sum(found.seconds for found in sums.values())
        ops = [_op(label, each, max(device, total), ceilings) for label, each in sums.items()]
        return ExecutionSummary(
            backend=backend,
            passes=len(self.passes),
            calls=sum(op.calls for op in ops),
            launches=sum(found.launches for found in sums.values()),
            device_seconds=device,
            op_seconds=total,
            nbytes=sum(op.nbytes for op in ops),
            flops=sum(op.flops for op in ops),
            ops=tuple(sorted(ops, key=lambda op: (math.isnan(op.seconds), -op.seconds))),
        )

    def _sums(self, step_seconds: Mapping[str, float]) -> dict[str, _Sum]:
        sums: dict[str, _Sum] = {}
        for seen in self.passes:
            for number, fact in enumerate(seen.facts()):
                alone = step_seconds.get(fact.label, math.nan)
                seconds = alone if seen.graph else seen.steps[number].seconds
                sums.setdefault(fact.label, _Sum()).add(fact, seconds)
        return sums

    def precisions(self) -> tuple[str, ...]:
        """Return in which precisions the passes multiplied, that of most flops first."""
        flops: dict[str, int] = {}
        for seen in self.passes:
            for fact in seen.facts():
                flops[fact.precision] = flops.get(fact.precision, 0) + fact.cost.flops
        return tuple(sorted(flops, key=lambda name: -flops[name]))

    def pass_bytes(self) -> int:
        """Return what a pass has to move, the last one's."""
        return sum(fact.cost.bytes for fact in self.passes[-1].facts())


def step_seconds(timed: TimedPass) -> dict[str, float]:
    """Time each step of a pass alone; return seconds of one call by label."""
    return {step.label: step.seconds() for step in timed.steps}


def measure_ceilings(
    backend: Backend[Any], precisions: Sequence[str], working_set: int
) -> tuple[Ceiling, ...]:
    """Measure the roofline for each precision that has a ceiling; see `measure_peaks`.

    Reads do not depend on the precision, so all ceilings have the best read rate that was measured.
    They are measured at least twice, so that what disturbs one of them shows in `least_read`.

    Parameters
    ----------
    backend
        Of the device.
    precisions
        As of ops: "exact", "half", "int8"; "bf16" has no ceiling and is left out.
    working_set
        Bytes that a pass moves.
    """
    wanted = [precision for precision in precisions if precision in CEILINGS]
    found: dict[str, Peaks] = {}
    reads = []
    for precision in wanted * 2 if len(wanted) == 1 else wanted:
        peaks = measure_peaks(backend, max(1, working_set), CEILINGS[precision])
        reads.append(peaks.read_bytes_per_second)
        found[precision] = peaks.best(found.get(precision, peaks))
    return tuple(
        Ceiling(
            precision,
            max(reads),
            peaks.operations_per_second,
            peaks.working_set,
            min(reads) / max(reads),
        )
        for precision, peaks in found.items()
    )


def _op(label: str, found: _Sum, whole: float, ceilings: Sequence[Ceiling]) -> Op:
    cost = found.cost
    ceiling = next((c for c in ceilings if c.precision == found.precision), None)
    ideal = None
    if ceiling is not None:
        reading = cost.bytes / ceiling.read_bytes_per_second
        ideal = max(reading, cost.flops / ceiling.operations_per_second)
    return Op(
        label=label,
        calls=found.calls,
        seconds=found.seconds,
        share=found.seconds / whole if whole > 0 else 0.0,
        nbytes=cost.bytes,
        flops=cost.flops,
        weight_bytes=cost.weight_bytes,
        kv_bytes=cost.kv_bytes,
        precision=found.precision,
        ideal_seconds=ideal,
        kernels=tuple(Kernel(k.name, k.file, k.blocks, k.threads) for k in found.kernels),
    )
