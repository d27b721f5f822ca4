"""Arithmetic on block scales that the encoders share: f16 rounding, codes and their error.

Weights stand as (block_len, n), one block a column, so that sums over a block run along whole
vectors.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rocmforge.array_types import Bytes, Floats


def reciprocal(x: Floats) -> Floats:
    """1 / x, and 0 where x is 0."""
    out = np.zeros_like(x)
    np.divide(np.float32(1), x, out=out, where=x != 0)
    return out


def half_scale(scale: Floats) -> NDArray[np.float16]:
    """Round scales to f16: to nearest, but away from 0 where f16 is coarse (its subnormals).

    A tiny scale rounded down would clip the largest weights, or be 0 and lose them all; one
    rounded up only uses fewer of the codes.
    """
    half = scale.astype(np.float16)
    short = np.abs(half.astype(np.float32)) < np.abs(scale) * np.float32(1 - 2**-10)
    outward = np.copysign(np.float16(np.inf), half)
    return np.where(short, np.nextafter(half, outward), half)


def codes(x: Floats, scale: Floats, low: int, high: int) -> Floats:
    """round(x / scale) within [low, high], as float32; 0 within it where the scale is 0.

    Parameters
    ----------
    x
        ``(block_len, n)``.
    scale
        ``(n,)``.
    low, high
        The least and the greatest code.
    """
    q = x * reciprocal(scale)
    np.rint(q, out=q)
    return np.clip(q, low, high, out=q)


def squared_error(x: Floats, scale: Floats, low: int, high: int) -> Floats:
    """Σ (x − scale · codes(x, scale))² of each column, ``(n,)``."""
    e = codes(x, scale, low, high)
    e *= scale
    np.subtract(x, e, out=e)
    return column_dot(e, e)


def column_dot(a: Floats, b: Floats) -> Floats:
    """Σ a·b of each column, ``(n,)``."""
    total: Floats = np.einsum("ij,ij->j", a, b)
    return total


def peak(x: Floats) -> Floats:
    """Return the entry of largest magnitude of each column, with its sign, ``(n,)``."""
    at = np.abs(x).argmax(axis=0)
    largest: Floats = x[at, np.arange(x.shape[1])]
    return largest


def half_bytes(half: NDArray[np.float16]) -> Bytes:
    """f16 values ``(n,)`` as their bytes ``(n, 2)``, little-endian."""
    return half.astype("<f2").view(np.uint8).reshape(-1, 2)
