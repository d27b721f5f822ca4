"""How the prompts' GEMMs cut their work: tiles, how long each takes, and what the kernels have in
common (kernels/prompt_tile.h). For matmul_prompt and matmul_f16.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Generic, TypeVar

from rocmforge.gpu.arrays import F32, Halves, Permuted
from rocmforge.gpu.compiler import Defines, Kernels, wave_size
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.matrix import DeviceMatrix
from rocmforge.gpu.tuning import Tuning

LAYOUT = "P" + "PPPP" * 2 + "PP" + "iiii" + "ii" + "i"
"""The kernels' arguments."""

STORE, ADD, STORE_F16, STORE_PERMUTED = range(4)
"""What becomes of the sums; the kernels' numbers."""

_MATRIX_RDNA = re.compile("gfx1[12].*")
_NO_MFMA = ("gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c")


@dataclass(frozen=True)
class Cut:
    """The compile-time constants of kernels/prompt_tile.h.

    Parameters
    ----------
    TILE_TOKENS, TILE_ROWS
        Tokens and weight rows of a block.
    WAVE_TOKENS, WAVE_ROWS
        Those of a wave: multiples of 16 and of 32 that divide the block's.
    GROUPS
        32 columns each that a step takes.
    STAGES
        Steps in LDS.
    """

    TILE_TOKENS: int
    TILE_ROWS: int
    WAVE_TOKENS: int
    WAVE_ROWS: int
    GROUPS: int
    STAGES: int

    @property
    def lds_bytes(self) -> int:
        """LDS of a block."""
        return 64 * self.STAGES * self.GROUPS * (self.TILE_TOKENS + self.TILE_ROWS)

    def threads(self, wave: int) -> int:
        """Threads of a block."""
        return wave * (self.TILE_TOKENS // self.WAVE_TOKENS) * (self.TILE_ROWS // self.WAVE_ROWS)

    def grid(self, tokens: int, rows: int) -> tuple[int, int, int]:
        """Blocks for T tokens and N rows, those that share weights first."""
        return -(-tokens // self.TILE_TOKENS), -(-rows // self.TILE_ROWS), 1


C = TypeVar("C", bound=Cut)


@dataclass(frozen=True)
class Tile(Generic[C]):
    """A way to cut the work, and how fast it is.

    Parameters
    ----------
    constants
        The kernel's.
    alone, full
        Speed while each compute unit has one block, and as many as it holds; in one unit for all
        tiles of an architecture.
    blocks
        How many it holds.
    """

    constants: C
    alone: float
    full: float
    blocks: int

    def time(self, tokens: int, rows: int, compute_units: int) -> float:
        """How long a matrix takes, in a unit of its own."""
        across, down, _ = self.constants.grid(tokens, rows)
        rounds, rest = divmod(across * down, compute_units * self.blocks)
        time = rounds * self._round(self.blocks)
        return time + self._round(-(-rest // compute_units)) if rest else time

    def _round(self, blocks: int) -> float:
        gain = (self.full - self.alone) * (blocks - 1) / max(self.blocks - 1, 1)
        return blocks * self.constants.TILE_TOKENS * self.constants.TILE_ROWS / (self.alone + gain)


def tuned(able: Sequence[Tile[C]], tuning: Tuning, key: str) -> tuple[Tile[C], ...]:
    """Return tiles with the speeds that were measured, where there are those of all.

    `key` begins the keys of the table.
    """
    measured = [tuning.get(key, *astuple(tile.constants)) for tile in able]
    if not all(measured):  # speeds are only comparable within a table
        return tuple(able)
    return tuple(replace(tile, **found) for tile, found in zip(able, measured, strict=True))


def fastest(able: Sequence[Tile[C]], tokens: int, rows: int, compute_units: int) -> C:
    """Return the constants of the tile that takes the least time, for T and N."""
    return min(able, key=lambda tile: tile.time(tokens, rows, compute_units)).constants


def is_matrix_rdna(architecture: str) -> bool:
    """Whether it is RDNA with matrix units: gfx11 or gfx12."""
    return _MATRIX_RDNA.fullmatch(architecture) is not None


def has_matrix_units(architecture: str) -> bool:
    """Whether kernels/tile.h has matrix units for an architecture."""
    if architecture.startswith("sm_") or is_matrix_rdna(architecture):
        return True
    return wave_size(architecture) == 64 and architecture not in _NO_MFMA


def result_of(out: F32 | Halves, accumulate: bool = False) -> int:
    """What becomes of the sums, by where they go: STORE, ADD, STORE_F16 or STORE_PERMUTED."""
    if isinstance(out, F32):
        return ADD if accumulate else STORE
    return STORE_PERMUTED if isinstance(out, Permuted) else STORE_F16


@dataclass(frozen=True)
class Product:
    """What one launch multiplies: x (T, K) with one matrix (N, K), or with gate and up.

    Parameters
    ----------
    x
        Address of the activations.
    weights
        One matrix, or gate and up.
    bias
        Address of (N,) float32; 0: none.
    out
        Address of the results.
    tokens
        T.
    result
        As of `result_of`.
    added
        First and end of the tokens that ADD adds to, where it does not do so to all.
    """

    x: int
    weights: tuple[DeviceMatrix, ...]
    bias: int
    out: int
    tokens: int
    result: int
    added: tuple[int, int] | None = None

    @property
    def rows(self) -> int:
        """Of all matrices together."""
        return sum(w.rows for w in self.weights)

    def launch(
        self,
        kernels: Kernels,
        file: str,
        name: str,
        constants: Cut,
        defines: Defines,
        lds_bytes: int = 0,
    ) -> Launch:
        """Return the launch of a kernel of `file`, which `defines` and so the constants compile."""
        first = self.weights[0]
        addresses = [address for w in self.weights for address in w.addresses]
        return kernels.launch(
            file,
            name,
            defines,
            constants.grid(self.tokens, self.rows),
            constants.threads(kernels.runtime.properties.wave_size),
            LAYOUT,
            *(self.x, *addresses, *[0] * (8 - len(addresses)), self.bias, self.out),
            *(self.tokens, first.rows, first.columns, self.result),
            *(self.added or (0, self.tokens)),
            0,
            lds_bytes=lds_bytes,
        )
