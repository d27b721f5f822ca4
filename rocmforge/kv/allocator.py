"""Hands out the pages of a fixed pool by number and takes them back.

Pages given back are used again before pages that were never used, so that the memory behind the
pool is touched only as far as it was needed. This file does not know what a page holds, which
sequence has it, or that there is a cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from rocmforge.errors import OutOfPagesError


class BlockAllocator:
    """Free list over the pages 0 … n_pages - 1.

    Parameters
    ----------
    n_pages
        Size of the pool, at least 1.

    Raises
    ------
    ValueError
        `n_pages` is below 1.
    """

    def __init__(self, n_pages: int) -> None:
        if n_pages < 1:
            raise ValueError(f"n_pages: got {n_pages}, wanted at least 1")
        self._in_use = bytearray(n_pages)
        self._returned: list[int] = []
        self._never_used = 0  # every page from this one on has never been handed out

    @property
    def n_pages(self) -> int:
        """Pages in the pool, free or not."""
        return len(self._in_use)

    @property
    def n_free(self) -> int:
        """Pages that `allocate` can still hand out."""
        return len(self._returned) + len(self._in_use) - self._never_used

    def allocate(self, n: int = 1) -> list[int]:
        """Take `n` pages out of the pool.

        Parameters
        ----------
        n
            Number of pages, 0 or more.

        Returns
        -------
        list[int]
            `n` distinct page numbers: the latest returned first, then never used ones, ascending.

        Raises
        ------
        OutOfPagesError
            Fewer than `n` pages are free; none is taken.
        ValueError
            `n` is negative.
        """
        if n < 0:
            raise ValueError(f"pages to allocate: got {n}, wanted 0 or more")
        if n > self.n_free:
            raise OutOfPagesError(n, self.n_free, self.n_pages)
        n_again = min(n, len(self._returned))
        pages = [self._returned.pop() for _ in range(n_again)]
        end = self._never_used + n - n_again
        pages.extend(range(self._never_used, end))
        self._never_used = end
        for page in pages:
            self._in_use[page] = 1
        return pages

    def free(self, pages: Sequence[int]) -> None:
        """Give pages back to the pool; all of them or, on an error, none.

        Parameters
        ----------
        pages
            Page numbers that `allocate` returned, each once.

        Raises
        ------
        ValueError
            A page is outside the pool, free already, or named twice.
        """
        for page in pages:
            if not 0 <= page < self.n_pages:
                raise ValueError(f"page to free: got {page}, wanted 0 to {self.n_pages - 1}")
            if not self._in_use[page]:
                raise ValueError(f"page to free: got {page}, which is free already")
        if len(set(pages)) != len(pages):
            raise ValueError(f"pages to free: got one of them twice in {list(pages)}")
        for page in pages:
            self._in_use[page] = 0
        self._returned.extend(reversed(pages))
