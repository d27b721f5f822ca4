"""Hands out the pages of a pool by number, and knows whose each of them is.

A page belongs to the holder whose name it bears, as long as that holder exists. So a holder gives
back all its pages in one step, by ceasing to exist, and an interrupt (Ctrl-C) between any two steps
leaves no page that is nobody's. A page of `prefixes` is not free, whosever it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge.errors import OutOfPagesError
from rocmforge.kv.prefixes import Prefixes

NOBODY = 0  # where a page bears no holder's name


class BlockAllocator:
    """The pages 0 … n_pages - 1. Low numbers go first: the memory behind others is not touched.

    Parameters
    ----------
    n_pages
        Size of the pool, at least 1.
    back
        Called, before pages are taken, with the number that all of them are below: sees to the
        memory behind them. What it raises, `allocate` raises, and no page is taken.

    Attributes
    ----------
    holders : dict of int to Any
        Who exists, by name (0 or more), and what the caller keeps of them. Add one to allocate for
        it, under a name that was never used before; delete it to free its pages.
    prefixes : Prefixes
        Pages that can be found by what they hold. Add to it by `keep`; forget pages to free them.

    Raises
    ------
    ValueError
        `n_pages` is below 1.
    """

    def __init__(self, n_pages: int, back: Callable[[int], None] | None = None) -> None:
        if n_pages < 1:
            raise ValueError(f"n_pages: got {n_pages}, wanted at least 1")
        self.holders: dict[int, Any] = {}
        self.prefixes = Prefixes()
        self._back = back
        self._names = np.zeros(n_pages, np.int64)  # of each page's latest holder, plus 1

    @property
    def n_pages(self) -> int:
        """Pages in the pool, free or not."""
        return self._names.size

    @property
    def n_free(self) -> int:
        """Pages that `allocate` can still hand out."""
        return self.free_pages().size

    @property
    def nbytes(self) -> int:
        """Bytes of what it keeps of the pages."""
        return self._names.nbytes

    def allocate(self, holders: Sequence[int], counts: Sequence[int]) -> list[int]:
        """Take pages for several holders, all or none.

        Parameters
        ----------
        holders
            Names that are in `holders`.
        counts
            How many pages each of them gets, 0 or more.

        Returns
        -------
        list[int]
            Free pages, the lowest, ascending: those of the first holder, of the second …

        Raises
        ------
        OutOfPagesError
            Fewer are free; none is taken.
        """
        wanted, free = sum(counts), self.free_pages()
        if wanted > free.size:
            raise OutOfPagesError(wanted, free.size, self.n_pages)
        pages = free[:wanted]
        if wanted and self._back is not None:
            self._back(int(pages[-1]) + 1)
        self._names[pages] = np.repeat(holders, counts) + 1
        taken: list[int] = pages.tolist()
        return taken

    def keep(self, digests: Sequence[bytes], pages: Sequence[int]) -> None:
        """Let pages be found by what they hold; they outlive their holder, until forgotten."""
        self.prefixes.add(digests, pages)
        self._names[self.prefixes.pages()] = NOBODY

    def held_pages(self) -> NDArray[np.intp]:
        """Return the numbers of the other pages, ascending."""
        return np.setdiff1d(np.arange(self.n_pages), self.free_pages(), assume_unique=True)

    def free_pages(self) -> NDArray[np.intp]:
        """Return the numbers of the free pages, ascending."""
        names = [name + 1 for name in self.holders.copy()]
        free = np.isin(self._names, names, invert=True)
        free[self.prefixes.pages()] = False
        return np.flatnonzero(free)
