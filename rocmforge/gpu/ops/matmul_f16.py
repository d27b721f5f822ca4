"""matmul as a GEMM (prefill): y = x · weightsᵀ on the matrix units, weights float16 in memory.

They are so in the file, or `unpack` made them so: each weight once, where `matmul_prompt`
dequantizes it for every tile of tokens. Sums are float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from rocmforge.gpu.arrays import F16, F32, Halves
from rocmforge.gpu.compiler import Build, Kernels, wave_size
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.matrix import DeviceMatrix
from rocmforge.gpu.ops import products, prompt_tiles
from rocmforge.gpu.ops.prompt_tiles import (
    Cut,
    Product,
    Tile,
    has_matrix_units,
    result_of,
)
from rocmforge.gpu.tuning import UNTUNED, Tuning

FILE = "matmul_f16.hip"
LAYOUTS = {
    "matmul_f16": products.LAYOUT + "Piiiii",
    "gate_up_swiglu_f16": prompt_tiles.LAYOUT,
}
COLUMNS = 8
"""K is a multiple of it."""

UNPACKED_BYTES = 1 << 30
"""Most memory that the float16 forms of matrices take which share activations."""

KEY = "tile f16"
"""Begins the tiles' keys in a table of `rocmforge tune`."""


@dataclass(frozen=True)
class Constants(Cut):
    """Compile-time constants of matmul_f16.hip.

    STAGES is 2 but on CUDA: one step is multiplied, on Hopper two, and the others are on their way.

    Parameters
    ----------
    BLOCKS
        That a compute unit runs at a time; CUDA's compiler keeps the registers so few.
    """

    BLOCKS: int = 1


# TFLOP/s, fitted to times of six shapes (N 2048 to 22016, K 2048 to 11008) with 256 to 2048 tokens
# on an H200, 2026-11-24. A tile chosen by them took at most 1.06 of the fastest one's time, 1.01 on
# average.
_SM = (
    Tile(Constants(128, 128, 64, 64, 2, 3, 2), 288, 386, 2),
    Tile(Constants(128, 128, 64, 32, 2, 3, 1), 349, 349, 1),
    Tile(Constants(64, 128, 32, 64, 2, 3, 2), 242, 337, 2),
    Tile(Constants(128, 64, 64, 32, 2, 3, 2), 235, 315, 2),
    Tile(Constants(256, 128, 64, 64, 2, 3, 1), 404, 404, 1),
    Tile(Constants(128, 256, 64, 64, 2, 3, 1), 406, 406, 1),
)
_SM_90 = (  # with kernels/warpgroup.h; of ten shapes
    Tile(Constants(128, 256, 16, 256, 2, 4, 1), 600, 600, 1),
    Tile(Constants(256, 128, 16, 128, 2, 4, 1), 604, 604, 1),
    Tile(Constants(128, 128, 16, 128, 2, 4, 1), 510, 510, 1),
)
# Not measured: shares of one another, as on the H200. A compute unit has 64 KB of LDS.
_CDNA = (
    Tile(Constants(128, 128, 64, 64, 1, 2), 0.7, 1.0, 2),
    Tile(Constants(64, 64, 32, 32, 1, 2), 0.4, 0.65, 4),
)
_RDNA = (
    Tile(Constants(128, 128, 64, 32, 1, 2), 0.8, 1.0, 2),
    Tile(Constants(64, 64, 32, 32, 1, 2), 0.4, 0.65, 3),
)

_KB = 1024
_LDS = {"sm_80": 163, "sm_87": 163, "sm_90": 227, "sm_100": 227, "sm_103": 227}
"""KB of LDS that a multiprocessor has for its blocks, each of which takes 1 KB more than it asks
for; that of others is the least that any has (CUDA C++ Programming Guide, technical
specifications)."""
_LEAST_LDS = 99


def least_unpacked(architecture: str) -> int:
    """Tokens from which unpacked weights are worth it, as far as it was measured.

    With mma.sync on an H200, prompts of 256 tokens took 0.98 (7B Q4_K_M) and 1.05 (Q8_0) of the
    time, of 512 tokens 0.81 and 0.82. With wgmma, prompts of 256 tokens took 0.83. There,
    matmul_batch comes first where it `runs`; 129 is for what it leaves: dense formats, and groups
    of devices (docs/EXPERIMENTS.md).
    """
    return 129 if architecture == "sm_90" else 257


def unpacks(architecture: str, tokens: int) -> bool:
    """Whether weights become float16 in memory before a product with so many tokens.

    On RDNA they never do: its memory is slow beside its matrix units, and 512 tokens would take
    about a quarter longer.
    """
    if architecture.startswith("sm_") or wave_size(architecture) == 64:
        return has_matrix_units(architecture) and tokens >= least_unpacked(architecture)
    return False


def runs(architecture: str, weights: Sequence[DeviceMatrix], tokens: int) -> bool:
    """Whether products are this op's, in one launch: by device, columns, formats and tokens.

    The weights share activations: one to three matrices, or gate and up.
    """
    if weights[0].columns % COLUMNS or not has_matrix_units(architecture):
        return False
    if all(is_f16(w) for w in weights):
        return True
    nbytes = sum(2 * w.rows * w.columns for w in weights)
    return nbytes <= UNPACKED_BYTES and unpacks(architecture, tokens)


def is_f16(weight: DeviceMatrix) -> bool:
    """Whether a matrix is float16 already."""
    return weight.kernel_format == "F16"


def unpacked(weight: DeviceMatrix, address: int) -> DeviceMatrix:
    """Return the float16 form of a matrix, at an address aligned to 256."""
    return DeviceMatrix.at(address, "F16", weight.rows, weight.columns)


def unpacked_bytes(architecture: str, weights: Sequence[DeviceMatrix], tokens: int) -> int:
    """Memory of the float16 forms of weights that are unpacked together for so many tokens."""
    if not runs(architecture, weights, tokens):
        return 0
    return sum(unpacked(w, 0).nbytes for w in weights if not is_f16(w))


def tiles(architecture: str, tuning: Tuning = UNTUNED) -> tuple[Tile[Constants], ...]:
    """Tiles to choose from for an architecture.

    `tuning` replaces their speeds where it has those of all.
    """
    return prompt_tiles.tuned(tuple(_able(architecture)), tuning, KEY)


def _able(architecture: str) -> Iterator[Tile[Constants]]:
    if architecture == "sm_90":
        yield from _SM_90
    elif architecture.startswith("sm_"):
        held = (_held(tile, _LDS.get(architecture, _LEAST_LDS)) for tile in _SM)
        yield from (tile for tile in held if tile.blocks)
    elif has_matrix_units(architecture):
        yield from _CDNA if wave_size(architecture) == 64 else _RDNA


def _held(tile: Tile[Constants], kilobytes: int) -> Tile[Constants]:
    """A tile of which a multiprocessor holds as many blocks as its LDS allows."""
    blocks = min(tile.blocks, (kilobytes + 1) * _KB // (tile.constants.lds_bytes + _KB))
    return replace(tile, blocks=blocks)


def choose(
    architecture: str, tokens: int, rows: int, compute_units: int, tuning: Tuning = UNTUNED
) -> Constants:
    """Constants of the tile that takes the least time.

    Parameters
    ----------
    architecture
        "gfx…" or "sm_…", with matrix units.
    tokens, rows
        T, and N of all matrices together.
    compute_units
        Of the device.
    tuning
        Speeds of the tiles, measured on it.
    """
    able = tiles(architecture, tuning)
    return prompt_tiles.fastest(able, tokens, rows, compute_units)


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernels."""
    for tile in tiles(architecture):
        yield Build(FILE, LAYOUTS, asdict(tile.constants))


def matmul_f16(
    kernels: Kernels,
    *,
    x: F16,
    weights: Sequence[DeviceMatrix],
    outs: Sequence[F32 | F16],
    tokens: int,
    biases: Sequence[int | None],
    accumulate: bool = False,
    added: tuple[int, int] | None = None,
    constants: Constants | None = None,
) -> Launch:
    """outs[i][t, n] = Σ_k x[t, k] · weights[i][n, k] + biases[i][n], or that added to outs[i].

    Parameters
    ----------
    x
        (T, K), aligned to 16; K a multiple of COLUMNS.
    weights
        One to three matrices (Nᵢ, K) of F16.
    outs
        (T, Nᵢ) each, all of one dtype.
    tokens
        T.
    biases
        Addresses of (Nᵢ,) float32 each, or None.
    accumulate
        Add to what `outs` hold, which are F32 (the residual).
    added
        First and end of the tokens for which it does so; None: all.
    constants
        Of the tile; None: `choose` it.
    """
    properties = kernels.runtime.properties
    tile = constants or _chosen(kernels, tokens, sum(w.rows for w in weights))
    bands = products.bands(weights, tile.TILE_ROWS)
    addresses = [out.address for out in outs]
    members, blocks = products.products(weights, biases, addresses, bands)
    return kernels.launch(
        FILE,
        "matmul_f16",
        asdict(tile),
        (-(-tokens // tile.TILE_TOKENS), blocks, 1),
        tile.threads(properties.wave_size),
        LAYOUTS["matmul_f16"],
        *(*members, x.address, tokens, weights[0].columns),
        *(result_of(outs[0], accumulate), *(added or (0, tokens))),
        lds_bytes=tile.lds_bytes,
    )


def gate_up_swiglu_f16(
    kernels: Kernels, *, x: F16, gate: DeviceMatrix, up: DeviceMatrix, out: Halves, tokens: int
) -> Launch:
    """out = g · sigmoid(g) · u of g = x · gateᵀ and u = x · upᵀ.

    Parameters
    ----------
    x
        (T, K), aligned to 16; K a multiple of COLUMNS.
    gate, up
        (N, K) of F16.
    out
        (T, N).
    tokens
        T.
    """
    product = Product(x.address, (gate, up), 0, out.address, tokens, result_of(out))
    tile = _chosen(kernels, tokens, product.rows)
    name, defines = "gate_up_swiglu_f16", asdict(tile)
    return product.launch(kernels, FILE, name, tile, defines, tile.lds_bytes)


def matmul_f16_tile(
    kernels: Kernels,
    constants: Constants,
    *,
    x: F16,
    weight: DeviceMatrix,
    out: F32,
    tokens: int,
) -> Launch:
    """`matmul_f16` of one matrix with a tile of the caller's, to see how fast it is."""
    return matmul_f16(
        kernels,
        x=x,
        weights=[weight],
        outs=[out],
        biases=[None],
        tokens=tokens,
        constants=constants,
    )


def _chosen(kernels: Kernels, tokens: int, rows: int) -> Constants:
    properties = kernels.runtime.properties
    return choose(properties.architecture, tokens, rows, properties.compute_units, kernels.tuning)
