"""kv_append into each dtype of the cache: the right slots, the right rounding, nothing else."""

from __future__ import annotations

import dataclasses

import numpy as np
import pages as kv_pages
import pytest
from guarded import Gpu
from numpy.typing import NDArray
from pages import Pages

from rocmforge.gguf.nvfp4 import E4M3
from rocmforge.gpu.ops import kv_append as op
from rocmforge.gpu.ops.attention import dtypes_of
from rocmforge.kv import KV_DTYPES
from rocmforge.ops import cases
from rocmforge.ops.cases import KvAppendCase

SHAPES = (
    *{(c.tokens, c.kv_heads, c.head_dim, c.page_size): None for c in cases.KV_APPEND_CHECKS},
    (3, 2, 32, 16),
    (17, 2, 64, 16),
    (2, 3, 96, 32),
    (5, 8, 128, 64),
    (3, 1, 256, 32),
)
CHECKS = [(KvAppendCase(*shape), kv) for shape in SHAPES for kv in dtypes_of(shape[2])]


def append(
    gpu: Gpu, case: KvAppendCase, kv: str, **changed: NDArray[np.generic]
) -> tuple[cases.KvAppendInputs, NDArray[np.float64], NDArray[np.float64]]:
    """The case's inputs, and what the pages of keys and values hold afterwards."""
    given = dataclasses.replace(case.inputs(), **changed)
    shape = (given.k_pages.shape[0], case.kv_heads, case.page_size, case.head_dim)
    k, v = Pages.empty(gpu, kv, shape), Pages.empty(gpu, kv, shape)
    gpu.run(
        op.kv_append(
            gpu.kernels,
            k=gpu.upload(given.k),
            v=gpu.upload(given.v),
            k_pages=k.address,
            v_pages=v.address,
            k_scales=k.scales,
            v_scales=v.scales,
            pages=gpu.upload(given.pages),
            offsets=gpu.upload(given.offsets),
            tokens=case.tokens,
            kv_heads=case.kv_heads,
            head_dim=case.head_dim,
            page_size=case.page_size,
            kv=kv,
        )
    )
    return given, k.read(), v.read()


@pytest.mark.parametrize(("case", "kv"), CHECKS, ids=str)
def test_tokens_come_to_their_slots(gpu: Gpu, case: KvAppendCase, kv: str) -> None:
    given, k, v = append(gpu, case, kv)
    kv_pages.expect(k, kv, given.k, given.pages, given.offsets)
    kv_pages.expect(v, kv, given.v, given.pages, given.offsets)


@pytest.mark.parametrize("kv", KV_DTYPES)
def test_a_page_below_zero_writes_nothing(gpu: Gpu, kv: str) -> None:
    case = KvAppendCase(6, 2, 64, 16)
    pages = case.inputs().pages
    pages[[0, 4]] = -1
    given, k, v = append(gpu, case, kv, pages=pages)
    kv_pages.expect(k, kv, given.k, pages, given.offsets)
    kv_pages.expect(v, kv, given.v, pages, given.offsets)


def test_groups_of_zeros_tiny_huge_and_of_what_is_not_finite(gpu: Gpu) -> None:
    case = KvAppendCase(1, 1, 192, 16)
    k = np.ones((1, 1, 192), np.float32)
    k[..., 0:32] = 0
    k[..., 32:64] *= np.float32(1e-9)
    k[..., 64:96] *= np.float32(1e9)
    k[..., 100], k[..., 140], k[..., 170] = np.nan, np.inf, -np.inf
    given, got, _ = append(gpu, case, "q8_0", k=k)
    row = got[given.pages[0], 0, given.offsets[0]].reshape(6, 32)
    assert not row[:2].any()
    np.testing.assert_array_equal(row[2], 127 * 515.5)  # a finite float16
    assert np.isnan(row[3:]).all()


def test_every_code_of_fp8_is_the_nearest(gpu: Gpu) -> None:
    """Numbers between all neighbours of E4M3, ties to even, and what is subnormal."""
    numbers = E4M3.astype(np.float64)
    middles = (numbers[:-1] + numbers[1:]) / 2
    given = np.concatenate([numbers, middles, middles * 0.999, middles * 1.001, [448]])
    heads = np.zeros((1, 4, 128), np.float32)
    heads[..., 0] = 448  # so that the scale is 1
    heads[0].reshape(-1)[np.arange(len(given)) // 127 * 128 + np.arange(len(given)) % 127 + 1] = (
        given * np.where(np.arange(len(given)) % 2, -1, 1)
    )
    case = KvAppendCase(1, 4, 128, 16)
    where, got, _ = append(gpu, case, "fp8_e4m3", k=heads)
    found = got[where.pages[0], :, where.offsets[0]]
    sizes = np.abs(heads[0].astype(np.float64))
    above = np.searchsorted(numbers, sizes).clip(1, 126)
    low, high = numbers[above - 1], numbers[above]
    even = np.where(above % 2 == 0, high, low)
    wanted = np.where(
        sizes - low == high - sizes, even, np.where(sizes - low < high - sizes, low, high)
    )
    np.testing.assert_array_equal(np.abs(found), wanted)
    np.testing.assert_array_equal(np.signbit(found)[wanted > 0], np.signbit(heads[0])[wanted > 0])


def test_heads_of_fp8_that_are_zeros_huge_or_not_finite(gpu: Gpu) -> None:
    k = np.ones((1, 6, 64), np.float32)
    k[0, 0], k[0, 1], k[0, 2] = 0, 1e-9, 1e9
    k[0, 3, 5], k[0, 4, 6], k[0, 5, 7] = np.nan, np.inf, -np.inf
    given, got, _ = append(gpu, KvAppendCase(1, 6, 64, 16), "fp8_e4m3", k=k)
    rows = got[given.pages[0], :, given.offsets[0]]
    assert not rows[:2].any()
    np.testing.assert_array_equal(rows[2], 1.75 * 37408)  # a finite float16
    assert np.isnan(rows[3:]).all()
