"""softmax over rows: exp(x − max) / Σ exp(x − max).

Attention computes its own softmax as it goes (the softmax state) and does not call this op.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops.rows import RowShape, row_shape, shapes

FILE = "softmax.hip"
LAYOUTS = {"softmax": "PPii"}


def choose(architecture: str, columns: int) -> RowShape:
    """Constants for an architecture and a row's length."""
    return row_shape(columns)


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernel."""
    for shape in shapes():
        yield Build(FILE, LAYOUTS, asdict(shape), hot=shape.VECTOR == 4)


def softmax(kernels: Kernels, *, x: int, out: int, rows: int, columns: int) -> Launch:
    """out[t] = exp(x[t] − max) / Σ exp(x[t] − max).

    Parameters
    ----------
    x, out
        (T, N) float32, aligned to 16; may be the same. −∞ has share 0; a row with NaN or +∞, or
        of nothing but −∞, becomes NaN.
    rows, columns
        T and N.
    """
    constants = choose(kernels.runtime.properties.architecture, columns)
    return kernels.launch(
        FILE,
        "softmax",
        asdict(constants),
        (-(-rows // constants.rows), 1, 1),
        constants.THREADS,
        LAYOUTS["softmax"],
        *(x, out, rows, columns),
    )
