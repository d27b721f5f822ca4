"""Encoders of the K formats: super-blocks of 256 weights whose sub-blocks have integer scales.

Several scales are tried for each sub-block, each fitted to its codes by least squares; then the
integers around the best one are tried against the f16 scale of the super-block. The error that is
minimized is the plain Σ(x − x̂)²: without activation data every weight counts the same.
`quants` has checked the input, and decodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rocmforge.array_types import Bytes, Floats
from rocmforge.gguf.scales import (
    codes,
    column_dot,
    half_bytes,
    half_scale,
    peak,
    reciprocal,
    squared_error,
)

_SUPER = 256


@dataclass(frozen=True)
class _Signed:
    """x ≈ d · scale · q with -top <= q < top and -scale_top <= scale < scale_top."""

    sub_len: int
    top: int
    scale_top: int
    divisors: tuple[float, ...]
    """Candidates: the largest weight / divisor, near the ends of the codes that it may take."""


@dataclass(frozen=True)
class _Offset:
    """x ≈ d · scale · q - dmin · minimum with 0 <= q <= top, 0 <= scale, minimum <= scale_top."""

    sub_len: int
    top: int
    scale_top: int


_Q2_K = _Offset(sub_len=16, top=3, scale_top=15)
_Q3_K = _Signed(16, 4, 32, divisors=tuple(np.linspace(-4.8, -3.2, 9).tolist()))
_Q4_K = _Offset(sub_len=32, top=15, scale_top=63)
_Q5_K = _Offset(sub_len=32, top=31, scale_top=63)
_Q6_K = _Signed(
    16, 32, 128, divisors=(*np.linspace(-33, -31, 9).tolist(), *np.linspace(30, 32, 9).tolist())
)

# The largest weight is tried a little short of the last code and a little past it (clipped), then
# the best fit is rounded again that many times, then the integers beside the best scale are tried.
_STRETCH = tuple(np.linspace(-1, 1, 9).tolist())
_ROUNDS = 2
_NEAR = (0, -1, 1)


def _columns(x: Floats, sub_len: int) -> Floats:
    """(n, 256) weights as (sub_len, sub-blocks of all n)."""
    return np.ascontiguousarray(x.reshape(-1, sub_len).T)


def _rows(q: Floats) -> Bytes:
    """(sub_len, sub-blocks) codes as (n, 256) bytes."""
    return np.ascontiguousarray(q.astype(np.uint8).T).reshape(-1, _SUPER)


def _fit_signed(x: Floats, kind: _Signed) -> Floats:
    """Return the scale s of each column for which s·q is nearest to x.

    For given codes s = Σxq / Σq², which leaves the error Σx² − (Σxq)² / Σq².
    """
    inverse = reciprocal(peak(x))
    best_gain = np.zeros_like(inverse)
    best_scale = np.zeros_like(inverse)
    q = np.empty_like(x)
    for divisor in kind.divisors:
        np.multiply(x, inverse * np.float32(divisor), out=q)
        np.rint(q, out=q)
        np.clip(q, -kind.top, kind.top - 1, out=q)
        xq = column_dot(x, q)
        scale = xq * reciprocal(column_dot(q, q))
        gain = xq * scale
        better = gain > best_gain
        best_gain[better] = gain[better]
        best_scale[better] = scale[better]
    return best_scale


def _encode_signed(x: Floats, kind: _Signed) -> tuple[NDArray[np.float16], Floats, Bytes]:
    """Return d ``(n,)``, integer scales ``(n, sub-blocks)`` and codes + top ``(n, 256)``."""
    x = _columns(x, kind.sub_len)
    wanted = _fit_signed(x, kind).reshape(-1, _SUPER // kind.sub_len)
    d16 = half_scale(peak(wanted.T) / np.float32(-kind.scale_top))
    d = d16.astype(np.float32)[:, None]
    first = np.rint(wanted * reciprocal(d))
    best_error = np.full(x.shape[1], np.inf, np.float32)
    best_scale = np.zeros_like(first)
    for step in _NEAR:
        scale = np.clip(first + np.float32(step), -kind.scale_top, kind.scale_top - 1)
        error = squared_error(x, (scale * d).ravel(), -kind.top, kind.top - 1)
        better = error < best_error
        best_error[better] = error[better]
        best_scale.ravel()[better] = scale.ravel()[better]
    q = codes(x, (best_scale * d).ravel(), -kind.top, kind.top - 1)
    q += np.float32(kind.top)
    return d16, best_scale, _rows(q)


def _fit_offset(x: Floats, top: int) -> tuple[Floats, Floats]:
    """Return scale s >= 0 and minimum m >= 0 of each column for which s·q − m is nearest to x.

    For given codes (s, m) solve the two normal equations, or m = 0 and s = Σxq / Σq² where the
    solution has a negative minimum. All sums are over y = x − min(x, 0), which keeps them exact
    enough for a column that lies far from 0: x ≈ s·q + o + min(x, 0), so m = −o − min(x, 0).
    """
    n = np.float32(len(x))
    low = np.minimum(x.min(axis=0), 0)
    y = x - low
    inverse = reciprocal(y.max(axis=0))
    y1 = y.sum(axis=0)
    y2 = column_dot(y, y)
    best_error = np.full_like(low, np.inf)
    best_scale = np.zeros_like(low)
    best_offset = np.zeros_like(low)
    q = np.empty_like(x)
    for round_ in range(len(_STRETCH) + _ROUNDS):
        if round_ < len(_STRETCH):
            np.multiply(y, inverse * np.float32(top + _STRETCH[round_]), out=q)
        else:
            np.subtract(y, best_offset, out=q)
            q *= reciprocal(best_scale)
        np.rint(q, out=q)
        np.clip(q, 0, top, out=q)
        q1, q2, yq = q.sum(axis=0), column_dot(q, q), column_dot(y, q)
        scale = (n * yq - q1 * y1) * reciprocal(n * q2 - q1 * q1)
        offset = (y1 - scale * q1) / n
        bound = offset > -low
        offset = np.where(bound, -low, offset)
        scale = np.where(bound, (yq + low * q1) * reciprocal(q2), scale)
        error = (
            y2 + scale * (scale * q2 - 2 * yq + 2 * offset * q1) + offset * (n * offset - 2 * y1)
        )
        better = (error < best_error) & (scale >= 0)
        best_error[better] = error[better]
        best_scale[better] = scale[better]
        best_offset[better] = offset[better]
    return best_scale, np.maximum(-(low + best_offset), 0)


def _encode_offset(
    x: Floats, kind: _Offset
) -> tuple[NDArray[np.float16], NDArray[np.float16], Bytes, Bytes, Bytes]:
    """Return d, dmin ``(n,)``, scales, minima ``(n, sub-blocks)`` and codes ``(n, 256)``."""
    x = _columns(x, kind.sub_len)
    scales, minima = (v.reshape(-1, _SUPER // kind.sub_len) for v in _fit_offset(x, kind.top))
    d16 = half_scale(scales.max(axis=1) / np.float32(kind.scale_top))
    dmin16 = half_scale(minima.max(axis=1) / np.float32(kind.scale_top))
    d, dmin = d16.astype(np.float32)[:, None], dmin16.astype(np.float32)[:, None]
    first_scale, first_min = np.rint(scales * reciprocal(d)), np.rint(minima * reciprocal(dmin))
    best_error = np.full(x.shape[1], np.inf, np.float32)
    best_scale, best_min = np.zeros_like(first_scale), np.zeros_like(first_min)
    for min_step in _NEAR:
        minimum = np.clip(first_min + np.float32(min_step), 0, kind.scale_top)
        lifted = x + (minimum * dmin).ravel()
        for scale_step in _NEAR:
            scale = np.clip(first_scale + np.float32(scale_step), 0, kind.scale_top)
            error = squared_error(lifted, (scale * d).ravel(), 0, kind.top)
            better = error < best_error
            best_error[better] = error[better]
            best_scale.ravel()[better] = scale.ravel()[better]
            best_min.ravel()[better] = minimum.ravel()[better]
    q = codes(x + (best_min * dmin).ravel(), (best_scale * d).ravel(), 0, kind.top)
    return d16, dmin16, best_scale.astype(np.uint8), best_min.astype(np.uint8), _rows(q)


def _pack_fields(q: Bytes, bits: int, run: int) -> Bytes:
    """Pack codes of 1, 2 or 4 bits, n // 256 · 32 · bits bytes.

    In each stretch of run · 8 / bits weights, byte l holds the weights l, l + run, l + 2 run, …,
    the first in its lowest bits.
    """
    fields = 8 // bits
    q = q.reshape(len(q), -1, fields, run)
    packed: Bytes = q[:, :, 0].copy()
    for i in range(1, fields):
        packed |= q[:, :, i] << np.uint8(i * bits)
    return packed.reshape(len(q), -1)


def _pack_scales_and_minima(scales: Bytes, minima: Bytes) -> Bytes:
    """Pack 8 scales and 8 minima of 6 bits into 12 bytes, as Q4_K and Q5_K have them.

    Bytes 0–3 hold scales 0–3, bytes 4–7 minima 0–3, each with the two high bits of number i + 4
    on top; bytes 8–11 hold the low nibbles of scales (low) and minima (high) 4–7.
    """
    return np.concatenate(
        [
            scales[:, :4] | (scales[:, 4:] >> np.uint8(4)) << 6,
            minima[:, :4] | (minima[:, 4:] >> np.uint8(4)) << 6,
            (scales[:, 4:] & np.uint8(15)) | (minima[:, 4:] & np.uint8(15)) << 4,
        ],
        axis=1,
    )


def encode_q2_k(x: Floats) -> Bytes:
    """Encode ``(n, 256)`` weights as Q2_K: 16 bytes scale | minimum << 4, 64 codes, d, dmin."""
    d, dmin, scales, minima, q = _encode_offset(x, _Q2_K)
    return np.concatenate(
        [scales | minima << np.uint8(4), _pack_fields(q, 2, 32), half_bytes(d), half_bytes(dmin)],
        axis=1,
    )


def encode_q3_k(x: Floats) -> Bytes:
    """Encode ``(n, 256)`` weights as Q3_K: 32 high bits, 64 low bits, 12 scales, d."""
    d, signed, q = _encode_signed(x, _Q3_K)
    scales = (signed + np.float32(_Q3_K.scale_top)).astype(np.uint8)
    return np.concatenate(
        [
            _pack_fields(q >> np.uint8(2), 1, 32),
            _pack_fields(q & np.uint8(3), 2, 32),
            _pack_fields(scales & np.uint8(15), 4, 8),
            _pack_fields(scales >> np.uint8(4), 2, 4),
            half_bytes(d),
        ],
        axis=1,
    )


def encode_q4_k(x: Floats) -> Bytes:
    """Encode ``(n, 256)`` weights as Q4_K: d, dmin, 12 scales and minima, 128 codes."""
    d, dmin, scales, minima, q = _encode_offset(x, _Q4_K)
    packed = _pack_scales_and_minima(scales, minima)
    return np.concatenate([half_bytes(d), half_bytes(dmin), packed, _pack_fields(q, 4, 32)], axis=1)


def encode_q5_k(x: Floats) -> Bytes:
    """Encode ``(n, 256)`` weights as Q5_K: d, dmin, 12 scales and minima, 32 high bits, 128."""
    d, dmin, scales, minima, q = _encode_offset(x, _Q5_K)
    return np.concatenate(
        [
            half_bytes(d),
            half_bytes(dmin),
            _pack_scales_and_minima(scales, minima),
            _pack_fields(q >> np.uint8(4), 1, 32),
            _pack_fields(q & np.uint8(15), 4, 32),
        ],
        axis=1,
    )


def encode_q6_k(x: Floats) -> Bytes:
    """Encode ``(n, 256)`` weights as Q6_K: 128 low nibbles, 64 high bits, 16 int8 scales, d."""
    d, signed, q = _encode_signed(x, _Q6_K)
    return np.concatenate(
        [
            _pack_fields(q & np.uint8(15), 4, 64),
            _pack_fields(q >> np.uint8(4), 2, 32),
            signed.astype(np.int8).view(np.uint8),
            half_bytes(d),
        ],
        axis=1,
    )
