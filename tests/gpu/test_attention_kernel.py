"""attention with one query a sequence against the float64 reference: head dims, dtypes of the cache
and of the output, lengths beside page and part edges, numbers of parts."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import attention_cache
import numpy as np
import output_dtypes
import pytest
from attention_cache import DeviceCache
from guarded import Gpu
from matrix_units import use_matrix_units
from numpy.typing import NDArray

from rocmforge.gpu.arrays import F16, F32, Q8, Permuted
from rocmforge.gpu.ops import attention as op
from rocmforge.ops import cases, reference
from rocmforge.ops.cases import AttentionCase, AttentionInputs

# Largest relative RMS: the cache's numbers are used as they are, in float32, and then rounded.
EXACT = 2e-6
TOLERANCES = {F16: 5e-4, Permuted: 5e-4, Q8: 0.012}

CHECKS = tuple(
    dataclasses.replace(case, queries=(1,) * len(case.lengths)) for case in cases.ATTENTION_CHECKS
)
EDGES = tuple(
    AttentionCase(lengths, (1,) * len(lengths), heads, kv_heads, head_dim, page_size)
    for lengths, heads, kv_heads, head_dim, page_size in (
        ((1, 15, 16, 17, 127), 2, 1, 64, 16),
        ((31, 32, 33), 3, 1, 96, 32),
        ((63, 64, 65), 7, 1, 128, 64),
        ((257,), 9, 1, 32, 16),
        ((61,), 1, 1, 8, 16),
    )
)
LONG = AttentionCase((700, 1, 391), (1, 1, 1), 12, 3, 128, 32)  # of many splits, and of one


@functools.cache
def data(
    case: AttentionCase, kv: str, halves: bool = False
) -> tuple[AttentionInputs, DeviceCache, NDArray[np.float64]]:
    return attention_cache.make(case, kv, halves)


class How(NamedTuple):
    """What changes scores: see `rocmforge.plan.records.Attention`; sinks by their address."""

    window: int | None = None
    softcap: float | None = None
    sinks: int | None = None


PLAIN = How()


def attend(
    gpu: Gpu,
    case: AttentionCase,
    kv: str,
    dtype: type = F32,
    splits: int = 3,
    how: How = PLAIN,
    held: DeviceCache | None = None,
    **changed: object,
) -> NDArray[np.float32]:
    """What the kernels give for a case, as float32 (S, H, D)."""
    given, cache, _ = data(case, kv)
    cache = held or cache
    given = dataclasses.replace(given, **changed)
    sequences, columns = len(case.lengths), case.heads * case.head_dim
    out = output_dtypes.make(gpu, dtype, sequences, columns)
    gpu.run(
        op.attention(
            gpu.kernels,
            q=gpu.upload(given.q),
            k_pages=gpu.upload(cache.k),
            v_pages=gpu.upload(cache.v),
            k_scales=gpu.upload(cache.k_scales),
            v_scales=gpu.upload(cache.v_scales),
            page_table=gpu.upload(given.page_table),
            lengths=gpu.upload(given.lengths),
            scratch=gpu.empty(op.scratch_bytes(sequences, case.heads, case.head_dim, splits)),
            arrivals=(arrivals := gpu.upload(np.zeros(op.MAX_ARRIVALS, np.uint32))),
            out=out,
            sequences=sequences,
            heads=case.heads,
            kv_heads=case.kv_heads,
            head_dim=case.head_dim,
            page_size=case.page_size,
            max_pages=given.page_table.shape[1],
            scale=given.scale,
            kv=kv,
            splits=splits,
            **how._asdict(),
        )
    )
    assert not gpu.download(arrivals, op.MAX_ARRIVALS, np.uint32).any()
    got = output_dtypes.read(gpu, out, sequences, columns)
    return got.astype(np.float32).reshape(given.q.shape)


@pytest.mark.parametrize(("case", "kv"), attention_cache.with_dtypes(CHECKS + EDGES), ids=str)
def test_attention_agrees_with_the_reference(gpu: Gpu, case: AttentionCase, kv: str) -> None:
    got = attend(gpu, case, kv)
    architecture = gpu.runtime.properties.architecture
    tiled = op.choose(architecture, case.head_dim, kv, case.heads // case.kv_heads).TILES
    assert cases.relative_rms(got, data(case, kv, bool(tiled))[2]) <= EXACT


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        (case, dtype)
        for case in (CHECKS[3], EDGES[1], EDGES[2], CHECKS[7], LONG)
        for dtype in output_dtypes.fitting(case.heads * case.head_dim)[1:]
        if dtype is not Q8 or case.head_dim % 32 == 0
    ],
    ids=str,
)
def test_attention_writes_what_the_next_product_reads(
    gpu: Gpu, case: AttentionCase, dtype: type
) -> None:
    got = attend(gpu, case, "f16", dtype)
    assert cases.relative_rms(got, data(case, "f16")[2]) <= TOLERANCES[dtype]


@pytest.mark.parametrize("case", [CHECKS[3], EDGES[0], EDGES[3], LONG], ids=str)
@pytest.mark.parametrize(
    ("window", "softcap", "sinks"),
    [(1, None, False), (16, None, True), (40, 2.0, False), (130, None, False), (None, 0.7, True)],
)
@pytest.mark.parametrize("splits", [1, 5])
def test_windows_soft_caps_and_sinks(
    gpu: Gpu,
    case: AttentionCase,
    window: int | None,
    softcap: float | None,
    sinks: bool,
    splits: int,
) -> None:
    last = np.linspace(-2, 3, case.heads).astype(np.float32) if sinks else None
    at = None if last is None else gpu.upload(last)
    got = attend(gpu, case, "f16", splits=splits, how=How(window, softcap, at))
    given = data(case, "f16")[0]
    with np.errstate(invalid="ignore"):
        wanted = reference.attention(*given.arguments, window, softcap, last)
    assert cases.relative_rms(got, wanted) <= 2 * EXACT


@pytest.mark.parametrize("tiled", [False, True])
def test_keys_outside_the_window_are_not_read(
    gpu: Gpu, tiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages of the table hold NaN there."""
    if tiled:
        use_matrix_units(gpu, monkeypatch)
    case = AttentionCase((200,), (1,), 4, 2, 64, 16)
    given, cache, _ = data(case, "f16")
    wanted = attend(gpu, case, "f16", how=How(40))
    k, v = cache.k.copy(), cache.v.copy()
    for pages in (k, v):
        pages[given.page_table[0, :8]] = np.nan  # tokens before 128; the query sees 160
    spoiled = dataclasses.replace(cache, k=k, v=v)
    got = attend(gpu, case, "f16", how=How(40), held=spoiled)
    np.testing.assert_array_equal(got, wanted)


def test_the_number_of_parts_does_not_matter(gpu: Gpu) -> None:
    for case in (AttentionCase((200, 3), (1, 1), 2, 1, 64, 32), LONG):
        for splits in (1, 2, 5, 64):
            got = attend(gpu, case, "f16", splits=splits)
            assert cases.relative_rms(got, data(case, "f16")[2]) <= EXACT


TILED = (
    AttentionCase((1, 15, 16, 17, 127), (1,) * 5, 2, 1, 64, 16),
    AttentionCase((128, 129, 256), (1,) * 3, 4, 2, 64, 32),  # of one split
    AttentionCase((63, 130, 192, 193), (1,) * 4, 7, 1, 128, 64),  # the last one of two splits
    AttentionCase((257,), (1,), 9, 1, 64, 16),  # of two groups of heads
    AttentionCase((200, 33), (1, 1), 2, 2, 128, 32),
)


@pytest.mark.parametrize(
    ("case", "kv", "waves", "queries"),
    [
        *((case, kv, 8, None) for case in TILED for kv in ("f16", "q8_0", "fp8_e4m3")),
        (TILED[2], "f16", 2, None),
        (TILED[2], "f16", 4, 4),
    ],
    ids=str,
)
def test_matrix_units_of_nvidia_are_as_exact(
    gpu: Gpu,
    case: AttentionCase,
    kv: str,
    waves: int,
    queries: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_matrix_units(gpu, monkeypatch, waves, queries)
    got = attend(gpu, case, kv)
    assert cases.relative_rms(got, data(case, kv, halves=True)[2]) <= EXACT


def test_small_weights_of_a_long_sequence_count_on_matrix_units(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One token has the score 17, which the others see as a weight of e^-17, below 2^-24."""
    use_matrix_units(gpu, monkeypatch)
    case = AttentionCase((600,), (1,), 2, 1, 64, 16)
    given, cache, _ = data(case, "f16")
    k, v = np.zeros_like(cache.k), np.ones_like(cache.v)
    page = given.page_table[0, 0]
    k[page, 0, 0], v[page, 0, 0] = 17 / 8, 0
    held = dataclasses.replace(cache, k=k, v=v)
    got = attend(gpu, case, "f16", held=held, q=np.ones_like(given.q))
    tail = 599 * np.exp(-17.0)
    np.testing.assert_allclose(got, tail / (1 + tail), rtol=1e-5)


@pytest.mark.parametrize("splits", [1, 5])
def test_windows_soft_caps_and_sinks_on_matrix_units(
    gpu: Gpu, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_matrix_units(gpu, monkeypatch)
    case = TILED[0]
    sinks = np.linspace(-2, 3, case.heads).astype(np.float32)
    got = attend(gpu, case, "f16", splits=splits, how=How(40, 2.0, gpu.upload(sinks)))
    given = data(case, "f16")[0]
    wanted = reference.attention(*given.arguments, 40, 2.0, sinks)
    assert cases.relative_rms(got, wanted) <= 2 * EXACT


def test_many_parts_give_the_same_bits_each_time(gpu: Gpu) -> None:
    first = attend(gpu, LONG, "f16", splits=64)
    np.testing.assert_array_equal(attend(gpu, LONG, "f16", splits=64), first)


def test_a_sequence_without_tokens_gives_zeros(gpu: Gpu) -> None:
    case = EDGES[1]
    lengths = np.array([31, 0, 33], np.int32)
    got = attend(gpu, case, "f16", lengths=lengths)
    wanted = data(case, "f16")[2] * (lengths > 0)[:, None, None]
    assert np.all(got[1] == 0)
    assert cases.relative_rms(got, wanted) <= EXACT


def test_the_launch_serves_a_sequence_that_grows(gpu: Gpu) -> None:
    case = AttentionCase((150,), (1,), 2, 2, 64, 16)
    wanted = data(case, "f16")[2]
    for length in (1, 149, 150):
        got = attend(gpu, case, "f16", lengths=np.array([length], np.int32))
        assert (cases.relative_rms(got, wanted) <= EXACT) == (length == 150)


SLOTS = ((64, 264), (96, 264), (128, 132))
"""Head dims, and how many blocks such a device holds at once."""


def splits_of(head_dim: int, sequences: int, heads: int, kv_heads: int, tokens: int) -> int:
    """Splits on a device of 132 multiprocessors."""
    chosen = op.choose("sm_90", head_dim, "f16", heads // kv_heads)
    return op.choose_splits("sm_90", 132, chosen, sequences, heads, kv_heads, tokens)


def test_splits_fill_the_device_but_no_part_is_tiny() -> None:
    for head_dim, slots in SLOTS:
        assert splits_of(head_dim, 1, 2, 1, 1 << 20) == op.MAX_SPLITS
        assert splits_of(head_dim, 1, 64, 32, 1) == 1
        for sequences in range(1, 300):
            for kv_heads in (4, 8, 32):
                blocks = sequences * kv_heads
                found = splits_of(head_dim, sequences, 2 * kv_heads, kv_heads, 4096)
                assert found == 1 or found * blocks >= 0.75 * slots
                assert found == 1 or blocks <= op.MAX_ARRIVALS


def test_short_contexts_of_many_sequences_stay_whole() -> None:
    assert splits_of(128, 20, 32, 8, 2048) == 1 < splits_of(128, 20, 32, 8, 2049)
    assert splits_of(96, 9, 32, 32, 256) == 1 < splits_of(96, 9, 32, 32, 257)


@pytest.mark.parametrize(("sequences", "kv_heads"), [(1, 8), (1, 32), (2, 32), (5, 32), (8, 32)])
def test_the_last_round_of_blocks_is_nearly_full(sequences: int, kv_heads: int) -> None:
    blocks = sequences * kv_heads
    for head_dim, slots in SLOTS:
        splits = splits_of(head_dim, sequences, 2 * kv_heads, kv_heads, 1 << 15)
        rounds = -(-splits * blocks // slots)
        assert splits * blocks >= 0.9 * rounds * slots


@pytest.mark.parametrize("early", [0, 1])
@pytest.mark.parametrize("case", [EDGES[2], LONG], ids=str)
def test_keys_and_values_may_be_loaded_early_or_late(
    gpu: Gpu, case: AttentionCase, early: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = op.choose
    monkeypatch.setattr(
        op, "choose", lambda *given: dataclasses.replace(choose(*given), EARLY=early)
    )
    assert cases.relative_rms(attend(gpu, case, "f16"), data(case, "f16")[2]) <= EXACT


def test_matrix_units_take_heads_that_share_keys() -> None:
    def tiled(architecture: str = "sm_90", dims: int = 128, kv: str = "f16", group: int = 4) -> int:
        return op.choose(architecture, dims, kv, group).TILES

    assert tiled() == tiled(dims=64) == tiled(group=2) == tiled(group=7) == 1
    assert tiled(kv="q8_0") == tiled(kv="fp8_e4m3") == 1
    others = (tiled("gfx1100"), tiled("gfx942"), tiled(dims=96), tiled(dims=256), tiled(group=1))
    assert not any((*others, tiled(kv="f32")))
    assert op.choose("sm_90", 128, "f16", 7).QUERIES == 8
    assert [op.choose("sm_90", dims, "f16", 4).ALONE for dims in (64, 128)] == [256, 192]


@pytest.mark.parametrize(("blocks", "waves"), [(132, 8), (133, 4), (264, 4), (265, 2)])
def test_many_blocks_on_matrix_units_have_fewer_waves_each(blocks: int, waves: int) -> None:
    found = op.for_blocks(op.choose("sm_90", 128, "f16", 4), blocks, 132)
    assert (waves, 8) == (found.WAVES, found.WAVES * found.RESIDENT)
    assert (192 if waves == 8 else 2048) == found.ALONE


@pytest.mark.parametrize(("blocks", "waves"), [(264, 8), (265, 4), (528, 4), (529, 2), (9999, 2)])
def test_many_blocks_have_fewer_waves_each(blocks: int, waves: int) -> None:
    found = op.for_blocks(op.choose("sm_90", 128, "f16", 1), blocks, 132)
    assert (waves, 16) == (found.WAVES, found.WAVES * found.RESIDENT)
    assert (0 if waves == 8 else 256) == found.ALONE
    amd = op.choose("gfx1100", 128, "f16", 1)
    assert op.for_blocks(amd, blocks, 132) == amd


@pytest.mark.parametrize("architecture", ["gfx1100", "gfx942", "sm_90"])
def test_every_group_of_query_heads_has_constants(architecture: str) -> None:
    builds = [build.defines for build in op.builds(architecture)]
    for group in range(1, 65):
        constants = dataclasses.asdict(op.choose(architecture, 128, "f16", group))
        assert constants in builds
        assert 1 <= constants["QUERIES"] <= max(1, 2 * group - 2)
