"""The KV cache of a model on several devices: a cache a device for its layers, one page table."""

from __future__ import annotations

from collections.abc import Sequence

from rocmforge.kv.allocator import BlockAllocator
from rocmforge.kv.page_table import PageTable
from rocmforge.plan.protocols import Cache


class SplitCache:
    """The caches of all stages behind one page table: a page has its number in each of them.

    Parameters
    ----------
    parts
        Each from `Backend.cache`, for its stage's layers, with `n_pages` pages of `page_size`.
        Their own tables are not used. Whoever made them closes them.
    n_pages, page_size
        Pages in the pool, and tokens in a page.

    Attributes
    ----------
    table
        Which pages belong to which sequence.
    """

    def __init__(self, parts: Sequence[Cache], n_pages: int, page_size: int) -> None:
        self._parts = tuple(parts)
        self.table = PageTable(BlockAllocator(n_pages, self.grow), page_size, self.copy_page)

    @property
    def nbytes(self) -> int:
        """Bytes of the memory of all devices that it has taken so far."""
        return sum(part.nbytes for part in self._parts)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes in all layers."""
        return sum(part.bytes_per_token for part in self._parts)

    def grow(self, pages: int) -> None:
        """Have memory on each device for the pages below a number.

        Where one has too little, OutOfMemoryError: all keys and values are as before.
        """
        for part in self._parts:
            part.grow(pages)

    def copy_page(self, source: int, target: int) -> None:
        """Copy keys and values of all layers from one page to another."""
        for part in self._parts:
            part.copy_page(source, target)

    def close(self) -> None:
        """Nothing to do: the caches of the devices are closed by whoever made them."""
