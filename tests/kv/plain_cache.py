"""A cache of plain lists, and random operations that compare it with the paged cache.

`run_random_operations(append)` drives any implementation of the op `kv_append`; `plain_append`
is the one in numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from numpy.typing import NDArray

from rocmforge.cpu.cache import DTYPES, PagedKVCache
from rocmforge.errors import OutOfPagesError
from rocmforge.kv import PAGE_SIZES
from rocmforge.kv.page_table import NO_PAGE

SHAPES = ((1, 1, 8), (2, 2, 20), (1, 3, 64))  # L, G, D
N_PAGES = 7
MAX_TOKENS = 150  # of one rule: some pages of 64, and sooner or later too many


@dataclass(frozen=True)
class Batch:
    """T new tokens of one layer, and where they go."""

    k: NDArray[np.float32]  # (T, G, D)
    v: NDArray[np.float32]  # (T, G, D)
    pages: NDArray[np.int32]  # (S, M), padded with -1
    row: NDArray[np.int32]  # (T,) row of `pages` that the token belongs to
    position: NDArray[np.int32]  # (T,) in its sequence


Append = Callable[[PagedKVCache, int, Batch], None]  # cache, layer, batch


def slots_of(cache: PagedKVCache, batch: Batch) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(T,) page and (T,) slot inside the page, for each token."""
    page = batch.pages[batch.row, batch.position // cache.page_size]
    return page, batch.position % cache.page_size


def plain_append(cache: PagedKVCache, layer: int, batch: Batch) -> None:
    for t, (page, slot) in enumerate(zip(*slots_of(cache, batch), strict=True)):
        put(cache, (cache.k[layer, page], cache.v[layer, page]), slot, (batch.k[t], batch.v[t]))


def quantized(rows: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Codes (…, D) and scales (…, D / 32) of finite rows in q8_0."""
    groups = rows.reshape(*rows.shape[:-1], -1, 32)
    largest = np.abs(groups).max(-1) * (np.float32(1) / np.float32(127))
    scales = np.minimum(largest, np.float32(65504)).astype(np.float16)
    step = scales.astype(np.float32)
    inverse = np.divide(np.float32(1), step, out=np.zeros_like(step), where=step > 0)
    codes = np.clip(np.rint(groups * inverse[..., None]), -127, 127).astype(np.int8)
    return codes.reshape(rows.shape), scales


def kept(rows: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """Rows (…, D) as a cache of a dtype gives them back."""
    if dtype == "q8_0":
        codes, scales = quantized(rows)
        return codes * np.repeat(scales.astype(np.float32), 32, axis=-1)
    return rows.astype(DTYPES[dtype]).astype(np.float32)


def put(
    cache: PagedKVCache,
    pages: tuple[NDArray[np.generic], NDArray[np.generic]],
    slot: int,
    rows: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> None:
    """Write a token's key and value (G, D) into pages of keys and of values, (G, …) each."""
    (k_page, v_page), (k, v) = pages, rows
    if cache.dtype != "q8_0":
        k_page[:, :, slot] = k
        v_page[:, slot, :] = v
        return
    heads, size = cache.n_kv_heads, cache.page_size
    split = size * cache.head_dim
    for page, row, key in ((k_page, k, True), (v_page, v, False)):
        codes, scales = quantized(row)
        flat = page.reshape(heads, -1)
        for part, numbers in (
            (flat[:, :split], codes),
            (flat[:, split:].view(np.float16), scales),
        ):
            if key:
                part.reshape(heads, -1, size)[:, :, slot] = numbers
            else:
                part.reshape(heads, size, -1)[:, slot] = numbers


def random_rows(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Numbers of all sizes that float16 has, its subnormals included."""
    rows = rng.normal(size=shape) * 10.0 ** rng.uniform(-8, 3.5, size=shape)
    return rows.astype(np.float32)


class CacheMachine(RuleBasedStateMachine):
    """Operations at random on a paged cache and on lists; both must hold the same."""

    def __init__(self, append: Append) -> None:
        super().__init__()
        self.append = append

    @initialize(
        shape=st.sampled_from(SHAPES),
        page_size=st.sampled_from(PAGE_SIZES),
        dtype=st.sampled_from(sorted(DTYPES)),
        seed=st.integers(0, 2**32 - 1),
    )
    def start(self, shape: tuple[int, int, int], page_size: int, dtype: str, seed: int) -> None:
        dims = 32 if dtype == "q8_0" and shape[2] % 32 else shape[2]
        self.cache = PagedKVCache(*shape[:2], dims, N_PAGES, page_size, dtype)
        self.table = self.cache.table
        self.rng = np.random.default_rng(seed)
        # Old contents must never shine through: every slot starts as NaN, or as a strange code.
        for pages in (self.cache.k, self.cache.v):
            pages.fill(77 if dtype == "q8_0" else np.nan)
        # sequence id → layer → list of (k, v), each (G, D)
        self.plain: dict[int, list[list[tuple[NDArray[np.float32], NDArray[np.float32]]]]] = {}
        self.reserved: dict[int, int] = {}  # sequence id → tokens it must have room for

    def live(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.plain)), label="sequence")

    def length(self, sequence: int) -> int:
        return len(self.plain[sequence][0])

    def held(self, sequence: int) -> int:
        """Pages that a sequence must hold by the plain account."""
        room = max(self.length(sequence), self.reserved[sequence])
        return -(-room // self.cache.page_size)

    def n_free(self) -> int:
        return N_PAGES - sum(self.held(sequence) for sequence in self.plain)

    def fits(self, room: int, already: int) -> bool:
        return -(-room // self.cache.page_size) - already <= self.n_free()

    @rule(n=st.integers(0, MAX_TOKENS))
    def add(self, n: int) -> None:
        if not self.fits(n, 0):
            self.refuses(lambda: self.table.add_sequence(n))
            return
        sequence = self.table.add_sequence(n)
        assert sequence not in self.plain
        self.plain[sequence] = [[] for _ in range(self.cache.n_layers)]
        self.reserved[sequence] = n

    @precondition(lambda self: self.plain)
    @rule(data=st.data(), n=st.integers(0, 2 * MAX_TOKENS))
    def reserve(self, data: st.DataObject, n: int) -> None:
        sequence = self.live(data)
        if not self.fits(n, self.held(sequence)):
            self.refuses(lambda: self.table.reserve(sequence, n))
            return
        self.table.reserve(sequence, n)
        self.reserved[sequence] = max(n, self.reserved[sequence])

    @precondition(lambda self: self.plain)
    @rule(data=st.data(), n=st.integers(0, MAX_TOKENS))
    def prefill(self, data: st.DataObject, n: int) -> None:
        sequence = self.live(data)
        if not self.fits(self.length(sequence) + n, self.held(sequence)):
            self.refuses(lambda: self.table.extend(sequence, n))
            return
        self.write([sequence], [n])

    @precondition(lambda self: self.plain)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Some tokens for some sequences in one append, in any order, as far as pages last."""
        every = sorted(self.plain)
        order = data.draw(st.permutations(every), label="order")
        chosen = order[: data.draw(st.integers(1, len(order)), label="sequences")]
        counts = []
        free = self.n_free()
        for sequence in chosen:
            n = data.draw(st.integers(1, 3), label="tokens")
            room = -(-(self.length(sequence) + n) // self.cache.page_size)
            missing = max(0, room - self.held(sequence))
            counts.append(n if missing <= free else 0)
            free -= missing if missing <= free else 0
        self.write(chosen, counts)

    @precondition(lambda self: self.plain)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        sequence = self.live(data)
        self.table.remove(sequence)
        del self.plain[sequence]
        del self.reserved[sequence]

    def write(self, sequences: list[int], counts: list[int]) -> None:
        starts = [self.table.extend(s, n) for s, n in zip(sequences, counts, strict=True)]
        assert starts == [self.length(sequence) for sequence in sequences]
        pages, lengths = self.table.as_array(sequences)
        row = np.repeat(np.arange(len(sequences), dtype=np.int32), counts)
        position = np.concatenate(
            [np.arange(s, s + n, dtype=np.int32) for s, n in zip(starts, counts, strict=True)]
        )
        np.testing.assert_array_equal(lengths, np.add(starts, counts))
        shape = (row.size, self.cache.n_kv_heads, self.cache.head_dim)
        for layer in range(self.cache.n_layers):
            k, v = random_rows(self.rng, shape), random_rows(self.rng, shape)
            batch = Batch(k, v, pages, row, position)
            before_k, before_v = self.cache.k.copy(), self.cache.v.copy()
            self.append(self.cache, layer, batch)
            page, slot = slots_of(self.cache, batch)
            for t in range(row.size):
                stored = kept(k[t], self.cache.dtype), kept(v[t], self.cache.dtype)
                self.plain[sequences[row[t]]][layer].append(stored)
                pages_of_token = before_k[layer, page[t]], before_v[layer, page[t]]
                put(self.cache, pages_of_token, slot[t], (k[t], v[t]))
            # Exact, and nothing else is written.
            np.testing.assert_array_equal(self.cache.k, before_k)
            np.testing.assert_array_equal(self.cache.v, before_v)

    def refuses(self, operation: Callable[[], object]) -> None:
        """The operation must fail for want of pages and leave everything as it was."""
        before = self.snapshot()
        with pytest.raises(OutOfPagesError) as caught:
            operation()
        assert caught.value.wanted > caught.value.free == self.n_free()
        assert caught.value.total == N_PAGES
        assert self.snapshot() == before

    def snapshot(self) -> tuple[int, dict[int, tuple[int, list[int]]], bytes, bytes]:
        rows = {s: (self.table.length(s), self.table.pages(s)) for s in self.plain}
        k, v = self.cache.k.tobytes(), self.cache.v.tobytes()
        return self.table.allocator.n_free, rows, k, v

    @invariant()
    def pages_add_up(self) -> None:
        pages = [page for sequence in self.plain for page in self.table.pages(sequence)]
        assert len(set(pages)) == len(pages)
        assert set(pages) <= set(range(N_PAGES))
        assert len(pages) + self.table.allocator.n_free == N_PAGES
        for sequence in self.plain:
            assert len(self.table.pages(sequence)) == self.held(sequence)

    @invariant()
    def arrays_agree(self) -> None:
        sequences = sorted(self.plain, reverse=True)
        pages, lengths = self.table.as_array(sequences)
        assert pages.dtype == lengths.dtype == np.int32
        assert pages.flags.c_contiguous
        assert pages.shape == (len(sequences), max(map(self.held, sequences), default=0))
        assert lengths.tolist() == [self.length(sequence) for sequence in sequences]
        for row, sequence in zip(pages.tolist(), sequences, strict=True):
            held = self.table.pages(sequence)
            assert row == held + [NO_PAGE] * (len(row) - len(held))

    @invariant()
    def contents_agree(self) -> None:
        for sequence, layers in self.plain.items():
            for layer, rows in enumerate(layers):
                k, v = self.cache.gather(layer, sequence)
                assert k.dtype == v.dtype == np.float32
                shape = (len(rows), self.cache.n_kv_heads, self.cache.head_dim)
                np.testing.assert_array_equal(k, np.array([r[0] for r in rows]).reshape(shape))
                np.testing.assert_array_equal(v, np.array([r[1] for r in rows]).reshape(shape))


def run_random_operations(
    append: Append, *, examples: int = 60, steps: int = 25, shrink: bool = True
) -> None:
    """Drive `append` through random operations; failing ones are shrunk, if wanted, and printed."""
    phases = [Phase.generate, *([Phase.shrink] if shrink else [])]
    run_state_machine_as_test(
        lambda: CacheMachine(append),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            phases=phases,
            report_multiple_bugs=False,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
