"""The KV cache's size, waste and filling, peaks of loading a model, allocations while generating.

Sizes are those of the real classes, for shapes up to 70B, without taking the memory. GPU memory is
what the driver says is in use, in a process of its own.
"""

from __future__ import annotations

import functools
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from rocmforge import ops
from rocmforge.cpu.cache import PagedKVCache
from rocmforge.engine import Engine
from rocmforge.errors import MeasurementError
from rocmforge.kv import PAGE_SIZES
from rocmforge.kv.allocator import BlockAllocator
from rocmforge.kv.page_table import PageTable, pages_for_context
from rocmforge.kv.page_use import page_use
from rocmforge.model.presets import find_preset
from rocmforge.ops import cases
from rocmforge.sampling import SamplingParams
from rocmforge.speed.sequences import random_ids

from . import inference
from .checks import note_error, open_engine
from .devices import DEVICES, backend, device_name
from .models import MODELS, model_path
from .samples import Timed

SHAPES = ("1B", "7B", "13B", "70B")
CONTEXTS = (128, 1024, 2048, 4096, 8192, 16384, 32768)
STEPS = 64  # of decoding while allocations are counted: over the ends of two pages
APPENDED = cases.KV_APPEND_TIMED[0].tokens  # a timed call
APPENDS = {case.page_size: case for case in cases.KV_APPEND_TIMED}


def kv_cache(shape: str, page_size: int = 32, n_pages: int = 1) -> PagedKVCache:
    """Return an F16 cache of a published model's shape, its size checked by the plain formula."""
    c = find_preset(shape).config
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
    """Bytes that paging adds to one sequence of 1000 tokens of the 1B shape."""

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


class Mixed:
    """Waste of 64 sequences of mixed lengths, half of which have ended and been replaced.

    Any free page serves any sequence, so that only the unused slots of last pages are wasted.
    """

    params = PAGE_SIZES
    param_names = ("page_size",)
    sequences = 64

    def setup(self, page_size: int) -> None:
        random = np.random.default_rng(0)
        lengths = np.exp(random.normal(5.5, 1.0, 3 * self.sequences // 2)).astype(int) + 1
        pages = pages_for_context(int(lengths.max()), self.sequences, page_size)
        self.table = PageTable(BlockAllocator(pages), page_size)
        held = []
        for length in lengths:
            if len(held) == self.sequences:
                self.table.remove(held.pop(int(random.integers(len(held)))))
            held.append(self.table.add_sequence())
            self.table.extend(held[-1], int(length))

    def track_unused_slots_percent(self, page_size: int) -> float:
        """Slots of taken pages that hold no token."""
        return 100 * page_use(self.table).unused_fraction

    track_unused_slots_percent.unit = "%"
    # Of the code that computed the same before, so that older results stay comparable.
    track_unused_slots_percent.version = (
        "498a2aba3472f135e485109825d755bdfe0362a94c00046352fbb56d0fbfbf0b"
    )


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
                ops.Slots(table[0, slot], offsets.astype(np.int32)),
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
        note_error(0.0)


@functools.cache
def appending(page_size: int, at_once: int, device: str) -> Callable[[], object]:
    """Make and check an appender once per process; return what fills a sequence, for timing."""
    made = Appender(page_size, device)
    made.check(at_once)
    return made.backend.timed([lambda: made.cache.table.remove(made.fill(at_once))])


class Append(Timed):
    """Time to append 256 tokens to one layer, 1, 16, 64 or 256 of them at once: hot."""

    params = ((1, 16, 64, 256), PAGE_SIZES, DEVICES)
    param_names = ("at_once", "page_size", "device")

    def setup(self, at_once: int, page_size: int, device: str) -> None:
        self.call = appending(page_size, at_once, device)

    def time_append_256(self, at_once: int, page_size: int, device: str) -> None:
        self.call()


class Load:
    """Most resident memory of a process that loads a model and compares its logits."""

    params = (MODELS, DEVICES)
    param_names = ("model", "device")
    timeout = 900

    def setup(self, model: str, device: str) -> None:
        device_name(device)
        model_path(model)

    def peakmem_load(self, model: str, device: str) -> None:
        open_engine(model_path(model), device, ctx=1024).close()


@contextmanager
def watched(owner: object, after: Callable[[str], None], *names: str) -> Iterator[None]:
    """Call `after` with the name after each call of some methods of the type of `owner`."""
    kind = type(owner)
    own = {name: getattr(kind, name) for name in names}
    inherited = set(names) - set(vars(kind))

    def watching(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            result = work(*arguments, **options)
            after(name)
            return result

        return call

    try:
        for name, work in own.items():
            setattr(kind, name, watching(name, work))
        yield
    finally:
        for name in own:
            if name in inherited:
                delattr(kind, name)
            else:
                setattr(kind, name, own[name])


@contextmanager
def counted(owner: object, *names: str) -> Iterator[Counter[str]]:
    """Count the calls of some methods of an object, as of a GPU's runtime."""
    calls: Counter[str] = Counter()
    with watched(owner, lambda name: calls.update([name]), *names):
        yield calls


class Steps:
    """A sequence that grows by a token a step, over the ends of its pages, nothing reserved."""

    def __init__(self, model: str, device: str) -> None:
        self.engine = inference.engine(model, device, 256, 1)
        self.sequence = self.engine.add_sequence()
        self.engine.prefill(self.sequence, random_ids(self.engine, 48))
        self.run(4)  # a GPU's launches are made, then captured

    def run(self, steps: int) -> None:
        """Decode."""
        for _ in range(steps):
            self.engine.decode([self.sequence], [3])


class Generating:
    """Memory that a decode step takes and gives back: Python's and numpy's, not the kernels'."""

    params = (MODELS, DEVICES)
    param_names = ("model", "device")
    timeout = 900

    def setup(self, model: str, device: str) -> None:
        self.steps = Steps(model, device)

    def track_step_peak_bytes(self, model: str, device: str) -> int:
        """Most that is held at once within a step, the logits that it returns included."""
        tracemalloc.start()
        try:
            self.steps.run(2)
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            self.steps.run(1)
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()

    track_step_peak_bytes.unit = "bytes"


class DeviceAllocations:
    """Allocations of device or page-locked memory in 64 decode steps: there should be none."""

    params = (MODELS, ("gpu",))
    param_names = ("model", "device")
    timeout = 900

    def setup(self, model: str, device: str) -> None:
        self.steps = Steps(model, device)

    def track_allocations(self, model: str, device: str) -> int:
        with counted(
            self.steps.engine.backend.kernels.runtime, "allocate", "allocate_pinned"
        ) as calls:
            self.steps.run(STEPS)
        return calls.total()

    track_allocations.unit = "allocations"


@dataclass(frozen=True)
class GpuBytes:
    """GPU memory in use for an engine: at most, and at the end; what of it is known to be what.

    Parameters
    ----------
    peak, steady
        As the driver says.
    weights, kv
        Packed matrices; the pool of keys and values.
    """

    peak: int
    steady: int
    weights: int
    kv: int


@functools.cache
def device_memory(model: str, device: str) -> GpuBytes:
    """Bytes of GPU memory for 256 tokens read and 16 written.

    Looked at after every allocation and at the end. What the driver took for the context before is
    not counted.
    """
    name, path = device_name(device), model_path(model)
    runtime = backend(device).kernels.runtime
    free = [runtime.memory_info()[0]]
    with (
        watched(runtime, lambda _: free.append(runtime.memory_info()[0]), "allocate"),
        Engine.from_gguf(path, name, ctx=1024) as engine,
    ):
        ids = random_ids(engine, 256)
        for _ in engine.generate([ids], SamplingParams(max_tokens=16)):
            pass
        free.append(runtime.memory_info()[0])
        return GpuBytes(
            free[0] - min(free), free[0] - free[-1], engine.weight_bytes, engine.cache.nbytes
        )


class DeviceMemory:
    """GPU memory of an engine with a context of 1024: weights, cache, and all else.

    The cache has the memory that it begins with, of 512 tokens. All else is activations, tables,
    kernels, and what the allocator rounds up.
    """

    params = (MODELS, ("gpu",))
    param_names = ("model", "device")
    timeout = 900

    def setup(self, model: str, device: str) -> None:
        self.used = device_memory(model, device)

    def track_peak_bytes(self, model: str, device: str) -> int:
        return self.used.peak

    def track_steady_bytes(self, model: str, device: str) -> int:
        return self.used.steady

    def track_weight_bytes(self, model: str, device: str) -> int:
        return self.used.weights

    def track_kv_bytes(self, model: str, device: str) -> int:
        return self.used.kv

    def track_overhead_bytes(self, model: str, device: str) -> int:
        return self.used.steady - self.used.weights - self.used.kv

    track_peak_bytes.unit = "bytes"
    track_steady_bytes.unit = "bytes"
    track_weight_bytes.unit = "bytes"
    track_kv_bytes.unit = "bytes"
    track_overhead_bytes.unit = "bytes"
