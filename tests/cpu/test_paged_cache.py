"""PagedKVCache: layout, sizes, lazily backed memory; random operations against a plain cache."""

from __future__ import annotations

import numpy as np
import psutil
import pytest
from kv.plain_cache import Append, Batch, plain_append, run_random_operations

from rocmforge.cpu.cache import PagedKVCache
from rocmforge.kv.page_table import pages_for_context


def test_random_operations_agree_with_a_plain_cache() -> None:
    run_random_operations(plain_append)


def wrong_slot(cache: PagedKVCache, layer: int, batch: Batch) -> None:
    moved = np.minimum(batch.position + 1, batch.pages.shape[1] * cache.page_size - 1)
    plain_append(cache, layer, Batch(batch.k, batch.v, batch.pages, batch.row, moved))


def one_too_many(cache: PagedKVCache, layer: int, batch: Batch) -> None:
    plain_append(cache, layer, batch)
    if batch.row.size:
        cache.v[layer, batch.pages[0, 0], 0, -1, 0] = 1


def truncating(cache: PagedKVCache, layer: int, batch: Batch) -> None:
    """Cuts the keys to float16's digits where it should round."""
    k = (batch.k.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    plain_append(cache, layer, Batch(k, batch.v, batch.pages, batch.row, batch.position))


@pytest.mark.parametrize("broken", [wrong_slot, one_too_many, truncating])
def test_random_operations_find_a_broken_append(broken: Append) -> None:
    with pytest.raises(AssertionError, match="Arrays are not equal"):
        run_random_operations(broken, examples=20, steps=10, shrink=False)


def test_layout_of_one_token() -> None:
    cache = PagedKVCache(2, 3, 4, n_pages=5, page_size=16, dtype="f16")
    assert cache.k.shape == (2, 5, 3, 4, 16)
    assert cache.v.shape == (2, 5, 3, 16, 4)
    assert cache.k.dtype == cache.v.dtype == np.float16
    blocked, sequence = cache.table.add_sequence(1), cache.table.add_sequence()
    cache.table.extend(sequence, 18)
    cache.k[1, 2, :, :, 1] = np.arange(12).reshape(3, 4)  # token 17: second page, slot 1
    cache.v[1, 2, :, 1, :] = 100 + np.arange(12).reshape(3, 4)
    assert cache.table.pages(sequence) == [1, 2]
    k, v = cache.gather(1, sequence)
    assert k.shape == v.shape == (18, 3, 4)
    np.testing.assert_array_equal(k[17], np.arange(12).reshape(3, 4))
    np.testing.assert_array_equal(v[17], 100 + np.arange(12).reshape(3, 4))
    assert np.count_nonzero(k) == 11
    assert np.count_nonzero(v) == 12
    assert cache.gather(0, blocked)[0].shape == (0, 3, 4)


def test_gather_is_a_copy() -> None:
    cache = PagedKVCache(1, 1, 4, n_pages=1, page_size=16, dtype="f32")
    sequence = cache.table.add_sequence()
    cache.table.extend(sequence, 2)
    for array in cache.gather(0, sequence):
        array[:] = 5
    assert not cache.k.any()
    assert not cache.v.any()


@pytest.mark.parametrize(
    ("layers", "heads", "dim", "dtype", "wanted"),
    [
        (32, 32, 128, "f16", 524288),  # Llama 2 7B
        (32, 8, 128, "f16", 131072),  # Llama 3 8B
        (80, 8, 128, "f16", 327680),  # 70B
        (22, 4, 64, "f32", 45056),  # TinyLlama 1.1B
        (32, 32, 128, "q8_0", 278528),  # 34 bytes for 32 numbers
    ],
)
def test_bytes(layers: int, heads: int, dim: int, dtype: str, wanted: int) -> None:
    cache = PagedKVCache(layers, heads, dim, n_pages=3, page_size=32, dtype=dtype)
    assert cache.bytes_per_token == wanted
    assert cache.nbytes == wanted * 3 * 32


@pytest.mark.parametrize("page_size", [16, 32, 64])
def test_storage_begins_on_a_cache_line(page_size: int) -> None:
    for n_pages in (1, 3, 500):
        cache = PagedKVCache(1, 1, 8, n_pages, page_size, "f16")
        assert cache.k.ctypes.data % 64 == cache.v.ctypes.data % 64 == 0
        assert cache.k.flags.c_contiguous
        assert cache.v.flags.c_contiguous


def test_a_large_pool_takes_no_memory_before_it_is_used() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    cache = PagedKVCache(8, 8, 128, n_pages=1024, page_size=64, dtype="f16")
    sequence = cache.table.add_sequence(reserve_tokens=4096)
    cache.table.extend(sequence, 100)
    assert cache.nbytes == 2 * 2**30
    assert process.memory_info().rss - before < 32 * 2**20


@pytest.mark.parametrize(
    ("tokens", "sequences", "page_size", "wanted"),
    [(1, 1, 16, 1), (16, 1, 16, 1), (17, 1, 16, 2), (100, 3, 32, 12), (4096, 8, 64, 512)],
)
def test_pages_for_context(tokens: int, sequences: int, page_size: int, wanted: int) -> None:
    assert pages_for_context(tokens, sequences, page_size) == wanted
    cache = PagedKVCache(1, 1, 1, wanted, max(page_size, 16), "f16")
    for _ in range(sequences):
        cache.table.extend(cache.table.add_sequence(), tokens)
    assert cache.table.allocator.n_free == 0


@pytest.mark.parametrize("name", ["n_tokens", "n_sequences", "page_size"])
def test_pages_for_context_names_what_is_wrong(name: str) -> None:
    arguments = {"n_tokens": 1, "n_sequences": 1, "page_size": 16, name: 0}
    with pytest.raises(ValueError, match=f"{name}: got 0, wanted at least 1"):
        pages_for_context(**arguments)


GOOD = {
    "n_layers": 1,
    "n_kv_heads": 1,
    "head_dim": 8,
    "n_pages": 2,
    "page_size": 16,
    "dtype": "f16",
}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("n_layers", 0, "n_layers: got 0, wanted at least 1"),
        ("n_kv_heads", -1, "n_kv_heads: got -1, wanted at least 1"),
        ("head_dim", 0, "head_dim: got 0, wanted at least 1"),
        ("n_pages", 0, "n_pages: got 0, wanted at least 1"),
        ("page_size", 48, r"page_size: got 48, wanted one of \(16, 32, 64\)"),
        ("dtype", "q8", "KV dtype: got 'q8', wanted one of f16, f32, q8_0 for layers on the CPU$"),
        ("dtype", "fp8_e4m3", "KV dtype: got 'fp8_e4m3', wanted one of f16, f32, q8_0 for layers"),
        ("dtype", "q8_0", "KV dtype q8_0: got head dim 8, wanted a multiple of 32"),
        ("head_dim", 2**50, "GiB, more than this machine lends; wanted fewer pages"),
        ("head_dim", 2**70, "GiB, more than this machine lends; wanted fewer pages"),
    ],
)
def test_bad_arguments_are_named(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PagedKVCache(**{**GOOD, name: value})


def test_bad_layer_or_sequence_is_named() -> None:
    cache = PagedKVCache(**GOOD)
    sequence = cache.table.add_sequence()
    for layer in (-1, 1):
        with pytest.raises(ValueError, match=f"layer: got {layer}, wanted 0 to 0"):
            cache.gather(layer, sequence)
    with pytest.raises(ValueError, match="sequence: got id 5"):
        cache.gather(0, 5)
