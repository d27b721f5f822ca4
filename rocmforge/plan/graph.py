"""A forward pass as a list of records: see `rocmforge.plan.records`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rocmforge.plan.fused_records import (
    AddExpertsRmsnorm,
    AllReduceRmsnorm,
    EmbedRmsnorm,
    GateUpSwiglu,
    MatmulRmsnorm,
    ReduceRmsnorm,
    RmsnormRoute,
    RopeAttention,
    RopeKvAppend,
    SelectLayernorm,
    SelectRmsnorm,
)
from rocmforge.plan.operands import Rotation, Tensor
from rocmforge.plan.records import (
    AddExperts,
    AllGather,
    AllReduce,
    Attention,
    Embed,
    ExpertGateUp,
    ExpertMatmul,
    Gelu,
    KvAppend,
    Layernorm,
    Matmul,
    Receive,
    Rmsnorm,
    Rope,
    Route,
    Sample,
    SelectOutputs,
    Softcap,
    Swiglu,
)

Op = (
    Embed
    | Receive
    | Rmsnorm
    | Layernorm
    | SelectOutputs
    | Matmul
    | Rope
    | KvAppend
    | Attention
    | Swiglu
    | Gelu
    | Softcap
    | Route
    | ExpertGateUp
    | ExpertMatmul
    | AddExperts
    | AllReduce
    | AllGather
    | RopeKvAppend
    | RopeAttention
    | EmbedRmsnorm
    | RmsnormRoute
    | AddExpertsRmsnorm
    | GateUpSwiglu
    | MatmulRmsnorm
    | AllReduceRmsnorm
    | ReduceRmsnorm
    | SelectRmsnorm
    | SelectLayernorm
    | Sample
)


@dataclass(frozen=True)
class Graph:
    """A forward pass, or a stage of one: what one of several devices runs of it.

    Parameters
    ----------
    ops
        In order. A stage that is not the first begins with `Receive`.
    result
        The tensor that it is for: logits (outputs, V), or, of a stage that is not the last,
        activations (tokens, K).
    """

    ops: Sequence[Op]
    result: Tensor

    @property
    def received(self) -> Tensor | None:
        """What a stage that is not the first begins with, (tokens, K)."""
        return next((op.out for op in self.ops if isinstance(op, Receive)), None)


def rotations(ops: Sequence[Op]) -> tuple[Rotation, ...]:
    """Return the different rotations of a pass."""
    rotating = Rope | RopeKvAppend | RopeAttention
    return tuple(dict.fromkeys(op.rotation for op in ops if isinstance(op, rotating)))
