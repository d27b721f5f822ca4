"""matmul as a GEMV, for up to eight tokens (decode), in any format, as one token times Q4_K.

A launch takes up to three matrices, gate and up with SwiGLU at the end, or one matrix with a norm
at the end. More tokens are a GEMM: matmul_prompt, matmul_f16 or matmul_dot4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rocmforge.gpu.arrays import F16, F32, Q8, Squares
from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.matrix import DENSE, DeviceMatrix
from rocmforge.gpu.ops import products
from rocmforge.gpu.ops.dot_rows import (
    BATCH,
    KERNEL_FORMATS,
    SQUARES,
    Constants,
    all_constants,
    batch,
    choose,
    defines,
    scaled,
    squares,
)
from rocmforge.gpu.ops.output import addresses, dtype

FILE = "matmul.hip"
LAYOUTS = {"matmul": products.LAYOUT + "i" + BATCH + SQUARES}
GATE_UP_FILE = "gate_up_swiglu.hip"
GATE_UP_LAYOUTS = {"gate_up_swiglu": "PPPP" * 2 + "PPP" + "i" + BATCH + SQUARES}
RMSNORM_FILE = "matmul_rmsnorm.hip"
RMSNORM_LAYOUTS = {"matmul_rmsnorm": "PPPP" + "PPP" + "PPP" + "P" + "i" + BATCH}


def builds(architecture: str) -> Iterator[Build]:
    """The ops' kernels for matrices of one format."""
    for name in KERNEL_FORMATS:
        for constants in all_constants(architecture, name, "matmul"):
            macros = defines(constants, [name] * products.MOST)
            for scale in _scales(constants, name):
                yield Build(FILE, LAYOUTS, {**macros, "SCALED": scale})
        for constants in all_constants(architecture, name, "gate_up_swiglu"):
            out = "F32" if name in DENSE else "F16" if constants.matrix_units else "Q8"
            macros = {**defines(constants, [name] * 2), "OUT": out}
            for scale in _scales(constants, name):
                yield Build(GATE_UP_FILE, GATE_UP_LAYOUTS, {**macros, "SCALED": scale})
        for constants in all_constants(architecture, name, "matmul_rmsnorm"):
            yield Build(RMSNORM_FILE, RMSNORM_LAYOUTS, defines(constants, [name]))


def _scales(constants: Constants, name: str) -> tuple[int, ...]:
    """SCALED of the builds: rows that lack a factor are Q8."""
    return (0,) if name in DENSE or constants.matrix_units else (0, 1)


def matmul(
    kernels: Kernels,
    *,
    x: Q8 | F16 | F32,
    weights: Sequence[DeviceMatrix],
    outs: Sequence[int],
    biases: Sequence[int | None],
    tokens: int,
    accumulate: bool = False,
    x_scale: Squares | None = None,
) -> Launch:
    """outs[i] = x · weights[i]ᵀ + biases[i], or += if `accumulate`.

    Parameters
    ----------
    x
        (T, K): F32 for dense weights (`DeviceMatrix.dense`), F16 where `dot_rows.reads_f16` says
        so, else Q8.
    weights
        One to three matrices (N_i, K), all quantized or all dense; formats may differ.
    outs
        (T, N_i) float32 each.
    biases
        (N_i,) float32 each, or None.
    tokens
        T, 1 to MAX_TOKENS.
    x_scale
        What rows of x are to be multiplied by; None: by nothing.
    """
    first = weights[0]
    properties = kernels.runtime.properties
    rows = sum(w.rows for w in weights)
    constants = choose(
        properties.architecture,
        first.kernel_format,
        (rows, first.columns),
        tokens,
        tuning=kernels.tuning,
    )
    bands = products.bands(weights, constants.pass_rows(properties.wave_size))
    members, blocks = products.products(weights, biases, outs, bands)
    return kernels.launch(
        FILE,
        "matmul",
        {**asdict(constants), **products.formats(weights), **scaled(x_scale)},
        (blocks, 1, 1),
        constants.WAVES * properties.wave_size,
        LAYOUTS["matmul"],
        *(*members, int(accumulate), *batch(x, first.columns, tokens), *squares(x_scale)),
    )


def matmul_rmsnorm(
    kernels: Kernels,
    *,
    x: Q8 | F32,
    weight: DeviceMatrix,
    bias: int | None,
    out: int,
    norm: int,
    normed: Q8,
    squares_out: int,
    tokens: int,
) -> Launch:
    """out += x · weightᵀ + bias; normed = out · norm; squares_out = the sums of out² of 32 columns.

    Parameters
    ----------
    x
        (T, K): Q8 for quantized weights, F32 for dense ones.
    weight
        (N, K); N is a multiple of 32.
    bias
        (N,) float32, or None.
    out
        (T, N) float32.
    norm
        (N,) float32.
    normed
        (T, N): the RMSNorm of out, but for the factors of `squares`.
    squares_out
        (T, N / 32) float32.
    tokens
        T, 1 to MAX_TOKENS.
    """
    properties = kernels.runtime.properties
    constants = choose(
        properties.architecture,
        weight.kernel_format,
        (weight.rows, weight.columns),
        tokens,
        "matmul_rmsnorm",
        kernels.tuning,
    )
    return kernels.launch(
        RMSNORM_FILE,
        "matmul_rmsnorm",
        defines(constants, [weight.kernel_format]),
        (-(-weight.rows // constants.group_rows(properties.wave_size)), 1, 1),
        constants.WAVES * properties.wave_size,
        RMSNORM_LAYOUTS["matmul_rmsnorm"],
        *(*weight.addresses, bias or 0, out, norm, *addresses(normed), squares_out, weight.rows),
        *batch(x, weight.columns, tokens),
    )


def gate_up_swiglu(
    kernels: Kernels,
    *,
    x: Q8 | F16 | F32,
    gate: DeviceMatrix,
    up: DeviceMatrix,
    out: F32 | F16 | Q8,
    tokens: int,
    x_scale: Squares | None = None,
) -> Launch:
    """out = g · sigmoid(g) · u of g = x · gateᵀ and u = x · upᵀ.

    Parameters
    ----------
    x
        (T, K), as of `matmul`.
    gate, up
        (N, K), both quantized or both dense; of one format they are read together.
    out
        (T, N); Q8 needs N to be a multiple of 32, and x that is no F16.
    tokens
        T, 1 to MAX_TOKENS.
    x_scale
        As of `matmul`.
    """
    properties = kernels.runtime.properties
    constants = choose(
        properties.architecture,
        gate.kernel_format,
        (gate.rows, gate.columns),
        tokens,
        "gate_up_swiglu",
        kernels.tuning,
    )
    block_rows = constants.group_rows(properties.wave_size)
    return kernels.launch(
        GATE_UP_FILE,
        "gate_up_swiglu",
        {
            **defines(constants, [gate.kernel_format, up.kernel_format]),
            "OUT": dtype(out),
            **scaled(x_scale),
        },
        (-(-gate.rows // block_rows), 1, 1),
        constants.WAVES * properties.wave_size,
        GATE_UP_LAYOUTS["gate_up_swiglu"],
        *(*gate.addresses, *up.addresses, *addresses(out), gate.rows),
        *batch(x, gate.columns, tokens),
        *squares(x_scale),
    )
