"""Constants of the products of experts for few tokens: see kernels/experts.h.

They differ from those of one matrix (`gemv_constants.py`): a block owns whole groups of 32 rows of
one expert, and no weights can be on their way before the experts are known. For down they are
known before it waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from rocmforge.gpu.matrix import DENSE
from rocmforge.gpu.ops import dot_rows
from rocmforge.gpu.ops.dot_rows import COMMON, MANY_SLOTS, MAX_TOKENS, Constants
from rocmforge.gpu.ops.gemv_constants import held_kind, kind_of
from rocmforge.gpu.tuning import UNTUNED, Tuning

ExpertOp = Literal["expert_gate_up", "expert_matmul"]

SHORT_ROW = 1024
"""Columns of a quantized row for which 32 lanes have a unit each (two of 8-bit codes). Shorter rows
are shared by eight lanes: of 768 columns, a layer's down took 4.57 instead of 7.91 µs (30B-A3B
Q4_K_M, H200, 2026-11)."""
MOST_UNITS = 3
"""Units of a row that a lane has in flight at most."""

_Chosen = Mapping[str, tuple[tuple[int, int, int, int], ...]]
CUDA: Mapping[tuple[ExpertOp, bool], _Chosen] = MappingProxyType(
    {
        ("expert_gate_up", False): {"nibbles": ((1, 8, 2, 3), (8192, 8, 1, 3))},
        ("expert_gate_up", True): {"nibbles": ((1, 8, 1, 4),)},
        ("expert_matmul", False): {"nibbles": ((1, 8, 2, 3),), "planes": ((1, 8, 1, 3),)},
        ("expert_matmul", True): {"nibbles": ((1, 4, 2, 4),), "planes": ((1, 4, 1, 8),)},
    }
)
"""From so many rows of all experts of a token on: WAVES, ROWS and BLOCKS of one token, for short
rows or not, by kind of format. A lane has all units of its rows in flight, or as many as fit into
`MOST_UNITS`."""


GROUPED = {"WAVES": 4, "ROWS": 4, "UNITS": 1, "SLOTS": MANY_SLOTS}
"""Where jobs are grouped, and one matrix of the format takes matrix units. Not measured by itself:
most shapes of experts had it while no GEMV took matrix units."""


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
        1, or `MAX_TOKENS` where jobs are grouped.
    op
        The kernel.
    tuning
        Of one matrix: where the table has nothing, its constants hold here, too, unless they are
        those of matrix units.
    """
    rows, columns = shape
    short = columns < SHORT_ROW and tokens == 1 and name not in DENSE
    dense_op = "matmul" if op == "expert_matmul" else "gate_up_swiglu"
    found = dot_rows.choose(architecture, name, shape, tokens, dense_op, tuning)
    if found.matrix_units:
        found = replace(found, **GROUPED)
    # What experts were measured with.
    found = replace(found, LANES=8 if short else 32, BUFFERS=1)
    if short:
        found = replace(found, ROWS=4, UNITS=1)
    tables = CUDA[op, short] if architecture.startswith("sm_") else {}
    table = tables.get(held_kind(tables, kind_of(name)))
    if table is None or tokens > 1:
        return ExpertConstants(found, 1)
    waves, at_once, blocks = [kept for first, *kept in table if rows >= first][-1]
    each = -(-columns // (32 * found.LANES))  # units of a lane
    units = -(-each // -(-each // MOST_UNITS))
    return ExpertConstants(replace(found, WAVES=waves, ROWS=at_once, UNITS=units), blocks)


SHAPES = ((6144, 2048), (16384, 768), (11520, 2880))
"""Rows and columns, as `choose` has them, for which kernels are compiled ahead."""


def all_constants(architecture: str, name: str, op: ExpertOp) -> Iterable[ExpertConstants]:
    """Constants of a format to compile ahead; those of short rows for common formats."""
    shapes = [shape for shape in SHAPES if name in COMMON or shape[1] >= SHORT_ROW]
    each = ((shape, tokens) for tokens in (1, MAX_TOKENS) for shape in shapes)
    return dict.fromkeys(choose(architecture, name, *one, op) for one in each)
