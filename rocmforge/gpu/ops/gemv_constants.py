"""Constants of the GEMVs by vendor, number of rows, kind of format and number of tokens."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from rocmforge.gpu.matrix import DENSE
from rocmforge.gpu.matrix import LAYOUTS as STREAMS

TOKENS = (1, 2, 4, 8)
"""What kernels are compiled for; one for more serves fewer."""


KINDS = ("nibbles", "short blocks", "planes", "bytes", "dense")
"""Of formats: see `kind_of`."""

MATRIX_LANES = 4
"""LANES with which NVIDIA's matrix units multiply (kernels/matrix_rows.h)."""


class Cut(NamedTuple):
    """WAVES, ROWS, UNITS, LANES and BUFFERS of `dot_rows.Constants`."""

    waves: int
    rows: int
    units: int
    lanes: int = 32
    buffers: int = 1


Chosen = Mapping[str, tuple[tuple[int, ...], ...]]
"""Members of `Cut` for each of TOKENS, by kind of format."""


@dataclass(frozen=True)
class RowClass:
    """Matrices of so many rows, and at most so many columns, that share their best constants.

    Parameters
    ----------
    name
        Part of the key in a table of tuned constants.
    first
        The least rows, of all matrices of a launch together. Of the classes that reach a matrix,
        the last one holds.
    shape
        Rows and columns that stand for it where kernels are compiled ahead.
    chosen
        The constants, by `held_kind`.
    columns
        The most columns of a row; None: any number.
    """

    name: str
    first: int
    shape: tuple[int, int]
    chosen: Chosen
    columns: int | None = None

    def reaches(self, shape: tuple[int, int]) -> bool:
        """Whether a matrix of (rows, columns) has rows enough, and no more columns."""
        rows, columns = shape
        return rows >= self.first and (self.columns is None or columns <= self.columns)

    def constants(self, kind: str) -> tuple[Cut, ...]:
        """Return the constants of a kind, for each of TOKENS."""
        return tuple(Cut(*each) for each in self.chosen[held_kind(self.chosen, kind)])


_CUDA_DENSE_MANY = ((16, 1, 4), (8, 2, 2), (8, 2, 2), (16, 4, 1))
_CUDA_FEWEST: Chosen = {
    "nibbles": ((4, 1, 6), (16, 1, 2, 32, 2), (16, 1, 2, 32, 2), (16, 2, 2, 4)),
    "planes": ((8, 1, 4, 32, 2), (16, 1, 2, 32, 2), (16, 1, 2, 32, 2), (16, 2, 2, 4)),
    "bytes": ((16, 1, 4, 32, 2), (16, 1, 4), (8, 1, 4), (16, 2, 2, 4)),
    "dense": ((16, 1, 4), (16, 1, 4), (8, 2, 2), (8, 2, 2)),
}
_CUDA_FEW: Chosen = {
    "nibbles": ((8, 2, 2), (8, 2, 2), (8, 2, 2), (8, 2, 2, 4)),
    "short blocks": ((16, 2, 4), (8, 2, 2), (8, 2, 2), (8, 2, 4, 4)),
    "planes": ((8, 2, 2), (8, 2, 2), (8, 2, 2), (8, 2, 4, 4)),
    "bytes": ((16, 2, 4), (16, 2, 4), (16, 2, 2, 32, 2), (16, 2, 1, 4)),
    "dense": ((16, 1, 4), (16, 2, 4, 32, 2), (16, 2, 2, 32, 2), (16, 2, 2, 32, 2)),
}
_CUDA_SOME: Chosen = {
    "nibbles": ((4, 2, 2), (4, 4, 1), (4, 4, 1), (8, 2, 2, 4)),
    "short blocks": ((8, 1, 4), (4, 4, 1), (4, 4, 1), (8, 2, 2, 4)),
    "planes": ((8, 1, 4), (4, 4, 1), (4, 4, 1), (8, 2, 2, 4)),
    "bytes": ((4, 1, 4), (4, 1, 4), (4, 2, 2), (8, 4, 1, 4)),
    "dense": _CUDA_DENSE_MANY,
}
_CUDA_MORE: Chosen = {
    "nibbles": ((8, 4, 1), (8, 4, 1), (16, 4, 1), (8, 2, 1, 4)),
    "planes": ((4, 2, 2), (4, 4, 1), (4, 4, 1), (8, 2, 1, 4)),
    "bytes": ((8, 1, 4), (8, 4, 1), (8, 4, 1), (8, 4, 1, 4)),
    "dense": _CUDA_DENSE_MANY,
}
_CUDA_RMSNORM_FEW: Chosen = {
    "nibbles": ((16, 2, 2), (16, 2, 2), (16, 2, 2), (16, 2, 1)),
    "planes": ((16, 2, 2), (16, 2, 2), (16, 2, 2), (16, 2, 1)),
    "bytes": ((16, 2, 2), (16, 2, 2), (16, 2, 2), (16, 2, 1)),
    "dense": ((16, 2, 2), (16, 2, 2), (16, 2, 2), (16, 2, 2)),
}
_CUDA_RMSNORM_MANY: Chosen = {
    **_CUDA_RMSNORM_FEW,
    "nibbles": ((16, 2, 4), (16, 2, 4), (16, 2, 2, 32, 2), (16, 2, 1)),
    "short blocks": ((16, 2, 4), (16, 2, 4, 32, 2), (16, 2, 2), (16, 2, 1)),
    "planes": ((16, 1, 4, 32, 2), (16, 2, 2, 32, 2), (16, 2, 1), (16, 2, 1)),
    "bytes": ((16, 2, 4), (16, 2, 4), (16, 2, 2, 32, 2), (16, 2, 2)),
}
_CUDA_RMSNORM_MOST: Chosen = {
    **_CUDA_RMSNORM_FEW,
    "nibbles": ((8, 2, 2), (8, 4, 1), (16, 4, 1), (16, 4, 1)),
    "planes": ((8, 2, 2), (16, 2, 2), (16, 2, 1), (16, 2, 1)),
    "bytes": ((8, 2, 2), (16, 2, 2), (16, 2, 2), (8, 4, 1)),
}

CUDA: Mapping[str, tuple[RowClass, ...]] = MappingProxyType(
    {
        "matmul": (
            RowClass("up to 2,112 rows", 1, (2048, 5632), _CUDA_FEWEST),
            RowClass(
                "up to 2,112 rows of 4,096 columns",
                1,
                (2048, 4096),
                {
                    **_CUDA_FEWEST,
                    "nibbles": ((16, 2, 4), (16, 1, 4), (16, 1, 4), (16, 2, 2, 4)),
                    "planes": ((8, 1, 4), (8, 1, 2), (8, 2, 2), (16, 2, 2, 4)),
                    "bytes": ((16, 2, 4), (16, 1, 4), (8, 1, 4), (16, 2, 2, 4)),
                },
                columns=4096,
            ),
            RowClass(
                "from 2,113 rows",
                2113,
                (2560, 2048),
                {
                    **_CUDA_FEW,
                    "nibbles": ((16, 2, 4, 16), (8, 4, 2), (16, 2, 2), (16, 4, 1, 4)),
                    "short blocks": ((8, 2, 4, 16), (8, 2, 2), (8, 2, 2), (16, 4, 1, 4)),
                    "bytes": ((16, 2, 2, 32, 2), (8, 2, 2), (8, 2, 2), (16, 2, 1, 4)),
                },
            ),
            RowClass(
                "from 2,721 rows",
                2721,
                (4096, 4096),
                {
                    **_CUDA_FEW,
                    "dense": ((16, 1, 4), (16, 2, 4, 32, 2), (16, 2, 2, 32, 2), (16, 2, 1, 32, 2)),
                },
            ),
            RowClass("from 4,225 rows", 4225, (5120, 8192), _CUDA_SOME),
            RowClass(
                "from 4,225 rows of 4,096 columns",
                4225,
                (5120, 2048),
                {
                    **_CUDA_SOME,
                    "nibbles": ((16, 2, 4, 16), (16, 4, 1), (16, 4, 1), (8, 4, 1, 4)),
                    "short blocks": ((4, 2, 2, 16, 2), (4, 4, 1), (4, 4, 1), (8, 2, 2, 4)),
                },
                columns=4096,
            ),
            RowClass(
                "from 5,633 rows",
                5633,
                (6144, 4096),
                {**_CUDA_MORE, "nibbles": ((4, 4, 1), (16, 4, 1), (4, 4, 1), (8, 2, 1, 4))},
            ),
            RowClass("from 7,169 rows", 7169, (8192, 4096), _CUDA_MORE),
            RowClass(
                "from 9,216 rows",
                9216,
                (12288, 4096),
                {
                    "nibbles": ((4, 2, 4, 16), (8, 2, 2), (4, 4, 1, 16, 2), (4, 2, 1, 4)),
                    "short blocks": ((4, 2, 4, 16, 2), (8, 2, 4), (8, 2, 2), (8, 2, 2, 4)),
                    "planes": ((4, 2, 2), (4, 4, 1, 16), (4, 4, 1, 16), (4, 2, 1, 4)),
                    "bytes": ((8, 2, 4, 32, 2), (8, 2, 4), (8, 2, 2), (8, 4, 1, 4)),
                    "dense": ((16, 1, 4), (8, 2, 2, 16), (8, 2, 2, 32, 2), (16, 4, 1, 32, 2)),
                },
            ),
            RowClass(
                "from 14,336 rows",
                14336,
                (32000, 4096),
                {
                    "nibbles": ((4, 2, 2), (4, 4, 1), (4, 4, 1), (4, 2, 2, 4)),
                    "planes": ((4, 2, 2), (4, 2, 4), (16, 2, 2, 16, 2), (4, 2, 2, 4)),
                    "bytes": ((4, 1, 4), (4, 2, 4), (8, 4, 1, 16, 2), (8, 4, 2, 4)),
                    "dense": ((16, 1, 4), (8, 4, 2), (8, 4, 1, 16, 2), (16, 4, 1, 32, 2)),
                },
            ),
            RowClass(
                "from 14,336 rows of 2,048 columns",
                14336,
                (32000, 2048),
                {
                    "nibbles": ((4, 2, 2), (4, 4, 1), (4, 4, 1), (4, 2, 2, 4)),
                    "planes": ((4, 2, 2), (4, 4, 1), (4, 4, 1, 16, 2), (4, 2, 2, 4)),
                    "bytes": ((4, 1, 4), (4, 1, 4), (8, 4, 1), (8, 4, 2, 4)),
                    "dense": _CUDA_DENSE_MANY,
                },
                columns=2048,
            ),
        ),
        "gate_up_swiglu": (
            RowClass(
                "gate_up_swiglu, few rows",
                1,
                (5632, 2048),
                {
                    "nibbles": ((8, 2, 2), (4, 4, 1, 16), (8, 1, 2, 16, 2), (4, 2, 2, 4)),
                    "short blocks": ((8, 1, 4, 16), (4, 4, 1), (4, 4, 1), (4, 2, 2, 4)),
                    "planes": ((8, 1, 2), (4, 4, 1), (4, 4, 1), (4, 2, 2, 4)),
                    "bytes": ((8, 2, 2, 16, 2), (8, 4, 1), (8, 1, 4), (4, 2, 1, 4)),
                    "dense": ((8, 2, 2), (16, 1, 2), (8, 2, 2), (8, 2, 2)),
                },
            ),
            RowClass(
                "gate_up_swiglu, many rows",
                9216,
                (11008, 4096),
                {
                    "nibbles": ((4, 1, 4, 32, 2), (4, 1, 4, 32, 2), (4, 1, 4, 16, 2), (4, 2, 2, 4)),
                    "short blocks": ((4, 4, 1, 32, 2), (4, 2, 4), (4, 2, 1, 16, 2), (4, 2, 2, 4)),
                    "planes": ((4, 1, 4), (4, 2, 1), (4, 1, 2, 16, 2), (4, 2, 2, 4)),
                    "bytes": ((4, 2, 4), (4, 4, 2), (4, 4, 1), (4, 2, 1, 4)),
                    "dense": ((4, 2, 4), (4, 4, 2, 16), (16, 2, 2, 32, 2), (16, 2, 1, 32, 2)),
                },
            ),
            RowClass(
                "gate_up_swiglu, most rows",
                12288,
                (14336, 4096),
                {
                    "nibbles": ((8, 1, 4), (4, 1, 4), (4, 2, 4), (4, 2, 2, 4)),
                    "planes": ((16, 2, 2), (16, 1, 4), (16, 1, 4), (4, 2, 2, 4)),
                    "bytes": ((8, 1, 4), (16, 1, 4), (16, 1, 4), (4, 2, 1, 4)),
                    "dense": ((8, 1, 4), (16, 2, 2), (16, 2, 2), (16, 2, 2)),
                },
            ),
        ),
        "matmul_rmsnorm": (
            RowClass("matmul_rmsnorm, few rows", 1, (2048, 5632), _CUDA_RMSNORM_FEW),
            RowClass("matmul_rmsnorm, many rows", 2113, (4096, 11008), _CUDA_RMSNORM_MANY),
            RowClass("matmul_rmsnorm, most rows", 4225, (8192, 8192), _CUDA_RMSNORM_MOST),
        ),
    }
)
"""Of about 17 sets the ones that took the least time on an H100 (2026-11-25), with launches that
start early, over the shapes of a class: 2048 to 128256 rows, 2048 to 28672 columns, Q4_K, Q4_0,
Q6_K and Q8_0 with 1, 2, 4 and 8 tokens, F16 with one. What differed by less than 2 % is still as it
was chosen on an H200, as is F16 with more tokens. What counts is how the blocks fill the 132
multiprocessors, so a class of more rows may have smaller blocks. From 4,225 rows on, a class ends
halfway to the next rows that were measured: 5,120, 6,144, 8,192, 10,240 and 12,288, 16,000. So do
those from 2,113 and 2,721 rows on, for 2,560, 2,880 and 4,096.

Those of one token for the shapes of 7B, 8B, 1.1B, 30B-A3B and gpt-oss-20B, and some of two to eight
tokens, are the ones with which decode steps took the least time on an H100 (2026-11-26): a kernel
that is the fastest by itself may leave less room for the next one to start early. So are those with
two buffers, and those of eight tokens with MATRIX_LANES, for 7B (Q4_K_M, Q8_0), 8B and 1.1B
(Q4_K_M), on an H200. `rocmforge tune` found about 60 more there (2026-11-27), most of two and
four tokens. EXPERIMENTS has the figures."""

_AMD_FEW: Chosen = {
    "nibbles": ((8, 1, 2), (8, 2, 2), (8, 2, 1), (8, 2, 1)),
    "planes": ((8, 1, 2), (8, 2, 1), (8, 2, 1), (8, 2, 2)),
    "bytes": ((8, 1, 4), (8, 2, 2), (8, 2, 2), (8, 2, 2)),
    "dense": ((16, 1, 4), (16, 1, 4), (8, 2, 1), (8, 2, 1)),
}
_AMD_MANY: Chosen = {
    **_AMD_FEW,
    "nibbles": ((8, 2, 2), (8, 2, 2), (8, 2, 1), (8, 2, 1)),
    "planes": ((8, 2, 2), (8, 2, 1), (8, 2, 1), (8, 2, 1)),
}
_AMD_GATE_UP: Chosen = {
    "nibbles": ((8, 2, 1), (8, 1, 2), (8, 1, 2), (8, 2, 1)),
    "planes": ((8, 2, 1), (8, 1, 1), (8, 1, 1), (8, 2, 1)),
    "bytes": ((8, 2, 1), (8, 2, 1), (8, 2, 1), (8, 2, 1)),
    "dense": ((16, 2, 2), (16, 2, 2), (8, 2, 2), (8, 2, 1)),
}
_AMD_RMSNORM: Chosen = dict.fromkeys(_AMD_FEW, ((16, 2, 2), (16, 2, 1), (16, 2, 1), (16, 2, 1)))
AMD: Mapping[str, tuple[RowClass, ...]] = MappingProxyType(
    {
        "matmul": (
            RowClass("few rows", 1, (4096, 4096), _AMD_FEW),
            RowClass("many rows", 8192, (22016, 4096), _AMD_MANY),
        ),
        "gate_up_swiglu": (RowClass("gate_up_swiglu", 1, (11008, 4096), _AMD_GATE_UP),),
        "matmul_rmsnorm": (RowClass("matmul_rmsnorm", 1, (4096, 11008), _AMD_RMSNORM),),
    }
)
"""Not measured: no more than two rows at once, which leaves registers for waves to hide latency,
and blocks of 8 waves, or 16 where a lane holds little. `rocmforge tune` finds better ones."""


def row_classes(architecture: str, op: str) -> tuple[RowClass, ...]:
    """Return the classes of an op of `ops/matmul.py`, for "gfx…" or "sm_…"."""
    return (CUDA if architecture.startswith("sm_") else AMD)[op]


def own_cuts(architecture: str) -> dict[str, Cut]:
    """Return all constants by the keys that a table of tuned constants has for them."""
    table = CUDA if architecture.startswith("sm_") else AMD
    return {
        f"gemv {one.name} {kind} {tokens}": cut
        for classes in table.values()
        for one in classes
        for kind in KINDS
        for tokens, cut in zip(TOKENS, one.constants(kind), strict=True)
    }


def class_of(architecture: str, op: str, shape: tuple[int, int]) -> RowClass:
    """Return the class of a matrix of these rows, all of a launch together, and columns."""
    return [one for one in row_classes(architecture, op) if one.reaches(shape)][-1]


def held_kind(table: Container[str], kind: str) -> str:
    """Return the kind whose entry in a table holds for one.

    "short blocks" have that of "nibbles" where they have none of their own.
    """
    return "nibbles" if kind == "short blocks" and kind not in table else kind


def kind_of(name: str) -> str:
    """Return the kind of a format: the lanes of formats of one kind load and decode alike.

    "short blocks" are 4 bits and a scale for 32 columns or fewer, with none for 256.
    """
    if name in DENSE:
        return "dense"
    streams = STREAMS[name]
    if streams.codes == 32:
        return "bytes"
    if streams.high:
        return "planes"
    return "short blocks" if streams.codes == 16 and not streams.supers else "nibbles"
