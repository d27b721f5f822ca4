"""An observed pass of a host's executor: a stamp around each op, and what each op does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from rocmforge.plan.cost import Costs, Places
from rocmforge.plan.graph import (
    Attention,
    Embed,
    GateUpSwiglu,
    Matmul,
    Op,
    SelectOutputs,
    Tensor,
    op_name,
)
from rocmforge.plan.observation import Interval, KernelUse, ObservedPass, StepFacts
from rocmforge.plan.protocols import Backend, Precision

FILES: dict[type[Op], str] = {
    GateUpSwiglu: "rocmforge/cpu/matmul.cpp",
    Embed: "rocmforge/cpu/dequantize.cpp",
    SelectOutputs: "rocmforge/cpu/executor.py",
}
"""Where ops run whose file does not have their name."""


class Stamps:
    """Takes the time of steps, in order.

    Parameters
    ----------
    labels
        Of all steps that will run.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = labels
        self._times: list[tuple[float, float]] = []

    def run(self, step: Callable[[], None]) -> None:
        """Run the next step."""
        begin = time.perf_counter()
        step()
        self._times.append((begin, time.perf_counter()))

    def intervals(self) -> tuple[Interval, ...]:
        """Return when each step ran."""
        pairs = zip(self._labels, self._times, strict=True)
        return tuple(Interval(label, begin, end - begin) for label, (begin, end) in pairs)


def observed_pass(
    begin: float, end: float, stamps: Stamps, told: Callable[[], Sequence[StepFacts]]
) -> ObservedPass:
    """Return what is told of a pass from `begin` to `end`; see `ObservedPass`."""
    steps = stamps.intervals()
    first = steps[0].start
    last = steps[-1].start + steps[-1].seconds
    return ObservedPass(
        begin=begin,
        end=end,
        host=(Interval("prepare", begin, first - begin),),
        steps=steps,
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
        elif isinstance(op, GateUpSwiglu):
            matrix = op.gate
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
