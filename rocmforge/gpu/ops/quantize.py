"""quantize: activations from float32 to any other dtype.

rmsnorm, swiglu and attention write these dtypes themselves; this is for what no kernel precedes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from rocmforge.gpu.arrays import Q8, Halves
from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops.elements import blocks, choose
from rocmforge.gpu.ops.output import addresses, dtype, dtypes

FILE = "quantize.hip"
LAYOUTS = {"quantize": "PPPPii"}


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernel."""
    for out in dtypes(architecture)[1:]:
        yield Build(FILE, LAYOUTS, asdict(choose(architecture, out)))


def quantize(kernels: Kernels, *, x: int, out: Q8 | Halves, rows: int, columns: int) -> Launch:
    """out = x, rounded: see kernels/q8.h.

    Parameters
    ----------
    x
        (T, K) float32, aligned to 16.
    out
        (T, K), aligned to 16. Q8 and Permuted need K to be a multiple of 32. Numbers beyond
        float16 become ±65504, infinities stay; a group of Q8 with NaN or an infinity gets a scale
        of NaN.
    rows, columns
        T and K.
    """
    constants = choose(kernels.runtime.properties.architecture, dtype(out))
    return kernels.launch(
        FILE,
        "quantize",
        asdict(constants),
        (blocks(rows * columns, constants.THREADS), 1, 1),
        constants.THREADS,
        LAYOUTS["quantize"],
        *(x, *addresses(out), rows, columns),
    )
