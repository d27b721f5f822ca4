"""quantize to int8 and float16: error against plain rounding, groups that are zero, tiny, huge or
not finite."""

from __future__ import annotations

import numpy as np
import output_dtypes
import pytest
from guarded import Gpu
from numpy.typing import NDArray

from rocmforge.gpu.arrays import F16, F32, Q8, Permuted
from rocmforge.gpu.ops import quantize as op


def quantize(
    gpu: Gpu, x: NDArray[np.float32], dtype: output_dtypes.Dtype = Q8
) -> NDArray[np.float64]:
    rows, columns = x.shape
    out = output_dtypes.make(gpu, dtype, rows, columns)
    assert not isinstance(out, F32)
    gpu.run(op.quantize(gpu.kernels, x=gpu.upload(x), out=out, rows=rows, columns=columns))
    return output_dtypes.read(gpu, out, rows, columns)


def squared_errors(got: NDArray[np.float64], x: NDArray[np.float32]) -> NDArray[np.float64]:
    """Of each group of 32."""
    squares: NDArray[np.float64] = ((got - x) ** 2).reshape(-1, 32).sum(axis=1)
    return squares


def plainly(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """Rounded with scale = largest / 127."""
    groups = x.astype(np.float64).reshape(-1, 32)
    scale = np.abs(groups).max(axis=1, keepdims=True) / 127
    rounded: NDArray[np.float64] = np.rint(groups / np.where(scale, scale, 1)) * scale
    return rounded.reshape(x.shape)


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 32), (3, 96), (1, 4096), (7, 896), (5, 992), (2, 11008)]
)
def test_no_group_is_worse_than_plainly_rounded(gpu: Gpu, rows: int, columns: int) -> None:
    random = np.random.default_rng(columns)
    gaussian = random.standard_normal((rows, columns), np.float32)
    outliers = random.standard_t(2, (rows, columns)).astype(np.float32) * np.float32(1e-3)
    for x, gain in ((gaussian, 0.93), (outliers, 1.0)):
        errors, plain = squared_errors(quantize(gpu, x), x), squared_errors(plainly(x), x)
        rounding = 1e-6 * squared_errors(np.zeros(x.shape), x)  # of sums in float32
        assert np.all(errors <= plain + rounding)
        if x.size > 2000:
            assert np.sqrt(errors.sum() / plain.sum()) < gain


def test_what_int8_can_hold_comes_back(gpu: Gpu) -> None:
    codes = np.random.default_rng(3).integers(-127, 128, (4, 64)).astype(np.float32)
    codes[:, ::32] = 127
    x = codes * np.array([[1.0], [3e-3], [2e30], [5e-30]], np.float32)
    np.testing.assert_allclose(quantize(gpu, x), x, 2e-6, 0)


def test_groups_of_zeros_and_of_what_is_not_finite(gpu: Gpu) -> None:
    x = np.random.default_rng(4).standard_normal((8, 64), np.float32)
    clean = quantize(gpu, x)
    x[0, :32] = 0
    x[1, 32:] = 5e-36
    x[2, 7], x[3, 40], x[4, 63] = np.nan, np.inf, -np.inf
    got = quantize(gpu, x)
    assert not got[0, :32].any()
    assert not got[1, 32:].any()
    wrong = [(2, slice(0, 32)), (3, slice(32, 64)), (4, slice(32, 64))]
    for row, columns in wrong:
        assert np.isnan(got[row, columns]).all()
        got[row, columns] = clean[row, columns]
    got[0, :32], got[1, 32:] = clean[0, :32], clean[1, 32:]
    np.testing.assert_array_equal(got, clean)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 5), (2, 128), (1, 1027), (7, 146)])
def test_float16_is_rounded_as_numpy_does(gpu: Gpu, rows: int, columns: int) -> None:
    x = np.random.default_rng(5).standard_normal((rows, columns), np.float32)
    x.flat[::7] *= np.float32(1e-6)
    np.testing.assert_array_equal(quantize(gpu, x, F16), x.astype(np.float16))


@pytest.mark.parametrize(("rows", "columns"), [(1, 128), (3, 1280), (3, 96), (2, 2880)])
def test_permuted_is_float16_in_another_order(gpu: Gpu, rows: int, columns: int) -> None:
    x = np.random.default_rng(7).standard_normal((rows, columns), np.float32)
    np.testing.assert_array_equal(quantize(gpu, x, Permuted), x.astype(np.float16))


def test_float16_clamps_numbers_but_not_infinities(gpu: Gpu) -> None:
    x = np.array([[65504, 65520, -1e9, np.inf, -np.inf, np.nan]], np.float32)
    wanted = [65504, 65504, -65504, np.inf, -np.inf, np.nan]
    np.testing.assert_array_equal(quantize(gpu, x, F16)[0], wanted)
