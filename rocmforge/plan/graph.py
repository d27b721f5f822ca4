"""The records that a forward pass is made of: one for each op, with its tensors and weights.

A model emits them once (`rocmforge.model.decoder`), as a straight list; an executor runs them for
any batch. Activations are named and have a number of columns; how many rows they have is known
when a batch comes. This file knows no model, no device and no batch.

Letters of shapes: see rocmforge/backend.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from rocmforge.backend import Floats
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
    """The token embedding as it lies in the file: `rows` (V, row_bytes) uint8 of `format`."""

    rows: NDArray[np.uint8]
    format: Format


@dataclass(frozen=True)
class Rotation:
    """The angles of rotary position embedding.

    Parameters
    ----------
    frequencies
        (R / 2,) float64, radians per position.
    magnitude
        Multiplies cos and sin.
    """

    frequencies: NDArray[np.float64]
    magnitude: float

    def table(self, positions: NDArray[np.integer[Any]]) -> tuple[Floats, Floats]:
        """Cosines and sines (n, R / 2) of n positions: magnitude · cos(position · frequency)."""
        angles = positions[:, None].astype(np.float64) * self.frequencies
        cos = (np.cos(angles) * self.magnitude).astype(np.float32)
        sin = (np.sin(angles) * self.magnitude).astype(np.float32)
        return cos, sin


class Record:
    """An op whose tensors are those fields that READS and WRITES name."""

    READS: ClassVar[tuple[str, ...]] = ()
    WRITES: ClassVar[tuple[str, ...]] = ()

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """Tensors that it reads, those that it changes included."""
        return tuple(getattr(self, name) for name in self.READS)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """Tensors that it writes."""
        return tuple(getattr(self, name) for name in self.WRITES)


@dataclass(frozen=True)
class Embed(Record):
    """Out = the embedding's rows of the batch's tokens."""

    WRITES = ("out",)

    embedding: Embedding
    out: Tensor


@dataclass(frozen=True)
class Rmsnorm(Record):
    """Out = x / √(mean(x²) + eps) · weight over each `weight.size` columns; may be in place."""

    READS = ("x",)
    WRITES = ("out",)

    x: Tensor
    weight: Floats
    eps: float
    out: Tensor


@dataclass(frozen=True)
class SelectOutputs(Record):
    """Out = those rows of x whose logits are wanted."""

    READS = ("x",)
    WRITES = ("out",)

    x: Tensor
    out: Tensor


@dataclass(frozen=True)
class Matmul:
    """outs[i] = or += x · weights[i]ᵀ + biases[i], for matrices that a backend packed."""

    x: Tensor
    weights: tuple[Any, ...]
    outs: tuple[Tensor, ...]
    biases: tuple[Floats | None, ...]
    accumulate: bool = False

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """X, and what is added to."""
        return (self.x, *self.outs) if self.accumulate else (self.x,)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """Outs."""
        return self.outs


@dataclass(frozen=True)
class Rope(Record):
    """X (T, heads · D) turned by the tokens' positions, in place."""

    READS = ("x",)
    WRITES = ("x",)

    x: Tensor


@dataclass(frozen=True)
class KvAppend(Record):
    """Keys and values (T, G · D) into a layer's pages."""

    READS = ("k", "v")

    k: Tensor
    v: Tensor
    layer: int


@dataclass(frozen=True)
class Attention(Record):
    """Out (T, H · D) = causal softmax(scale · q kᵀ) v over a layer's pages."""

    READS = ("q",)
    WRITES = ("out",)

    q: Tensor
    layer: int
    out: Tensor
    scale: float


@dataclass(frozen=True)
class Swiglu(Record):
    """Out = gate · sigmoid(gate) · up; may be in place."""

    READS = ("gate", "up")
    WRITES = ("out",)

    gate: Tensor
    up: Tensor
    out: Tensor


@dataclass(frozen=True)
class RopeKvAppend(Record):
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


@dataclass(frozen=True)
class GateUpSwiglu(Record):
    """Fused: out = swiglu(x · gateᵀ, x · upᵀ)."""

    READS = ("x",)
    WRITES = ("out",)

    x: Tensor
    gate: Any
    up: Any
    out: Tensor


@dataclass(frozen=True)
class EmbedRmsnorm(Record):
    """Fused: x = the embedding's rows of the batch's tokens, out = RMSNorm of x."""

    WRITES = ("x", "out")

    embedding: Embedding
    x: Tensor
    weight: Floats
    eps: float
    out: Tensor


@dataclass(frozen=True)
class SelectRmsnorm(Record):
    """Fused: out = RMSNorm of those rows of x whose logits are wanted."""

    READS = ("x",)
    WRITES = ("out",)

    x: Tensor
    weight: Floats
    eps: float
    out: Tensor


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
    | EmbedRmsnorm
    | GateUpSwiglu
    | SelectRmsnorm
)


@dataclass(frozen=True)
class Geometry:
    """What attention and rotation need to know of a model.

    Parameters
    ----------
    heads, kv_heads, head_dim
        H, G and D.
    rotated
        R.
    interleaved
        Pairs of the rotation are (2i, 2i + 1), else (i, i + R / 2).
    """

    heads: int
    kv_heads: int
    head_dim: int
    rotated: int
    interleaved: bool


@dataclass(frozen=True)
class Graph:
    """A forward pass.

    Parameters
    ----------
    ops
        In order.
    logits
        The tensor (outputs, V) that the pass is for.
    rotation
        Of every `Rope`.
    geometry
        Of every `Rope` and `Attention`.
    """

    ops: Sequence[Op]
    logits: Tensor
    rotation: Rotation
    geometry: Geometry
