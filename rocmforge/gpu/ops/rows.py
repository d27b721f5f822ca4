"""How threads share the rows of an op that needs a whole row at once (rmsnorm, softmax).

Short rows: several a block, some lanes of a wave each. Long rows: a block each. A thread keeps its
part of a row in registers between two passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

COLUMNS = (64, 80, 96, 128, 256, 576, 896, 1536, 2048, 2560, 3584, 4096, 5120, 8192, 14336)
"""Row lengths of the models that we run: the shapes of `shapes` cover each."""

SHORT_THREADS = 128
MAX_THREADS = 1024
MAX_ITEMS = 4


@dataclass(frozen=True)
class RowShape:
    """Compile-time constants of a kernel that includes kernels/rows.h.

    Parameters
    ----------
    THREADS
        Threads of a block.
    SPAN
        Neighbouring threads that share a row: THREADS, or a power of two from 8 to 32.
    ITEMS
        Vectors of a row that a thread keeps in registers; what lies beyond is read again.
    VECTOR
        Columns of a vector: 4, or 1 where the columns are no multiple of 4.
    """

    THREADS: int
    SPAN: int
    ITEMS: int
    VECTOR: int

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.THREADS // self.SPAN


def row_shape(columns: int) -> RowShape:
    """Shape for rows of some columns, at least 1."""
    vector = 1 if columns % 4 else 4
    vectors = columns // vector
    if vectors <= 64:
        span = next(n for n in (8, 16, 32) if n >= min(vectors, 32))
        return RowShape(SHORT_THREADS, span, -(-vectors // span), vector)
    threads = 64
    while threads < MAX_THREADS and 2 * threads < vectors:
        threads *= 2
    return RowShape(threads, threads, min(-(-vectors // threads), MAX_ITEMS), vector)


def shapes() -> Iterator[RowShape]:
    """Each shape that the models' rows need, and those of odd rows, once."""
    yield from dict.fromkeys(row_shape(columns) for columns in (*COLUMNS, 7, 997))
