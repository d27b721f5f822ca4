"""The paged KV cache. Holds what the command line names too, which must not wait for numpy."""

from __future__ import annotations

from typing import Literal

PAGE_SIZES = (16, 32, 64)
"""P, tokens in a page: what it may be."""

KvDtype = Literal["f16", "f32", "q8_0", "fp8_e4m3"]
"""Of stored keys and values; q8_0: int8, and one f16 scale for 32 dims of a token; fp8_e4m3: 8 bits
of floating point, and one f16 scale for all dims of a token and head."""

KV_DTYPES: tuple[KvDtype, ...] = ("f16", "f32", "q8_0", "fp8_e4m3")
"""All of them, on GPUs. The CPU has no fp8_e4m3."""

Q8_GROUP = 32
"""Dims of a token that share a scale in q8_0."""


def fits(dtype: str, head_dim: int) -> bool:
    """Whether heads of D dims can be stored so: q8_0 needs whole groups."""
    return dtype != "q8_0" or head_dim % Q8_GROUP == 0


def row_bytes(dtype: str, head_dim: int) -> tuple[int, int]:
    """Bytes that the keys, or the values, of a token and head take: of numbers, and of scales.

    Raises
    ------
    ValueError
        There is no such dtype, or it does not fit D.
    """
    if dtype not in KV_DTYPES:
        raise ValueError(f"KV dtype: got {dtype!r}, wanted one of {', '.join(KV_DTYPES)}")
    if not fits(dtype, head_dim):
        raise ValueError(f"KV dtype q8_0: got head dim {head_dim}, wanted a multiple of {Q8_GROUP}")
    numbers = {"f16": 2, "f32": 4, "q8_0": 1, "fp8_e4m3": 1}[dtype] * head_dim
    return numbers, {"q8_0": head_dim // Q8_GROUP, "fp8_e4m3": 1}.get(dtype, 0) * 2
