"""rmsnorm against the float64 reference: row lengths, dtypes of the output, sums, heads."""

from __future__ import annotations

import numpy as np
import output_dtypes
import pytest
from guarded import Gpu
from numpy.typing import NDArray

from rocmforge.gpu.arrays import F16, F32, Q8
from rocmforge.gpu.ops import rmsnorm as op
from rocmforge.gpu.ops.rows import COLUMNS, MAX_THREADS
from rocmforge.ops import cases, reference
from rocmforge.ops.cases import RowsCase

CHECKS = (
    *cases.ROWS_CHECKS[:4],
    RowsCase(3, 32),
    RowsCase(13, 896),
    RowsCase(1, 4096),
    RowsCase(2, 11008),
    RowsCase(2, 16384 + 96),  # longer than the registers of a block hold
    RowsCase(2, 4099),
)


def norm(
    gpu: Gpu,
    x: NDArray[np.float32],
    weight: NDArray[np.float32],
    dtype: output_dtypes.Dtype = F32,
    eps: float = 1e-5,
    base: NDArray[np.float32] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """The kernel's output, and what it leaves in x."""
    rows, columns = x.shape
    address = gpu.upload(x)
    out = output_dtypes.make(gpu, dtype, rows, columns)
    gpu.run(
        op.rmsnorm(
            gpu.kernels,
            x=address,
            weight=gpu.upload(weight),
            out=out,
            rows=rows,
            columns=columns,
            eps=eps,
            base=None if base is None else gpu.upload(base),
        )
    )
    return output_dtypes.read(gpu, out, rows, columns), gpu.download(address, x.shape, np.float32)


@pytest.mark.parametrize("case", CHECKS, ids=str)
def test_rmsnorm_agrees_with_the_reference(gpu: Gpu, case: RowsCase) -> None:
    x, other, base = case.inputs(3)
    weight = other[0]
    wanted = reference.rmsnorm(x, weight, 1e-5)
    for dtype in output_dtypes.fitting(case.columns, spaced=True):
        tolerance = case.tolerance("rmsnorm") + output_dtypes.TOLERANCES[dtype]
        got, left = norm(gpu, x, weight, dtype)
        assert cases.relative_rms(got, wanted) <= tolerance
        np.testing.assert_array_equal(left, x)
        got, left = norm(gpu, x, weight, dtype, base=base)
        assert cases.relative_rms(got, base + wanted) <= tolerance
        np.testing.assert_array_equal(left, x)


def test_a_norm_is_added_in_place(gpu: Gpu) -> None:
    x, other, base = RowsCase(5, 896).inputs(3)
    address = gpu.upload(base)
    at, weight = gpu.upload(x), gpu.upload(other[0])
    shape = {"rows": 5, "columns": 896, "eps": 1e-6}
    out = F32(address)
    gpu.run(op.rmsnorm(gpu.kernels, x=at, weight=weight, out=out, base=address, **shape))
    wanted = base + reference.rmsnorm(x, other[0], 1e-6)
    assert cases.relative_rms(gpu.download(address, x.shape, np.float32), wanted) <= 3e-7


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_heads_are_normalized_in_place(gpu: Gpu, head_dim: int) -> None:
    x, other = RowsCase(5 * 3, head_dim).inputs(2)
    address = gpu.upload(x)
    out, weight = F32(address), gpu.upload(other[0])
    gpu.run(
        op.rmsnorm(
            gpu.kernels, x=address, weight=weight, out=out, rows=15, columns=head_dim, eps=1e-6
        )
    )
    got = gpu.download(address, x.shape, np.float32)
    assert cases.relative_rms(got, reference.rmsnorm(x, other[0], 1e-6)) <= 3e-7


def test_rows_that_are_equal_zero_or_of_great_size(gpu: Gpu) -> None:
    weight = np.linspace(0.5, 2, 67, dtype=np.float32)
    values = np.array([1.0, -3.0, 1e4, 1e15, 1e-4], np.float32)
    x = np.repeat(values[:, None], 67, axis=1)
    got, _ = norm(gpu, x, weight, eps=0.0)
    np.testing.assert_allclose(got, np.sign(values)[:, None] * weight, 2e-6)
    got, _ = norm(gpu, np.zeros((1, 67), np.float32), weight)
    assert not got.any()


@pytest.mark.parametrize("dtype", [F32, F16, Q8])
def test_what_is_not_finite_stays_in_its_row(gpu: Gpu, dtype: output_dtypes.Dtype) -> None:
    x = np.random.default_rng(1).standard_normal((7, 128), np.float32)
    weight = np.ones(128, np.float32)
    clean, _ = norm(gpu, x, weight, dtype)
    x[1, 77], x[4, 5] = np.nan, np.inf
    got, _ = norm(gpu, x, weight, dtype)
    good = [0, 2, 3, 5, 6]
    np.testing.assert_array_equal(got[good], clean[good])
    assert np.isnan(got[1]).all()
    assert np.isnan(got[4, 5])
    assert np.isnan(got[4, :32]).all() if dtype is Q8 else not got[4, 6:].any()


def test_numbers_beyond_float16_are_clamped(gpu: Gpu) -> None:
    x = np.array([[3.0, -4.0, 0.0, 0.0, 1.0]], np.float32)
    weight = np.array([1e6, 1e6, 1e6, 1.0, 1.0], np.float32)
    got, _ = norm(gpu, x, weight, F16)
    np.testing.assert_array_equal(got[0, :3], [65504, -65504, 0])


@pytest.mark.parametrize("columns", [1, 7, 31, 32, 100, *COLUMNS, 997, 16384, 28672])
def test_every_row_has_threads_and_a_build(columns: int) -> None:
    shape = op.choose("gfx1100", columns, "F32")
    assert shape.rows * shape.SPAN == shape.THREADS <= MAX_THREADS
    assert columns % shape.VECTOR == 0
    if columns in (*COLUMNS, 7, 997):
        assert [b for b in op.builds("gfx1100") if b.defines == vars(shape)]
    if columns <= 16384 and columns % 4 == 0:
        held = shape.SPAN * shape.ITEMS * shape.VECTOR
        assert held >= columns
