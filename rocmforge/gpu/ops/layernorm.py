"""layernorm: (x − mean(x)) / √(variance(x) + eps) · weight + bias."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from rocmforge.gpu.arrays import F32, Q8, Halves
from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops.output import addresses, dtype
from rocmforge.gpu.ops.rmsnorm import builds as norm_builds
from rocmforge.gpu.ops.rmsnorm import choose

FILE = "layernorm.hip"
LAYOUTS = {"layernorm": "PPPPPPiif"}


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernel: those of rmsnorm."""
    for build in norm_builds(architecture):
        yield Build(FILE, LAYOUTS, build.defines, hot=build.hot)


def layernorm(
    kernels: Kernels,
    *,
    x: int,
    weight: int,
    bias: int | None,
    out: F32 | Halves | Q8,
    rows: int,
    columns: int,
    eps: float,
) -> Launch:
    """out[t] = (x[t] − mean(x[t])) / √(variance(x[t]) + eps) · weight + bias.

    Parameters
    ----------
    x
        (T, K) float32, aligned to 16.
    weight, bias
        (K,) float32, aligned to 16; the bias may be None.
    out
        (T, K); F32 may be x itself. Q8 needs K to be a multiple of 32.
    rows, columns
        T and K.
    eps
        Added to the variance.
    """
    constants = choose(kernels.runtime.properties.architecture, columns, dtype(out))
    return kernels.launch(
        FILE,
        "layernorm",
        asdict(constants),
        (-(-rows // constants.rows), 1, 1),
        constants.THREADS,
        LAYOUTS["layernorm"],
        *(x, weight, bias or 0, *addresses(out), rows, columns, eps),
    )
