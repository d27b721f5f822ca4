"""Matrices as they are packed: in the format of the file, or in one that they are quantized to."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rocmforge.array_types import Floats
from rocmforge.gguf.formats import FORMATS, K_FALLBACK, Format, fitting_format
from rocmforge.gguf.header import TensorInfo
from rocmforge.gguf.quants import dequantize, quantize
from rocmforge.model.matrix_scales import of_rows
from rocmforge.plan.protocols import MatrixShape

REQUANTIZE_ROWS = 1024  # of a matrix that are float32 at once


def stored_format(info: TensorInfo, wanted: Format | None) -> Format:
    """Return the format that a matrix is packed in: the file's, or the one to quantize it to.

    Raises
    ------
    ValueError
        Neither the wanted format's blocks nor its fallback's divide the columns.
    """
    if wanted is None:
        return info.format
    columns = info.shape[-1]
    name = fitting_format(wanted.name, columns)
    if name is None:
        least = FORMATS[K_FALLBACK.get(wanted.name, wanted.name)].block_len
        raise ValueError(
            f"{info.name}: got {columns} columns, wanted a multiple of {least} for {wanted.name}"
        )
    return FORMATS[name]


def stored_shape(info: TensorInfo, stored: Format) -> MatrixShape:
    """Return the shape of a matrix as it is packed; experts' matrices lie one below the other."""
    return MatrixShape(stored.name, math.prod(info.shape[:-1]), info.shape[-1])


def as_stored(
    info: TensorInfo, wanted: Format | None, raw: NDArray[np.uint8], factors: Floats | None
) -> tuple[Format, NDArray[np.uint8], Floats | None]:
    """Return a matrix's format, (N, row_bytes) rows and factors as it is packed.

    Parameters
    ----------
    info
        Of the matrix in the file.
    wanted
        The format to quantize it to, into which its factors go; None: it stays as it is.
    raw
        (N, row_bytes) rows of the file.
    factors
        (1,) of the matrix, or (E,) of each expert's; None: the file has none beside it.

    Raises
    ------
    ValueError
        As `stored_format`.
    """
    fmt = stored_format(info, wanted)
    if wanted is None:
        return fmt, raw, factors
    each = of_rows(factors, len(raw))
    pieces = (slice(at, at + REQUANTIZE_ROWS) for at in range(0, len(raw), REQUANTIZE_ROWS))
    quantized = [quantize(dequantize(raw[at], info.format) * each[at], fmt) for at in pieces]
    return fmt, np.concatenate(quantized), None
