"""rope_attention gives the same bits as rope_kv_append and then attention: outputs and pages, for
head dims, groups, rotations, dtypes of the cache, and lengths beside edges of pages and parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from guarded import Gpu
from matrix_units import use_matrix_units
from pages import Pages

from rocmforge.gpu.arrays import F32
from rocmforge.gpu.ops import attention, rope_attention
from rocmforge.gpu.ops.rope_kv_append import rope_kv_append

PAGE_SIZE = 16
CONTEXT = 300
KINDS = {"f16": np.float16, "q8_0": np.int8, "fp8_e4m3": np.uint8, "f32": np.float32}


@dataclass(frozen=True)
class Case:
    """Sequences that each get one token more; lengths count it."""

    lengths: tuple[int, ...]
    heads: int
    kv_heads: int
    head_dim: int
    rotated: int
    interleaved: bool
    kv: str = "f16"
    norm: str = ""  # which of q and k
    splits: int = 5


CASES = (
    Case((1,), 4, 4, 128, 128, True),
    Case((16, 17, 33, 1), 4, 1, 64, 64, False),
    Case((257, 0, 15), 8, 1, 128, 128, False, "f16", "qk"),
    Case((32, 256), 3, 3, 80, 80, False),
    Case((130,), 8, 2, 80, 20, False),
    Case((65, 3), 16, 2, 96, 96, True, "q8_0", "k"),
    Case((129, 64), 7, 1, 64, 36, False, "q8_0", "q"),
    Case((48, 200), 4, 2, 256, 64, True, "f32", "qk"),
    Case((299,), 5, 1, 256, 256, False, "f16", splits=64),
    Case((31, 2), 9, 1, 128, 128, True, "q8_0", splits=1),
    Case((130, 17), 4, 2, 80, 80, False, "fp8_e4m3", "qk"),
    Case((65, 257), 8, 1, 128, 128, True, "fp8_e4m3"),
    Case((255,), 2, 2, 8, 6, True, "f16"),
)


class Memory:
    """Inputs of a case on the device, with pages that hold all tokens but the last ones."""

    def __init__(self, gpu: Gpu, case: Case) -> None:
        random = np.random.default_rng(sum(case.lengths) + case.head_dim)
        self.gpu, self.case = gpu, case
        sequences, dims = len(case.lengths), case.head_dim
        self.lengths = np.array(case.lengths, np.int32)
        last = np.maximum(self.lengths - 1, 0)
        max_pages = CONTEXT // PAGE_SIZE + 1
        table = random.permutation(sequences * max_pages).reshape(sequences, max_pages)
        self.table = table.astype(np.int32)
        shape = (table.size, case.kv_heads, PAGE_SIZE, dims)
        self.k = Pages.empty(gpu, case.kv, shape)
        self.v = Pages.empty(gpu, case.kv, shape)
        for pages in (self.k, self.v):
            self._fill(pages, random)
        self.q = random.standard_normal((sequences, case.heads, dims), np.float32)
        k, v = random.standard_normal((2, sequences, case.kv_heads, dims), np.float32)
        angles = random.uniform(-1e3, 1e3, (CONTEXT, case.rotated // 2)).astype(np.float32)
        weights = {
            name: gpu.upload(random.uniform(0.5, 2, dims).astype(np.float32)) for name in case.norm
        }
        self.at_q = gpu.upload(self.q)
        self.rotating: dict[str, Any] = {
            "k": gpu.upload(k),
            "v": gpu.upload(v),
            "cos": gpu.upload(np.cos(angles)),
            "sin": gpu.upload(np.sin(angles)),
            "positions": gpu.upload(last.astype(np.int32)),
            "rotated": case.rotated,
            "interleaved": case.interleaved,
            "q_norm": weights.get("q"),
            "k_norm": weights.get("k"),
            "eps": 1e-6,
        }
        self.last = last

    def _fill(self, pages: Pages, random: np.random.Generator) -> None:
        """Tokens before the last of each sequence; NaN elsewhere."""
        case, runtime = self.case, self.gpu.runtime
        kind = KINDS[case.kv]
        values = self.gpu.download(pages.address, pages.shape, kind)
        groups = 1 if case.kv == "fp8_e4m3" else case.head_dim // 32
        scales = np.full((*pages.shape[:3], groups), np.nan, np.float16)
        for row, length in zip(self.table, case.lengths, strict=True):
            for token in range(length - 1):
                slot = (row[token // PAGE_SIZE], slice(None), token % PAGE_SIZE)
                numbers = random.standard_normal((case.kv_heads, case.head_dim))
                if case.kv == "q8_0":
                    numbers = np.rint(40 * numbers).clip(-127, 127)
                    numbers[:, ::32] = 127
                if case.kv == "fp8_e4m3":
                    numbers = random.integers(0, 127, numbers.shape) + 128 * (numbers < 0)
                    numbers[:, 0] = 126
                values[slot] = numbers
                scales[slot] = 1 / 40 if case.kv == "q8_0" else 1
        runtime.copy_to_device(pages.address, values)
        if pages.scales:
            runtime.copy_to_device(pages.scales, scales)

    def attended(self, out: int) -> dict[str, Any]:
        """What both forms of attention take."""
        case, gpu = self.case, self.gpu
        sequences = len(case.lengths)
        nbytes = attention.scratch_bytes(sequences, case.heads, case.head_dim, case.splits)
        return {
            **self.cache(),
            "q": self.at_q,
            "page_table": gpu.upload(self.table),
            "lengths": gpu.upload(self.lengths),
            "scratch": gpu.empty(nbytes),
            "arrivals": gpu.upload(np.zeros(attention.MAX_ARRIVALS, np.uint32)),
            "out": F32(out),
            "sequences": sequences,
            "max_pages": self.table.shape[1],
            "scale": case.head_dim**-0.5,
            "splits": case.splits,
        }

    def cache(self) -> dict[str, Any]:
        """The pages and their shape."""
        case = self.case
        return {
            "k_pages": self.k.address,
            "v_pages": self.v.address,
            "k_scales": self.k.scales,
            "v_scales": self.v.scales,
            "heads": case.heads,
            "kv_heads": case.kv_heads,
            "head_dim": case.head_dim,
            "page_size": PAGE_SIZE,
            "kv": case.kv,
        }

    def results(self, out: int) -> list[Any]:
        """Outputs, keys and values."""
        found = [self.gpu.download(out, self.q.shape, np.float32)]
        return [*found, self.k.read(), self.v.read()]


def apart(gpu: Gpu, case: Case) -> list[Any]:
    given = Memory(gpu, case)
    out = gpu.empty(given.q.nbytes)
    rows = np.arange(len(case.lengths))
    pages = np.where(given.lengths > 0, given.table[rows, given.last // PAGE_SIZE], -1)
    gpu.run(
        rope_kv_append(
            gpu.kernels,
            q=given.at_q,
            pages=gpu.upload(pages.astype(np.int32)),
            offsets=gpu.upload((given.last % PAGE_SIZE).astype(np.int32)),
            tokens=len(case.lengths),
            **given.rotating,
            **given.cache(),
        ),
        attention.attention(gpu.kernels, **given.attended(out)),
    )
    return given.results(out)


def fused(gpu: Gpu, case: Case) -> list[Any]:
    given = Memory(gpu, case)
    out = gpu.empty(given.q.nbytes)
    gpu.run(rope_attention.rope_attention(gpu.kernels, **given.rotating, **given.attended(out)))
    np.testing.assert_array_equal(gpu.download(given.at_q, given.q.shape, np.float32), given.q)
    return given.results(out)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_kernel_does_what_two_do(
    gpu: Gpu, case: Case, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = apart(gpu, case)
    assert np.isfinite(wanted[0]).all()
    choose = rope_attention.choose
    monkeypatch.setattr(rope_attention, "choose", lambda *given: {**choose(*given), "AHEAD": ahead})
    for got, right in zip(fused(gpu, case), wanted, strict=True):
        np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.kv != "f32" and case.head_dim in (64, 128)], ids=str
)
def test_one_kernel_does_what_two_do_on_matrix_units_of_nvidia(
    gpu: Gpu, case: Case, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_matrix_units(gpu, monkeypatch)
    test_one_kernel_does_what_two_do(gpu, case, ahead, monkeypatch)


@pytest.mark.parametrize("splits", [1, 5])
@pytest.mark.parametrize(("waves", "head_dim"), [(2, 128), (4, 128), (2, 256), (2, 80)])
def test_a_block_may_have_fewer_waves(
    gpu: Gpu, waves: int, head_dim: int, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the sequences that may have five splits, those of up to 130 tokens have one."""
    case = Case((130, 7, 299), 4, 2, head_dim, head_dim, False, "f16", "q", splits=splits)
    wanted = apart(gpu, case)
    few = {"WAVES": waves, "RESIDENT": 16 // waves, "ALONE": 130}
    monkeypatch.setattr(attention, "for_blocks", lambda constants, *_: replace(constants, **few))
    got = fused(gpu, case)
    np.testing.assert_allclose(got[0], wanted[0], rtol=0, atol=1e-5)
    for mine, right in zip(got[1:], wanted[1:], strict=True):
        np.testing.assert_array_equal(mine, right)


@pytest.mark.parametrize("waves", [2, 4])
def test_a_block_may_have_fewer_waves_on_matrix_units_of_nvidia(
    gpu: Gpu, waves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_matrix_units(gpu, monkeypatch)
    test_a_block_may_have_fewer_waves(gpu, waves, 128, 5, monkeypatch)


@pytest.mark.parametrize("architecture", ["gfx1100", "gfx942", "sm_90"])
def test_keys_and_values_are_loaded_ahead_where_launches_start_early(architecture: str) -> None:
    found = {build.defines["AHEAD"] for build in rope_attention.builds(architecture)}
    assert found == {int(architecture == "sm_90")}


@pytest.mark.parametrize(
    ("architecture", "head_dim", "group", "span"),
    [
        *(("sm_90", 128, group, span) for group, span in ((4, 32), (8, 16))),
        *(("gfx1100", 128, group, span) for group, span in ((1, 32), (4, 16), (8, 8))),
        *(("gfx942", 128, group, span) for group, span in ((4, 32), (8, 16))),
        ("gfx1100", 256, 8, 16),
    ],
)
def test_all_heads_of_a_block_are_turned_at_once(
    architecture: str, head_dim: int, group: int, span: int
) -> None:
    """Queries, a key and a value; of 256 dims a lane would hold eight vectors, so not all are."""
    chosen = attention.choose(architecture, head_dim, "f16", group)
    found = rope_attention.choose(architecture, chosen, head_dim, False, True)
    assert found["SPAN"] == span
    assert found["SPAN"] * found["ITEMS"] * found["VECTOR"] == head_dim
    at_once = found["THREADS"] // span >= chosen.QUERIES + 2
    assert at_once == (head_dim == 128)


def test_dims_one_by_one_keep_all_lanes_of_their_heads() -> None:
    """Lanes that share a scale of q8_0 hold 32 numbers side by side."""
    chosen = attention.choose("gfx1100", 64, "q8_0", 8)
    found = rope_attention.choose("gfx1100", chosen, 36, False, False)
    assert (found["VECTOR"], found["SPAN"], found["ITEMS"]) == (1, 32, 2)
