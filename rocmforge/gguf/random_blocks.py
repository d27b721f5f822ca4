"""Random weights written directly as blocks of a format, without quantizing any float.

The bits of the codes are random. The scales are drawn so that the weights have the standard
deviation asked for and a mean near zero. Nothing is tiled or repeated.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge.array_types import Bytes
from rocmforge.gguf.formats import FORMATS, PLAIN_FORMATS, Format
from rocmforge.gguf.nvfp4 import E4M3
from rocmforge.gguf.quants import dequantize, quantize

Words = NDArray[np.unsignedinteger[Any]]

_CHUNK_BYTES = 8 << 20
_SAMPLE_BLOCKS = 2048
_JITTER = 0.25  # block scales spread evenly over ± this much


@dataclass(frozen=True)
class _Layout:
    """Where a block keeps its f16 scale d, its f16 offset, and bytes to hold within bounds.

    Formats whose quants are centred on zero only nearly (−8 … 7) get scales of both signs, which
    centres the weights; those with an offset get offset = `ratio` · d, which does the same.
    """

    d: int
    offset: int | None = None
    ratio: float = 0.0
    # (first, last + 1, bits set in each byte): sub-block scales and minimums not near zero
    set_bits: tuple[int, int, int] | None = None


_LAYOUTS: Mapping[str, _Layout] = MappingProxyType(
    {
        "Q4_0": _Layout(0),
        "Q4_1": _Layout(0, offset=2, ratio=-7.5),
        "Q5_0": _Layout(0),
        "Q5_1": _Layout(0, offset=2, ratio=-15.5),
        "Q8_0": _Layout(0),
        "Q2_K": _Layout(80, offset=82, ratio=1.5, set_bits=(0, 16, 0x88)),
        "Q3_K": _Layout(108),
        "Q4_K": _Layout(0, offset=2, ratio=7.5, set_bits=(4, 12, 0xA0)),
        "Q5_K": _Layout(0, offset=2, ratio=15.5, set_bits=(4, 12, 0xA0)),
        "Q6_K": _Layout(208),
        "IQ4_NL": _Layout(0),
        "IQ4_XS": _Layout(0),
        "IQ3_S": _Layout(0),
        "IQ3_XXS": _Layout(0),
        "IQ2_S": _Layout(0),
        "IQ2_XS": _Layout(0),
        "IQ2_XXS": _Layout(0),
        "IQ1_M": _Layout(0),  # but for d, whose bits are spread: see `_scaled_blocks`
        "IQ1_S": _Layout(0),
        "TQ2_0": _Layout(64),
        "TQ1_0": _Layout(52),
    }
)

_BYTE_SCALED: Mapping[str, tuple[NDArray[np.floating[Any]], int]] = MappingProxyType(
    {"NVFP4": (E4M3, 4), "MXFP4": (2.0 ** (np.arange(255) - 127.0), 1)}
)
"""Formats whose blocks begin with scale bytes: the scales by their codes, and how many bytes."""


class RandomBytes:
    """A stream of random bytes that depends on seed and name alone.

    Taken raw from the bit generator, whose stream numpy keeps stable between versions.

    Parameters
    ----------
    seed
        Not negative.
    name
        Of what the bytes are for, so that one tensor does not depend on the others.
    """

    def __init__(self, seed: int, name: str) -> None:
        """Start the stream at its beginning."""
        self._bits = np.random.SFC64(np.random.SeedSequence([seed, zlib.crc32(name.encode())]))

    def take(self, count: int) -> Bytes:
        """Return the next `count` bytes, ``(count,)`` uint8, writable."""
        words = self._bits.random_raw(-(-count // 8))
        return words.astype("<u8", copy=False).view(np.uint8)[:count]


@functools.cache
def _normal_quantiles() -> NDArray[np.float64]:
    """Return 65536 equally likely values of N(0, 1), its distribution inverted numerically."""
    x = np.linspace(-6.0, 6.0, 24001)
    density = np.exp(-0.5 * x * x)
    cumulative = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
    values = np.interp((np.arange(65536) + 0.5) / 65536, cumulative / cumulative[-1], x)
    return np.asarray(values / values.std())


def normal(source: RandomBytes, count: int) -> NDArray[np.float32]:
    """Return ``(count,)`` float32 drawn from 65536 equally likely values of N(0, 1)."""
    values: NDArray[np.float32] = _normal_quantiles().astype(np.float32)
    return values[source.take(2 * count).view("<u2").astype(np.intp)]


def random_blocks(fmt: Format, weights: int, std: float, source: RandomBytes) -> Iterator[Bytes]:
    """Yield the bytes of random weights in a format, in chunks of some megabytes.

    Parameters
    ----------
    fmt
        A format with a GGUF type.
    weights
        How many, a multiple of the block length.
    std
        Standard deviation of the weights; their mean is near zero.
    source
        Of the randomness.

    Returns
    -------
    ``(bytes,)`` uint8 arrays of whole blocks, `weights` / block_len · block_bytes in all.

    Raises
    ------
    ValueError
        If there is no layout for the format, or `weights` is no multiple of its block length.
    """
    if fmt.name not in (*_LAYOUTS, *_BYTE_SCALED, *PLAIN_FORMATS):
        raise ValueError(f"format: got {fmt.name}, wanted one with a GGUF type")
    if weights % fmt.block_len:
        raise ValueError(f"weights: got {weights}, wanted a multiple of {fmt.block_len}")
    blocks = weights // fmt.block_len
    step = _CHUNK_BYTES // fmt.block_bytes
    fill = _filler(fmt, std)
    for start in range(0, blocks, step):
        yield fill(source, min(step, blocks - start))


def _filler(fmt: Format, std: float) -> Callable[[RandomBytes, int], Bytes]:
    if fmt.name in PLAIN_FORMATS:
        values = (_normal_quantiles() * std).astype(np.float32)
        table = quantize(values, fmt).view(f"<u{fmt.block_bytes}")
        return functools.partial(_float_blocks, table)
    if fmt.name in _BYTE_SCALED:
        return functools.partial(_byte_scaled_blocks, fmt.name, _byte_table(fmt.name, std))
    tables = _scale_tables(fmt, std / _unit_deviation(fmt))
    return functools.partial(_scaled_blocks, fmt, tables)


def _float_blocks(table: Words, source: RandomBytes, blocks: int) -> Bytes:
    drawn: Bytes = table[source.take(2 * blocks).view("<u2")].view(np.uint8)
    return drawn


def _byte_table(name: str, std: float) -> Bytes:
    """Return 256 scale bytes, two neighbouring scales in the proportion that gives `std`.

    The mean square of the scales a and b, the larger with probability p, is a² + p (b² − a²).
    """
    scales, _ = _BYTE_SCALED[name]
    scale = std / _unit_deviation(FORMATS[name])
    at = int(np.searchsorted(scales, scale, side="right")) - 1
    low, high = (float(scales[min(i, len(scales) - 1)]) for i in (at, at + 1))
    share = (scale**2 - low**2) / (high**2 - low**2) if high > low else 0.0
    table = np.full(256, at, dtype=np.uint8)
    table[: round(256 * share)] += 1
    return table


def _byte_scaled_blocks(name: str, table: Bytes, source: RandomBytes, blocks: int) -> Bytes:
    """Return blocks that begin with their scale bytes, each drawn from the table."""
    data = source.take(blocks * FORMATS[name].block_bytes).reshape(blocks, -1)
    _, count = _BYTE_SCALED[name]
    data[:, :count] = table[data[:, :count]]
    return data.reshape(-1)


def _scale_tables(fmt: Format, scale: float) -> tuple[Words, Words]:
    """Return 256 choices of d and of the offset, the bits of an f16 each."""
    layout = _LAYOUTS[fmt.name]
    spread = 1.0 + _JITTER * (2.0 * (np.arange(256) + 0.5) / 256.0 - 1.0)
    d = scale * spread / math.sqrt(float(np.mean(spread * spread)))
    if layout.offset is None:
        d[1::2] *= -1.0
    offset = d * layout.ratio
    return d.astype("<f2").view("<u2"), offset.astype("<f2").view("<u2")


def _scaled_blocks(
    fmt: Format, tables: tuple[Words, Words], source: RandomBytes, blocks: int
) -> Bytes:
    layout = _LAYOUTS[fmt.name]
    data = source.take(blocks * fmt.block_bytes).reshape(blocks, fmt.block_bytes)
    if fmt.name == "IQ1_M":  # the scale's bits are above those of four half words
        words, chosen = data[:, 48:].view("<u2"), tables[0][data[:, 0]]
        words &= 0x0FFF
        words |= (chosen[:, None] >> np.array([0, 4, 8, 12], np.uint16)) << 12
        return data.reshape(-1)
    choice = data[:, layout.d].copy()
    words = data.view("<u2")  # every block and field with a scale is even
    words[:, layout.d // 2] = tables[0][choice]
    if layout.offset is not None:
        words[:, layout.offset // 2] = tables[1][choice]
    if layout.set_bits is not None:
        first, last, bits = layout.set_bits
        data[:, first:last] |= bits
    if fmt.name == "TQ2_0":  # nor 3, which would be 2 times the scale
        codes = data[:, :64]
        codes &= ~(codes & codes >> 1 & 0x55)
    if fmt.name == "Q8_0":  # no quantizer writes −128
        quants = data[:, 2:].view(np.int8)
        np.maximum(quants, -127, out=quants)
    return data.reshape(-1)


@functools.cache
def _unit_deviation(fmt: Format) -> float:
    """Return the standard deviation of the weights of random blocks whose scale is 1."""
    source = RandomBytes(0, f"unit {fmt.name}")
    if fmt.name in _BYTE_SCALED:
        one = np.searchsorted(_BYTE_SCALED[fmt.name][0], 1.0)
        table = np.full(256, one, dtype=np.uint8)
        data = _byte_scaled_blocks(fmt.name, table, source, _SAMPLE_BLOCKS)
    else:
        data = _scaled_blocks(fmt, _scale_tables(fmt, 1.0), source, _SAMPLE_BLOCKS)
    return float(dequantize(data.reshape(1, -1), fmt).std())
