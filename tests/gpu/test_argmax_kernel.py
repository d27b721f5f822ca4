"""argmax: every length beside parts' edges, ties, infinities, NaN."""

from __future__ import annotations

import numpy as np
import pytest
from guarded import Gpu
from numpy.typing import NDArray

from rocmforge.gpu.ops import argmax as op


def argmax(gpu: Gpu, logits: NDArray[np.float32]) -> NDArray[np.int32]:
    rows, columns = logits.shape
    out = gpu.empty(4 * rows)
    gpu.run(
        *op.argmax(
            gpu.kernels,
            logits=gpu.upload(logits),
            out=out,
            parts=gpu.empty(op.parts_bytes(rows)),
            rows=rows,
            columns=columns,
        )
    )
    got: NDArray[np.int32] = gpu.download(out, rows, np.int32)
    return got


@pytest.mark.parametrize(
    ("rows", "columns"),
    [(3, n) for n in (1, 2, 4, 63, 64, 260, 511, 512, 513, 997, 2044, 2048, 2052)]
    + [(2, n) for n in (8191, 8192, 8193, 10001, 32003)]
    + [(1, n) for n in (32764, 32768, 32772, 65536, 65540, 151936)],
)
def test_the_largest_wins_wherever_it_is(gpu: Gpu, rows: int, columns: int) -> None:
    random = np.random.default_rng(columns)
    logits = random.standard_normal((rows, columns), np.float32)
    np.testing.assert_array_equal(argmax(gpu, logits), logits.argmax(axis=1))
    for column in (0, columns - 1, columns // 2):
        logits[-1, column] = np.abs(logits).max() + 1
        assert argmax(gpu, logits)[-1] == column


@pytest.mark.parametrize("columns", [7, 300, 1000, 10001, 40000])
def test_the_lowest_column_wins_among_equals(gpu: Gpu, columns: int) -> None:
    logits = np.full((4, columns), -3, np.float32)
    logits[1, [columns // 2, columns - 1]] = 5
    logits[2, 2:] = -np.inf
    logits[3] = -np.inf
    np.testing.assert_array_equal(argmax(gpu, logits), [0, columns // 2, 0, 0])
    zeros = np.zeros((2, columns), np.float32)
    zeros[0, :3] = -0.0
    zeros[1, 3:] = -0.0
    np.testing.assert_array_equal(argmax(gpu, zeros), [0, 0])


@pytest.mark.parametrize("columns", [6, 300, 10001, 40000])
def test_nan_never_wins(gpu: Gpu, columns: int) -> None:
    logits = np.full((5, columns), np.nan, np.float32)
    logits[1, 4] = -np.inf
    logits[2, 5] = -1e38
    logits[3, [2, 3]] = np.inf
    logits[4] = -logits[4]
    np.testing.assert_array_equal(argmax(gpu, logits), [0, 4, 5, 2, 0])
