"""What the records of a pass name: tensors, the embedding, rotations, factors of rows.

Letters of shapes: see rocmforge/array_types.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

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
