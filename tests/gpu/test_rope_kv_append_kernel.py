"""rope_kv_append against the references of its parts: norms of heads, both layouts, every dtype of
the cache, and the head dims of real models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pages as kv_pages
import pytest
from guarded import Gpu
from numpy.typing import NDArray
from pages import Pages

from rocmforge.gpu.ops import rope_kv_append as op
from rocmforge.ops import cases, reference

EPS = 1e-6
TOLERANCE = 4e-7


@dataclass(frozen=True)
class Case:
    """A few tokens between projection and attention."""

    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    rotated: int
    interleaved: bool
    kv: str
    norm: str = ""  # which of q and k


CHECKS = (
    Case(1, 32, 8, 128, 128, True, "f16"),
    Case(5, 14, 2, 64, 64, False, "f16"),
    Case(3, 16, 8, 128, 128, False, "q8_0", "qk"),
    Case(2, 3, 3, 80, 80, False, "f16", "qk"),
    Case(4, 6, 2, 96, 96, False, "q8_0", "k"),
    Case(3, 5, 5, 96, 96, True, "f32", "q"),
    Case(2, 2, 1, 256, 64, True, "q8_0", "qk"),
    Case(2, 1, 1, 256, 256, False, "f16"),
    Case(7, 3, 1, 13, 8, False, "f32", "qk"),
    Case(3, 2, 2, 64, 6, True, "q8_0", "qk"),
    Case(2, 2, 2, 64, 36, False, "q8_0", "qk"),
    Case(1, 1, 1, 2, 2, True, "f16"),
    Case(3, 4, 2, 128, 128, True, "fp8_e4m3"),
    Case(5, 3, 3, 80, 20, False, "fp8_e4m3", "qk"),
    Case(2, 2, 1, 13, 8, False, "fp8_e4m3", "k"),
)


def rows(
    x: NDArray[np.float32],
    weight: NDArray[np.float32] | None,
    cos: NDArray[np.float32],
    sin: NDArray[np.float32],
    interleaved: bool,
) -> NDArray[np.float64]:
    """What becomes of q or k."""
    wide = x if weight is None else reference.rmsnorm(x, weight, EPS)
    return reference.rope(wide, cos, sin, interleaved)


@pytest.mark.parametrize("case", CHECKS, ids=str)
def test_rope_kv_append_agrees_with_its_parts(gpu: Gpu, case: Case) -> None:
    random = np.random.default_rng(case.tokens + case.head_dim)
    tokens, dims, page_size, n_pages = case.tokens, case.head_dim, 16, 3
    q = random.standard_normal((tokens, case.heads, dims), np.float32)
    k, v = random.standard_normal((2, tokens, case.kv_heads, dims), np.float32)
    angles = random.uniform(-1e3, 1e3, (20, case.rotated // 2))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    positions = random.integers(0, 20, tokens).astype(np.int32)
    slots = random.permutation(n_pages * page_size)[:tokens].astype(np.int32)
    pages, offsets = np.divmod(slots, np.int32(page_size))
    if tokens > 2:
        pages[1] = -1
    weights = {
        name: random.uniform(0.5, 2, dims).astype(np.float32) if name in case.norm else None
        for name in "qk"
    }
    shape = (n_pages, case.kv_heads, page_size, dims)
    k_pages, v_pages = Pages.empty(gpu, case.kv, shape), Pages.empty(gpu, case.kv, shape)
    addresses = {name: gpu.upload(x) for name, x in (("q", q), ("k", k), ("v", v))}
    norms = {name: None if w is None else gpu.upload(w) for name, w in weights.items()}
    gpu.run(
        op.rope_kv_append(
            gpu.kernels,
            **addresses,
            cos=gpu.upload(cos),
            sin=gpu.upload(sin),
            positions=gpu.upload(positions),
            k_pages=k_pages.address,
            v_pages=v_pages.address,
            k_scales=k_pages.scales,
            v_scales=v_pages.scales,
            pages=gpu.upload(pages),
            offsets=gpu.upload(offsets),
            tokens=tokens,
            heads=case.heads,
            kv_heads=case.kv_heads,
            head_dim=dims,
            rotated=case.rotated,
            interleaved=case.interleaved,
            page_size=page_size,
            kv=case.kv,
            q_norm=norms["q"],
            k_norm=norms["k"],
            eps=EPS,
        )
    )
    turned = (cos[positions], sin[positions], case.interleaved)
    got = gpu.download(addresses["q"], q.shape, np.float32)
    assert cases.relative_rms(got, rows(q, weights["q"], *turned)) <= TOLERANCE
    wanted = rows(k, weights["k"], *turned)
    kv_pages.expect(k_pages.read(), case.kv, wanted, pages, offsets, TOLERANCE)
    kv_pages.expect(v_pages.read(), case.kv, v, pages, offsets)
    np.testing.assert_array_equal(gpu.download(addresses["k"], k.shape, np.float32), k)
    np.testing.assert_array_equal(gpu.download(addresses["v"], v.shape, np.float32), v)
