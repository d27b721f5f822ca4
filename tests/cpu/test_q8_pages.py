"""Keys and values in q8_0 on every instruction set: error, layout, attention, and whole models.

Random operations on a cache are in tests/kv/plain_cache.py.
"""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from rocmforge.cpu.backend import CpuBackend, instruction_sets
from rocmforge.cpu.cache import PagedKVCache
from rocmforge.engine import Engine
from rocmforge.kv import Q8_GROUP
from rocmforge.kv.batch import Queries, Slots, extend
from rocmforge.model.synthetic import make_model
from rocmforge.ops.cases import relative_rms
from rocmforge.testing import reference_logits

ISAS = instruction_sets()
IDS = [3 + (7 * i * i + 11 * i) % 250 for i in range(40)]


def filled(
    backend: CpuBackend, k: NDArray[np.float32], v: NDArray[np.float32], page_size: int
) -> tuple[PagedKVCache, int]:
    """A cache of one layer whose only sequence has the keys and values (n, G, D)."""
    n, heads, dims = k.shape
    cache = PagedKVCache(1, heads, dims, -(-n // page_size) + 1, page_size, "q8_0")
    for pages in (cache.k, cache.v):
        pages.fill(77)
    sequence = cache.table.add_sequence()
    batch = extend(cache.table, [sequence], [n])
    backend.kv_append(k, v, cache.k[0], cache.v[0], Slots(batch.pages, batch.offsets))
    return cache, sequence


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 70),
    shape=st.sampled_from([(1, 32), (2, 64), (3, 96), (1, 256)]),
    page_size=st.sampled_from([16, 32, 64]),
)
def test_the_error_is_half_a_step(
    isa: str, seed: int, n: int, shape: tuple[int, int], page_size: int
) -> None:
    rng = np.random.default_rng(seed)
    size = 10.0 ** rng.uniform(-9, 4, (2, n, shape[0], 1))
    rows = (rng.normal(size=(2, n, *shape)) * size).astype(np.float32)
    cache, sequence = filled(CpuBackend(1, isa=isa), *rows, page_size)
    groups = rows.reshape(2, n, shape[0], -1, Q8_GROUP)
    step = np.abs(groups).max(-1, keepdims=True) / 127
    # a scale is an f16: rounded by 2^-11 of it, and below 2^-14 in steps of 2^-24
    bound = 0.5 * step * (1 + 2**-9) + 128 * 2.0**-25
    read = np.array(cache.gather(0, sequence)).reshape(groups.shape)
    assert (np.abs(groups - read) <= bound).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_spoils_its_group_alone(isa: str, bad: float) -> None:
    rows = np.random.default_rng(1).normal(size=(2, 3, 1, 96)).astype(np.float32)
    rows[:, 1, 0, 40] = bad
    cache, sequence = filled(CpuBackend(1, isa=isa), *rows, 16)
    for read in cache.gather(0, sequence):
        assert np.isnan(read[1, 0, 32:64]).all()
        read[1, 0, 32:64] = 0
        assert np.isfinite(read).all()


@pytest.mark.parametrize("isa", ISAS)
def test_the_largest_numbers_are_kept_and_zeros_are_zeros(isa: str) -> None:
    rows = np.zeros((2, 2, 1, 64), np.float32)
    rows[:, 0, 0, :32] = 8e6
    rows[:, 0, 0, 5] = -8e6
    cache, sequence = filled(CpuBackend(1, isa=isa), *rows, 16)
    for read, row in zip(cache.gather(0, sequence), rows, strict=True):
        np.testing.assert_allclose(read, row, rtol=1e-3)
        assert not read[1].any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dims", "page_size", "n", "queries"),
    [
        (1, 1, 32, 16, 1, 1),
        (4, 2, 64, 32, 77, 1),
        (6, 1, 96, 64, 130, 40),
        (8, 8, 128, 32, 65, 3),
        (2, 1, 256, 16, 33, 33),
    ],
)
def test_attention_is_that_over_the_numbers_it_reads(
    isa: str, heads: int, kv_heads: int, dims: int, page_size: int, n: int, queries: int
) -> None:
    rng = np.random.default_rng(n)
    rows = rng.normal(size=(2, n, kv_heads, dims)).astype(np.float32)
    q = rng.normal(size=(queries, heads, dims)).astype(np.float32)
    backend = CpuBackend(2, isa=isa)
    cache, sequence = filled(backend, *rows, page_size)
    numbers = cache.gather(0, sequence)
    wide = PagedKVCache(1, kv_heads, dims, cache.n_pages, page_size, "f32")
    other = wide.table.add_sequence()
    batch = extend(wide.table, [other], [n])
    backend.kv_append(*numbers, wide.k[0], wide.v[0], Slots(batch.pages, batch.offsets))
    seen = Queries(batch.page_table, batch.lengths, np.array([0, queries], np.int32))
    got, wanted = np.empty_like(q), np.empty_like(q)
    backend.attention(q, cache.k[0], cache.v[0], seen, dims**-0.5, got)
    backend.attention(q, wide.k[0], wide.v[0], seen, dims**-0.5, wanted)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("isa", ISAS)
def test_a_model_stays_within_the_gpus_bound(
    isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCMFORGE_CPU_ISA", isa)
    path = make_model(tmp_path / "tiny.gguf", "tiny", "F16", seed=5, layers=2)
    wanted = reference_logits(path, IDS)
    with Engine.from_gguf(path, "cpu", ctx=64, page_size=16, kv_dtype="q8_0") as engine:
        halves = 2 * engine.config.n_kv_heads * engine.config.head_dim * engine.config.n_layers
        assert engine.cache.bytes_per_token == halves * 34 // 32
        assert 1e-4 < relative_rms(engine.logits(IDS), wanted) <= 2e-2
        sequence = engine.add_sequence()
        engine.prefill(sequence, IDS[:20])
        for at in range(20, 40):
            row = engine.decode([sequence], [IDS[at]])[0]
            assert relative_rms(row, wanted[at]) <= 2e-2


def test_pages_of_another_shape_are_refused() -> None:
    backend, zero = CpuBackend(1), np.zeros(1, np.int32)
    rows = np.zeros((1, 1, 32), np.float32)
    good = np.zeros((1, 1, 34, 16), np.int8), np.zeros((1, 1, 16, 34), np.int8)
    backend.kv_append(rows, rows, *good, Slots(zero, zero))
    for k, v, message in (
        (np.zeros((1, 1, 33, 16), np.int8), np.zeros((1, 1, 16, 33), np.int8), "34 bytes"),
        (np.zeros((1, 1, 68, 16), np.int8), np.zeros((1, 1, 16, 68), np.int8), "head dim"),
        (good[0].view(np.uint8), good[1].view(np.uint8), "float16, float32 or int8"),
        (good[0], good[1].astype(np.float16), "float16, float32 or int8"),
    ):
        with pytest.raises(ValueError, match=message):
            backend.kv_append(rows, rows, k, v, Slots(zero, zero))
