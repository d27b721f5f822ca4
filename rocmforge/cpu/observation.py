"""An observed pass of a host's executor: a stamp around each op, and what each op does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, overload

from rocmforge.plan.cost import Costs, Places
from rocmforge.plan.fused_records import GateUpSwiglu
from rocmforge.plan.graph import Op
from rocmforge.plan.observation import Interval, KernelUse, ObservedPass, StepFacts
from rocmforge.plan.operands import Tensor
from rocmforge.plan.protocols import Backend, Precision
from rocmforge.plan.records import (
    AddExperts,
    Attention,
    Embed,
    ExpertGateUp,
    ExpertMatmul,
    Matmul,
    Route,
    SelectOutputs,
    op_name,
)

FILES: dict[type[Op], str] = {
    GateUpSwiglu: "rocmforge/cpu/matmul.cpp",
    ExpertGateUp: "rocmforge/cpu/matmul.cpp",
    ExpertMatmul: "rocmforge/cpu/matmul.cpp",
    Route: "rocmforge/cpu/experts.cpp",
    AddExperts: "rocmforge/cpu/experts.cpp",
    Embed: "rocmforge/cpu/dequantize.cpp",
    SelectOutputs: "rocmforge/cpu/executor.py",
}
"""Where ops run whose file does not have their name."""


class Stamps(Sequence[Interval]):
    """Takes the time of steps, in order; when each ran is worked out where it is asked for.

    Parameters
    ----------
    labels
        Of all steps that will run.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = labels
        self._times: list[float] = []  # of each step: when it began, when it ended

    def run(self, step: Callable[[], None]) -> None:
        """Run the next step."""
        self._times.append(time.perf_counter())
        step()
        self._times.append(time.perf_counter())

    def __len__(self) -> int:
        return len(self._labels)

    @overload
    def __getitem__(self, at: int) -> Interval: ...
    @overload
    def __getitem__(self, at: slice) -> list[Interval]: ...
    def __getitem__(self, at: int | slice) -> Interval | list[Interval]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        at = range(len(self))[at]
        begin, end = self._times[2 * at : 2 * at + 2]
        return Interval(self._labels[at], begin, end - begin)


def observed_pass(
    begin: float, end: float, stamps: Stamps, told: Callable[[], Sequence[StepFacts]]
) -> ObservedPass:
    """Return what is told of a pass from `begin` to `end`; see `ObservedPass`."""
    first = stamps[0].start
    last = stamps[-1].start + stamps[-1].seconds
    return ObservedPass(
        begin=begin,
        end=end,
        host=(Interval("prepare", begin, first - begin),),
        steps=stamps,
        copies=(),
        launches=(),
        device=Interval("pass", first, last - first),
        graph=False,
        reading_seconds=time.perf_counter() - end,
        facts=told,
    )


def facts(
    backend: Backend[Any], ops: Sequence[Op], costs: Costs, tokens: int, outputs: int
) -> list[StepFacts]:
    """Say what each op of a pass does.

    Parameters
    ----------
    backend
        Runs the ops.
    ops
        Of the pass, in order.
    costs
        Of its batch.
    tokens, outputs
        T, and how many logits are wanted.
    """

    def precision(op: Op) -> Precision:
        if isinstance(op, Attention):
            return backend.attention_precision(max(costs.counts))
        if isinstance(op, Matmul):
            matrix = op.weights[0]
        elif isinstance(op, GateUpSwiglu | ExpertGateUp):
            matrix = op.gate
        elif isinstance(op, ExpertMatmul):
            matrix = op.weight
        else:
            return "exact"
        rows = tokens if op.x.rows == "tokens" else outputs
        return backend.matmul_precision(matrix.format, rows)

    return [
        StepFacts(
            op.label,
            costs.of(op, floats(op.reads), floats(op.writes)),
            precision(op),
            (KernelUse(op_name(op), FILES.get(type(op), f"rocmforge/cpu/{op_name(op)}.cpp")),),
        )
        for op in ops
    ]


def floats(tensors: Sequence[Tensor]) -> Places:
    """Tensors as a host holds them."""
    return [(tensor, "f32") for tensor in tensors]


def float_bytes(dtype: str, rows: int, columns: int) -> int:
    """Memory of activations (rows, columns), which are float32 here."""
    return 4 * rows * columns
