"""Storage of keys and values in pages, on the host, and the page table that says whose they are.

Keys lie transposed inside a page (tokens run fastest), so that the scores of one query against
P tokens are P vector lanes; values lie token by token. The backend's op `kv_append` writes them.
In a page of q8_0, scales lie behind the codes of all tokens: rocmforge/cpu/ops.h.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge.cpu.memory import aligned_zeros
from rocmforge.kv import Q8_GROUP, row_bytes
from rocmforge.kv.allocator import BlockAllocator
from rocmforge.kv.page_table import PageTable
from rocmforge.kv.windows import layer_kinds, window_pages

DTYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "q8_0": np.dtype(np.int8),
}


class PagedKVCache:
    """Keys and values of all layers in one pool of pages.

    The arrays are zeroed by the operating system when first touched: a large pool costs memory
    only as it fills.

    Parameters
    ----------
    n_layers, n_kv_heads, head_dim
        L, G and D of the model, each at least 1.
    n_pages
        Pages in the pool; `pages_for_context` counts them.
    page_size
        P, tokens in a page: 16, 32 or 64.
    dtype
        "f16", "f32", or "q8_0" (int8 with one f16 scale for 32 dims; D is a multiple of 32).
    windows
        (L,) tokens that a query of each layer sees at most, None: all; nothing: no layer has any.

    Attributes
    ----------
    k
        (L, n_pages, G, D, P) float16 or float32, C order, begins on a 64-byte boundary. Of q8_0 it
        is int8, and D + D / 16 takes the place of D.
    v
        (L, n_pages, G, P, D), the same.
    table
        Which pages belong to which sequence, and what lies behind them in layers with a window.
    windowed
        The layers with a window.

    Raises
    ------
    ValueError
        An argument is out of its range, or the pool is larger than the machine will lend.
    """

    def __init__(
        self,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        n_pages: int,
        page_size: int,
        dtype: str,
        windows: Sequence[int | None] = (),
    ) -> None:
        if dtype not in DTYPES:
            raise ValueError(
                f"KV dtype: got {dtype!r}, wanted one of {', '.join(DTYPES)} for layers on the CPU"
            )
        # Numbers in the place of the D dims of a token and head: with q8_0's scales, as int8.
        self._row = sum(row_bytes(dtype, head_dim)) // DTYPES[dtype].itemsize
        counts = {"n_layers": n_layers, "n_kv_heads": n_kv_heads, "head_dim": head_dim}
        for name, count in {**counts, "n_pages": n_pages}.items():
            if count < 1:
                raise ValueError(f"{name}: got {count}, wanted at least 1")
        self.n_layers = n_layers
        self.n_kv_heads = n_kv_heads
        self.head_dim = head_dim
        self.n_pages = n_pages
        self.page_size = page_size
        self.dtype = dtype
        try:
            self.k = aligned_zeros(
                (n_layers, n_pages, n_kv_heads, self._row, page_size), DTYPES[dtype]
            )
            self.v = aligned_zeros(
                (n_layers, n_pages, n_kv_heads, page_size, self._row), DTYPES[dtype]
            )
        except MemoryError as error:
            gib = self.bytes_per_token * n_pages * page_size / 2**30
            raise ValueError(
                f"KV cache: {n_pages * page_size} tokens are {gib:.1f} GiB, more than this "
                "machine lends; wanted fewer pages (a lower ctx, fewer sequences) or dtype q8_0"
            ) from error
        self._kinds = layer_kinds(windows, n_layers)
        self.windowed = self._kinds[True]
        copy, copy_behind = (
            partial(_copy_page, (self.k, self.v), layers) for layers in self._kinds
        )
        behind = window_pages(windows, n_pages, copy_behind)
        self.table = PageTable(BlockAllocator(n_pages), page_size, copy, behind)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes in all layers: 2 L G D * bytes of a number and its scale."""
        per_layer = 2 * self.n_kv_heads * self._row * DTYPES[self.dtype].itemsize
        return self.n_layers * per_layer

    @property
    def nbytes(self) -> int:
        """Bytes of the whole pool, touched or not; the page table is not counted."""
        return self.k.nbytes + self.v.nbytes

    def grow(self, pages: int) -> None:
        """Nothing to do: the system gives memory as it is touched."""

    def grow_kind(self, windowed: bool, pages: int) -> None:
        """Nothing to do: see `grow`."""

    def copy_page(self, windowed: bool, source: int, target: int) -> None:
        """Copy a page of the layers with a window, or of those without, to another."""
        _copy_page((self.k, self.v), self._kinds[windowed], source, target)

    def close(self) -> None:
        """Nothing to do: memory goes with the object."""

    def gather(self, layer: int, sequence: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Copy the keys and values of one sequence out of their pages, to look at them.

        Parameters
        ----------
        layer
            0 to L - 1, without a window.
        sequence
            Id from ``table.add_sequence``.

        Returns
        -------
        k, v
            (n, G, D) float32 each; n is the sequence's length.

        Raises
        ------
        ValueError
            No such layer or sequence.
        """
        if not 0 <= layer < self.n_layers or layer in self.windowed:
            raise ValueError(
                f"layer: got {layer}, wanted 0 to {self.n_layers - 1}, without a window"
            )
        n = self.table.length(sequence)
        pages = self.table.pages(sequence)[: -(-n // self.page_size)]
        shape = (len(pages) * self.page_size, self.n_kv_heads, self.head_dim)
        k, v = self.k[layer, pages], self.v[layer, pages]
        if self.dtype == "q8_0":
            k = _numbers(k, (self.head_dim, self.page_size), 0)
            v = _numbers(v, (self.page_size, self.head_dim), 1)
        k = k.transpose(0, 3, 1, 2).reshape(shape)[:n]
        v = v.transpose(0, 2, 1, 3).reshape(shape)[:n]
        return k.astype(np.float32), v.astype(np.float32)


def _copy_page(
    parts: Iterable[NDArray[Any]], layers: Sequence[int], source: int, target: int
) -> None:
    """Copy one page of some layers; no method, so that the pool goes as soon as its cache does."""
    for pages in parts:
        for layer in layers:
            pages[layer, target] = pages[layer, source]


def _numbers(pages: NDArray[np.int8], shape: tuple[int, int], dims: int) -> NDArray[np.float32]:
    """Pages (m, G, …) of q8_0 as (m, G, *shape); `dims` is the axis of `shape` with scales."""
    each, size = pages.shape[:2], shape[0] * shape[1]
    groups = [length // (Q8_GROUP if axis == dims else 1) for axis, length in enumerate(shape)]
    flat = pages.reshape(*each, math.prod(pages.shape[2:]))
    scales = flat[..., size:].copy().view(np.float16).reshape(*each, *groups).astype(np.float32)
    codes = flat[..., :size].reshape(*each, *shape)
    with np.errstate(invalid="ignore"):  # 0 · infinity: what held NaN or an infinity
        numbers: NDArray[np.float32] = codes * np.repeat(scales, Q8_GROUP, axis=2 + dims)
    return numbers
