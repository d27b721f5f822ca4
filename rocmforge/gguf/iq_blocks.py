"""The bytes of IQ1, IQ2 and IQ3 blocks: places in the grid, signs and scales, as ggml lays them.

`iq_grids` chooses them. Every function encodes ``(n, 256)`` weights as ``(n, block_bytes)``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rocmforge.array_types import Bytes, Floats
from rocmforge.gguf.iq_grids import Coded, Grid, Ints, code
from rocmforge.gguf.scales import half_bytes

IQ3_XXS = Grid("IQ3_XXS", 32, 16, 1 / 4, "even")
IQ3_S = Grid("IQ3_S", 32, 16, 1.0, "free")
IQ2_XXS = Grid("IQ2_XXS", 32, 16, 1 / 8, "even")
IQ2_XS = Grid("IQ2_XS", 16, 16, 1 / 8, "even")
IQ2_S = Grid("IQ2_S", 16, 16, 1 / 8, "free")
IQ1_S = Grid("IQ1_S", 32, 8, 1.0, "shift", 32)
IQ1_M = Grid("IQ1_M", 16, 8, 1.0, "shift", 8)


def encode_iq3_xxs(x: Floats) -> Bytes:
    """f16 d; 64 places; of 32 weights a word: four times seven signs, the scale above them."""
    c = code(x, IQ3_XXS)
    words = _joined(_signs(c) & 127, 7, 4) | c.scales << 28
    return _block(half_bytes(c.d), c.places.astype(np.uint8), _little_endian(words, 4))


def encode_iq3_s(x: Floats) -> Bytes:
    """f16 d; 64 places' low bytes; their ninth bits; 32 bytes of signs; the scales, two a byte."""
    c = code(x, IQ3_S)
    ninth = _joined(c.places >> 8, 1, 8).astype(np.uint8)
    scales = _joined(c.scales, 4, 2).astype(np.uint8)
    return _block(
        half_bytes(c.d),
        (c.places & 255).astype(np.uint8),
        ninth,
        _signs(c).astype(np.uint8),
        scales,
    )


def encode_iq2_xxs(x: Floats) -> Bytes:
    """f16 d; of 32 weights four places, and a word: four times seven signs, the scale above."""
    c = code(x, IQ2_XXS)
    words = _joined(_signs(c) & 127, 7, 4) | c.scales << 28
    pairs = np.stack([_joined(c.places, 8, 4), words], axis=2).reshape(len(x), -1)
    return _block(half_bytes(c.d), _little_endian(pairs, 4))


def encode_iq2_xs(x: Floats) -> Bytes:
    """f16 d; of 8 weights a half word: nine bits of place, seven signs; the scales, two a byte."""
    c = code(x, IQ2_XS)
    words = _little_endian(c.places | (_signs(c) & 127) << 9, 2)
    return _block(half_bytes(c.d), words, _joined(c.scales, 4, 2).astype(np.uint8))


def encode_iq2_s(x: Floats) -> Bytes:
    """f16 d; 32 places' low bytes; signs; their high bits, four a byte; scales, two a byte."""
    c = code(x, IQ2_S)
    return _block(
        half_bytes(c.d),
        (c.places & 255).astype(np.uint8),
        _signs(c).astype(np.uint8),
        _joined(c.places >> 8, 2, 4).astype(np.uint8),
        _joined(c.scales, 4, 2).astype(np.uint8),
    )


def encode_iq1_s(x: Floats) -> Bytes:
    """f16 d; 32 places' low bytes; of 32 weights four times three bits, scale, shift."""
    c = code(x, IQ1_S)
    shifts = c.negative[:, ::32].astype(np.int64)
    words = _joined(c.places >> 8, 3, 4) | c.scales << 12 | shifts << 15
    return _block(half_bytes(c.d), (c.places & 255).astype(np.uint8), _little_endian(words, 2))


def encode_iq1_m(x: Floats) -> Bytes:
    """32 places' low bytes; of 8 weights three bits and the shift; scales with d's bits above."""
    c = code(x, IQ1_M)
    shifts = c.negative[:, ::8].astype(np.int64)
    high = _joined(c.places >> 8 | shifts << 3, 4, 2).astype(np.uint8)
    d = c.d.view(np.uint16).astype(np.int64)[:, None] >> np.array([0, 4, 8, 12]) & 15
    words = _joined(c.scales, 3, 4) | d << 12
    return _block((c.places & 255).astype(np.uint8), high, _little_endian(words, 2))


def _signs(c: Coded) -> Ints:
    """Eight neighbours' signs as the bits of a number, ``(n, 32)``."""
    return _joined(c.negative.astype(np.int64), 1, 8)


def _joined(fields: Ints, bits: int, count: int) -> Ints:
    """Join `count` neighbouring fields of `bits` bits into a number, the first one lowest."""
    shifts = bits * np.arange(count)
    joined: Ints = (fields.reshape(len(fields), -1, count) << shifts).sum(axis=2)
    return joined


def _little_endian(words: Ints, nbytes: int) -> Bytes:
    kind = {2: "<u2", 4: "<u4"}[nbytes]
    return words.astype(kind).view(np.uint8).reshape(len(words), -1)


def _block(*parts: NDArray[np.uint8]) -> Bytes:
    return np.concatenate(parts, axis=1)
