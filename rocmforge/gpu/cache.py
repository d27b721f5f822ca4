"""Storage of keys and values in pages of device memory, and the page table on the host.

Both keys and values lie token by token: a page of a layer is (G, P, D), the head dim fastest. The
kernels `kv_append` and `rope_kv_append` write it.

Letters of shapes: see rocmforge/array_types.py.
"""

from __future__ import annotations

from rocmforge.gpu.runtime import Runtime
from rocmforge.kv.allocator import BlockAllocator
from rocmforge.kv.page_table import PageTable
from rocmforge.plan.protocols import MAX_HEAD_DIM

KV_DTYPES = ("f16", "f32", "q8_0")
Q8_GROUP = 32  # values that share one f16 scale


class DeviceKVCache:
    """Keys and values of all layers in one pool of pages, allocated and zeroed at once.

    Parameters
    ----------
    runtime
        The device.
    n_layers, n_kv_heads, head_dim
        L, G and D of the model.
    n_pages
        Pages in the pool.
    page_size
        P, tokens in a page: 16, 32 or 64.
    dtype
        "f16", "f32", or "q8_0" (int8 with one f16 scale for 32 values; D is a multiple of 32).

    Raises
    ------
    ValueError
        The dtype is none of these, or the head dim does not fit it or the kernels.
    OutOfMemoryError
        The pool does not fit into device memory.
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
    ) -> None:
        if dtype not in KV_DTYPES:
            raise ValueError(f"KV dtype: got {dtype!r}, wanted one of {', '.join(KV_DTYPES)}")
        if dtype == "q8_0" and head_dim % Q8_GROUP:
            raise ValueError(
                f"KV dtype q8_0: got head dim {head_dim}, wanted a multiple of {Q8_GROUP}"
            )
        if head_dim % 8 or head_dim > MAX_HEAD_DIM:
            raise ValueError(
                f"head dim: got {head_dim}, wanted a multiple of 8 up to {MAX_HEAD_DIM} on a GPU"
            )
        self.runtime = runtime
        self.n_layers = n_layers
        self.n_kv_heads = n_kv_heads
        self.head_dim = head_dim
        self.n_pages = n_pages
        self.page_size = page_size
        self.dtype = dtype
        self.table = PageTable(BlockAllocator(n_pages), page_size)
        self._values = n_pages * page_size * n_kv_heads * head_dim  # of K or V in one layer
        self._base = runtime.allocate(self.nbytes)
        try:
            runtime.fill(self._base, 0, self.nbytes)
        except BaseException:  # Ctrl-C too
            runtime.free(self._base)
            raise

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes in all layers."""
        return self.n_layers * 2 * self._part_bytes(self.n_kv_heads * self.head_dim)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole pool."""
        return self.n_layers * 2 * self._part_bytes(self._values)

    def pages(self, layer: int) -> tuple[int, int]:
        """Addresses of a layer's keys and values, (n_pages, G, P, D) each."""
        part = self._part_bytes(self._values)
        return self._base + 2 * layer * part, self._base + (2 * layer + 1) * part

    def scales(self, layer: int) -> tuple[int, int]:
        """Addresses of the scales, (n_pages, G, P, D / 32) float16 each; 0 unless q8_0."""
        if self.dtype != "q8_0":
            return 0, 0
        k, v = self.pages(layer)
        return k + self._values, v + self._values

    def close(self) -> None:
        """Give the memory back. Idempotent."""
        base, self._base = self._base, 0
        if base:
            self.runtime.free(base)

    def _part_bytes(self, values: int) -> int:
        if self.dtype == "q8_0":
            return values + values // Q8_GROUP * 2
        return values * (2 if self.dtype == "f16" else 4)
