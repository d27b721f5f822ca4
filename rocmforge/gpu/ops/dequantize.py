"""dequantize: raw rows of a GGUF file, already in device memory, to float32 or float16."""

from __future__ import annotations

from collections.abc import Iterator

from rocmforge.gguf.formats import FORMATS
from rocmforge.gpu.arrays import F16, F32
from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch

FILE = "dequantize.hip"
LAYOUTS = {"dequantize": "PPiii"}
THREADS = 256
PIECE = 32 * THREADS
"""Columns that a block of threads takes, counted through all rows."""


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernel."""
    for name in FORMATS:
        yield Build(FILE, LAYOUTS, {"FORMAT": name}, hot=False)


def dequantize(
    kernels: Kernels,
    *,
    raw: int,
    format: str,  # noqa: A002
    out: F32 | F16,
    rows: int,
    columns: int,
) -> Launch:
    """out = the weights of raw rows, bit for bit those of `rocmforge.gguf.quants.dequantize`.

    Parameters
    ----------
    raw
        (rows, row bytes) as in the file, aligned to 16.
    format
        One of `rocmforge.gguf.formats.FORMATS`.
    out
        (rows, K), aligned to 16; as float16 they are rounded once, from float32.
    rows, columns
        Their number and K.
    """
    pieces = -(-rows * columns // PIECE)
    rest = rows * columns - (pieces - 1) * PIECE
    return kernels.launch(
        FILE,
        "dequantize",
        {"FORMAT": format},
        (pieces, 1, 1),
        THREADS,
        LAYOUTS["dequantize"],
        *(raw, out.address, pieces, rest, int(isinstance(out, F16))),
    )
