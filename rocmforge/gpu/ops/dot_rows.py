"""Constants and arguments of the GEMVs, products for up to eight tokens: see kernels/dot_rows.h.

matmul and gate_up_swiglu, both in `matmul.py`, are built on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType

from rocmforge.gpu.arrays import F32, Q8
from rocmforge.gpu.matrix import DENSE
from rocmforge.gpu.matrix import LAYOUTS as STREAMS
from rocmforge.gpu.ops.output import addresses
from rocmforge.gpu.tuning import UNTUNED, Tuning

BATCH = "PPPii"
"""Layout of `Batch` in kernels/dot_rows.h, as the last member of an argument struct."""

KERNEL_FORMATS = tuple(dict.fromkeys([*STREAMS, *DENSE.values()]))
"""The types in kernels/packed.h."""

COMMON = ("Q4_K", "Q6_K", "Q8_0", "F16")
"""What most models consist of."""

MAX_TOKENS = 8
TOKENS = (1, 2, 4, 8)
"""What kernels are compiled for; one for more serves fewer."""

MANY_ROWS = 8192
"""Rows from which on every multiprocessor has several blocks to work at in turn."""

_WAVES_ROWS_UNITS: Mapping[str, Mapping[str, tuple[tuple[int, int, int], ...]]] = MappingProxyType(
    {
        "few rows": {
            "nibbles": ((8, 1, 2), (8, 2, 2), (8, 2, 1), (8, 2, 1)),
            "planes": ((8, 1, 2), (8, 2, 1), (8, 2, 1), (8, 2, 2)),
            "bytes": ((8, 1, 4), (8, 2, 2), (8, 2, 2), (8, 2, 2)),
            "dense": ((16, 1, 4), (16, 1, 4), (16, 2, 1), (16, 2, 1)),
        },
        "many rows": {
            "nibbles": ((8, 2, 2), (8, 2, 2), (8, 2, 1), (8, 4, 1)),
            "planes": ((4, 2, 2), (8, 2, 1), (8, 2, 1), (8, 2, 1)),
            "bytes": ((8, 1, 4), (8, 2, 2), (8, 2, 2), (8, 2, 2)),
            "dense": ((16, 1, 4), (16, 1, 4), (16, 2, 1), (16, 2, 1)),
        },
        "gate_up_swiglu": {
            "nibbles": ((8, 2, 1), (8, 1, 2), (8, 1, 2), (8, 2, 1)),
            "planes": ((8, 2, 1), (8, 1, 1), (8, 1, 1), (4, 2, 1)),
            "bytes": ((8, 2, 1), (8, 2, 1), (8, 2, 1), (16, 2, 1)),
            "dense": ((16, 2, 2), (16, 2, 2), (16, 2, 2), (16, 2, 1)),
        },
    }
)
"""WAVES, ROWS and UNITS for each of TOKENS: the best of up to 20 on an H200 (2026-11) for Q4_K,
Q6_K, Q8_0 and F16, one for each kind. Matrices were 4096 × 4096 and 4096 × 11008 (few rows),
22016 × 4096 and 32000 × 4096 (many rows), twice 11008 × 4096 (gate and up)."""


@dataclass(frozen=True)
class Constants:
    """Compile-time constants of kernels/dot_rows.h.

    Parameters
    ----------
    TOKENS
        The most tokens that the kernel serves.
    LANES
        Lanes that share a row.
    ROWS
        Rows that they work on at once, of each matrix where there are two.
    UNITS
        Units of each of these rows that a lane has in flight (kernels/packed.h).
    WAVES
        Waves of a block.
    SLOTS
        Groups of 32 activations in LDS, or of 8 where they are float32, of all tokens together.
    """

    TOKENS: int
    LANES: int
    ROWS: int
    UNITS: int
    WAVES: int
    SLOTS: int

    def pass_rows(self, wave: int) -> int:
        """Rows of each matrix that a block computes at a time."""
        return self.WAVES * wave // self.LANES * self.ROWS

    def group_rows(self, wave: int) -> int:
        """Rows of a block that owns whole groups of 32."""
        return max(32, self.pass_rows(wave))


def choose(
    architecture: str,
    name: str,
    rows: int,
    tokens: int,
    op: str = "matmul",
    tuning: Tuning = UNTUNED,
) -> Constants:
    """Constants for an architecture and a shape.

    Parameters
    ----------
    architecture
        "gfx…" or "sm_…".
    name
        Format of the matrix, or of the first of several.
    rows
        N of all matrices together.
    tokens
        T, 1 to MAX_TOKENS.
    op
        "matmul" or "gate_up_swiglu".
    tuning
        Replaces WAVES, ROWS and UNITS where it has them.
    """
    at = next(i for i, held in enumerate(TOKENS) if held >= tokens)
    held = TOKENS[at]
    if op == "matmul":
        op = "many rows" if rows >= MANY_ROWS else "few rows"
    kind = _kind(name)
    waves, row_sets, units = _WAVES_ROWS_UNITS[op][kind][at]
    if architecture.startswith("sm_"):
        slots = 512 if held == 1 else 896
    else:
        # A compute unit has 64 KB of LDS for all its blocks.
        slots = 256 if held == 1 else 512
        waves = max(waves, 8) if held * row_sets < 8 else 8
        row_sets = min(row_sets, 2)
    constants = Constants(held, 32, row_sets, units, waves, slots)
    return replace(constants, **tuning.get("gemv", op, kind, held))


def _kind(name: str) -> str:
    """Formats whose lanes load and decode alike."""
    if name in DENSE:
        return "dense"
    streams = STREAMS[name]
    if streams.codes == 32:
        return "bytes"
    return "planes" if streams.high else "nibbles"


def all_constants(architecture: str, name: str, op: str) -> Iterable[Constants]:
    """Constants of a format to compile ahead: one and eight tokens, and all for common formats."""
    tokens = TOKENS if name in COMMON else (TOKENS[0], TOKENS[-1])
    return dict.fromkeys(
        choose(architecture, name, rows, t, op) for t in tokens for rows in (1, MANY_ROWS)
    )


def batch(x: Q8 | F32, columns: int, tokens: int) -> tuple[int, ...]:
    """Members of `Batch`: activations (T, K)."""
    return (*addresses(x), columns, tokens)


def defines(constants: Constants, formats: Sequence[str]) -> dict[str, int | str]:
    """Macros: the constants, and FORMAT_0 and so on."""
    return {**asdict(constants), **{f"FORMAT_{i}": name for i, name in enumerate(formats)}}
