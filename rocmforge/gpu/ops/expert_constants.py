"""Constants of the products of experts for few tokens: see kernels/experts.h.

They differ from those of one matrix (`gemv_constants.py`): a block owns whole groups of 32 rows of
one expert, and no weights can be on their way before the experts are known. For down they are
known before it waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, NamedTuple

from rocmforge.gpu.matrix import DENSE
from rocmforge.gpu.ops import dot_rows
from rocmforge.gpu.ops.dot_rows import COMMON, MANY_SLOTS, MAX_TOKENS, Constants
from rocmforge.gpu.ops.gemv_constants import TOKENS, held_kind, kind_of
from rocmforge.gpu.tuning import UNTUNED, Tuning

ExpertOp = Literal["expert_gate_up", "expert_matmul"]

SHORT_ROW = 1024
"""Columns of a quantized row for which 32 lanes have a unit each (two of 8-bit codes). Shorter rows
are shared by eight lanes: of 768 columns, a layer's down took 4.57 instead of 7.91 µs (30B-A3B
Q4_K_M, H200, 2026-11)."""

_Rows = tuple[tuple[int, ...], ...]
_Chosen = Mapping[str, _Rows]
_MANY_GATE_ROWS: _Rows = (
    (8192, 1, 8, 1, 3, 32, 3),
    (8192, 2, 8, 1, 3, 32, 4),
    (8192, 8, 8, 1, 3, 16, 4),
)
_FROM_FOUR_TOKENS: _Rows = ((1, 4, 8, 2, 2, 8, 3), (1, 8, 8, 2, 3, 32, 3), *_MANY_GATE_ROWS)
_LOOKED_UP: _Rows = (
    (1, 1, 8, 1, 3, 32, 2),
    (1, 2, 8, 1, 3, 32, 3),
    (1, 4, 8, 1, 3, 32, 4),
    *_MANY_GATE_ROWS,
)
"""Gate and up of formats whose decoding takes many registers."""
CUDA: Mapping[tuple[ExpertOp, bool], _Chosen] = MappingProxyType(
    {
        ("expert_gate_up", False): {
            "nibbles": (
                (1, 1, 8, 2, 3, 32, 1),
                (1, 2, 8, 2, 3, 32, 3),
                *_FROM_FOUR_TOKENS,
            ),
            "MXFP4": (
                (1, 1, 8, 2, 3, 32, 2),
                (1, 2, 8, 1, 3, 32, 3),
                *_FROM_FOUR_TOKENS,
            ),
            **dict.fromkeys(("IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ4_NL", "NVFP4"), _LOOKED_UP),
        },
        ("expert_gate_up", True): {"nibbles": ((1, 1, 8, 1, 3, 8, 4),)},
        ("expert_matmul", False): {
            "nibbles": (
                (1, 1, 8, 2, 3, 32, 3),
                (1, 2, 8, 2, 3, 16, 4),
                (1, 4, 8, 2, 3, 32, 4),
                (1, 8, 8, 2, 3, 16, 4),
            ),
            "planes": ((1, 1, 8, 1, 3, 32, 3),),
        },
        ("expert_matmul", True): {
            "nibbles": ((1, 1, 4, 2, 3, 8, 4), (1, 2, 8, 2, 3, 8, 4), (1, 4, 8, 4, 1, 8, 4)),
            "planes": ((1, 1, 4, 1, 3, 8, 2), (1, 2, 4, 1, 3, 8, 8)),
        },
    }
)
"""From so many rows of all experts of a token, and from so many of TOKENS, on: an `ExpertCut`, for
short rows or not, by format or by kind of format. A lane has no more units of a row in flight than
it needs.

`rocmforge tune` found those of kinds for one to eight tokens on an H200 (2026-11-27) by whole steps
of 30B-A3B and gpt-oss-20B. Those of single formats are the best of five sets for each number of
tokens, by steps of 30B-A3B on an H200 (2026-11-28); IQ3_XXS has those of IQ3_S. With the constants
of "nibbles" all but MXFP4 spilled 64 to 208 bytes. EXPERIMENTS has the figures."""

GROUPED_TOKENS = 9
"""Tokens from which on jobs are grouped."""
GROUPED = {"WAVES": 4, "ROWS": 4, "UNITS": 1, "SLOTS": MANY_SLOTS}
"""Where jobs are grouped, and one matrix of the format takes matrix units. Not measured by itself:
most shapes of experts had it while no GEMV took matrix units."""


KEY = "experts"
"""The first word of the keys in a table of tuned constants. Op, format, rows, columns and one of
TOKENS follow."""


class ExpertCut(NamedTuple):
    """What a table may replace where jobs are not grouped."""

    waves: int
    rows: int
    units: int
    lanes: int
    blocks: int


@dataclass(frozen=True)
class ExpertConstants:
    """Compile-time constants of kernels/experts.h.

    Parameters
    ----------
    rows
        Those of kernels/dot_rows.h.
    BLOCKS
        Blocks for which a multiprocessor of NVIDIA has registers.
    """

    rows: Constants
    BLOCKS: int

    @property
    def cut(self) -> ExpertCut:
        """What a table may replace."""
        rows = self.rows
        return ExpertCut(rows.WAVES, rows.ROWS, rows.UNITS, rows.LANES, self.BLOCKS)

    def replaced(self, cut: ExpertCut) -> ExpertConstants:
        """Return them with another cut."""
        waves, rows, units, lanes, blocks = cut
        found = replace(self.rows, WAVES=waves, ROWS=rows, UNITS=units, LANES=lanes)
        return ExpertConstants(found, blocks)

    @property
    def gather(self) -> int:
        """GATHER: whether jobs are grouped."""
        return int(self.rows.TOKENS > 1)

    def macros(self, formats: Sequence[str]) -> dict[str, int | str]:
        """Macros of a product's kernel."""
        return {
            **dot_rows.defines(self.rows, formats),
            "BLOCKS": self.BLOCKS,
            "GATHER": self.gather,
        }


def choose(
    architecture: str,
    name: str,
    shape: tuple[int, int],
    tokens: int,
    op: ExpertOp,
    tuning: Tuning = UNTUNED,
) -> ExpertConstants:
    """Constants for an architecture and a shape.

    Parameters
    ----------
    architecture
        "gfx…" or "sm_…".
    name
        Format of the matrices, or of gate's.
    shape
        Rows of all experts of a token together, and columns of a row.
    tokens
        T.
    op
        The kernel.
    tuning
        Replaces the members of `ExpertCut` where it has them for the format and the shape.
    """
    if tokens >= GROUPED_TOKENS:
        return _own(architecture, name, shape, tokens, op)
    held = next(held for held in TOKENS if held >= tokens)
    own = _own(architecture, name, shape, held, op)
    key = (KEY, op, name, *shape, held)
    cut = own.cut._replace(**{name.lower(): value for name, value in tuning.get(*key).items()})
    return own.replaced(cut)


def _own(
    architecture: str, name: str, shape: tuple[int, int], held: int, op: ExpertOp
) -> ExpertConstants:
    """Constants that no table replaces: where there are none here, those of one matrix."""
    rows, columns = shape
    grouped = held >= GROUPED_TOKENS
    short = columns < SHORT_ROW and not grouped and name not in DENSE
    dense_op = "matmul" if op == "expert_matmul" else "gate_up_swiglu"
    found = dot_rows.choose(architecture, name, shape, MAX_TOKENS if grouped else 1, dense_op)
    if found.matrix_units:
        found = replace(found, **GROUPED)
    # What experts were measured with.
    found = replace(found, LANES=8 if short else 32, BUFFERS=1)
    if short:
        found = replace(found, ROWS=4, UNITS=1)
    tables = CUDA[op, short] if architecture.startswith("sm_") else {}
    # A format's own entry comes before that of its kind.
    table = tables.get(name, tables.get(held_kind(tables, kind_of(name))))
    if table is None or grouped:
        return ExpertConstants(found, 1)
    reached = [kept for first, least, *kept in table if rows >= first and held >= least]
    cut = ExpertCut(*reached[-1])
    each = -(-columns // (32 * cut.lanes))  # units of a lane
    units = -(-each // -(-each // cut.units))
    return ExpertConstants(found, 1).replaced(cut._replace(units=units))


SHAPES = ((6144, 2048), (16384, 768), (11520, 2880))
"""Rows and columns, as `choose` has them, for which kernels are compiled ahead."""


def all_constants(architecture: str, name: str, op: ExpertOp) -> Iterable[ExpertConstants]:
    """Constants of a format to compile ahead; those of short rows for common formats."""
    shapes = [shape for shape in SHAPES if name in COMMON or shape[1] >= SHORT_ROW]
    each = ((shape, tokens) for tokens in (*TOKENS, GROUPED_TOKENS) for shape in shapes)
    return dict.fromkeys(choose(architecture, name, *one, op) for one in each)
