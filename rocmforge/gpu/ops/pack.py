"""pack: raw rows of a GGUF file, already in device memory, to the streams that matmul reads."""

from __future__ import annotations

from collections.abc import Iterator

from rocmforge.gguf.formats import FORMATS
from rocmforge.gpu.arrays import GROUP
from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.matrix import DENSE, DeviceMatrix, stream_bytes

FILE = "pack.hip"
LAYOUTS = {"pack": "PPPPPif"}
THREADS = 256  # each takes a group of 32 columns


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernel."""
    for name in FORMATS:
        if DENSE.get(name) != name:
            yield Build(FILE, LAYOUTS, {"FORMAT": name}, hot=False)


def is_needed(matrix: DeviceMatrix) -> bool:
    """Whether the rows of the file have to be packed: plain numbers of the file are not."""
    return DENSE.get(matrix.format) != matrix.format


def pack(
    kernels: Kernels,
    *,
    raw: int,
    matrix: DeviceMatrix,
    first: int = 0,
    count: int | None = None,
    factor: float = 1.0,
) -> Launch:
    """Fill the streams of `matrix`, of all its rows or of some that have arrived.

    Parameters
    ----------
    raw
        (count, row bytes) rows as in the file, aligned to 16; not of F32, F16 or BF16, whose raw
        rows are the matrix already.
    matrix
        Where the streams lie.
    first, count
        Which rows; default: all.
    factor
        Multiplies their weights, of NVFP4 alone; see `Backend.pack`.
    """
    rows = matrix.rows - first if count is None else count
    offsets = stream_bytes(matrix.format, first, matrix.columns) if first else (0, 0, 0, 0)
    streams = (a + offset for a, offset in zip(matrix.addresses, offsets, strict=True))
    groups = rows * (matrix.columns // GROUP)
    return kernels.launch(
        FILE,
        "pack",
        {"FORMAT": matrix.format},
        (-(-groups // THREADS), 1, 1),
        THREADS,
        LAYOUTS["pack"],
        *(raw, *streams, groups, factor),
    )
