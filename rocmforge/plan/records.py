"""The records that a forward pass is made of: one for each op, with its tensors and weights.

A model emits them once (`rocmforge.model.decoder`), as a straight list; an executor runs them for
any batch. Activations are named and have a number of columns; how many rows they have is known
when a batch comes. What belongs to one op (its rotation, its head dim, its scale) stands on its
record, because layers of a model may differ in it.

Letters of shapes: see rocmforge/array_types.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from rocmforge.array_types import Floats
from rocmforge.plan.operands import Activation, Embedding, Rotation, RowScale, Tensor


def op_name(op: object) -> str:
    """Name of a record's op: that of its class, as "rope_kv_append"."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(op).__name__).lower()


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
class Sample(OpRecord):
    """token = the id drawn from each row of logits, an int32; `parts` is memory for it."""

    READS = ("logits",)
    WRITES = ("parts", "token")

    logits: Tensor
    parts: Tensor
    token: Tensor
