"""Activations in device memory, by dtype: float32, float16 in two orders, or int8 (Q8).

Addresses are integers into memory that somebody else owns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

GROUP = 32  # columns that share a scale
ALIGNMENT = 256


@dataclass(frozen=True)
class F32:
    """(T, K) float32 rows at an address."""

    address: int

    def row(self, index: int, columns: int) -> F32:
        """The rows from one on."""
        return F32(self.address + 4 * index * columns)


H = TypeVar("H", bound="Halves")


@dataclass(frozen=True)
class Halves:
    """(T, K) float16 rows at an address: what the matrix units read, in one of two orders."""

    address: int

    def row(self: H, index: int, columns: int) -> H:
        """The rows from one on."""
        return replace(self, address=self.address + 2 * index * columns)


class F16(Halves):
    """Columns in their order."""


class Permuted(Halves):
    """Columns in the order in which Hopper's matrix units read it beside packed weights.

    Of each 128 columns, the pairs of neighbours of the four groups of 32 alternate: column
    32 g + 2 w + e is at 8 w + 2 g + e. K is a multiple of 32, and rows stand `stride(K)` numbers
    apart.
    """

    COLUMNS = 128

    @classmethod
    def stride(cls, columns: int) -> int:
        """Numbers from a row to the next: whole COLUMNS."""
        return -(-columns // cls.COLUMNS) * cls.COLUMNS

    def row(self, index: int, columns: int) -> Permuted:
        """The rows from one on."""
        return super().row(index, self.stride(columns))


@dataclass(frozen=True)
class Q8:
    """(T, K) rows rounded to int8 in groups of 32 columns; K is a multiple of 32.

    Parameters
    ----------
    codes
        Address of (T, K) int8; a value is its code times its group's scale.
    scales
        Address of (T, K / 32) float32.
    sums
        Address of (T, K / 32) words: the sums of the codes of the group's first and second half,
        as int16 in the low and the high half of the word.
    """

    codes: int
    scales: int
    sums: int

    @classmethod
    def at(cls, address: int, rows: int, columns: int) -> Q8:
        """Lay the three arrays out one after another from an address aligned to 256."""
        scales = address + _aligned(rows * columns)
        sums = scales + _aligned(rows * columns // GROUP * 4)
        return cls(address, scales, sums)

    def row(self, index: int, columns: int) -> Q8:
        """The rows from one on."""
        groups = 4 * (index * columns // GROUP)
        return Q8(self.codes + index * columns, self.scales + groups, self.sums + groups)

    @staticmethod
    def nbytes(rows: int, columns: int) -> int:
        """Memory that `at` lays out."""
        return _aligned(rows * columns) + 2 * _aligned(rows * columns // GROUP * 4)


@dataclass(frozen=True)
class Squares:
    """1 / √(mean(h²) + eps) of each row: what activations lack of their RMSNorm.

    Parameters
    ----------
    address
        Of (T, K / 32) float32: the sums of h² of each group of columns.
    eps
        Of the norm.
    """

    address: int
    eps: float


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
