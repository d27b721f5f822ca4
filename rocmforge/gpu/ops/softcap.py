"""softcap: x = cap · tanh(scale · x / cap), element by element; without a cap x = scale · x."""

from __future__ import annotations

from collections.abc import Iterator

from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops.elements import blocks

FILE = "softcap.hip"
LAYOUTS = {"softcap": "Piiff"}
THREADS = 256


def builds(architecture: str) -> Iterator[Build]:
    """The one way in which the op compiles its kernel."""
    yield Build(FILE, LAYOUTS, {"THREADS": THREADS})


def softcap(
    kernels: Kernels, *, x: int, rows: int, columns: int, scale: float = 1.0, cap: float = 0.0
) -> Launch:
    """x = cap · tanh(scale · x / cap), or scale · x where cap is 0.

    Parameters
    ----------
    x
        (rows, columns) float32, aligned to 16.
    """
    return kernels.launch(
        FILE,
        "softcap",
        {"THREADS": THREADS},
        (blocks(rows * columns, THREADS), 1, 1),
        THREADS,
        LAYOUTS["softcap"],
        *(x, rows, columns, scale, cap),
    )
