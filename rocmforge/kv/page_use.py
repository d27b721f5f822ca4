"""How the pages of a cache are used: taken, filled, reserved, free, and how the free ones lie."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rocmforge.kv.page_table import PageTable


@dataclass(frozen=True, slots=True)
class PageUse:
    """The pages of a cache at one moment.

    Parameters
    ----------
    page_size
        P, tokens in a page.
    pages, taken
        In the pool, and of those with a sequence.
    sequences, tokens
        That the cache holds.
    reserved
        Taken pages that hold no token yet.
    unused_slots
        Places for tokens in the other taken pages that hold none: the ends of last pages.
    free_runs, longest_free_run
        Runs of neighbouring free pages, and pages of the longest.
    """

    page_size: int
    pages: int
    taken: int
    sequences: int
    tokens: int
    reserved: int
    unused_slots: int
    free_runs: int
    longest_free_run: int

    @property
    def free(self) -> int:
        """Pages that no sequence has."""
        return self.pages - self.taken

    @property
    def unused_fraction(self) -> float:
        """Places in taken pages that hold no token: 1 - tokens / (taken · P); 0 of no pages."""
        return 1 - self.tokens / (self.taken * self.page_size) if self.taken else 0.0

    @property
    def scatter(self) -> float:
        """How scattered free pages are: 1 - longest run / free; 0 where they are in one run.

        It costs nothing: any free page serves any sequence.
        """
        return 1 - self.longest_free_run / self.free if self.free else 0.0


def page_use(table: PageTable) -> PageUse:
    """Look at a page table now; no sequence may be added or removed meanwhile."""
    size = table.page_size
    sequences = list(table.allocator.holders)
    lengths = [table.length(sequence) for sequence in sequences]
    held = [len(table.pages(sequence)) for sequence in sequences]
    filled = [-(-length // size) for length in lengths]
    free = table.allocator.free_pages()
    breaks = np.flatnonzero(np.diff(free) > 1) + 1
    runs = np.diff([0, *breaks, free.size]) if free.size else np.zeros(0, np.intp)
    return PageUse(
        page_size=size,
        pages=table.allocator.n_pages,
        taken=table.allocator.n_pages - free.size,
        sequences=len(sequences),
        tokens=sum(lengths),
        reserved=sum(held) - sum(filled),
        unused_slots=sum(filled) * size - sum(lengths),
        free_runs=runs.size,
        longest_free_run=int(runs.max(initial=0)),
    )
