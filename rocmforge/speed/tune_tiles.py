"""Speeds of the tiles of prompts' GEMMs on a card, by which `ops/prompt_tiles.py` chooses."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from rocmforge.gpu.arrays import F16, F32
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.matrix import DeviceMatrix
from rocmforge.gpu.ops import matmul_f16, matmul_prompt
from rocmforge.gpu.ops.prompt_tiles import Tile, has_matrix_units
from rocmforge.gpu.replay import Replay
from rocmforge.gpu.runtime import DeviceProperties
from rocmforge.gpu.tuning import Constants, joined
from rocmforge.speed.tune_cases import NIBBLES

COLUMNS = 4096
MOST_BLOCKS = 4  # tried on a compute unit at a time
TOKEN_TILES = 4  # of a product with float16 weights, so that memory does not limit it
LARGEST_TILE = 256  # tokens
WEIGHT_BYTES = 512 << 20  # more than the caches of any card hold
PIECE = 64 << 20  # of random bytes, repeated
HIGHEST_BYTE = 48  # so that scales are small finite f16
ENOUGH = 0.98  # of the highest speed
ROUNDS = 5  # whose median counts


@dataclass(frozen=True)
class Memory:
    """Addresses of what tiles compute with, in device memory.

    Parameters
    ----------
    weights, weight_bytes
        Random bytes, more than any cache of the device holds.
    x
        Activations.
    out
        Room for the results.
    """

    weights: int
    weight_bytes: int
    x: int
    out: int

    def matrices(self, name: str, rows: int, columns: int) -> list[DeviceMatrix]:
        """Return as many matrices of a shape as there is room for, one behind the other."""
        nbytes = DeviceMatrix.at(0, name, rows, columns).nbytes
        step = -(-nbytes // 256) * 256
        count = self.weight_bytes // step
        return [DeviceMatrix.at(self.weights + i * step, name, rows, columns) for i in range(count)]


@dataclass(frozen=True)
class TileCase:
    """A tile, whose speed is measured for one to MOST_BLOCKS blocks on a compute unit.

    Parameters
    ----------
    key
        Of the table.
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
            for matrix in memory.matrices(self.name, rows, COLUMNS)
        ]


def tile_cases(properties: DeviceProperties) -> Iterator[TileCase]:
    """The tiles, where they run on matrix units."""
    architecture = properties.architecture
    if not has_matrix_units(architecture):
        return
    multiply: Callable[..., Launch] = matmul_prompt.matmul_tile
    for tile in matmul_prompt.tiles(architecture, NIBBLES):
        yield TileCase(_key("tile", tile), tile, multiply, NIBBLES, 1)
    multiply = matmul_f16.matmul_f16_tile
    for tile_f16 in matmul_f16.tiles(architecture):
        yield TileCase(_key(matmul_f16.KEY, tile_f16), tile_f16, multiply, "F16", TOKEN_TILES)


def _key(word: str, tile: Tile[Any]) -> str:
    return joined((word, *astuple(tile.constants)))


def tile_speeds(kernels: Kernels, cases: Sequence[TileCase]) -> Iterator[tuple[str, Constants]]:
    """Measure tiles one after the other; yields their keys and speeds.

    Parameters
    ----------
    kernels
        The device.
    cases
        Of `tile_cases`.
    """
    if not cases:
        return
    with ExitStack() as opened:
        memory = _memory(kernels, cases, opened)
        for case in cases:
            yield case.key, _speeds(kernels, case, memory)


def _speeds(kernels: Kernels, case: TileCase, memory: Memory) -> Constants:
    """Speeds of a tile, with one block on each compute unit and with as many as it holds."""
    constants = case.tile.constants
    speeds = []
    for blocks in range(1, MOST_BLOCKS + 1):
        launches = case.launches(kernels, memory, blocks)
        timed = Replay(kernels.runtime, launches, len(launches))
        try:
            timed.seconds()
            seconds = statistics.median(timed.seconds() for _ in range(ROUNDS))
        finally:
            timed.close()
        speeds.append(blocks * constants.TILE_TOKENS * constants.TILE_ROWS / seconds / 1e9)
    held = next(i for i, speed in enumerate(speeds) if speed >= ENOUGH * max(speeds))
    return {"alone": speeds[0], "full": speeds[held], "blocks": held + 1}


def _memory(kernels: Kernels, cases: Sequence[TileCase], opened: ExitStack) -> Memory:
    """Allocate and fill what tiles need, until `opened` ends."""
    runtime = kernels.runtime
    random = np.random.default_rng(0)

    def allocate(nbytes: int) -> int:
        address = runtime.allocate(nbytes)
        opened.callback(runtime.free, address)
        return address

    weights = allocate(WEIGHT_BYTES)
    piece = min(PIECE, WEIGHT_BYTES)
    runtime.copy_to_device(weights, random.integers(0, HIGHEST_BYTE, piece, np.uint8))
    for at in range(piece, WEIGHT_BYTES, piece):
        runtime.copy_on_device(weights + at, weights, min(piece, WEIGHT_BYTES - at))
    activations = random.integers(
        0, HIGHEST_BYTE, 2 * TOKEN_TILES * LARGEST_TILE * COLUMNS, np.uint8
    )
    x = allocate(activations.nbytes)
    runtime.copy_to_device(x, activations)
    areas = (c.tile.constants.TILE_TOKENS * c.tile.constants.TILE_ROWS for c in cases)
    most = runtime.properties.compute_units * MOST_BLOCKS
    return Memory(weights, WEIGHT_BYTES, x, allocate(4 * max(areas) * most))
