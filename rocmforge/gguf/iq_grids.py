"""Encoders of the IQ1, IQ2 and IQ3 formats: neighbouring weights are an entry of a grid.

A weight is d · scale · unit · (a magnitude of the grid, with a sign). The grids are the `gguf`
package's. Each sub-block's scale and entries minimize the plain squared error; llama.cpp weighs it
by importance data, without which it refuses to write IQ2 and IQ1. `quants` has checked the input,
and decodes; `iq_blocks` arranges the bytes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rocmforge.array_types import Floats
from rocmforge.gguf.scales import half_scale, reciprocal

Ints = NDArray[np.int64]

_TRIED = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35)
"""Candidate scales, times the one at which weights and grid have the same mean square."""

_DISTANCES = 1 << 15
"""Distances computed at a time: they stay in a core's cache, and are too few for OpenBLAS to share
among threads, which takes four times the CPU time and is slower."""


@dataclass(frozen=True)
class Grid:
    """How a format codes 256 weights.

    Parameters
    ----------
    of
        The format whose grid the `gguf` package has under this name.
    sub
        Weights that share a scale.
    levels
        Scales are 1, 3, 5 … 2 · levels − 1, times d.
    unit
        What all weights are multiplied with.
    signs
        ``"free"``, or ``"even"``: of eight neighbours an even number is negative; or ``"shift"``:
        there are none, and entries are -1, 0 and 1 plus or minus an eighth, the same for
        `shifted` neighbours.
    shifted
        See `signs`.
    """

    of: str
    sub: int
    levels: int
    unit: float
    signs: Literal["free", "even", "shift"]
    shifted: int = 0


@dataclass(frozen=True)
class Coded:
    """n blocks: f16 d ``(n,)``, scales 0 … levels − 1 ``(n, 256 / sub)``, the entries' places
    ``(n, 256 / columns of an entry)``, and negative weights or shifts ``(n, 256)`` bool.
    """

    d: NDArray[np.float16]
    scales: Ints
    places: Ints
    negative: NDArray[np.bool_]


@functools.cache
def entries(name: str) -> Floats:
    """Return a format's grid, ``(entries, columns)``: magnitudes, or -1, 0 and 1."""
    import gguf.quants

    chosen = getattr(gguf.quants, name)
    chosen.init_grid()
    grid: Floats = chosen.grid.reshape(-1, chosen.grid.shape[-1]).astype(np.float32)
    return grid


def code(x: Floats, grid: Grid) -> Coded:
    """Choose scales and entries for ``(n, 256)`` weights."""
    n = len(x)
    subs = x.reshape(-1, grid.sub)
    table = entries(grid.of)
    scale = _fitted(subs, grid, np.sqrt(np.mean(np.square(subs), axis=1) / np.mean(table**2)))
    largest = scale.reshape(n, -1).max(axis=1)
    d = half_scale(largest / np.float32((2 * grid.levels - 1) * grid.unit))
    wide = d.astype(np.float32)[:, None] * np.float32(grid.unit)
    scales = np.clip(np.rint((scale.reshape(n, -1) * reciprocal(wide) - 1) / 2), 0, grid.levels - 1)
    places, negative, _ = _nearest(subs, (wide * (2 * scales + 1)).reshape(-1), grid)
    return Coded(d, scales.astype(np.int64), places.reshape(n, -1), negative.reshape(n, 256))


def _fitted(subs: Floats, grid: Grid, middle: Floats) -> Floats:
    """Return the best scale of each sub-block: each candidate is fitted to what it chooses.

    d = Σxv / Σv² leaves Σx² − (Σxv)² / Σv².
    """
    best_gain, best = np.zeros_like(middle), np.zeros_like(middle)
    for factor in _TRIED:
        _, _, values = _nearest(subs, middle * np.float32(factor), grid)
        xv = np.einsum("ij,ij->i", subs, values)
        fitted = xv * reciprocal(np.einsum("ij,ij->i", values, values))
        gain = xv * fitted
        better = (gain > best_gain) & (fitted > 0)
        best_gain[better], best[better] = gain[better], fitted[better]
    return best


def _nearest(subs: Floats, scale: Floats, grid: Grid) -> tuple[Ints, NDArray[np.bool_], Floats]:
    """Return places, negative weights or shifts, and the values chosen, of ``(m, sub)`` weights."""
    x = subs * reciprocal(scale)[:, None]
    table = entries(grid.of)
    if grid.signs == "shift":
        return _nearest_shifted(x, table, grid.shifted)
    negative = x < 0
    if grid.signs == "even":
        eight, signs = np.abs(x).reshape(-1, 8), negative.reshape(-1, 8)
        odd = np.flatnonzero(signs.sum(axis=1) % 2)
        signs[odd, eight[odd].argmin(axis=1)] ^= True  # the one that costs least
    sign = np.where(negative, np.float32(-1), np.float32(1))
    places = _places((x * sign).reshape(-1, table.shape[1]), table)
    return places, negative, table[places].reshape(x.shape) * sign


def _nearest_shifted(
    x: Floats, table: Floats, shifted: int
) -> tuple[Ints, NDArray[np.bool_], Floats]:
    of_sign = []
    for shift in (np.float32(0.125), np.float32(-0.125)):
        places = _places((x - shift).reshape(-1, 8), table)
        values = table[places].reshape(x.shape) + shift
        of_sign.append((places, values, ((x - values) ** 2).reshape(-1, shifted).sum(axis=1)))
    (up, above, error), (down, below, other) = of_sign
    minus = other < error
    of_eight = np.repeat(minus, shifted // 8)
    negative = np.repeat(minus, shifted).reshape(x.shape)
    return np.where(of_eight, down, up), negative, np.where(negative, below, above)


def _places(v: Floats, table: Floats) -> Ints:
    """Return the entry nearest to each of ``(m, columns)``: the least |e|² / 2 − e · v."""
    half = np.square(table).sum(axis=1) / 2
    step = _DISTANCES // len(table)
    out = np.empty(len(v), np.int64)
    for start in range(0, len(v), step):
        part = v[start : start + step] @ table.T
        part -= half
        out[start : start + step] = part.argmax(axis=1)
    return out
