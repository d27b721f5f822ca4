"""Arguments of kernels that take up to three matrices: kernels/products.h."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

from rocmforge.gpu.matrix import DeviceMatrix

T = TypeVar("T")

MOST = 3
LAYOUT = "PPPPPP" * MOST + "iii" * 2
"""Of `Products` there."""


def by_launch(each: Sequence[T]) -> list[Sequence[T]]:
    """Return what belongs to each of an op's matrices, launch by launch."""
    return [each[i : i + MOST] for i in range(0, len(each), MOST)]


def products(
    weights: Sequence[DeviceMatrix],
    biases: Sequence[int | None],
    outs: Sequence[int],
    blocks: Sequence[int],
) -> tuple[tuple[int, ...], int]:
    """Return the members of `Products`, and how many blocks all matrices have together.

    `blocks` are those of each matrix.
    """
    pointers: list[int] = []
    for w, bias, out in zip(weights, biases, outs, strict=True):
        pointers += [*w.addresses, bias or 0, out]
    ends = [*accumulate(blocks)]
    missing = MOST - len(weights)
    rows = (*(w.rows for w in weights), *[0] * missing)
    return (*pointers, *[0] * (6 * missing), *rows, *ends, *[ends[-1]] * missing), ends[-1]


def bands(weights: Sequence[DeviceMatrix], rows: int) -> list[int]:
    """Blocks of each matrix that have so many of its rows each."""
    return [-(-w.rows // rows) for w in weights]


def formats(weights: Sequence[DeviceMatrix]) -> dict[str, str]:
    """Return the macros FORMAT_0 to FORMAT_2; missing ones are as the last."""
    names = [w.kernel_format for w in weights]
    names += names[-1:] * (MOST - len(names))
    return {f"FORMAT_{i}": name for i, name in enumerate(names)}


def one_format(name: str) -> dict[str, str]:
    """Return these macros for matrices that are all of one type."""
    return {f"FORMAT_{i}": name for i in range(MOST)}
