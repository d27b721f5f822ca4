"""matmul as a GEMV, for up to eight tokens (decode), in any format, as one token times Q4_K.

A launch takes up to three matrices, or gate and up with SwiGLU at the end. More tokens are a GEMM:
matmul_prompt or matmul_dot4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rocmforge.gpu.arrays import F16, F32, Q8
from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.matrix import DENSE, DeviceMatrix
from rocmforge.gpu.ops.dot_rows import (
    BATCH,
    KERNEL_FORMATS,
    all_constants,
    batch,
    choose,
    defines,
)
from rocmforge.gpu.ops.output import addresses, dtype

FILE = "matmul.hip"
LAYOUTS = {"matmul": "PPPPPP" * 3 + "iii" * 2 + "i" + BATCH}
GATE_UP_FILE = "gate_up_swiglu.hip"
GATE_UP_LAYOUTS = {"gate_up_swiglu": "PPPP" * 2 + "PPP" + "i" + BATCH}
MAX_MATRICES = 3


def builds(architecture: str) -> Iterator[Build]:
    """The ops' kernels for matrices of one format."""
    for name in KERNEL_FORMATS:
        for constants in all_constants(architecture, name, "matmul"):
            yield Build(FILE, LAYOUTS, defines(constants, [name] * MAX_MATRICES))
        out = "F32" if name in DENSE else "Q8"
        for constants in all_constants(architecture, name, "gate_up_swiglu"):
            macros = {**defines(constants, [name] * 2), "OUT": out}
            yield Build(GATE_UP_FILE, GATE_UP_LAYOUTS, macros)


def matmul(
    kernels: Kernels,
    *,
    x: Q8 | F32,
    weights: Sequence[DeviceMatrix],
    outs: Sequence[int],
    biases: Sequence[int | None],
    tokens: int,
    accumulate: bool = False,
) -> Launch:
    """outs[i] = x · weights[i]ᵀ + biases[i], or += if `accumulate`.

    Parameters
    ----------
    x
        (T, K): Q8 for quantized weights, F32 for dense ones (`DeviceMatrix.dense`).
    weights
        One to three matrices (N_i, K), all quantized or all dense; formats may differ.
    outs
        (T, N_i) float32 each.
    biases
        (N_i,) float32 each, or None.
    tokens
        T, 1 to MAX_TOKENS.
    """
    first = weights[0]
    properties = kernels.runtime.properties
    rows = sum(w.rows for w in weights)
    constants = choose(properties.architecture, first.kernel_format, rows, tokens)
    block_rows = constants.pass_rows(properties.wave_size)
    pointers: list[int] = []
    ends: list[int] = []
    for w, out, bias in zip(weights, outs, biases, strict=True):
        pointers += [*w.addresses, bias or 0, out]
        ends.append((ends[-1] if ends else 0) + -(-w.rows // block_rows))
    missing = MAX_MATRICES - len(weights)
    return kernels.launch(
        FILE,
        "matmul",
        defines(constants, [w.kernel_format for w in (*weights, *[first] * missing)]),
        (ends[-1], 1, 1),
        constants.WAVES * properties.wave_size,
        LAYOUTS["matmul"],
        *(*pointers, *[0] * (6 * missing)),
        *(*(w.rows for w in weights), *[0] * missing, *ends, *[ends[-1]] * missing),
        *(int(accumulate), *batch(x, first.columns, tokens)),
    )


def gate_up_swiglu(
    kernels: Kernels,
    *,
    x: Q8 | F32,
    gate: DeviceMatrix,
    up: DeviceMatrix,
    out: F32 | F16 | Q8,
    tokens: int,
) -> Launch:
    """out = g · sigmoid(g) · u of g = x · gateᵀ and u = x · upᵀ.

    Parameters
    ----------
    x
        (T, K): Q8 for quantized weights, F32 for dense ones.
    gate, up
        (N, K), both quantized or both dense; of one format they are read together.
    out
        (T, N); Q8 needs N to be a multiple of 32.
    tokens
        T, 1 to MAX_TOKENS.
    """
    properties = kernels.runtime.properties
    constants = choose(
        properties.architecture, gate.kernel_format, gate.rows, tokens, "gate_up_swiglu"
    )
    block_rows = constants.group_rows(properties.wave_size)
    return kernels.launch(
        GATE_UP_FILE,
        "gate_up_swiglu",
        {**defines(constants, [gate.kernel_format, up.kernel_format]), "OUT": dtype(out)},
        (-(-gate.rows // block_rows), 1, 1),
        constants.WAVES * properties.wave_size,
        GATE_UP_LAYOUTS["gate_up_swiglu"],
        *(*gate.addresses, *up.addresses, *addresses(out), gate.rows),
        *batch(x, gate.columns, tokens),
    )
