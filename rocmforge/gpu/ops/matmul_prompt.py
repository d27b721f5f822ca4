"""matmul as a GEMM (prefill): y = x · weightsᵀ on the matrix units, weights dequantized into LDS.

Activations and weights are rounded to float16; sums are float32. Up to eight tokens are a GEMV:
matmul. Long prompts, and weights that are float16 already, are matmul_f16's where that `runs`. GPUs
without matrix units take matmul_dot4 for quantized weights, as `prompt_kernel` says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal

from rocmforge.gpu.arrays import F16, F32, Halves
from rocmforge.gpu.compiler import Build, Kernels, wave_size
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.matrix import DENSE, DeviceMatrix
from rocmforge.gpu.matrix import LAYOUTS as STREAMS
from rocmforge.gpu.ops import prompt_tiles
from rocmforge.gpu.ops.prompt_tiles import (
    STORE,
    Cut,
    Product,
    Tile,
    has_matrix_units,
    is_matrix_rdna,
    result_of,
)
from rocmforge.gpu.tuning import UNTUNED, Tuning

FILE = "matmul_prompt.hip"
LAYOUTS = dict.fromkeys(("matmul_prompt", "gate_up_swiglu_prompt"), prompt_tiles.LAYOUT)


@dataclass(frozen=True)
class Constants(Cut):
    """Compile-time constants of matmul_prompt.hip.

    STAGES is 1, or 2 for one step to be filled while the other is read.

    Parameters
    ----------
    DEPTH
        Steps on their way from memory.
    """

    DEPTH: int = 1


# TFLOP/s, fitted to times of Q4_K (4096 × 4096, 22016 × 4096, 4096 × 11008; 32 to 2048 tokens) on
# an H200, 2026-11. A lane of the first tile keeps 128 sums, which leaves no registers for two
# groups of 8 bits a weight and more: those take one.
_SM_LARGE = Tile(Constants(128, 128, 64, 64, 2, 1), 182, 270, 2)
_SM_LARGE_WIDE = Tile(Constants(128, 128, 64, 64, 1, 2), 162, 257, 2)
_SM = (
    Tile(Constants(128, 128, 64, 32, 2, 1), 243, 243, 1),
    Tile(Constants(128, 64, 64, 32, 2, 1), 128, 230, 3),
    Tile(Constants(64, 64, 32, 32, 2, 2, 2), 112, 175, 3),
    Tile(Constants(32, 64, 16, 32, 2, 2, 2), 72, 130, 4),
)
# Not measured: shares of one another, as on the H200.
_CDNA = (
    Tile(Constants(128, 128, 64, 64, 2, 1), 0.7, 1.0, 2),
    Tile(Constants(64, 64, 32, 64, 2, 1), 0.4, 0.65, 4),
)
_RDNA = (
    Tile(Constants(128, 128, 64, 32, 2, 1), 0.8, 1.0, 2),
    Tile(Constants(64, 64, 32, 32, 2, 2), 0.4, 0.65, 3),
)

_DOT4_ONLY = re.compile("gfx906|gfx1011|gfx1012|gfx103.")  # RDNA1 and 2 as far as they have v_dot4


def prompt_kernel(architecture: str, name: str) -> Literal["matmul_prompt", "matmul_dot4"]:
    """Which op multiplies prompts: by int8 where there are dot products of bytes and no more.

    Parameters
    ----------
    architecture
        "gfx…" or "sm_…".
    name
        The matrix's format, or the type of kernels/packed.h.
    """
    if name in DENSE or _DOT4_ONLY.fullmatch(architecture) is None:
        return "matmul_prompt"
    return "matmul_dot4"


def tiles(architecture: str, name: str, tuning: Tuning = UNTUNED) -> tuple[Tile[Constants], ...]:
    """Tiles to choose from for an architecture and a type of kernels/packed.h.

    `tuning` replaces their speeds where it has those of all.
    """
    if architecture.startswith("sm_"):
        wide = name in DENSE or STREAMS[name].codes == 32
        able: tuple[Tile[Constants], ...] = (_SM_LARGE_WIDE if wide else _SM_LARGE, *_SM)
    elif wave_size(architecture) == 64:
        able = _CDNA
    else:
        able = _RDNA if is_matrix_rdna(architecture) else _RDNA[-1:]
    return prompt_tiles.tuned(able, tuning, "tile")


def choose(
    architecture: str,
    name: str,
    tokens: int,
    rows: int,
    columns: int,
    compute_units: int,
    tuning: Tuning = UNTUNED,
) -> Constants:
    """Constants of the tile that takes the least time.

    Parameters
    ----------
    architecture
        "gfx…" or "sm_…".
    name
        The type of kernels/packed.h.
    tokens, rows, columns
        T, N of all matrices together, and K: rows that are no multiple of 16 bytes, which few
        models have, are compiled for one tile only.
    compute_units
        Of the device.
    tuning
        Speeds of the tiles, measured on it.
    """
    able = tiles(architecture, name, tuning)[-1 if columns % 8 else 0 :]
    return prompt_tiles.fastest(able, tokens, rows, compute_units)


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernels."""
    for name in (*STREAMS, *dict.fromkeys(DENSE.values())):
        if prompt_kernel(architecture, name) == "matmul_prompt":
            able = tiles(architecture, name)
            if name != "F16" or not has_matrix_units(architecture):  # else rows are matmul_f16's
                for tile in able:
                    yield Build(FILE, LAYOUTS, _defines(tile.constants, name, 256), name != "F32")
            if name in DENSE:
                yield Build(FILE, LAYOUTS, _defines(able[-1].constants, name, 1), hot=False)


def matmul_prompt(
    kernels: Kernels,
    *,
    x: F16,
    weight: DeviceMatrix,
    out: F32 | F16,
    tokens: int,
    bias: int | None = None,
    accumulate: bool = False,
    added: tuple[int, int] | None = None,
) -> Launch:
    """out[t, n] = Σ_k x[t, k] · weight[n, k] + bias[n], or that added to out.

    Parameters
    ----------
    x
        (T, K), aligned to 16.
    weight
        (N, K).
    out
        (T, N).
    tokens
        T.
    bias
        Address of (N,) float32.
    accumulate
        Add to what `out` holds, which is F32 (the residual).
    added
        First and end of the tokens for which it does so; None: all.
    """
    result = result_of(out, accumulate)
    product = Product(x.address, (weight,), bias or 0, out.address, tokens, result, added)
    return _launch(kernels, "matmul_prompt", product)


def gate_up_swiglu_prompt(
    kernels: Kernels, *, x: F16, gate: DeviceMatrix, up: DeviceMatrix, out: Halves, tokens: int
) -> Launch:
    """out = g · sigmoid(g) · u of g = x · gateᵀ and u = x · upᵀ.

    Parameters
    ----------
    x
        (T, K), aligned to 16.
    gate, up
        (N, K) of one format.
    out
        (T, N).
    tokens
        T.
    """
    product = Product(x.address, (gate, up), 0, out.address, tokens, result_of(out))
    return _launch(kernels, "gate_up_swiglu_prompt", product)


def matmul_tile(
    kernels: Kernels,
    constants: Constants,
    *,
    x: F16,
    weight: DeviceMatrix,
    out: F32,
    tokens: int,
) -> Launch:
    """`matmul_prompt` with a tile of the caller's, to see how fast it is."""
    product = Product(x.address, (weight,), 0, out.address, tokens, STORE)
    return _cut(kernels, constants, "matmul_prompt", product)


def _launch(kernels: Kernels, name: str, product: Product) -> Launch:
    first, properties = product.weights[0], kernels.runtime.properties
    constants = choose(
        properties.architecture,
        first.kernel_format,
        product.tokens,
        product.rows,
        first.columns,
        properties.compute_units,
        kernels.tuning,
    )
    return _cut(kernels, constants, name, product)


def _cut(kernels: Kernels, constants: Constants, name: str, product: Product) -> Launch:
    first = product.weights[0]
    defines = _defines(constants, first.kernel_format, first.columns)
    return product.launch(kernels, FILE, name, constants, defines)


def _defines(constants: Constants, name: str, columns: int) -> dict[str, int | str]:
    return {"FORMAT": name, **asdict(constants), "ALIGNED": int(columns % 8 == 0)}
