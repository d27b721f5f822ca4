"""attention of prompts against the float64 reference: head dims, dtypes of the cache, lengths
beside page, query tile and step edges, several sequences, a prompt's second half."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

import attention_cache
import numpy as np
import output_dtypes
import pytest
from attention_cache import DeviceCache
from guarded import Gpu
from numpy.typing import NDArray

from rocmforge.gpu.arrays import F16, F32, Permuted
from rocmforge.gpu.ops import attention_prompt as op
from rocmforge.gpu.ops.attention import MAX_ARRIVALS
from rocmforge.kv import PAGE_SIZES
from rocmforge.ops import cases, reference
from rocmforge.ops.cases import AttentionCase, AttentionInputs

TOLERANCE = 1e-3  # queries, weights, and keys and values of other dtypes are rounded to f16

EDGES = tuple(
    AttentionCase(lengths, queries, heads, kv_heads, head_dim, page_size)
    for lengths, queries, heads, kv_heads, head_dim, page_size in (
        ((1, 15, 16, 17), (1, 15, 16, 17), 2, 1, 64, 16),
        ((31, 65, 33), (2, 65, 1), 3, 1, 96, 32),
        ((61,), (61,), 2, 2, 8, 64),
        ((127,), (66,), 1, 1, 80, 32),
    )
)


@functools.cache
def data(case: AttentionCase, kv: str) -> tuple[AttentionInputs, DeviceCache, NDArray[np.float64]]:
    return attention_cache.make(case, kv)


def attend(
    gpu: Gpu,
    case: AttentionCase,
    kv: str,
    dtype: type = F32,
    extra_queries: int = 0,
    deep: bool = False,
    **how: Any,
) -> NDArray[np.float32]:
    """What the kernel gives for a case, as float32 (T, H, D)."""
    given, cache, _ = data(case, kv)
    tokens = given.q.shape[0]
    columns = case.heads * case.head_dim
    out = output_dtypes.make(gpu, dtype, tokens, columns)
    properties = gpu.runtime.properties
    scratch = op.scratch_bytes(
        properties.architecture,
        properties.compute_units,
        tokens,
        case.heads,
        case.head_dim,
        kv,
        op.DEEP_TOKENS + 1 if deep else max(case.lengths),
    )
    arrivals = gpu.upload(np.zeros(MAX_ARRIVALS, np.uint32))
    gpu.run(
        op.attention_prompt(
            gpu.kernels,
            q=gpu.upload(given.q),
            k_pages=gpu.upload(cache.k),
            v_pages=gpu.upload(cache.v),
            k_scales=gpu.upload(cache.k_scales),
            v_scales=gpu.upload(cache.v_scales),
            page_table=gpu.upload(given.page_table),
            lengths=gpu.upload(given.lengths),
            starts=gpu.upload(given.starts),
            scratch=gpu.empty(scratch),
            arrivals=arrivals,
            out=out,
            tokens=tokens,
            sequences=len(case.lengths),
            max_queries=max(case.queries) + extra_queries,
            deep=deep,
            heads=case.heads,
            kv_heads=case.kv_heads,
            head_dim=case.head_dim,
            page_size=case.page_size,
            max_pages=given.page_table.shape[1],
            scale=given.scale,
            kv=kv,
            **how,
        )
    )
    assert not gpu.download(arrivals, (MAX_ARRIVALS,), np.uint32).any()
    got = output_dtypes.read(gpu, out, tokens, columns)
    return got.astype(np.float32).reshape(given.q.shape)


def check(
    gpu: Gpu,
    case: AttentionCase,
    kv: str = "f16",
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    deep: bool = False,
) -> NDArray[np.float32]:
    """What the kernel gives, which is close to the reference."""
    last = np.linspace(-2, 3, case.heads).astype(np.float32) if sinks else None
    at = None if last is None else gpu.upload(last)
    got = attend(gpu, case, kv, window=window, softcap=softcap, sinks=at, deep=deep)
    with np.errstate(invalid="ignore"):
        wanted = reference.attention(*data(case, kv)[0].arguments, window, softcap, last)
    assert cases.relative_rms(got, wanted) <= TOLERANCE
    return got


def choose_blocks(many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have blocks of many queries, or of few, for any number of them."""
    monkeypatch.setattr(op, "are_many", lambda *_: many)
    monkeypatch.setattr(op, "FEW_QUERIES", 0 if many else 1 << 20)


@pytest.mark.parametrize(
    ("case", "kv"), attention_cache.with_dtypes(cases.ATTENTION_CHECKS + EDGES), ids=str
)
def test_attention_prompt_agrees_with_the_reference(gpu: Gpu, case: AttentionCase, kv: str) -> None:
    got, wanted = attend(gpu, case, kv), data(case, kv)[2]
    assert cases.relative_rms(got, wanted) <= TOLERANCE
    size = np.sqrt(np.mean(wanted**2, axis=-1))
    assert np.all(np.sqrt(np.mean((got - wanted) ** 2, axis=-1)) <= 5 * TOLERANCE * size)


def test_attention_prompt_writes_halves(gpu: Gpu) -> None:
    for dtype in (F16, Permuted):
        got = attend(gpu, WINDOWED, "f16", dtype)
        assert cases.relative_rms(got, data(WINDOWED, "f16")[2]) <= TOLERANCE


@pytest.mark.parametrize("many", [False, True])
def test_a_grid_for_more_queries_than_there_are_does_no_harm(
    gpu: Gpu, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_blocks(many, monkeypatch)
    got = attend(gpu, EDGES[0], "f16", extra_queries=200)
    np.testing.assert_array_equal(got, attend(gpu, EDGES[0], "f16"))


def test_a_sequence_without_queries_is_left_out(gpu: Gpu) -> None:
    case = AttentionCase((20, 9, 18), (20, 0, 3), 2, 1, 64, 16)
    got = attend(gpu, case, "f16")
    assert cases.relative_rms(got, data(case, "f16")[2]) <= TOLERANCE


WINDOWED = AttentionCase((127, 300), (90, 70), 4, 2, 64, 32)


@pytest.mark.parametrize("case", [*EDGES, WINDOWED], ids=str)
@pytest.mark.parametrize(
    ("window", "softcap", "sinks"),
    [(1, None, False), (16, None, True), (40, 2.0, False), (130, None, False), (None, 0.7, True)],
)
def test_windows_soft_caps_and_sinks(
    gpu: Gpu, case: AttentionCase, window: int | None, softcap: float | None, sinks: bool
) -> None:
    check(gpu, case, window=window, softcap=softcap, sinks=sinks)


LATE = AttentionCase((200, 33, 140), (70, 33, 1), 4, 2, 128, 32)  # prompts that begin behind others


@pytest.mark.parametrize(
    ("case", "keys", "waves", "tiles", "q_in_lds"),
    [
        *((case, 64, 4, 2, 1) for case in (*EDGES, WINDOWED, LATE) if case.head_dim % 16 == 0),
        (LATE, 32, 4, 2, 1),
        (LATE, 64, 8, 1, 0),
    ],
    ids=str,
)
@pytest.mark.parametrize("how", [{}, {"window": 40, "softcap": 2.0}], ids=str)
def test_pages_may_be_copied_straight_to_lds(
    gpu: Gpu,
    case: AttentionCase,
    keys: int,
    waves: int,
    tiles: int,
    q_in_lds: int,
    how: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on NVIDIA, for any number of waves, tiles and tokens a step."""
    if gpu.runtime.platform == "hip" and "stand-in" not in gpu.runtime.properties.name:
        pytest.skip("a matrix unit that cannot transpose")
    direct = {"LOAD_AHEAD": 1, "DIRECT": 1}
    chosen = op.Constants(case.head_dim, "F16Pages", keys, waves, tiles, q_in_lds, **direct)
    monkeypatch.setattr(op, "choose", lambda *_: chosen)
    check(gpu, case, **how)


FULL = AttentionCase((700, 20, 260), (500, 0, 201), 3, 1, 128, 16)


@pytest.mark.parametrize(
    "case",
    [c for c in (*cases.ATTENTION_CHECKS, *EDGES, WINDOWED, LATE, FULL) if c.head_dim in (64, 128)],
    ids=str,
)
@pytest.mark.parametrize(
    ("window", "softcap", "sinks"),
    [(None, None, False), (16, None, True), (40, 2.0, False), (130, None, False)],
)
def test_blocks_of_many_queries(
    gpu: Gpu,
    case: AttentionCase,
    window: int | None,
    softcap: float | None,
    sinks: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Hopper they run on warpgroups."""
    choose_blocks(True, monkeypatch)
    check(gpu, case, window=window, softcap=softcap, sinks=sinks)


@pytest.mark.parametrize("case", [FULL, replace(FULL, head_dim=64, page_size=64)], ids=str)
@pytest.mark.parametrize("window", [None, 300])
@pytest.mark.parametrize("least", [64, 256])
def test_splits_of_deep_prompts(
    gpu: Gpu,
    case: AttentionCase,
    window: int | None,
    least: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Hopper they are more than elsewhere."""
    own = op.choose
    monkeypatch.setattr(op, "choose", lambda *given: replace(own(*given), LEAST=least))
    check(gpu, case, window=window, deep=True)


def test_pages_are_no_larger_than_a_step_of_warpgroups() -> None:
    for head_dim in (64, 128):
        constants = op.choose("sm_90", head_dim, "f16", True)
        assert constants.WARPGROUP
        assert constants.KEYS % max(PAGE_SIZES) == 0


def split_into(splits: int, case: AttentionCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have so many splits at most, with room for what they leave."""
    nbytes = 4 * splits * sum(case.queries) * case.heads * (case.head_dim + 2)
    monkeypatch.setattr(op, "choose_splits", lambda *_: splits)
    monkeypatch.setattr(op, "scratch_bytes", lambda *_: nbytes)


LONG = AttentionCase((900, 300, 520), (70, 1, 33), 4, 2, 64, 32)


@pytest.mark.parametrize("most", [2, 3, 8])
@pytest.mark.parametrize(("kv", "many"), [("f16", False), ("f16", True), ("q8_0", False)])
@pytest.mark.parametrize("how", [{}, {"window": 300}, {"softcap": 2.0, "sinks": True}], ids=str)
def test_blocks_share_the_tokens_of_the_same_queries(
    gpu: Gpu,
    most: int,
    kv: str,
    how: dict[str, Any],
    many: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sequences have different numbers of splits, and a window leaves some of them nothing."""
    split_into(most, LONG, monkeypatch)
    choose_blocks(many, monkeypatch)
    np.testing.assert_array_equal(check(gpu, LONG, kv, **how), check(gpu, LONG, kv, **how))


SHORT = (
    AttentionCase((90, 40, 77), (40, 1, 33), 4, 2, 64, 32),
    AttentionCase((150,), (40,), 3, 1, 80, 32),
    AttentionCase((120, 33), (20, 0), 2, 1, 256, 32),
)


@pytest.mark.parametrize("case", SHORT, ids=str)
@pytest.mark.parametrize("dtype", [F32, F16])
def test_splits_may_be_short(
    gpu: Gpu, case: AttentionCase, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads that merge in other pieces, a sequence without queries, blocks without work."""
    own = op.choose
    monkeypatch.setattr(op, "choose", lambda *given: replace(own(*given), LEAST=32))
    split_into(5, case, monkeypatch)
    got = attend(gpu, case, "f16", dtype, extra_queries=100)
    assert cases.relative_rms(got, data(case, "f16")[2]) <= TOLERANCE


@pytest.mark.parametrize(
    ("blocks", "splits"),
    [(1, 8), (32, 4), (64, 2), (80, 3), (100, 1), (132, 1), (133, 1), (5000, 1)],
)
def test_splits_give_each_compute_unit_a_block(blocks: int, splits: int) -> None:
    assert op.choose_splits(132, blocks) == splits


@pytest.mark.parametrize("architecture", ["sm_90", "gfx1100", "gfx90a"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_the_scratch_has_room_for_every_batch_of_so_many_queries(
    architecture: str, head_dim: int
) -> None:
    """Also where a larger batch shares the memory."""
    fixed = {"head_dim": head_dim, "kv": "f16"}
    for room, heads, ctx in itertools.product(
        (128, 384, 512, 2048), (1, 8, 28, 32, 64), (4096, 40000)
    ):
        nbytes = op.scratch_bytes(architecture, 96, room, heads, ctx=ctx, **fixed)
        for tokens in (2, 17, 60, 64, 100, 128, 200, 384, 512, 700, 2048):
            for sequences in (1, 2, 3, 8, 100):
                if tokens > room or sequences > tokens:
                    continue
                for longest in (-(-tokens // sequences), tokens - sequences + 1):
                    before = 0 if ctx == 4096 else 5000 * sequences
                    shape = {
                        "tokens": tokens,
                        "sequences": sequences,
                        "longest": longest,
                        "heads": heads,
                        "deep": op.is_deep(tokens, before, sequences),
                        **fixed,
                    }
                    splits = op.cut(architecture, 96, **shape)[1]
                    used = splits * tokens * heads if splits > 1 else 0
                    assert 4 * used * (head_dim + 2) <= nbytes


@pytest.mark.parametrize(("tokens", "ctx", "rows"), [(256, 40000, 24576), (2048, 4096, 24576)])
def test_the_scratch_is_no_larger_than_it_must_be(tokens: int, ctx: int, rows: int) -> None:
    """192 queries of 32 heads have four splits; deep prompts have more of them, and the memory."""
    assert op.scratch_bytes("sm_90", 132, tokens, 32, 128, "f16", ctx) == 4 * rows * 130


def test_only_nvidia_has_larger_blocks_for_many_queries() -> None:
    few, many = (op.choose("sm_90", 128, "f16", many) for many in (False, True))
    assert [few.WARPGROUP, many.WARPGROUP] == [0, 1]
    assert [few.queries, many.queries] == [128, 192]
    assert op.choose("sm_90", 96, "f16", True) == op.choose("sm_89", 96, "f16", True)
    few, many = (op.choose("sm_89", 128, "f16", many) for many in (False, True))
    assert few.DIRECT == many.DIRECT == 1
    assert few.queries < many.queries
    for architecture, head_dim, kv in (
        ("gfx1100", 128, "f16"),
        ("sm_90", 128, "q8_0"),
        ("sm_90", 8, "f16"),
    ):
        few, many = (op.choose(architecture, head_dim, kv, many) for many in (False, True))
        assert few == many
        assert not few.DIRECT


@pytest.mark.parametrize(
    ("tokens", "sequences", "head_dim", "deep", "many"),
    [
        (2048, 1, 128, False, True),
        (1024, 1, 128, False, False),
        (1024, 1, 128, True, True),
        (512, 1, 128, False, False),
        (512, 1, 128, True, True),
        (512, 1, 64, True, False),
        (2048, 4, 128, False, True),
        (519, 8, 128, False, False),
        (4096, 64, 128, False, False),
    ],
)
def test_two_tiles_a_wave_are_for_long_prompts(
    tokens: int, sequences: int, head_dim: int, deep: bool, many: bool
) -> None:
    assert op.are_many(tokens, sequences, 32, head_dim, 132, deep) == many


@pytest.mark.parametrize(("longest", "many"), [(64, False), (65, True)])
def test_warpgroups_are_for_more_than_64_queries(longest: int, many: bool) -> None:
    shape = {"tokens": 2 * longest, "sequences": 2, "longest": longest, "deep": False}
    constants, _ = op.cut("sm_90", 132, **shape, heads=32, head_dim=128, kv="f16")
    assert (constants.WARPGROUP == 1) == many


@pytest.mark.parametrize(
    ("slots", "blocks", "room", "splits"),
    [
        (132, 96, 4, 4),
        (132, 96, 3, 1),
        (132, 96, 0, 1),
        (132, 192, 2, 2),
        (264, 128, 9, 2),
        (132, 8, 20, 8),
        (132, 352, 9, 3),
        (132, 5000, 9, 1),
    ],
)
def test_splits_of_deep_prompts_fill_whole_rounds(
    slots: int, blocks: int, room: int, splits: int
) -> None:
    assert op.choose_deep_splits(slots, blocks, room) == splits
