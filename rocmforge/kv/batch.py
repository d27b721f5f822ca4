"""Where the new tokens of one forward pass stand in their sequences and in the pages.

Lengthens the sequences of a page table and describes the result as the kernels read it. It does
not know what a page stores, nor the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rocmforge.kv.page_table import PageTable


@dataclass(frozen=True)
class Batch:
    """New tokens of S sequences, those of the first one first; every array is int32.

    Parameters
    ----------
    positions
        (T,) of each token in its sequence.
    pages, offsets
        (T,) page and slot that take its key and value.
    page_table
        (S, M) pages of each sequence.
    lengths
        (S,) tokens with the new ones.
    starts
        (S + 1,) first token of each sequence.
    """

    positions: NDArray[np.int32]
    pages: NDArray[np.int32]
    offsets: NDArray[np.int32]
    page_table: NDArray[np.int32]
    lengths: NDArray[np.int32]
    starts: NDArray[np.int32]


def extend(table: PageTable, sequences: Sequence[int], counts: Sequence[int]) -> Batch:
    """Lengthen sequences, all or none, and say where each new token goes.

    Parameters
    ----------
    table
        Page table that has the sequences.
    sequences, counts
        S different ids, and how many tokens each gets, at least one.

    Raises
    ------
    OutOfPagesError
        Too few pages are free; nothing is changed.
    ValueError
        There is no such sequence.
    """
    lengths = [table.length(s) + n for s, n in zip(sequences, counts, strict=True)]
    table.reserve_all(sequences, lengths)
    first = [table.extend(s, n) for s, n in zip(sequences, counts, strict=True)]
    page_table, total = table.as_array(sequences)
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    row = np.repeat(np.arange(len(counts)), counts)
    positions = np.arange(starts[-1]) - starts[:-1][row] + np.array(first)[row]
    slot, offsets = np.divmod(positions, table.page_size)
    return Batch(
        positions=positions.astype(np.int32),
        pages=page_table[row, slot],
        offsets=offsets.astype(np.int32),
        page_table=page_table,
        lengths=total,
        starts=starts,
    )
