"""The memory of layers with a sliding window: pages that no later token sees do not keep any.

Layers without a window lay page p of a pool in page p of their memory. Layers with a window have
memory behind those pages alone that a window still reaches, and it has numbers of its own: a map
says which one lies behind a page of the pool. A page loses it when the windows have passed, and
another page gets it.

The map is all there is to say. What it says of free pages counts for nothing, so whoever frees
pages, in whatever way, frees what lies behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge.array_types import Ints

NONE = -1
PASS_TOKENS = 2048
"""Most tokens of a sequence in one pass for which memory is made sure of ahead."""


def layer_kinds(
    windows: Sequence[int | None], n_layers: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the layers without a window and those with one.

    Parameters
    ----------
    windows
        (L,) sizes in tokens; None: no window. Nothing: no layer has one.
    n_layers
        L.
    """
    windowed = tuple(layer for layer, size in enumerate(windows) if size is not None)
    return tuple(layer for layer in range(n_layers) if layer not in windowed), windowed


def held_tokens(window: int | None, tokens: int, sequences: int = 1) -> int:
    """Of how many of a pool's tokens a layer has the memory at most.

    That a page is taken whole is not counted.

    Parameters
    ----------
    window
        Of the layer, in tokens; None: it has none.
    tokens, sequences
        In the pool, and how many sequences share it.
    """
    return tokens if window is None else min(tokens, sequences * (window + PASS_TOKENS))


def window_pages(
    windows: Sequence[int | None],
    n_pages: int,
    copy: Callable[[int, int], None],
    back: Callable[[int], None] | None = None,
) -> WindowPages | None:
    """Return what lies behind the pages in all layers with a window; None: no layer has one.

    Parameters
    ----------
    windows
        (L,) sizes in tokens; None: no window.
    n_pages, copy, back
        As of `WindowPages`.
    """
    sizes = [size for size in windows if size is not None]
    return WindowPages(max(sizes), n_pages, back, copy) if sizes else None


class WindowPages:
    """What lies behind the pages of a pool in layers with a window.

    Parameters
    ----------
    window
        W, tokens that a query sees at most, itself included: the most of all these layers.
    n_pages
        Pages in the pool; there are as many numbers.
    back
        Called with a number that all numbers are below, before one is given: sees to the memory.
        What it raises, `take` and `back` raise, and nothing is changed.
    copy
        Called with two numbers: copies what the first one holds to the second one.
    """

    def __init__(
        self,
        window: int,
        n_pages: int,
        back: Callable[[int], None] | None = None,
        copy: Callable[[int, int], None] | None = None,
    ) -> None:
        self.window = window
        self._n_pages = n_pages
        self._behind = np.full(n_pages + 1, NONE, np.int32)  # the last one of what is no page
        self._back = back
        self._copy = copy

    @property
    def nbytes(self) -> int:
        """Bytes of the map."""
        return self._behind.nbytes

    def first_page(self, length: int, page_size: int) -> int:
        """Return the first page of a sequence that its token at position `length` sees."""
        return max(0, length - self.window + 1) // page_size

    def most(self, pages: int, page_size: int) -> int:
        """How many pages of a sequence that holds so many have something behind them at a time."""
        return min(pages, -(-(self.window + PASS_TOKENS) // page_size) + 1)

    def back(self, n: int) -> None:
        """Have memory for n pages, or for all of the pool if they are fewer."""
        if self._back is not None:
            self._back(min(n, self._n_pages))

    def without(self, pages: NDArray[Any] | Sequence[int]) -> NDArray[Any]:
        """Return those pages behind which nothing lies."""
        every = np.asarray(pages, np.intp)
        lacking: NDArray[Any] = every[self._behind[every] == NONE]
        return lacking

    def take(self, pages: NDArray[Any], held: NDArray[Any]) -> None:
        """Give memory to pages that have none, the lowest numbers first.

        Parameters
        ----------
        pages
            Different pages that are not free.
        held
            All pages that are not free.
        """
        unused = np.ones(self._n_pages, bool)
        used = self._behind[held]
        unused[used[used != NONE]] = False
        numbers = np.flatnonzero(unused)[: pages.size]
        self.back(int(numbers[-1]) + 1)
        self._behind[pages] = numbers

    def drop(self, pages: NDArray[Any] | Sequence[int]) -> None:
        """Take the memory of pages away."""
        self._behind[pages] = NONE

    def copy(self, source: int, target: int) -> None:
        """Copy what lies behind one page to what lies behind another, if the first has any."""
        numbers = self._behind[[source, target]].tolist()
        if NONE not in numbers and self._copy is not None:
            self._copy(*numbers)

    def behind(self, pages: Ints, positions: Ints, page_size: int) -> Ints:
        """Return what lies behind the pages of a batch.

        Parameters
        ----------
        pages
            (S, M) int32, those of each sequence in order, filled up with -1.
        positions
            (S,) of the first query of each: what it does not see, none of the batch sees.
        page_size
            P, tokens in a page.

        Returns
        -------
        (S, M) int32. In the place of those before the first one that is seen stands that one, so
        that a kernel which reads more than it uses finds numbers of the same sequence; -1 where
        nothing lies behind a page yet.
        """
        behind: Ints = self._behind[pages]
        for row, position in zip(behind, positions.tolist(), strict=True):
            if first := self.first_page(position, page_size):
                row[:first] = row[first]
        return behind
