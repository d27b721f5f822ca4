"""What `rocmforge tune` tries: kernels whose constants a card decides, and the constants to try.

A case is one key of `rocmforge.gpu.tuning.Tuning`. Its shapes are among those for which the ops'
own constants were measured.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from rocmforge.gpu.arrays import F16, F32, Q8
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.matrix import DeviceMatrix
from rocmforge.gpu.ops import dot_rows, matmul_batch, matmul_f16, matmul_prompt
from rocmforge.gpu.ops.gemv_constants import TOKENS, row_classes
from rocmforge.gpu.ops.matmul import gate_up_swiglu, matmul, matmul_rmsnorm
from rocmforge.gpu.ops.prompt_tiles import Tile, has_matrix_units
from rocmforge.gpu.runtime import DeviceProperties
from rocmforge.gpu.tuning import Constants

KINDS = MappingProxyType(
    {"nibbles": "Q4_K", "short blocks": "Q4_0", "planes": "Q6_K", "bytes": "Q8_0", "dense": "F16"}
)
"""A common format of each kind of `dot_rows`."""

GEMVS = ("matmul", "gate_up_swiglu", "matmul_rmsnorm")

BATCH_SHAPES = ((4096, 4096, False), (4096, 11008, False), (11008, 4096, True))
"""Rows, columns, and whether it is gate and up."""

GEMV_TRIED = (4, 8, 16), (1, 2, 4), (1, 2, 4)  # waves, rows, units
ROW_WAVES_TRIED = 4, 8
TILE_COLUMNS = 4096
MOST_BLOCKS = 4  # of a prompt's tile, tried on a compute unit at a time
MOST_TOKENS = 128
WIDEST = 22016
LONGEST = 11008
TOKEN_TILES = 4  # of a product with float16 weights, so that memory does not limit it
LARGEST_TILE = 256  # tokens
ACTIVATION_BYTES = max(
    Q8.nbytes(MOST_TOKENS, LONGEST) + 4 * MOST_TOKENS * LONGEST,
    2 * TOKEN_TILES * LARGEST_TILE * TILE_COLUMNS,
)
PARTIAL_BYTES = 256 << 20
ARRIVALS = 4096

WORTH = 0.98  # of the time of what there was: anything else has to be at least so fast
ROUNDS = 5  # whose median counts


@dataclass(frozen=True)
class Memory:
    """Addresses of what cases compute with, in device memory.

    Parameters
    ----------
    weights, weight_bytes
        Random bytes, more than any cache of the device holds.
    x
        ACTIVATION_BYTES of activations.
    out
        Room for the results.
    partials, arrivals
        As of `matmul_batch.Scratch`; what a result is added to.
    norm
        WIDEST equal weights of a norm.
    """

    weights: int
    weight_bytes: int
    x: int
    out: int
    partials: int
    arrivals: int
    norm: int

    def matrices(self, name: str, rows: int, columns: int) -> list[DeviceMatrix]:
        """Return as many matrices of a shape as there is room for, one behind the other."""
        nbytes = DeviceMatrix.at(0, name, rows, columns).nbytes
        step = -(-nbytes // 256) * 256
        count = self.weight_bytes // step
        return [DeviceMatrix.at(self.weights + i * step, name, rows, columns) for i in range(count)]


@dataclass(frozen=True)
class Found:
    """What was found for one kernel, or one fusion.

    Parameters
    ----------
    shown
        The case, for people.
    own, best
        Constants of the op, and the fastest.
    own_seconds, best_seconds
        Median device time of a launch with each; of a fusion, the time of a decode step.
    tried, refused
        How many others were tried, and how many of them did not compile or gave other results.
    """

    shown: str
    own: Constants
    best: Constants
    own_seconds: float
    best_seconds: float
    tried: int
    refused: int

    @property
    def changed(self) -> bool:
        """Whether the fastest is another than the op's own."""
        return self.best != self.own


Launches = Callable[[Any, Memory], list[Launch]]


@dataclass(frozen=True)
class Case:
    """A key, and what to try for it.

    Parameters
    ----------
    key
        Of the table.
    shown
        For people.
    own
        What the op takes by itself.
    others
        What else to try.
    launches
        Makes the launches to be timed, by `Kernels` or a `BuildRecorder`, with their tuning. They
        read other matrices each time, and write to `Memory.out`.
    results
        How many results the first one writes there,
    dtype
        and their type.
    """

    key: str
    shown: str
    own: Constants
    others: Sequence[Constants]
    launches: Launches
    results: int
    dtype: type[np.generic]


def gemv_cases(properties: DeviceProperties) -> Iterator[Case]:
    """Cases of the GEMVs: ways to cut rows, formats, numbers of tokens."""
    architecture = properties.architecture
    classes = [(op, one) for op in GEMVS for one in row_classes(architecture, op)]
    for (op, one), (kind, name), tokens in itertools.product(classes, KINDS.items(), TOKENS):
        rows, columns = one.shape
        chosen = dot_rows.choose(architecture, name, one.shape, tokens, op)
        own = {"WAVES": chosen.WAVES, "ROWS": chosen.ROWS, "UNITS": chosen.UNITS}
        tried = [
            dict(zip(own, found, strict=True))
            for found in itertools.product(*GEMV_TRIED)
            if _gemv_fits(properties, chosen, *found)
        ]
        yield Case(
            f"gemv {one.name} {kind} {tokens}",
            f"GEMV, {one.name.replace('_', ' ')}, {name}, {_tokens(tokens)}",
            own,
            [found for found in tried if found != own],
            _gemv(op, name, rows, columns, tokens),
            rows * tokens,
            _written(op, kind, chosen),
        )


def _written(op: str, kind: str, chosen: dot_rows.Constants) -> type[np.generic]:
    """Type of the results, as an engine's passes have it."""
    if op == "matmul_rmsnorm":
        return np.int8
    if op == "matmul" or kind == "dense":
        return np.float32
    return np.float16 if chosen.matrix_units else np.int8


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _gemv_fits(
    properties: DeviceProperties, chosen: dot_rows.Constants, waves: int, rows: int, units: int
) -> bool:
    """Whether a kernel of these constants can be: threads, the lanes of a row, room in LDS."""
    if chosen.matrix_units:
        return rows % 2 == 0 and 2 * rows <= waves and rows * units <= 8
    chunk = chosen.SLOTS // chosen.TOKENS // (chosen.LANES * units)
    return (
        rows * units <= 4
        and waves * properties.wave_size <= 1024
        and waves * properties.wave_size >= chosen.TOKENS
        and chosen.TOKENS * rows <= chosen.LANES
        and chunk > 0
    )


def _gemv(op: str, name: str, rows: int, columns: int, tokens: int) -> Launches:
    def launches(kernels: Any, memory: Memory) -> list[Launch]:
        matrices = memory.matrices(name, rows, columns)
        halves = op != "matmul_rmsnorm" and dot_rows.reads_f16(
            kernels.runtime.properties.architecture, name, tokens
        )

        def placed(at: int, *shape: int) -> Any:
            """Activations of a shape, in the dtype that the kernel reads and writes."""
            if halves:
                return F16(at)
            return F32(at) if matrices[0].dense else Q8.at(at, *shape)

        x = placed(memory.x, dot_rows.MAX_TOKENS, columns)
        if op == "matmul_rmsnorm":
            normed = Q8.at(memory.out, tokens, rows)
            return [
                matmul_rmsnorm(
                    kernels,
                    x=x,
                    weight=matrix,
                    bias=None,
                    out=memory.partials,
                    norm=memory.norm,
                    normed=normed,
                    squares_out=memory.partials + 4 * rows * tokens,
                    tokens=tokens,
                )
                for matrix in matrices
            ]
        if op == "matmul":
            return [
                matmul(
                    kernels,
                    x=x,
                    weights=[matrix],
                    outs=[memory.out],
                    biases=[None],
                    tokens=tokens,
                )
                for matrix in matrices
            ]
        out = placed(memory.out, tokens, rows)
        return [
            gate_up_swiglu(kernels, x=x, gate=gate, up=up, out=out, tokens=tokens)
            for gate, up in _pairs(matrices)
        ]

    return launches


def _pairs(matrices: Sequence[DeviceMatrix]) -> Iterator[tuple[DeviceMatrix, DeviceMatrix]]:
    return zip(matrices[0::2], matrices[1::2], strict=False)


def batch_cases(properties: DeviceProperties) -> Iterator[Case]:
    """Cases of the products of 9 to 64 tokens, where the device has matrix units."""
    name = KINDS["nibbles"]
    architecture, wave = properties.architecture, properties.wave_size
    if not has_matrix_units(architecture):
        return
    tiles, stages = ((1, 2), (2, 3)) if architecture.startswith("sm_") else ((2,), (2,))
    for tokens in matmul_batch.TOKENS:
        chosen = matmul_batch.choose(architecture, name, tokens)
        every = asdict(chosen)
        own = {k: v for k, v in every.items() if k not in ("TOKENS", "COLUMNS")}
        others = []
        for found in itertools.product(tiles, ROW_WAVES_TRIED, (1, 2), stages, (1, 2), (1, 2)):
            constants = matmul_batch.Constants(**{**every, **dict(zip(own, found, strict=True))})
            fits = constants.fits(architecture, wave, properties.shared_bytes)
            if fits and constants != chosen:
                others.append(dict(zip(own, found, strict=True)))
        shown = f"matrix units, {name}, {tokens} tokens"
        results = BATCH_SHAPES[0][0] * tokens
        made = _batch(name, tokens)
        yield Case(f"batch {tokens}", shown, own, others, made, results, np.float32)


def _batch(name: str, tokens: int) -> Launches:
    def launches(kernels: Any, memory: Memory) -> list[Launch]:
        x = F16(memory.x)
        scratch = matmul_batch.Scratch(memory.partials, memory.arrivals)
        found: list[Launch] = []
        for rows, columns, gated in BATCH_SHAPES:
            matrices = memory.matrices(name, rows, columns)
            if gated:
                found += [
                    matmul_batch.gate_up_swiglu_batch(
                        kernels,
                        x=x,
                        gate=gate,
                        up=up,
                        out=F16(memory.out),
                        tokens=tokens,
                        scratch=scratch,
                    )
                    for gate, up in _pairs(matrices)
                ]
                continue
            found += [
                matmul_batch.matmul_batch(
                    kernels,
                    x=x,
                    weights=[matrix],
                    outs=[memory.out],
                    biases=[None],
                    tokens=tokens,
                    scratch=scratch,
                )
                for matrix in matrices
            ]
        return found

    return launches


@dataclass(frozen=True)
class TileCase:
    """A tile of the prompts' GEMMs, whose speed is measured for one to MOST_BLOCKS a compute unit.

    Parameters
    ----------
    key, shown
        As of `Case`.
    tile
        With the op's own speeds.
    multiply
        Makes a launch of the op with the tile's constants.
    name
        Format of the weights.
    token_tiles
        Most tiles of tokens that share weights.
    """

    key: str
    shown: str
    tile: Tile[Any]
    multiply: Callable[..., Launch]
    name: str
    token_tiles: int

    def launches(self, kernels: Kernels, memory: Memory, blocks: int) -> list[Launch]:
        """Launches that give each compute unit so many blocks."""
        constants = self.tile.constants
        tiles = kernels.runtime.properties.compute_units * blocks
        token_tiles = math.gcd(tiles, self.token_tiles)
        rows = constants.TILE_ROWS * (tiles // token_tiles)
        return [
            self.multiply(
                kernels,
                constants,
                x=F16(memory.x),
                weight=matrix,
                out=F32(memory.out),
                tokens=constants.TILE_TOKENS * token_tiles,
            )
            for matrix in memory.matrices(self.name, rows, TILE_COLUMNS)
        ]


def tile_cases(properties: DeviceProperties) -> Iterator[TileCase]:
    """The tiles of the prompts' GEMMs, where they run on matrix units."""
    architecture, nibbles = properties.architecture, KINDS["nibbles"]
    if not has_matrix_units(architecture):
        return
    multiply: Callable[..., Launch] = matmul_prompt.matmul_tile
    for tile in matmul_prompt.tiles(architecture, nibbles):
        yield _tile_case("tile", tile, multiply, nibbles, 1)
    multiply = matmul_f16.matmul_f16_tile
    for tile_f16 in matmul_f16.tiles(architecture):
        yield _tile_case(matmul_f16.KEY, tile_f16, multiply, "F16", TOKEN_TILES)


def _tile_case(
    key: str, tile: Tile[Any], multiply: Callable[..., Launch], name: str, token_tiles: int
) -> TileCase:
    c = tile.constants
    words = " ".join(str(value) for value in astuple(c))
    shown = f"tile {c.TILE_TOKENS} × {c.TILE_ROWS}, {name}"
    return TileCase(f"{key} {words}", shown, tile, multiply, name, token_tiles)


def out_bytes(properties: DeviceProperties) -> int:
    """Room that the largest result takes."""
    tile = max(
        (c.tile.constants.TILE_TOKENS * c.tile.constants.TILE_ROWS for c in tile_cases(properties)),
        default=0,
    )
    tiles = 4 * tile * properties.compute_units * MOST_BLOCKS
    return max(tiles, 4 * MOST_TOKENS * WIDEST)
