"""The OCP Microscaling (MX) v1.0 formats MXFP4, MXFP6 E2M3 and MXFP6 E3M2.

A block is 32 small floats that share one power of two (E8M0: 2^(byte − 127), 255 means NaN).
MXFP4 has GGUF's layout; MXFP6 has no GGUF type, its layout is ours: the scale's byte, then 24
bytes in which weight i has bits [6i, 6i + 6), counted from the lowest bit of the first byte.
`quants` has checked the input.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rocmforge.array_types import Bytes, Floats
from rocmforge.gguf.scales import column_dot

_SCALE_BIAS = 127
_LAST_SCALE = 254
_SCALES: Floats = np.append(
    np.ldexp(np.float32(1), np.arange(_LAST_SCALE + 1) - _SCALE_BIAS), np.float32(np.nan)
)


@dataclass(frozen=True)
class Element:
    """A small float: sign, exponent and mantissa bits from high to low; no infinity, no NaN.

    value = (-1)^sign · 2^(exponent − bias) · (1 + mantissa / 2^mantissa_bits), and for exponent 0
    (-1)^sign · 2^(1 − bias) · mantissa / 2^mantissa_bits. Source: OCP MX v1.0, 5.3.
    """

    exponent_bits: int
    mantissa_bits: int

    @property
    def bias(self) -> int:
        """2^(exponent_bits − 1) − 1."""
        return (1 << self.exponent_bits - 1) - 1

    @property
    def max_exponent(self) -> int:
        """Power of two of the greatest binade."""
        return (1 << self.exponent_bits) - 1 - self.bias

    @property
    def sign_bit(self) -> int:
        """The bit that makes a code negative; the greatest magnitude is sign_bit − 1."""
        return 1 << self.exponent_bits + self.mantissa_bits

    @cached_property
    def values(self) -> Floats:
        """What each code stands for, ``(2 · sign_bit,)``."""
        code = np.arange(self.sign_bit)
        exponent = code >> self.mantissa_bits
        implied = np.where(exponent > 0, 1 << self.mantissa_bits, 0)
        mantissa = implied + (code & (1 << self.mantissa_bits) - 1)
        power = np.maximum(exponent, 1) - self.bias - self.mantissa_bits
        positive = np.ldexp(mantissa.astype(np.float32), power)
        return np.concatenate([positive, -positive]).astype(np.float32)

    def nearest(self, v: Floats) -> Bytes:
        """Return the code nearest to each v, ties to the even code, saturating; of v's shape.

        Within a binade 2^k the codes step by 2^(k − mantissa_bits), and a code is that many steps
        on top of the binades below; so rounding v to a step gives the code, carry included.
        """
        magnitude = np.abs(v)
        lowest = 1 - self.bias
        binade = (magnitude.view(np.int32) >> 23) - 127
        np.clip(binade, lowest, self.max_exponent, out=binade)
        steps = ((127 + self.mantissa_bits - binade) << 23).view(np.float32)
        np.multiply(magnitude, steps, out=steps)
        np.rint(steps, out=steps)
        np.minimum(steps, np.float32(2 << self.mantissa_bits), out=steps)
        code = steps.astype(np.int32) + ((binade - lowest) << self.mantissa_bits)
        np.minimum(code, self.sign_bit - 1, out=code)
        code |= np.where((v < 0) & (code > 0), np.int32(self.sign_bit), np.int32(0))
        return code.astype(np.uint8)


E2M1 = Element(exponent_bits=2, mantissa_bits=1)
E2M3 = Element(exponent_bits=2, mantissa_bits=3)
E3M2 = Element(exponent_bits=3, mantissa_bits=2)


def _encode(x: Floats, element: Element) -> tuple[Bytes, Bytes]:
    """Return the scale bytes ``(n,)`` and codes ``(32, n)`` of ``(n, 32)`` weights.

    OCP's rule takes the scale that puts the largest weight into the greatest binade, where it may
    saturate. The next one never saturates; whichever has the smaller squared error is kept.
    """
    x = np.ascontiguousarray(x.T)
    _, power = np.frexp(np.abs(x).max(axis=0))
    first = np.clip(power - 1 - element.max_exponent + _SCALE_BIAS, 0, _LAST_SCALE)
    first[~x.any(axis=0)] = 0
    scaled = x * np.ldexp(np.float32(1), _SCALE_BIAS - first)
    code = element.nearest(scaled)
    error = element.values[code] - scaled
    scaled *= np.float32(0.5)
    wide_code = element.nearest(scaled)
    wide_error = element.values[wide_code] - scaled
    wide = 4 * column_dot(wide_error, wide_error) < column_dot(error, error)
    wide &= first < _LAST_SCALE
    return (first + wide).astype(np.uint8), np.where(wide, wide_code, code)


def encode_mxfp4(x: Floats) -> Bytes:
    """Encode ``(n, 32)`` weights as MXFP4 ``(n, 17)``: weight l low, l + 16 high in byte l + 1."""
    scale, code = _encode(x, E2M1)
    return np.concatenate([scale[:, None], (code[:16] | code[16:] << 4).T], axis=1)


def _encode_mxfp6(x: Floats, element: Element) -> Bytes:
    scale, code = _encode(x, element)
    a, b, c, d = code.T.reshape(-1, 8, 4).transpose(2, 0, 1)
    packed = np.stack([a | b << 6, b >> 2 | c << 4, c >> 4 | d << 2], axis=-1)
    return np.concatenate([scale[:, None], packed.reshape(-1, 24)], axis=1)


def encode_mxfp6_e2m3(x: Floats) -> Bytes:
    """Encode ``(n, 32)`` weights as MXFP6 E2M3 ``(n, 25)``."""
    return _encode_mxfp6(x, E2M3)


def encode_mxfp6_e3m2(x: Floats) -> Bytes:
    """Encode ``(n, 32)`` weights as MXFP6 E3M2 ``(n, 25)``."""
    return _encode_mxfp6(x, E3M2)


def _decode_mxfp6(blocks: Bytes, element: Element) -> Floats:
    a, b, c = blocks[:, 1:].reshape(-1, 8, 3).transpose(2, 0, 1)
    code = np.stack([a, a >> 6 | b << 2, b >> 4 | c << 4, c >> 2], axis=-1) & np.uint8(63)
    weights: Floats = element.values[code.reshape(-1, 32)] * _SCALES[blocks[:, 0], None]
    return weights


def decode_mxfp6_e2m3(blocks: Bytes) -> Floats:
    """Decode MXFP6 E2M3 blocks ``(n, 25)`` to weights ``(n, 32)``."""
    return _decode_mxfp6(blocks, E2M3)


def decode_mxfp6_e3m2(blocks: Bytes) -> Floats:
    """Decode MXFP6 E3M2 blocks ``(n, 25)`` to weights ``(n, 32)``."""
    return _decode_mxfp6(blocks, E3M2)
