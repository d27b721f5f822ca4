"""The KV cache of a model on several devices: a cache a device for its layers, one page table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rocmforge.kv.allocator import BlockAllocator
from rocmforge.kv.page_table import PageTable
from rocmforge.kv.windows import window_pages
from rocmforge.plan.protocols import StageCache


class SplitCache:
    """The caches of all stages behind one page table: a page has its number in each of them.

    Parameters
    ----------
    parts
        Each from `Backend.cache`, for its stage's layers, with `n_pages` pages of `page_size`.
        Their own tables are not used. Whoever made them closes them.
    n_pages, page_size
        Pages in the pool, and tokens in a page.
    windows
        As of `Backend.cache`, of all layers.

    Attributes
    ----------
    table
        Which pages belong to which sequence, and what lies behind them in layers with a window.
    """

    def __init__(
        self,
        parts: Sequence[StageCache],
        n_pages: int,
        page_size: int,
        windows: Sequence[int | None],
    ) -> None:
        self._parts = tuple(parts)
        grow, copy = partial(_grow, self._parts), partial(_copy_page, self._parts)
        behind = window_pages(windows, n_pages, partial(copy, True), partial(grow, True))
        allocator = BlockAllocator(n_pages, partial(grow, False))
        self.table = PageTable(allocator, page_size, partial(copy, False), behind)

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

    def close(self) -> None:
        """Nothing to do: the caches of the devices are closed by whoever made them."""


def _grow(parts: Sequence[StageCache], windowed: bool, pages: int) -> None:
    """No method, nor the next one, so that a CPU's pool goes as soon as the cache does."""
    for part in parts:
        part.grow_kind(windowed, pages)


def _copy_page(parts: Sequence[StageCache], windowed: bool, source: int, target: int) -> None:
    for part in parts:
        part.copy_page(windowed, source, target)
