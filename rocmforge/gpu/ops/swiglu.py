"""swiglu: gate · sigmoid(gate) · up, element by element, or another activation.

For where the matmul that gives gate and up does not do it in its own last step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import get_args

from rocmforge.gpu.arrays import F32, Q8, Halves
from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops.elements import blocks, choose
from rocmforge.gpu.ops.output import addresses, dtype, dtypes
from rocmforge.plan.operands import Activation

FILE = "swiglu.hip"
ACTIVATIONS = (*get_args(Activation), "gelu_alone")
"""As kernels/swiglu.h numbers them."""
LAYOUTS = {"swiglu": "PPPPPiii"}


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernel."""
    for out in dtypes(architecture):
        yield Build(FILE, LAYOUTS, asdict(choose(architecture, out)))


def swiglu(
    kernels: Kernels,
    *,
    gate: int,
    up: int,
    out: F32 | Halves | Q8,
    rows: int,
    columns: int,
    activation: str = "silu",
) -> Launch:
    """out = gate · sigmoid(gate) · up, or as `activation` has it.

    Parameters
    ----------
    gate, up
        (T, N) float32 each, aligned to 16.
    out
        (T, N), aligned to 16; F32 may be gate or up itself. Q8 needs N to be a multiple of 32.
        Numbers beyond float16 become ±65504, infinities stay.
    rows, columns
        T and N.
    activation
        One of ACTIVATIONS; the last is gelu(gate), without up.
    """
    constants = choose(kernels.runtime.properties.architecture, dtype(out))
    return kernels.launch(
        FILE,
        "swiglu",
        asdict(constants),
        (blocks(rows * columns, constants.THREADS), 1, 1),
        constants.THREADS,
        LAYOUTS["swiglu"],
        *(gate, up, *addresses(out), rows, columns, ACTIVATIONS.index(activation)),
    )
