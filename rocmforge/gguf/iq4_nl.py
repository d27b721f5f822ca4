"""Encoder of IQ4_NL: blocks of 32 weights, one f16 scale, 4-bit codes into a table of 16 values.

The table is dense near 0, where most weights are. `quants` has checked the input, and decodes.
"""

from __future__ import annotations

import numpy as np

from rocmforge.array_types import Bytes, Floats
from rocmforge.gguf.scales import column_dot, half_bytes, half_scale, peak, reciprocal

IQ4_NL_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What each code stands for, times the block's scale."""

_TABLE = np.array(IQ4_NL_VALUES, np.float32)
# The value midway between two neighbours is a whole number of halves, so floor(2 v) says on
# which side of it v lies: _NEAREST[floor(2 v) + 256] is the code nearest to v.
_NEAREST = np.searchsorted(
    (_TABLE[:-1] + _TABLE[1:]) / 2, (np.arange(512) - 256) / 2 + 0.25
).astype(np.uint8)

_DIVISORS = (*np.linspace(-140, -100, 9).tolist(), *np.linspace(90, 130, 9).tolist())
"""Candidate scales: the largest weight / divisor, around the table's two ends."""


def nearest(x: Floats, inverse_scale: Floats) -> Bytes:
    """Return the code whose value is nearest to x · inverse_scale; of x's shape."""
    v = x * (2 * inverse_scale)
    v += np.float32(256)
    np.clip(v, 0, 511, out=v)
    return _NEAREST[v.astype(np.int16)]


def fitted_scale(x: Floats) -> Floats:
    """Return the scale of each column of ``(32, n)`` weights, ``(n,)``.

    Each candidate is fitted to its codes by least squares: d = Σxv / Σv², which leaves
    Σx² − (Σxv)² / Σv².
    """
    inverse = reciprocal(peak(x))
    best_gain = np.zeros_like(inverse)
    best_scale = np.zeros_like(inverse)
    for divisor in _DIVISORS:
        v = _TABLE[nearest(x, inverse * np.float32(divisor))]
        xv = column_dot(x, v)
        scale = xv * reciprocal(column_dot(v, v))
        gain = xv * scale
        better = gain > best_gain
        best_gain[better] = gain[better]
        best_scale[better] = scale[better]
    return best_scale


def encode_iq4_nl(x: Floats) -> Bytes:
    """Encode ``(n, 32)`` weights as ``(n, 18)`` bytes: f16 scale, then 16 bytes of two codes.

    Byte l holds weight l in its low nibble and weight l + 16 in its high one.
    """
    x = np.ascontiguousarray(x.T)
    d = half_scale(fitted_scale(x))
    q = nearest(x, reciprocal(d.astype(np.float32)))
    return np.concatenate([half_bytes(d), (q[:16] | q[16:] << 4).T], axis=1)
