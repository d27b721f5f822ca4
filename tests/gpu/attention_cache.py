"""The cache of an attention case as the GPU kernels read it, in each dtype, beside the same numbers
as the reference reads them.

Unused slots hold NaN, so that one read of them that counts is seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from rocmforge.gguf.nvfp4 import E4M3, nearest_scale
from rocmforge.gpu.ops.attention import dtypes_of
from rocmforge.ops import reference
from rocmforge.ops.cases import AttentionCase, AttentionInputs


@dataclasses.dataclass(frozen=True)
class DeviceCache:
    """Keys and values (pages, G, P, D), and float16 scales or nothing.

    Scales of q8_0 are (pages, G, P, D / 32), of fp8_e4m3 (pages, G, P).
    """

    k: NDArray[np.generic]
    v: NDArray[np.generic]
    k_scales: NDArray[np.float16]
    v_scales: NDArray[np.float16]


def with_dtypes(cases: Iterable[AttentionCase]) -> list[tuple[AttentionCase, str]]:
    """Each case with each dtype of the cache that it can have."""
    return [(case, kv) for case in cases for kv in dtypes_of(case.head_dim)]


def make(
    case: AttentionCase, kv: str, halves: bool = False
) -> tuple[AttentionInputs, DeviceCache, NDArray[np.float64]]:
    """Inputs of a case, the cache in the dtype `kv`, and the reference's result for that cache.

    `halves`: the result for a cache whose numbers are rounded to float16 when they are read.
    """
    given = dataclasses.replace(case, dtype="float32" if kv == "f32" else "float16").inputs()
    k, v = given.k_pages.transpose(0, 1, 3, 2), given.v_pages
    nothing = np.zeros(0, np.float16)
    cache = DeviceCache(np.ascontiguousarray(k), v, nothing, nothing)
    quantize = {"q8_0": to_q8, "fp8_e4m3": to_fp8}.get(kv)
    if quantize:
        k_codes, k_scales, k = quantize(k)
        v_codes, v_scales, v = quantize(v)
        cache = DeviceCache(k_codes, v_codes, k_scales, v_scales)
        if halves:
            k, v = (x.astype(np.float16).astype(np.float32) for x in (k, v))
        given = dataclasses.replace(given, k_pages=k.transpose(0, 1, 3, 2), v_pages=v)
    with np.errstate(invalid="ignore"):
        return given, cache, reference.attention(*given.arguments)


def to_q8(
    x: NDArray[np.floating],
) -> tuple[NDArray[np.int8], NDArray[np.float16], NDArray[np.float32]]:
    """Codes, scales and the numbers that they stand for; a group with a NaN has a NaN scale."""
    groups = x.astype(np.float32).reshape(*x.shape[:-1], -1, 32)
    scales = (np.abs(groups).max(axis=-1) / 127).astype(np.float16)
    wide = scales[..., None].astype(np.float32)
    with np.errstate(invalid="ignore"):
        codes = np.where(np.isnan(wide), 127, np.rint(groups / wide)).astype(np.int8)
    return codes.reshape(x.shape), scales, (codes * wide).reshape(x.shape)


def to_fp8(
    x: NDArray[np.floating],
) -> tuple[NDArray[np.uint8], NDArray[np.float16], NDArray[np.float32]]:
    """As `to_q8`, of E4M3: a code is 2^-8 of its number, and a head has one scale."""
    wide = x.astype(np.float32)
    scales = (np.abs(wide).max(axis=-1) / 1.75).astype(np.float16)
    steps = scales[..., None].astype(np.float32) / 256
    with np.errstate(invalid="ignore"):
        codes = np.minimum(nearest_scale(np.abs(wide) / steps), 126)
        numbers = np.copysign(E4M3[codes], wide) * steps
    return codes | np.signbit(wide).astype(np.uint8) << 7, scales, numbers
