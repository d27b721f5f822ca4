"""Constants and arguments of the GEMVs, products for up to eight tokens: see kernels/gemv.h.

matmul, gate_up_swiglu and matmul_rmsnorm, all in `matmul.py`, are built on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from rocmforge.gpu.arrays import F16, F32, Q8, Squares
from rocmforge.gpu.matrix import DENSE
from rocmforge.gpu.matrix import LAYOUTS as STREAMS
from rocmforge.gpu.ops.gemv_constants import (
    MATRIX_LANES,
    TOKENS,
    Cut,
    class_of,
    kind_of,
    row_classes,
)
from rocmforge.gpu.ops.output import addresses
from rocmforge.gpu.tuning import UNTUNED, Tuning

BATCH = "PPPii"
"""Layout of `Batch` in kernels/gemv_input.h."""

SQUARES = "Pf"
"""Layout of `Squares` in kernels/row_scale.h."""

KERNEL_FORMATS = tuple(dict.fromkeys([*STREAMS, *DENSE.values()]))
"""The types in kernels/packed.h."""

COMMON = ("Q4_K", "Q6_K", "Q8_0", "F16")
"""What most models consist of."""

MAX_TOKENS = 8

MANY_SLOTS = 896
"""SLOTS of several tokens on NVIDIA."""

DOT_TOKENS = 4
"""Up to how many tokens NVIDIA's GPUs compute dot products in lanes; for more, matrix units do."""


@dataclass(frozen=True)
class Constants:
    """Compile-time constants of kernels/dot_rows.h and kernels/matrix_rows.h.

    Parameters
    ----------
    TOKENS
        The most tokens that the kernel serves.
    LANES
        Lanes that share a row. Four are for NVIDIA's matrix units (kernels/matrix_rows.h), and all
        waves share the rows.
    ROWS
        Rows that they work on at once, of each matrix where there are two.
    UNITS
        Units of each of these rows that a lane has in flight (kernels/packed.h).
    WAVES
        Waves of a block.
    SLOTS
        Groups of 32 activations in LDS, or of 8 where they are float32, of all tokens together; 0
        for matrix units.
    BUFFERS
        Sets of weights in a lane's registers: with 2, the next ones are loaded before these are
        used. So they are with 1, where a lane has no more than two units of one token. Matrix units
        have 1.
    """

    TOKENS: int
    LANES: int
    ROWS: int
    UNITS: int
    WAVES: int
    SLOTS: int
    BUFFERS: int

    @property
    def matrix_units(self) -> bool:
        """Whether matrix units multiply."""
        return self.LANES == MATRIX_LANES

    def pass_rows(self, wave: int) -> int:
        """Rows of each matrix that a block computes at a time."""
        sharing = self.WAVES if self.matrix_units else 1
        return self.WAVES * wave // self.LANES // sharing * self.ROWS

    def group_rows(self, wave: int) -> int:
        """Rows of a block that owns whole groups of 32; those of matrix units need not."""
        rows = self.pass_rows(wave)
        return rows if self.matrix_units else max(32, rows)


def choose(
    architecture: str,
    name: str,
    shape: tuple[int, int],
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
    shape
        N of all matrices together, and K.
    tokens
        T, 1 to MAX_TOKENS.
    op
        "matmul", "gate_up_swiglu" or "matmul_rmsnorm".
    tuning
        Replaces the members of `Cut` where it has them.
    """
    at = next(i for i, held in enumerate(TOKENS) if held >= tokens)
    held = TOKENS[at]
    row_class, kind = class_of(architecture, op, shape), kind_of(name)
    own = row_class.constants(kind)[at]
    tuned = tuning.get("gemv", row_class.name, kind, held)
    cut = own._replace(**{name.lower(): value for name, value in tuned.items()})
    return constants_of(architecture, cut, held)


def constants_of(architecture: str, cut: Cut, tokens: int) -> Constants:
    """Return all constants of a kernel for one of TOKENS."""
    # A compute unit of AMD has 64 KB of LDS for all its blocks.
    few, many = (512, MANY_SLOTS) if architecture.startswith("sm_") else (256, 512)
    slots = few if tokens == 1 else many
    if cut.lanes == MATRIX_LANES:
        slots = 0
    return Constants(tokens, cut.lanes, cut.rows, cut.units, cut.waves, slots, cut.buffers)


def reads_f16(architecture: str, name: str, tokens: int) -> bool:
    """Whether the products are those of matrix units, whose activations are F16.

    The parameters are those of `choose`.
    """
    return architecture.startswith("sm_") and name not in DENSE and tokens > DOT_TOKENS


def all_constants(architecture: str, name: str, op: str) -> Iterable[Constants]:
    """Constants of a format to compile ahead: one and eight tokens, and all for common formats."""
    tokens = TOKENS if name in COMMON else (TOKENS[0], TOKENS[-1])
    shapes = [row_class.shape for row_class in row_classes(architecture, op)]
    return dict.fromkeys(choose(architecture, name, s, t, op) for t in tokens for s in shapes)


def batch(x: Q8 | F16 | F32, columns: int, tokens: int) -> tuple[int, ...]:
    """Members of `Batch`: activations (T, K)."""
    return (*addresses(x), columns, tokens)


def squares(scale: Squares | None) -> tuple[int, float]:
    """Members of `Squares`."""
    return (scale.address, scale.eps) if scale else (0, 0.0)


def scaled(scale: Squares | None) -> dict[str, int]:
    """Return the macro that says whether rows of x lack a factor."""
    return {"SCALED": int(scale is not None)}


def defines(constants: Constants, formats: Sequence[str]) -> dict[str, int | str]:
    """Macros: the constants, and FORMAT_0 and so on."""
    return {**asdict(constants), **{f"FORMAT_{i}": name for i, name in enumerate(formats)}}
