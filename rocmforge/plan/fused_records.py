"""Records of several ops that one kernel runs: what `rocmforge.plan.fusion` puts in their place.

Letters of shapes: see rocmforge/array_types.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rocmforge.array_types import Floats
from rocmforge.plan.operands import Activation, Embedding, Rotation, RowScale, Tensor
from rocmforge.plan.records import OpRecord, Route


@dataclass(frozen=True)
class RopeKvAppend(OpRecord):
    """Fused: per-head norms where given, rotation of q and k, and k, v into a layer's pages."""

    READS = ("q", "k", "v")
    WRITES = ("q",)

    q: Tensor
    k: Tensor
    v: Tensor
    q_norm: Floats | None
    k_norm: Floats | None
    eps: float
    layer: int
    rotation: Rotation
    head_dim: int


@dataclass(frozen=True)
class RopeAttention(OpRecord):
    """Fused: `RopeKvAppend`, then `Attention`, of one token a sequence; q stays as it was."""

    READS = ("q", "k", "v")
    WRITES = ("out",)

    q: Tensor
    k: Tensor
    v: Tensor
    q_norm: Floats | None
    k_norm: Floats | None
    eps: float
    layer: int
    rotation: Rotation
    head_dim: int
    out: Tensor
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Floats | None = None

    @property
    def heads(self) -> int:
        """H."""
        return self.q.columns // self.head_dim

    @property
    def kv_heads(self) -> int:
        """G."""
        return self.k.columns // self.head_dim


@dataclass(frozen=True)
class GateUpSwiglu(OpRecord):
    """Fused: out = swiglu(x · gateᵀ, x · upᵀ), or as another `Activation` has it.

    Rows of x that lack a factor, `x_scale`, are multiplied by it.
    """

    WRITES = ("out",)

    x: Tensor
    gate: Any
    up: Any
    out: Tensor
    activation: Activation = "silu"
    x_scale: RowScale | None = None

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """X, and what the factors of rows are of."""
        return (self.x, self.x_scale.squares) if self.x_scale else (self.x,)


@dataclass(frozen=True)
class MatmulRmsnorm(OpRecord):
    """Fused: out += x · weightᵀ + bias, and RMSNorm of out but for a factor of each row.

    Parameters
    ----------
    x, weight, bias, out
        As of `Matmul`, with one matrix (N, K).
    norm
        (N,) weights of the norm.
    normed
        (T, N): out · norm. Its readers multiply by the factor, a `RowScale`.
    squares
        (T, N / `SQUARES_GROUP`): the sums of out² of each group of columns.
    role
        As of `Matmul`.
    """

    READS = ("x", "out")
    WRITES = ("out", "normed", "squares")

    x: Tensor
    weight: Any
    bias: Floats | None
    out: Tensor
    norm: Floats
    normed: Tensor
    squares: Tensor
    role: str

    @property
    def label(self) -> str:
        """Its name in timings, the same in all layers; short, for lines of 80 columns."""
        return f"{self.role or 'matmul_' + self.out.name}_norm"


@dataclass(frozen=True)
class AddExpertsRmsnorm(OpRecord):
    """Fused: `AddExperts`, and RMSNorm of x but for a factor of each row.

    Parameters
    ----------
    parts, shares, x
        As of `AddExperts`.
    norm, normed, squares
        As of `MatmulRmsnorm`.
    """

    READS = ("parts", "shares", "x")
    WRITES = ("x", "normed", "squares")

    parts: Tensor
    shares: Tensor
    x: Tensor
    norm: Floats
    normed: Tensor
    squares: Tensor


@dataclass(frozen=True)
class AllReduceRmsnorm(OpRecord):
    """Fused: `AllReduce` of x, and RMSNorm of x but for a factor of each row.

    Parameters
    ----------
    x
        (T, N).
    norm, normed, squares
        As of `MatmulRmsnorm`, of x.
    """

    READS = ("x",)
    WRITES = ("x", "normed", "squares")

    x: Tensor
    norm: Floats
    normed: Tensor
    squares: Tensor


@dataclass(frozen=True)
class ReduceRmsnorm(OpRecord):
    """Fused: out = `Rmsnorm` of the sum of what each device of a group has in x, on all of them.

    Each device owns some rows. Of these alone x becomes the sum: products add to them by rows.
    """

    READS = ("x",)
    WRITES = ("x", "out")

    x: Tensor
    norm: Floats
    eps: float
    out: Tensor


@dataclass(frozen=True)
class RmsnormRoute(OpRecord):
    """Fused: out = RMSNorm of x, scores = out · routerᵀ + bias, and `Route` of these scores.

    The scores themselves are not kept.

    Parameters
    ----------
    x
        (T, K).
    norm, eps
        (K,) weights of the norm, and what is added to the mean square.
    out
        (T, K), not x.
    router, bias
        (E, K), and (E,) or None.
    route
        What becomes of the scores.
    """

    READS = ("x",)
    WRITES = ("out", "experts", "shares")

    x: Tensor
    norm: Floats
    eps: float
    out: Tensor
    router: Any
    bias: Floats | None
    route: Route

    @property
    def scores(self) -> Tensor:
        """(T, E)."""
        return self.route.scores

    @property
    def experts(self) -> Tensor:
        """(T, k)."""
        return self.route.experts

    @property
    def shares(self) -> Tensor:
        """(T, k)."""
        return self.route.shares


@dataclass(frozen=True)
class EmbedRmsnorm(OpRecord):
    """Fused: x = the embedding's rows of the batch's tokens, out = RMSNorm of x."""

    WRITES = ("x", "out")

    embedding: Embedding
    x: Tensor
    weight: Floats
    eps: float
    out: Tensor


@dataclass(frozen=True)
class SelectRmsnorm(OpRecord):
    """Fused: out = RMSNorm of those rows of x whose logits are wanted."""

    READS = ("x",)
    WRITES = ("out",)

    x: Tensor
    weight: Floats
    eps: float
    out: Tensor


@dataclass(frozen=True)
class SelectLayernorm(OpRecord):
    """Fused: out = LayerNorm of those rows of x whose logits are wanted."""

    READS = ("x",)
    WRITES = ("out",)

    x: Tensor
    weight: Floats
    bias: Floats | None
    eps: float
    out: Tensor
