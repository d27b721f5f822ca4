"""The cache of an attention case as the GPU kernels read it, in each dtype, beside the same numbers
as the reference reads them.

Unused slots hold NaN, so that one read of them that counts is seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from rocmforge.ops import reference
from rocmforge.ops.cases import AttentionCase, AttentionInputs


@dataclasses.dataclass(frozen=True)
class DeviceCache:
    """Keys and values (pages, G, P, D), and float16 scales (pages, G, P, D / 32) or nothing."""

    k: NDArray[np.generic]
    v: NDArray[np.generic]
    k_scales: NDArray[np.float16]
    v_scales: NDArray[np.float16]


def with_dtypes(cases: Iterable[AttentionCase]) -> list[tuple[AttentionCase, str]]:
    """Each case with each dtype of the cache that it can have: Q8_0 has 32 numbers a scale."""
    dtypes = ("f16", "q8_0", "f32")
    return [
        (case, kv) for case in cases for kv in dtypes if kv != "q8_0" or case.head_dim % 32 == 0
    ]


def make(case: AttentionCase, kv: str) -> tuple[AttentionInputs, DeviceCache, NDArray[np.float64]]:
    """Inputs of a case, the cache in the dtype `kv`, and the reference's result for that cache."""
    given = dataclasses.replace(case, dtype="float32" if kv == "f32" else "float16").inputs()
    k, v = given.k_pages.transpose(0, 1, 3, 2), given.v_pages
    nothing = np.zeros(0, np.float16)
    cache = DeviceCache(np.ascontiguousarray(k), v, nothing, nothing)
    if kv == "q8_0":
        k_codes, k_scales, k = quantize(k)
        v_codes, v_scales, v = quantize(v)
        cache = DeviceCache(k_codes, v_codes, k_scales, v_scales)
        given = dataclasses.replace(given, k_pages=k.transpose(0, 1, 3, 2), v_pages=v)
    with np.errstate(invalid="ignore"):
        return given, cache, reference.attention(*given.arguments)


def quantize(
    x: NDArray[np.floating],
) -> tuple[NDArray[np.int8], NDArray[np.float16], NDArray[np.float32]]:
    """Codes, scales and the numbers that they stand for; a group with a NaN has a NaN scale."""
    groups = x.astype(np.float32).reshape(*x.shape[:-1], -1, 32)
    scales = (np.abs(groups).max(axis=-1) / 127).astype(np.float16)
    wide = scales[..., None].astype(np.float32)
    with np.errstate(invalid="ignore"):
        codes = np.where(np.isnan(wide), 127, np.rint(groups / wide)).astype(np.int8)
    return codes.reshape(x.shape), scales, (codes * wide).reshape(x.shape)
