"""A pass as an executor keeps it, and as it was launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge.array_types import Floats, Ints
from rocmforge.gpu.batch_shape import BatchShape
from rocmforge.gpu.dtypes import Step
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops.sample import parts_bytes
from rocmforge.kv.batch import Batch
from rocmforge.plan.operands import Tensor
from rocmforge.plan.records import Sample


@dataclass
class CapturedPass:
    """The launches of one batch shape, by steps; `graph` once they were captured.

    `scores` are the logits, or activations for the next stage. They are copied to the host, unless
    the last step chooses tokens: these it writes there itself, and to the inputs of the other slot.
    `received` is where activations of the stage before go, 0 for none. `slot` has the inputs; with
    `chained`, the tokens are those that the pass before has left there.
    """

    steps: Sequence[tuple[Step, Sequence[Launch]]]
    scores: int
    received: int
    slot: int
    chained: bool
    graph: Any = None
    ran: bool = False


Key = tuple[BatchShape, bool, int, bool]  # the shape, whether it chooses, slot, chained


@dataclass(frozen=True)
class Running:
    """A pass that was launched, with what it was launched for; `received` is page-locked."""

    kept: CapturedPass
    shape: BatchShape
    sequences: Sequence[int]
    tokens: NDArray[np.int64]
    draws: NDArray[Any] | None
    batch: Batch
    result: Ints
    received: Floats | None = None


@dataclass(frozen=True)
class Plan:
    """Steps of a class of shapes, and where in the arena their tensors and their scratch lie."""

    steps: list[Step]
    offsets: dict[Any, int]
    nbytes: int


def sampling(result: Tensor) -> tuple[Sample, ...]:
    """Return what chooses the next tokens behind a pass that is for logits; else nothing."""
    if result.rows != "outputs":
        return ()
    parts = Tensor("parts_of_logits", parts_bytes(1) // 4, result.rows)
    return (Sample(result, parts, Tensor("next_token", 1, result.rows)),)
