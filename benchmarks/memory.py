"""The KV cache's size and the cost of filling it, its page table, and the peak of loading a model.

Sizes are those of the real classes, for shapes up to 70B, without taking the memory.
"""

from __future__ import annotations

import functools

import numpy as np

from rocmforge import ops
from rocmforge.errors import MeasurementError
from rocmforge.kv import PAGE_SIZES
from rocmforge.kv.allocator import BlockAllocator
from rocmforge.kv.cache import PagedKVCache, pages_for_context
from rocmforge.kv.page_table import PageTable
from rocmforge.model.presets import preset_config
from rocmforge.ops import cases

from .common import (
    DEVICES,
    MODELS,
    REPEAT,
    ROUNDS,
    backend,
    device_name,
    model_path,
    open_engine,
)

SHAPES = ("1B", "7B", "13B", "70B")
CONTEXTS = (1024, 2048, 4096)
APPENDED = cases.KV_APPEND_TIMED[0].tokens  # a timed call
APPENDS = {case.page_size: case for case in cases.KV_APPEND_TIMED}


def kv_cache(shape: str, page_size: int = 32, n_pages: int = 1) -> PagedKVCache:
    """Return an F16 cache of a published model's shape, its size checked by the plain formula."""
    c = preset_config(shape)
    cache = PagedKVCache(c.n_layers, c.n_kv_heads, c.head_dim, n_pages, page_size, "f16")
    wanted = 2 * c.n_layers * c.n_kv_heads * c.head_dim * 2
    if cache.bytes_per_token != wanted or cache.nbytes != wanted * n_pages * page_size:
        raise MeasurementError(
            f"KV cache of {shape}: got {cache.bytes_per_token} bytes a token and {cache.nbytes} "
            f"in {n_pages} pages, wanted {wanted} a token"
        )
    return cache


class KVPerToken:
    """Bytes of keys and values of one token in all layers, F16."""

    params = SHAPES
    param_names = ("shape",)

    def track_kv_bytes_per_token(self, shape: str) -> int:
        return kv_cache(shape).bytes_per_token

    track_kv_bytes_per_token.unit = "bytes"


class KVTotal:
    """Bytes of the cache of one sequence of a full context, F16, whole pages."""

    params = (SHAPES, CONTEXTS)
    param_names = ("shape", "context")

    def track_kv_bytes(self, shape: str, context: int) -> int:
        return kv_cache(shape).nbytes * pages_for_context(context, 1, 32)

    track_kv_bytes.unit = "bytes"


class Pages:
    """What paging costs one sequence of 1000 tokens of the 1B shape beside the tokens."""

    params = PAGE_SIZES
    param_names = ("page_size",)
    tokens = 1000

    def track_table_bytes(self, page_size: int) -> int:
        table = PageTable(BlockAllocator(pages_for_context(self.tokens, 1, page_size)), page_size)
        sequence = table.add_sequence()
        table.extend(sequence, self.tokens)
        pages, lengths = table.as_array([sequence])
        return pages.nbytes + lengths.nbytes

    def track_unused_bytes(self, page_size: int) -> int:
        cache = kv_cache("1B", page_size, pages_for_context(self.tokens, 1, page_size))
        return cache.nbytes - self.tokens * cache.bytes_per_token

    track_table_bytes.unit = "bytes"
    track_unused_bytes.unit = "bytes"


class Appender:
    """One layer of a 7B model's cache, and 256 tokens to write into it."""

    def __init__(self, page_size: int, device: str) -> None:
        self.backend = backend(device)
        case = APPENDS[page_size]
        n_pages = pages_for_context(case.tokens, 1, page_size)
        self.cache = PagedKVCache(1, case.kv_heads, case.head_dim, n_pages, page_size, "f16")
        inputs = case.inputs()
        self.k, self.v = inputs.k, inputs.v

    def fill(self, at_once: int) -> int:
        """Write the tokens into a new sequence as the decoder does; return its id."""
        cache = self.cache
        sequence = cache.table.add_sequence()
        for _ in range(0, APPENDED, at_once):
            first = cache.table.extend(sequence, at_once)
            table, _lengths = cache.table.as_array([sequence])
            slot, offsets = np.divmod(np.arange(first, first + at_once), cache.page_size)
            new = slice(first, first + at_once)
            ops.kv_append(
                self.k[new],
                self.v[new],
                cache.k[0],
                cache.v[0],
                table[0, slot],
                offsets.astype(np.int32),
                self.backend,
            )
        return sequence

    def check(self, at_once: int) -> None:
        """Compare what lies in the cache with what was written, rounded to F16; exact."""
        self.cache.k.fill(0)
        self.cache.v.fill(0)
        sequence = self.fill(at_once)
        k, v = self.cache.gather(0, sequence)
        self.cache.table.remove(sequence)
        for name, got, written in (("keys", k, self.k), ("values", v, self.v)):
            if not np.array_equal(got, written.astype(np.float16).astype(np.float32)):
                raise MeasurementError(f"kv_append: the {name} read back are not those written")


@functools.cache
def appender(page_size: int, at_once: int, device: str) -> Appender:
    """Make and check an appender once per process."""
    made = Appender(page_size, device)
    made.check(at_once)
    return made


class Append:
    """Time to append 256 tokens to one layer, 1, 16, 64 or 256 of them at once."""

    params = ((1, 16, 64, 256), PAGE_SIZES, DEVICES)
    param_names = ("at_once", "page_size", "device")
    repeat = REPEAT
    rounds = ROUNDS

    def setup(self, at_once: int, page_size: int, device: str) -> None:
        self.appender = appender(page_size, at_once, device)

    def time_append_256(self, at_once: int, page_size: int, device: str) -> None:
        self.appender.cache.table.remove(self.appender.fill(at_once))


class Load:
    """Most resident memory of a process that loads a model and evaluates six tokens."""

    params = (MODELS, DEVICES)
    param_names = ("model", "device")
    timeout = 900

    def setup(self, model: str, device: str) -> None:
        device_name(device)
        model_path(model)

    def peakmem_load(self, model: str, device: str) -> None:
        open_engine(model, device, ctx=1024).close()
