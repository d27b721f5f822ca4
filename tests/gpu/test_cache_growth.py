"""The device's cache takes memory as it fills: what it holds moves unchanged, or stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from numpy.typing import NDArray
from slow_parameters import others_slow

from rocmforge.engine import Engine
from rocmforge.errors import OutOfMemoryError
from rocmforge.gpu import cache as device_cache
from rocmforge.gpu.cache import DeviceKVCache
from rocmforge.gpu.compiler import Kernels
from rocmforge.kv import KV_DTYPES
from rocmforge.model.synthetic import make_model
from rocmforge.profiling.memory import memory_profile
from rocmforge.sampling import SamplingParams

pytestmark = pytest.mark.either_wave

LAYERS = 2
IDS = [3 + (7 * i * i + 11 * i) % 250 for i in range(21)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return make_model(path, "tiny", "Q8_0", seed=5, layers=LAYERS)


@pytest.fixture
def device(kernels: Kernels) -> str:
    return f"{kernels.runtime.platform}:{kernels.runtime.properties.index}"


@pytest.fixture
def small_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches begin with one page."""
    monkeypatch.setattr(device_cache, "FIRST_TOKENS", 16)


@pytest.fixture
def no_leak(kernels: Kernels) -> Iterator[None]:
    free = kernels.runtime.memory_info()[0]
    yield
    assert kernels.runtime.memory_info()[0] >= free - (64 << 20)


def streams(cache: DeviceKVCache, pages: int) -> list[tuple[int, int]]:
    """Address and bytes of the first pages, in each layer, of keys, values and their scales."""
    rows, dims = pages * cache.page_size * cache.n_kv_heads, cache.head_dim
    numbers = {"f16": 2, "f32": 4}.get(cache.dtype, 1) * dims
    scales = {"q8_0": dims // 16, "fp8_e4m3": 2}.get(cache.dtype, 0)
    found = []
    for layer in range(cache.n_layers):
        found += [(at, rows * numbers) for at in cache.pages(layer)]
        found += [(at, rows * scales) for at in cache.scales(layer) if at]
    return found


def read(cache: DeviceKVCache, pages: int) -> list[bytes]:
    out = []
    for address, nbytes in streams(cache, pages):
        host = np.empty(nbytes, np.uint8)
        cache.runtime.copy_to_host(host, address)
        out.append(host.tobytes())
    return out


@pytest.mark.usefixtures("small_start", "no_leak")
def test_layers_with_a_window_take_the_memory_of_their_windows(kernels: Kernels) -> None:
    cache = DeviceKVCache(kernels.runtime, 3, 1, 8, 512, 16, "f16", windows=(None, 16, 32))
    try:
        page = 2 * 16 * 8 * 2  # bytes of keys and values in a layer
        assert cache.nbytes == 3 * page
        sequence = cache.table.add_sequence(8192)
        reach = (32 + 2048) // 16 + 1  # pages of the widest window and of a pass
        assert cache.nbytes == (512 + 2 * reach) * page
        moves = cache.moves
        for _ in range(8192 // 32):
            cache.table.extend(sequence, 32)
        assert (cache.moves, cache.nbytes) == (moves, (512 + 2 * reach) * page)
        cache.table.remove(sequence)
        cache.table.add_sequence(
            8192, prompt=np.zeros(8192, np.int64)
        )  # keeps all until it has run
        assert cache.nbytes == 3 * 512 * page
    finally:
        cache.close()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(KV_DTYPES),
    shape=st.sampled_from([(1, 1, 32), (2, 3, 64), (3, 2, 96)]),
    n_pages=st.integers(1, 80),
    steps=st.lists(st.integers(1, 80), max_size=5),
)
def test_pages_move_unchanged_and_new_ones_are_zeros(
    kernels: Kernels, dtype: str, shape: tuple[int, int, int], n_pages: int, steps: list[int]
) -> None:
    cache = DeviceKVCache(kernels.runtime, *shape, n_pages, 16, dtype)
    rng = np.random.default_rng(0)
    try:
        had = min(n_pages, device_cache.FIRST_TOKENS // 16)
        for wanted in steps:
            bytes_per_page = cache.bytes_per_token * 16
            assert cache.nbytes == had * bytes_per_page
            for address, nbytes in streams(cache, had):
                cache.runtime.copy_to_device(address, rng.integers(0, 256, nbytes, np.uint8))
            before, moves = read(cache, had), cache.moves
            cache.grow(min(wanted, n_pages))
            now = cache.nbytes // bytes_per_page
            assert now == (had if wanted <= had else min(n_pages, max(wanted, 2 * had)))
            assert (cache.moves > moves) == (now > had)
            after = read(cache, now)
            for old, new in zip(before, after, strict=True):
                assert new[: len(old)] == old
                assert not any(new[len(old) :])
            had = now
    finally:
        cache.close()
        cache.close()  # idempotent


@pytest.mark.parametrize("kv_dtype", others_slow(KV_DTYPES, ("f16", "q8_0")))
def test_logits_are_those_of_a_cache_that_never_moved(
    device: str, model: Path, small_start: None, kv_dtype: Any
) -> None:
    """One prompt alone, then two sequences whose captured pass meets a growth."""

    def run(whole: bool) -> tuple[list[NDArray[np.float32]], list[int]]:
        with Engine.from_gguf(
            model, device, ctx=96, sequences=2, page_size=16, kv_dtype=kv_dtype
        ) as engine:
            cache = engine.cache
            assert isinstance(cache, DeviceKVCache)
            if whole:
                cache.grow(cache.n_pages)
            first, second = engine.add_sequence(), engine.add_sequence()
            found, sizes = [engine.prefill(first, IDS)], [cache.nbytes]
            found.append(engine.prefill(second, IDS[:12]))
            for step in range(24):
                found.append(engine.decode([first, second], [step + 3, step + 4]))
                sizes.append(cache.nbytes)
                assert memory_profile(engine).kv.pool_bytes == cache.nbytes
            assert memory_profile(engine).kv.full_bytes == 2 * 96 * cache.bytes_per_token
            return found, sizes

    (grown, sizes), (fixed, full) = run(whole=False), run(whole=True)
    for ours, wanted in zip(grown, fixed, strict=True):
        np.testing.assert_array_equal(ours, wanted)
    assert len(set(full)) == 1
    assert sizes == sorted(sizes)
    assert len(set(sizes)) >= 3
    assert sizes[0] == full[0] // 6


def test_a_timed_pass_outlives_a_growth(device: str, model: Path, small_start: None) -> None:
    with Engine.from_gguf(model, device, ctx=96, page_size=16) as engine:
        sequence, other = engine.add_sequence(), engine.add_sequence()
        timed = engine.timed_pass([sequence], [IDS[:3]])
        engine.prefill(other, IDS)
        assert timed.seconds() > 0
        timed.close()


def test_no_room_to_grow_is_an_error_that_loses_nothing(
    device: str, model: Path, small_start: None, no_leak: None
) -> None:
    with Engine.from_gguf(model, device, ctx=2048, sequences=1 << 18, page_size=16) as engine:
        sequence = engine.add_sequence()
        first = engine.prefill(sequence, IDS)
        before = engine.cache.nbytes
        with pytest.raises(OutOfMemoryError, match=r"the KV cache of \d+ tokens wanted"):
            engine.add_sequence(2048 << 18 >> 1)
        assert engine.cache.nbytes == before
        assert engine.cache.table.length(sequence) == len(IDS)
        after = engine.decode([sequence], [5])
        size = engine.cache.nbytes
        assert size == before
    with Engine.from_gguf(model, device, ctx=2048, page_size=16) as engine:
        sequence = engine.add_sequence()
        np.testing.assert_array_equal(first, engine.prefill(sequence, IDS))
        np.testing.assert_array_equal(after, engine.decode([sequence], [5]))


def test_a_prompt_that_finds_no_memory_waits_until_another_has_ended(
    device: str, model: Path, small_start: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(max_tokens=6)
    with Engine.from_gguf(model, device, ctx=32, sequences=2, page_size=16) as engine:
        wanted = [token.id for token in engine.generate([IDS[:20], IDS[:18]], params)]
    with Engine.from_gguf(model, device, ctx=32, sequences=2, page_size=16) as engine:
        cache = engine.cache
        assert isinstance(cache, DeviceKVCache)
        cache.grow(2)
        held, refused = cache.nbytes, []

        def full(pages: int) -> None:
            if pages > 2:
                refused.append(pages)
                raise OutOfMemoryError("no memory")

        monkeypatch.setattr(cache.table.allocator, "_back", full)
        tokens = list(engine.generate([IDS[:20], IDS[:18]], params))
        assert refused
        assert cache.nbytes == held
        assert sorted(token.id for token in tokens) == sorted(wanted)
        assert [token.prompt for token in tokens] == [0] * 6 + [1] * 6


@pytest.mark.parametrize("call", ["allocate", "copy_on_device", "fill", "free"])
def test_an_interrupt_while_it_grows_loses_no_key(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, no_leak: None, call: str
) -> None:
    monkeypatch.setattr(device_cache, "FIRST_TOKENS", 16)
    runtime = kernels.runtime
    cache = DeviceKVCache(runtime, 3, 1, 32, 8, 16, "q8_0")
    for address, nbytes in streams(cache, 1):
        runtime.copy_to_device(address, np.arange(nbytes, dtype=np.uint8))
    before = read(cache, 1)
    work, left = getattr(type(runtime), call), [1]

    def interrupted(self: Any, *arguments: Any) -> Any:
        if not left[0]:
            left[0] = 100
            raise KeyboardInterrupt
        left[0] -= 1
        return work(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(type(runtime), call, interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.grow(4)
    assert read(cache, 1) == before
    cache.grow(4)
    assert [now[: len(old)] for now, old in zip(read(cache, 4), before, strict=True)] == before
    cache.close()
