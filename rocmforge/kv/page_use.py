"""How the pages of a cache are used: taken, filled, reserved, free, and how the free ones lie."""

from __future__ import annotations

import itertools
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
        That the cache holds; tokens in a page that sequences share count once.
    reserved
        Taken pages that hold no token yet.
    unused_slots
        Places for tokens in the other taken pages that hold none: the ends of last pages.
    free_runs, longest_free_run
        Runs of neighbouring free pages, and pages of the longest.
    kept
        Pages that no sequence has and that later prompts may find, until their room is needed.
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
    kept: int = 0

    @property
    def free(self) -> int:
        """Pages that nobody has."""
        return self.pages - self.taken - self.kept

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
    filled: dict[int, int] = {}  # tokens in each page; those that are shared are full
    for sequence in sequences:
        length = table.length(sequence)
        for start, page in zip(itertools.count(0, size), table.pages(sequence)):
            filled[page] = min(size, max(0, length - start))
    free = table.allocator.free_pages()
    breaks = np.flatnonzero(np.diff(free) > 1) + 1
    runs = np.diff([0, *breaks, free.size]) if free.size else np.zeros(0, np.intp)
    return PageUse(
        page_size=size,
        pages=table.allocator.n_pages,
        taken=len(filled),
        sequences=len(sequences),
        tokens=sum(filled.values()),
        reserved=list(filled.values()).count(0),
        unused_slots=sum(size - tokens for tokens in filled.values() if tokens),
        free_runs=runs.size,
        longest_free_run=int(runs.max(initial=0)),
        kept=table.allocator.n_pages - free.size - len(filled),
    )
