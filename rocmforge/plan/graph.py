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
    """

    frequencies: NDArray[np.float64]
    magnitude: float
    interleaved: bool

    @property
    def rotated(self) -> int:
        """R."""
        return 2 * self.frequencies.size

    def table(self, positions: NDArray[np.integer[Any]]) -> tuple[Floats, Floats]:
        """Cosines and sines (n, R / 2) of n positions: magnitude · cos(position · frequency)."""
        angles = positions[:, None].astype(np.float64) * self.frequencies
        cos = (np.cos(angles) * self.magnitude).astype(np.float32)
        sin = (np.sin(angles) * self.magnitude).astype(np.float32)
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
    """Out = the embedding's rows of the batch's tokens; a model's scale of them belongs here."""

    WRITES = ("out",)

    embedding: Embedding
    out: Tensor


@dataclass(frozen=True)
class Rmsnorm(OpRecord):
    """Out = x / √(mean(x²) + eps) · weight over each `weight.size` columns; may be in place."""

    READS = ("x",)
    WRITES = ("out",)

    x: Tensor
    weight: Floats
    eps: float
    out: Tensor

    @property
    def label(self) -> str:
        """Its name in timings: a pass norms several tensors."""
        return f"rmsnorm_{self.out.name}"


@dataclass(frozen=True)
class SelectOutputs(OpRecord):
    """Out = those rows of x whose logits are wanted."""

    READS = ("x",)
    WRITES = ("out",)

    x: Tensor
    out: Tensor


@dataclass(frozen=True)
class Matmul:
    """outs[i] = or += x · weights[i]ᵀ + biases[i], for matrices that a backend packed.

    `role` is what the model calls the product; without one it is named after what it writes.
    """

    x: Tensor
    weights: tuple[Any, ...]
    outs: tuple[Tensor, ...]
    biases: tuple[Floats | None, ...]
    accumulate: bool = False
    role: str = ""

    @property
    def label(self) -> str:
        """Its name in timings, the same in all layers."""
        return f"matmul_{self.role or '_'.join(out.name for out in self.outs)}"

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """X, and what is added to."""
        return (self.x, *self.outs) if self.accumulate else (self.x,)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """Outs."""
        return self.outs


@dataclass(frozen=True)
class Rope(OpRecord):
    """X (T, heads · D) turned by the tokens' positions, in place."""

    READS = ("x",)
    WRITES = ("x",)

    x: Tensor
    rotation: Rotation
    head_dim: int

    @property
    def label(self) -> str:
        """Its name in timings: queries and keys are turned apart."""
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

    A layer's window, soft cap or sinks belong here.
    """

    READS = ("q",)
    WRITES = ("out",)

    q: Tensor
    layer: int
    out: Tensor
    scale: float
    kv_heads: int
    head_dim: int

    @property
    def heads(self) -> int:
        """H."""
        return self.q.columns // self.head_dim


@dataclass(frozen=True)
class Swiglu(OpRecord):
    """Out = gate · sigmoid(gate) · up; may be in place. Other activations belong here."""

    READS = ("gate", "up")
    WRITES = ("out",)

    gate: Tensor
    up: Tensor
    out: Tensor


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
    """Fused: out = swiglu(x · gateᵀ, x · upᵀ)."""

    READS = ("x",)
    WRITES = ("out",)

    x: Tensor
    gate: Any
    up: Any
    out: Tensor


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
class Sample(OpRecord):
    """token = the id drawn from each row of logits, an int32; `parts` is memory for it."""

    READS = ("logits",)
    WRITES = ("parts", "token")

    logits: Tensor
    parts: Tensor
    token: Tensor


Op = (
    Embed
    | Rmsnorm
    | SelectOutputs
    | Matmul
    | Rope
    | KvAppend
    | Attention
    | Swiglu
    | RopeKvAppend
    | RopeAttention
    | EmbedRmsnorm
    | GateUpSwiglu
    | SelectRmsnorm
    | Sample
)


@dataclass(frozen=True)
class Graph:
    """A forward pass.

    Parameters
    ----------
    ops
        In order.
    logits
        The tensor (outputs, V) that the pass is for.
    """

    ops: Sequence[Op]
    logits: Tensor


def op_name(op: object) -> str:
    """Name of a record's op: that of its class, as "rope_kv_append"."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(op).__name__).lower()


def rotations(ops: Sequence[Op]) -> tuple[Rotation, ...]:
    """Return the different rotations of a pass."""
    rotating = Rope | RopeKvAppend | RopeAttention
    return tuple(dict.fromkeys(op.rotation for op in ops if isinstance(op, rotating)))
