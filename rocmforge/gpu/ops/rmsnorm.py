"""rmsnorm: x / √(mean(x²) + eps) · weight, alone or added to something.

The output may be float32, float16, or rounded to int8 at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rocmforge.gpu.arrays import F32, Q8, Halves
from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops.output import addresses, dtype, dtypes
from rocmforge.gpu.ops.rows import RowShape, row_shape, shapes

FILE = "rmsnorm.hip"
LAYOUTS = {"rmsnorm": "PPPPPPiif"}


@dataclass(frozen=True)
class Constants(RowShape):
    """Compile-time constants of rmsnorm.hip.

    Parameters
    ----------
    THREADS, SPAN, ITEMS, VECTOR
        How threads share rows.
    OUT
        Dtype of the output, one of `output.dtypes`.
    """

    OUT: str


def choose(architecture: str, columns: int, out: str) -> Constants:
    """Constants for an architecture, a row's length and an output dtype."""
    return Constants(**asdict(row_shape(columns)), OUT=out)


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernel."""
    for shape in shapes():
        for out in dtypes(architecture):
            if out not in ("Q8", "Permuted") or shape.VECTOR == 4:
                defines = asdict(Constants(**asdict(shape), OUT=out))
                yield Build(FILE, LAYOUTS, defines, hot=shape.VECTOR == 4)


def rmsnorm(
    kernels: Kernels,
    *,
    x: int,
    weight: int,
    out: F32 | Halves | Q8,
    rows: int,
    columns: int,
    eps: float,
    base: int | None = None,
) -> Launch:
    """out[t] = x[t] / √(mean(x[t]²) + eps) · weight, plus base[t] where there is a base.

    Parameters
    ----------
    x
        (T, K) float32, aligned to 16.
    weight
        (K,) float32, aligned to 16.
    out
        (T, K); F32 may be x itself. Q8 and Permuted need K to be a multiple of 32. Numbers beyond
        float16 become ±65504, infinities stay.
    rows, columns
        T and K. For the norm of each head (qwen3): T · H and D.
    eps
        Added to the mean square.
    base
        (T, K) float32, aligned to 16; may be out.
    """
    constants = choose(kernels.runtime.properties.architecture, columns, dtype(out))
    return kernels.launch(
        FILE,
        "rmsnorm",
        asdict(constants),
        (-(-rows // constants.rows), 1, 1),
        constants.THREADS,
        LAYOUTS["rmsnorm"],
        *(x, base or 0, weight, *addresses(out), rows, columns, eps),
    )
