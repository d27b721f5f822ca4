"""Encoder of IQ4_XS: 256 weights, one f16 scale, eight sub-blocks of IQ4_NL's codes.

A sub-block of 32 weights has an integer scale of 6 bits, −32 to 31. `quants` has checked the
input, and decodes.
"""

from __future__ import annotations

import numpy as np

from rocmforge.array_types import Bytes, Floats
from rocmforge.gguf.iq4_nl import fitted_scale, nearest
from rocmforge.gguf.scales import half_bytes, half_scale, peak, reciprocal


def encode_iq4_xs(x: Floats) -> Bytes:
    """Encode ``(n, 256)`` weights as ``(n, 136)`` bytes.

    f16 d; the upper two bits of the scales, 16 of them; their lower four, 4 bytes; 128 bytes of
    codes, 16 a sub-block, as IQ4_NL has them. A weight is d · scale · table[code]. Each sub-block
    is fitted alone; d makes −32 of the scale of largest magnitude.
    """
    n = len(x)
    subs = np.ascontiguousarray(x.reshape(8 * n, 32).T)
    scales = fitted_scale(subs).reshape(n, 8)
    d = half_scale(peak(scales.T) / np.float32(-32))
    wide = d.astype(np.float32)
    steps = np.clip(np.rint(scales * reciprocal(wide)[:, None]), -32, 31)
    q = nearest(subs, reciprocal((wide[:, None] * steps).reshape(-1)))
    codes = (q[:16] | q[16:] << 4).T.reshape(n, 128)
    bits = (steps + 32).astype(np.uint16)
    low = (bits[:, 0::2] & 15 | (bits[:, 1::2] & 15) << 4).astype(np.uint8)
    high = ((bits >> 4) << (2 * np.arange(8, dtype=np.uint16))).sum(axis=1, dtype=np.uint16)
    parts = [half_bytes(d), high.astype("<u2").view(np.uint8).reshape(n, 2), low, codes]
    return np.concatenate(parts, axis=1)
