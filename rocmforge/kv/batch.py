"""Where the new tokens of one forward pass stand in their sequences and in the pages.

`extend` lengthens the sequences of a page table and describes the result as the kernels read it.
What kv_append reads is `Slots`, what attention reads is `Queries`; a `Batch` is both.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rocmforge.array_types import Ints
from rocmforge.kv.page_table import PageTable


@dataclass(frozen=True)
class Slots:
    """Where keys and values of new tokens go.

    Parameters
    ----------
    pages, offsets
        (T,) int32: page of each token, and its slot in it, 0 to P - 1.
    """

    pages: Ints
    offsets: Ints


@dataclass(frozen=True)
class Queries:
    """Which keys the new tokens of S sequences see; every array is int32.

    Parameters
    ----------
    page_table
        (S, M) pages of each sequence in order.
    lengths
        (S,) tokens in the cache, the new ones included.
    starts
        (S + 1,): the new tokens of sequence s are those from starts[s] to starts[s + 1] - 1. They
        are its last tokens: new token j of n stands at position length - n + j and sees the keys
        up to there.
    """

    page_table: Ints
    lengths: Ints
    starts: Ints


@dataclass(frozen=True)
class Batch(Slots, Queries):
    """The new tokens of S sequences, those of the first one first.

    Parameters
    ----------
    positions
        (T,) int32, of each token in its sequence.
    in_windows
        The same with what lies behind the pages in layers with a window; None: no layer has one.
    """

    positions: Ints
    in_windows: Batch | None = None

    def of(self, windowed: bool) -> Batch:
        """Return the batch for layers with a window, or for those without."""
        return self.in_windows if windowed and self.in_windows is not None else self

    def same_places(self, other: Batch) -> bool:
        """Whether its tokens go to the same places of the same pages as another batch's."""
        return np.array_equal(self.positions, other.positions) and all(
            np.array_equal(self.of(windowed).page_table, other.of(windowed).page_table)
            for windowed in (False, True)
        )


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
    first = np.array(table.extend_all(sequences, counts), np.int32)
    page_table, lengths = table.as_array(sequences)
    return _batch(table, page_table, lengths, first, counts)


def step_ahead(table: PageTable, sequences: Sequence[int]) -> Batch | None:
    """Say where one more token of each sequence would go; no sequence grows.

    Parameters
    ----------
    table, sequences
        As of `extend`.

    Returns
    -------
    Batch or None
        What `extend` by one token each would return; None where a sequence has no page for it yet.
    """
    page_table, lengths = table.as_array(sequences)
    slot = lengths // table.page_size
    if slot.max() >= page_table.shape[1] or (page_table[np.arange(slot.size), slot] < 0).any():
        return None
    batch = _batch(table, page_table, lengths + 1, lengths, [1] * len(sequences))
    return None if (batch.of(True).pages < 0).any() else batch


def _batch(
    table: PageTable, page_table: Ints, lengths: Ints, first: Ints, counts: Sequence[int]
) -> Batch:
    starts = np.array([0, *itertools.accumulate(counts)], np.int32)
    row, positions = np.arange(len(counts)), first
    if starts[-1] > row.size:  # several tokens of one sequence: each behind the one before
        row = np.repeat(row, counts)
        positions = np.arange(starts[-1], dtype=np.int32) + (first - starts[:-1])[row]
    slot, offsets = np.divmod(positions, np.int32(table.page_size))

    def batch(pages: Ints, in_windows: Batch | None) -> Batch:
        return Batch(
            positions=positions,
            pages=pages[row, slot],
            offsets=offsets,
            page_table=pages,
            lengths=lengths,
            starts=starts,
            in_windows=in_windows,
        )

    if table.windows is None:
        return batch(page_table, None)
    behind = table.windows.behind(page_table, first, table.page_size)
    return batch(page_table, batch(behind, None))
