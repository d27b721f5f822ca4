"""The records that a forward pass is made of: one for each op, with its tensors and weights.

A model emits them once (`rocmforge.model.decoder`), as a straight list; an executor runs them for
any batch. Activations are named and have a number of columns; how many rows they have is known
when a batch comes. What belongs to one op (its rotation, its head dim, its scale) stands on its
record, because layers of a model may differ in it.

Letters of shapes: see rocmforge/array_types.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from rocmforge.array_types import Floats
from rocmforge.gguf.formats import Format

Activation = Literal["silu", "gelu", "clamped"]
"""Of a gate g that multiplies u: g · sigmoid(g) · u (SwiGLU); gelu(g) · u, GELU in tanh's form
(GeGLU); g · sigmoid(1.702 · g) · (u + 1), of g up to 7 and u from −7 to 7 (gpt-oss)."""


@dataclass(frozen=True)
class Tensor:
    """Float32 activations (rows, columns), a row for each token of the batch.

    Parameters
    ----------
    name
        Writing a tensor of a name ends the one before it.
    columns
        K.
    rows
        "tokens": one for each new token; "outputs": one for each token whose logits are wanted.
    """

    name: str
    columns: int
    rows: Literal["tokens", "outputs"] = "tokens"


@dataclass(frozen=True)
class Embedding:
    """The token embedding.

    Parameters
    ----------
    rows
        (V, row_bytes) uint8, as in the file.
    format
        Theirs.
    packed
        The same numbers as the packed output matrix, where that is tied to them: a GPU reads them
        there, and has the rows only once.
    """

    rows: NDArray[np.uint8]
    format: Format
    packed: Any = None


@dataclass(frozen=True, eq=False)
class Rotation:
    """A rotary position embedding; executors make one table of angles for each.

    Parameters
    ----------
    frequencies
        (R / 2,) float64, radians per position.
    magnitude
        Multiplies cos and sin.
    interleaved
        Pairs are (2i, 2i + 1), else (i, i + R / 2).
    temperature
        (β, n): a query at position p is rotated and scaled by 1 + β · ln(1 + ⌊p / n⌋); None: not
        scaled.
    """

    frequencies: NDArray[np.float64]
    magnitude: float
    interleaved: bool
    temperature: tuple[float, int] | None = None

    @property
    def rotated(self) -> int:
        """R."""
        return 2 * self.frequencies.size

    def table(self, positions: NDArray[np.integer[Any]]) -> tuple[Floats, Floats]:
        """Cosines and sines (n, R / 2) of n positions: magnitude · cos(position · frequency)."""
        angles = positions[:, None].astype(np.float64) * self.frequencies
        size: Any = self.magnitude
        if self.temperature is not None:
            beta, step = self.temperature
            size = size * (1.0 + beta * np.log1p(positions[:, None] // step))
        cos = (np.cos(angles) * size).astype(np.float32)
        sin = (np.sin(angles) * size).astype(np.float32)
        return cos, sin


class OpRecord:
    """An op whose tensors are those fields that READS and WRITES name."""

    READS: ClassVar[tuple[str, ...]] = ()
    WRITES: ClassVar[tuple[str, ...]] = ()

    @property
    def label(self) -> str:
        """Its name in timings, the same in all layers: that of the op."""
        return op_name(self)

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """Tensors that it reads, those that it changes included."""
        return tuple(getattr(self, name) for name in self.READS)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """Tensors that it writes."""
        return tuple(getattr(self, name) for name in self.WRITES)


@dataclass(frozen=True)
class Embed(OpRecord):
    """Out = scale · the embedding's rows of the batch's tokens."""

    WRITES = ("out",)

    embedding: Embedding
    out: Tensor
    scale: float = 1.0


@dataclass(frozen=True)
class Receive(OpRecord):
    """Out (T, K) = what the host brings: activations of the layers before, from another device."""

    WRITES = ("out",)

    out: Tensor


@dataclass(frozen=True)
class Rmsnorm(OpRecord):
    """Out = or += x / √(mean(x²) + eps) · weight over each `weight.size` columns; may be in place.

    Of x that is added to another tensor, timings call it after x.
    """

    WRITES = ("out",)

    x: Tensor
    weight: Floats
    eps: float
    out: Tensor
    accumulate: bool = False

    @property
    def label(self) -> str:
        """Its name in timings: a pass norms several tensors."""
        return f"rmsnorm_{self.x.name if self.accumulate else self.out.name}"

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """X, and what is added to."""
        return (self.x, self.out) if self.accumulate else (self.x,)


@dataclass(frozen=True)
class Layernorm(OpRecord):
    """Out = (x − mean(x)) / √(variance(x) + eps) · weight + bias, bias where there is one."""

    READS = ("x",)
    WRITES = ("out",)

    x: Tensor
    weight: Floats
    bias: Floats | None
    eps: float
    out: Tensor

    @property
    def label(self) -> str:
        """Its name in timings: a pass norms several tensors."""
        return f"layernorm_{self.out.name}"


@dataclass(frozen=True)
class SelectOutputs(OpRecord):
    """Out = those rows of x whose logits are wanted."""

    READS = ("x",)
    WRITES = ("out",)

    x: Tensor
    out: Tensor


SQUARES_GROUP = 32
"""Columns whose squares `MatmulRmsnorm` adds up."""


@dataclass(frozen=True)
class RowScale:
    """1 / √(mean(h²) + eps) of each row of h, where x is h · weight: what x lacks of its RMSNorm.

    Parameters
    ----------
    squares
        (T, K / `SQUARES_GROUP`): the sums of h² of each group of columns.
    eps
        Of the norm.
    """

    squares: Tensor
    eps: float


@dataclass(frozen=True)
class Matmul:
    """outs[i] = or += scale · (x · weights[i]ᵀ + biases[i]), for matrices that a backend packed.

    `role` is what the model calls the product; without one it is named after what it writes. Rows
    of x that lack a factor, `x_scale`, are multiplied by it. `by_rows`: where each device of a
    group adds up rows of its own (`ReduceRmsnorm`), out is added to in these, whatever `accumulate`
    says.
    """

    x: Tensor
    weights: tuple[Any, ...]
    outs: tuple[Tensor, ...]
    biases: tuple[Floats | None, ...]
    accumulate: bool = False
    role: str = ""
    scale: float = 1.0
    x_scale: RowScale | None = None
    by_rows: bool = False

    @property
    def label(self) -> str:
        """Its name in timings, the same in all layers."""
        return f"matmul_{self.role or '_'.join(out.name for out in self.outs)}"

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """X, what is added to, and what the factors of rows are of."""
        added = self.outs if self.accumulate or self.by_rows else ()
        return (self.x, *added, *([self.x_scale.squares] if self.x_scale else []))

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """Outs."""
        return self.outs


@dataclass(frozen=True)
class Rope(OpRecord):
    """X (T, heads · D) rotated by the tokens' positions, in place."""

    READS = ("x",)
    WRITES = ("x",)

    x: Tensor
    rotation: Rotation
    head_dim: int

    @property
    def label(self) -> str:
        """Its name in timings: queries and keys are rotated apart."""
        return f"rope_{self.x.name}"


@dataclass(frozen=True)
class KvAppend(OpRecord):
    """Keys and values (T, G · D) into a layer's pages."""

    READS = ("k", "v")

    k: Tensor
    v: Tensor
    layer: int
    head_dim: int


@dataclass(frozen=True)
class Attention(OpRecord):
    """Out (T, H · D) = causal softmax(scale · q kᵀ) v over a layer's pages of G KV heads.

    Parameters
    ----------
    q, out
        (T, H · D).
    layer
        Whose keys and values are read.
    scale
        Of the products of queries and keys.
    kv_heads, head_dim
        G and D.
    window
        Tokens that a query sees at most, the last ones and itself; None: all before it.
    softcap
        c: scores become c · tanh(score / c); None: they stay.
    sinks
        (H,) one more score for each head, without a value; None: no sinks.
    """

    READS = ("q",)
    WRITES = ("out",)

    q: Tensor
    layer: int
    out: Tensor
    scale: float
    kv_heads: int
    head_dim: int
    window: int | None = None
    softcap: float | None = None
    sinks: Floats | None = None

    @property
    def heads(self) -> int:
        """H."""
        return self.q.columns // self.head_dim


@dataclass(frozen=True)
class Swiglu(OpRecord):
    """Out = gate · sigmoid(gate) · up, or as another `Activation` has it; may be in place."""

    READS = ("gate", "up")
    WRITES = ("out",)

    gate: Tensor
    up: Tensor
    out: Tensor
    activation: Activation = "silu"


@dataclass(frozen=True)
class Gelu(OpRecord):
    """Out = x / 2 · (1 + tanh(√(2 / π) · (x + 0.044715 · x³))); may be in place."""

    READS = ("x",)
    WRITES = ("out",)

    x: Tensor
    out: Tensor


@dataclass(frozen=True)
class Softcap(OpRecord):
    """X = cap · tanh(x / cap), in place."""

    READS = ("x",)
    WRITES = ("x",)

    x: Tensor
    cap: float


@dataclass(frozen=True)
class Route(OpRecord):
    """Which experts a token goes to: those of its k largest scores, the largest first.

    shares = scale · softmax(scores) of the chosen, over all E experts; `sigmoid`: scale ·
    sigmoid(score). `normalized`: divided by what they are together, so that they add up to scale.

    Parameters
    ----------
    scores
        (T, E).
    experts, shares
        (T, k): indices as int32 in the memory of a float32 each, and what their results count.
    normalized, sigmoid, scale
        See above.
    bias
        (E,) added, for choosing alone, to the scores, or to their sigmoid; None: nothing is.
    """

    READS = ("scores",)
    WRITES = ("experts", "shares")

    scores: Tensor
    experts: Tensor
    shares: Tensor
    normalized: bool
    sigmoid: bool = False
    scale: float = 1.0
    bias: Floats | None = None

    @property
    def count(self) -> int:
        """E."""
        return self.scores.columns

    @property
    def chosen(self) -> int:
        """k."""
        return self.experts.columns


@dataclass(frozen=True)
class ExpertGateUp(OpRecord):
    """out[t, i] = swiglu(x[t] · gateᵀ, x[t] · upᵀ) with the matrices of expert experts[t, i].

    Gate and up have biases where given, and `activation` says what becomes of both.

    Parameters
    ----------
    x
        (T, K).
    gate, up
        (E · F, K), packed: the experts one below the other.
    experts
        (T, k), of `Route`.
    count
        E.
    out
        (T, k · F).
    gate_bias, up_bias
        (E · F,), or None.
    activation
        As of `Swiglu`.
    """

    READS = ("x", "experts")
    WRITES = ("out",)

    x: Tensor
    gate: Any
    up: Any
    experts: Tensor
    count: int
    out: Tensor
    gate_bias: Floats | None = None
    up_bias: Floats | None = None
    activation: Activation = "silu"


@dataclass(frozen=True)
class ExpertMatmul(OpRecord):
    """out[t, i] = x[t, i] · weightᵀ + bias with the matrix of expert experts[t, i].

    Parameters
    ----------
    x
        (T, k · F).
    weight
        (E · K, F), packed: the experts one below the other.
    experts
        (T, k), of `Route`.
    count
        E.
    out
        (T, k · K).
    bias
        (E · K,), or None.
    """

    READS = ("x", "experts")
    WRITES = ("out",)

    x: Tensor
    weight: Any
    experts: Tensor
    count: int
    out: Tensor
    bias: Floats | None = None


@dataclass(frozen=True)
class AddExperts(OpRecord):
    """X (T, K) += or = Σ_i shares[t, i] · parts[t, i], of parts (T, k · K)."""

    WRITES = ("x",)

    parts: Tensor
    shares: Tensor
    x: Tensor
    accumulate: bool = True

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """Parts, shares, and what is added to."""
        return (self.parts, self.shares, *([self.x] if self.accumulate else []))


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
class AllReduce(OpRecord):
    """X = the sum of what each device of a group has in x, on all of them.

    Of a model whose matrices are split over devices: each has computed a part of a product.
    """

    READS = ("x",)
    WRITES = ("x",)

    x: Tensor


@dataclass(frozen=True)
class AllGather(OpRecord):
    """X = the columns that each device of a group has, side by side, on all of them.

    Parameters
    ----------
    part
        (T, V_r): this device's.
    x
        (T, V).
    """

    READS = ("part",)
    WRITES = ("x",)

    part: Tensor
    x: Tensor


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
    WRITES = ("out", "scores", "experts", "shares")

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


@dataclass(frozen=True)
class Sample(OpRecord):
    """token = the id drawn from each row of logits, an int32; `parts` is memory for it."""

    READS = ("logits",)
    WRITES = ("parts", "token")

    logits: Tensor
    parts: Tensor
    token: Tensor


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


def op_name(op: object) -> str:
    """Name of a record's op: that of its class, as "rope_kv_append"."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(op).__name__).lower()


def rotations(ops: Sequence[Op]) -> tuple[Rotation, ...]:
    """Return the different rotations of a pass."""
    rotating = Rope | RopeKvAppend | RopeAttention
    return tuple(dict.fromkeys(op.rotation for op in ops if isinstance(op, rotating)))
