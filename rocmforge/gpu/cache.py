"""Storage of keys and values in pages of device memory, and the page table on the host.

Both keys and values lie token by token: a page of a layer is (G, P, D), the head dim fastest. The
kernels `kv_append` and `rope_kv_append` write it.

Memory is taken as pages are: each layer is an allocation, which moves to one of twice the size when
it is full. The kernels keep one address and one stride a layer; a virtual address range that grows
in place would spare the copy, but consumer RDNA cards do not offer one that works.

Letters of shapes: see rocmforge/array_types.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from rocmforge.errors import OutOfMemoryError
from rocmforge.gpu.head_dims import wanted_head_dim
from rocmforge.gpu.release import release_all
from rocmforge.gpu.runtime import Runtime
from rocmforge.kv import row_bytes
from rocmforge.kv.allocator import BlockAllocator
from rocmforge.kv.page_table import PageTable
from rocmforge.kv.windows import layer_kinds, window_pages

FIRST_TOKENS = 512  # that there is memory for from the start


@dataclass(frozen=True)
class _Layer:
    """Memory of one layer: keys, their scales, values, their scales, each of all its pages."""

    address: int
    pages: int


class DeviceKVCache:
    """Keys and values of all layers in one pool of pages, which takes memory as it fills.

    Parameters
    ----------
    runtime
        The device.
    n_layers, n_kv_heads, head_dim
        L, G and D of the model.
    n_pages
        Most pages of the pool.
    page_size
        P, tokens in a page: 16, 32 or 64.
    dtype
        "f16", "f32", "q8_0" (int8 with one f16 scale for 32 values; D is a multiple of 32), or
        "fp8_e4m3" (floats of 8 bits with one f16 scale for the D values of a token).
    windows
        (L,) tokens that a query of each layer sees at most, None: all; nothing: no layer has any.

    Attributes
    ----------
    table
        Which pages belong to which sequence, and what lies behind them in layers with a window.
        Taking pages may raise OutOfMemoryError, which changes nothing: see `grow`.
    windowed
        The layers with a window.
    moves
        How often layers have moved: addresses asked for before the last time are void.

    Raises
    ------
    ValueError
        The dtype is none of these, or the head dim does not fit it or the kernels.
    OutOfMemoryError
        The first pages do not fit into device memory.
    """

    def __init__(
        self,
        runtime: Runtime,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        n_pages: int,
        page_size: int,
        dtype: str,
        windows: Sequence[int | None] = (),
    ) -> None:
        self._row_bytes = [size for size in row_bytes(dtype, head_dim) if size]
        if wanted := wanted_head_dim(head_dim):
            raise ValueError(f"head dim: got {head_dim}, {wanted}")
        self.runtime = runtime
        self.n_layers = n_layers
        self.n_kv_heads = n_kv_heads
        self.head_dim = head_dim
        self.n_pages = n_pages
        self.page_size = page_size
        self.dtype = dtype
        self._kinds = layer_kinds(windows, n_layers)
        self.windowed = self._kinds[True]
        grow, copy = self.grow_kind, self.copy_page
        behind = window_pages(windows, n_pages, partial(copy, True), partial(grow, True))
        allocator = BlockAllocator(n_pages, partial(grow, False))
        self.table = PageTable(allocator, page_size, partial(copy, False), behind)
        self.moves = 0
        self._layers = [_Layer(0, 0)] * n_layers
        self._held: list[int] = []  # addresses of all memory that is to be freed
        try:
            self.grow(min(n_pages, -(-FIRST_TOKENS // page_size)))
        except BaseException:  # Ctrl-C too
            self.close()
            raise

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes in all layers."""
        return self.n_layers * 2 * sum(self._streams) // self.page_size

    @property
    def nbytes(self) -> int:
        """Bytes of the memory that it has now."""
        return sum(self._layer_bytes(layer.pages) for layer in self._layers)

    def pages(self, layer: int) -> tuple[int, int]:
        """Addresses of a layer's keys and values, (pages, G, P, D) each, until it moves."""
        at = self._layers[layer]
        return at.address, at.address + self._layer_bytes(at.pages) // 2

    def scales(self, layer: int) -> tuple[int, int]:
        """Addresses of the scales of keys and of values, float16; 0 where the dtype has none.

        Those of q8_0 are (pages, G, P, D / 32) each, those of fp8_e4m3 (pages, G, P).
        """
        numbers, *scales = self._streams
        if not scales:
            return 0, 0
        k, v = self.pages(layer)
        behind = self._layers[layer].pages * numbers
        return k + behind, v + behind

    def grow(self, pages: int) -> None:
        """Have memory for the pages below a number: at least twice what there was, if it has to.

        Waits for the device. A page that was never written is zeros.

        Parameters
        ----------
        pages
            Up to the pool's.

        Raises
        ------
        OutOfMemoryError
            The device has too little left. All keys and values are as before.
        """
        for windowed in (False, True):
            self.grow_kind(windowed, pages)

    def grow_kind(self, windowed: bool, pages: int) -> None:
        """As `grow`, in the layers with a window, or in those without."""
        layers = self._kinds[windowed]
        had = min((self._layers[layer].pages for layer in layers), default=pages)
        if pages <= had:
            return
        wanted = min(self.n_pages, max(pages, 2 * had))
        # The last layer to move holds its old memory and its new one.
        more = len(layers) * self._layer_bytes(wanted - had) + self._layer_bytes(had)
        if more > self.runtime.memory_info()[0]:
            wanted = pages
        self.runtime.synchronize()
        self.moves += 1
        try:
            self._move(layers, wanted)
        except OutOfMemoryError as error:
            with suppress(OutOfMemoryError):
                self._move(layers, had)  # back, those that had memory
            less = "a lower ctx or fewer sequences need less"
            if self.dtype in ("f16", "f32"):
                less = "a lower ctx, fewer sequences or dtype q8_0 need less"
            raise OutOfMemoryError(
                f"{error}; the KV cache of {had * self.page_size} tokens wanted them to hold "
                f"{wanted * self.page_size}, for one of its {self.n_layers} layers ({less})"
            ) from error

    def copy_page(self, windowed: bool, source: int, target: int) -> None:
        """Copy a page of the layers with a window, or of those without; waits for the device."""
        self.runtime.synchronize()
        for layer in (self._layers[number] for number in self._kinds[windowed]):
            part = layer.address
            for size in self._streams * 2:
                self.runtime.copy_on_device(part + target * size, part + source * size, size)
                part += layer.pages * size

    def close(self) -> None:
        """Give the memory back. Idempotent."""
        self._layers = [_Layer(0, 0)] * self.n_layers
        held, self._held = self._held, []
        release_all(*(partial(self.runtime.free, address) for address in held))

    def _move(self, layers: Sequence[int], pages: int) -> None:
        """Move those layers that have more or fewer pages to new memory, one after another."""
        for number in layers:
            old = self._layers[number]
            if old.pages == pages:
                continue
            new = _Layer(self.runtime.allocate(self._layer_bytes(pages)), pages)
            self._held.append(new.address)
            try:
                self._copy(old, new)
                self._layers[number] = new
            finally:  # of the old and the new memory, that which is not the layer's
                in_use = {layer.address for layer in self._layers}
                for address in [held for held in self._held if held not in in_use]:
                    self._held.remove(address)
                    self.runtime.free(address)

    def _copy(self, old: _Layer, new: _Layer) -> None:
        """Copy the pages, and zero those that are new: a kernel multiplies what it masks by 0."""
        runtime = self.runtime
        source, target = old.address, new.address
        for page_bytes in self._streams * 2:
            kept, size = min(old.pages, new.pages) * page_bytes, new.pages * page_bytes
            if kept:
                runtime.copy_on_device(target, source, kept)
            if size > kept:
                runtime.fill(target + kept, 0, size - kept)
            source, target = source + old.pages * page_bytes, target + size

    @property
    def _streams(self) -> tuple[int, ...]:
        """Bytes of a page in each part of K or of V: numbers, and where there are, scales."""
        rows = self.page_size * self.n_kv_heads
        return tuple(rows * size for size in self._row_bytes)

    def _layer_bytes(self, pages: int) -> int:
        return 2 * pages * sum(self._streams)
