"""swiglu_matmul for up to eight tokens: SwiGLU and the matmul that reads it, in one kernel.

For where gate and up lie in memory as float32; prompts, and several matrices, take swiglu and
matmul.
"""

from __future__ import annotations

from collections.abc import Iterator

from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.matrix import DeviceMatrix
from rocmforge.gpu.ops.dot_rows import KERNEL_FORMATS, all_constants, choose, defines

FILE = "swiglu_matmul.hip"
LAYOUTS = {"swiglu_matmul": "PPPPPP" + "ii" + "PPii"}


def builds(architecture: str) -> Iterator[Build]:
    """The op's kernels for each format."""
    for name in KERNEL_FORMATS:
        for constants in all_constants(architecture, name, "swiglu_matmul"):
            yield Build(FILE, LAYOUTS, defines(constants, [name]))


def swiglu_matmul(
    kernels: Kernels,
    *,
    gate: int,
    up: int,
    weight: DeviceMatrix,
    out: int,
    bias: int | None,
    tokens: int,
    accumulate: bool = False,
) -> Launch:
    """out = (gate · sigmoid(gate) · up) · weightᵀ + bias, or += if `accumulate`.

    Parameters
    ----------
    gate, up
        (T, K) float32 each, aligned to 16. For quantized weights, what is between is rounded to
        int8 as `swiglu` rounds it.
    weight
        (N, K).
    out
        (T, N) float32, neither gate nor up.
    bias
        (N,) float32, or None.
    tokens
        T, 1 to MAX_TOKENS.
    """
    properties = kernels.runtime.properties
    constants = choose(
        properties.architecture, weight.kernel_format, weight.rows, tokens, "swiglu_matmul"
    )
    return kernels.launch(
        FILE,
        "swiglu_matmul",
        defines(constants, [weight.kernel_format]),
        (-(-weight.rows // constants.pass_rows(properties.wave_size)), 1, 1),
        constants.WAVES * properties.wave_size,
        LAYOUTS["swiglu_matmul"],
        *(*weight.addresses, bias or 0, out, weight.rows, int(accumulate)),
        *(gate, up, weight.columns, tokens),
    )
