"""A weight matrix in a format: the bytes that a GGUF file holds, with their shape.

Callers of `rocmforge.ops` hold it; `pack` in api.py brings it to a device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rocmforge.gguf.formats import FORMATS, Format
from rocmforge.gguf.quants import dequantize, quantize


@dataclass(frozen=True)
class Matrix:
    """Weights (N, K) of one format.

    Parameters
    ----------
    data
        ``(N, row_bytes)`` uint8, C-contiguous, rows as GGUF stores them.
    format
        Their format.

    Raises
    ------
    ValueError
        `data` is of another type or shape, or rows are no whole number of blocks.
    """

    data: NDArray[np.uint8]
    format: Format

    def __post_init__(self) -> None:
        """Check type, shape and block size."""
        d = self.data
        if not isinstance(d, np.ndarray) or d.dtype != np.uint8 or d.ndim != 2:
            got = f"{d.dtype} {d.shape}" if isinstance(d, np.ndarray) else type(d).__name__
            raise ValueError(f"matrix data: got {got}, wanted uint8 (rows, row_bytes)")
        if not d.flags.c_contiguous:
            raise ValueError("matrix data: got a strided array, wanted a C-contiguous one")
        if d.shape[0] < 1 or d.shape[1] < 1 or d.shape[1] % self.format.block_bytes:
            raise ValueError(
                f"matrix data: got shape {d.shape}, wanted at least one row of whole "
                f"{self.format.name} blocks ({self.format.block_bytes} bytes each)"
            )

    @classmethod
    def from_floats(cls, weights: NDArray[np.float32], name: str) -> Matrix:
        """Quantize weights (N, K) float32 to the format called `name`."""
        if name not in FORMATS:
            raise ValueError(f"format: got {name!r}, wanted one of {', '.join(FORMATS)}")
        return cls(quantize(weights, FORMATS[name]), FORMATS[name])

    @property
    def rows(self) -> int:
        """N."""
        return int(self.data.shape[0])

    @property
    def columns(self) -> int:
        """K."""
        return int(self.data.shape[1]) // self.format.block_bytes * self.format.block_len

    def to_floats(self) -> NDArray[np.float32]:
        """Return the weights (N, K) as the reference dequantizer gives them."""
        return dequantize(self.data, self.format)
