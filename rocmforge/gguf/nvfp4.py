"""Encoder of NVFP4: 64 weights, four scales of 8 bits (E4M3, no sign), codes of 4 bits (E2M1).

ggml's layout, without the scale of a whole tensor that NVIDIA's own files have beside it. `quants`
has checked the input, and decodes.
"""

from __future__ import annotations

import numpy as np

from rocmforge.array_types import Bytes, Floats
from rocmforge.gguf.scales import reciprocal

LARGEST = 448.0 * 6.0
"""The largest weight: the largest scale times the largest code."""

_CODE = np.arange(127)
E4M3 = np.where(_CODE < 8, _CODE * 2.0**-9, (1 + _CODE % 8 / 8) * 2.0 ** (_CODE // 8 - 7)).astype(
    np.float32
)
"""The scales by their codes, in steps of E2M1's numbers; code 127 is none."""

_LEVELS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_FITS = (6.0, 5.0, 4.0)
"""What the largest of a sub-block is tried as, in steps of its scale."""


def nearest_scale(scale: Floats) -> Bytes:
    """Return the code of the E4M3 number nearest to each; 448 is the largest."""
    at = np.searchsorted((E4M3[:-1] + E4M3[1:]) / 2, scale)
    return at.astype(np.uint8)


def encode_nvfp4(x: Floats) -> Bytes:
    """Encode ``(n, 64)`` weights as ``(n, 36)`` bytes: four scales, then 8 bytes a sub-block.

    A sub-block's byte l holds its weight l in the low nibble and its weight l + 8 in the high one.
    """
    subs = x.reshape(-1, 16)
    largest = np.abs(subs).max(axis=1)
    best_error = np.full(len(subs), np.inf, np.float32)
    scales, codes = np.zeros(len(subs), np.uint8), np.zeros(subs.shape, np.uint8)
    for fit in _FITS:
        chosen = nearest_scale(largest / np.float32(fit))
        value = E4M3[chosen]
        level = np.abs(subs) * reciprocal(value)[:, None]
        code = np.searchsorted((_LEVELS[:-1] + _LEVELS[1:]) / 2, level)
        error = np.square(np.abs(subs) - _LEVELS[code] * value[:, None]).sum(axis=1)
        better = error < best_error
        best_error[better], scales[better] = error[better], chosen[better]
        codes[better] = code[better]
    codes |= np.where(subs < 0, np.uint8(8), np.uint8(0))
    packed = codes[:, :8] | codes[:, 8:] << 4
    return np.concatenate([scales.reshape(-1, 4), packed.reshape(len(x), 32)], axis=1)
