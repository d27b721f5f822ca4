"""rmsnorm on every instruction set against the float64 reference, and its edge cases."""

from __future__ import annotations

import numpy as np
import pytest

from rocmforge import ops
from rocmforge.cpu.backend import CpuBackend, instruction_sets
from rocmforge.ops import cases, reference

ISAS = instruction_sets()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", cases.ROWS_CHECKS, ids=str)
def test_rmsnorm_agrees_with_the_reference(case: cases.RowsCase, isa: str) -> None:
    x, other = case.inputs(2)
    weight = other[0].copy()
    assert case.bytes("rmsnorm") == 2 * x.nbytes + weight.nbytes
    for eps in (0.0, 1e-5, 0.1):
        wanted = reference.rmsnorm(x, weight, eps)
        one, two = (ops.rmsnorm(x, weight, eps, CpuBackend(n, isa=isa)) for n in (1, 2))
        assert cases.relative_rms(one, wanted) <= case.tolerance("rmsnorm")
        np.testing.assert_allclose(one, wanted, rtol=2e-6, atol=0)
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("isa", ISAS)
def test_it_may_run_in_place(isa: str) -> None:
    backend = CpuBackend(2, isa=isa)
    x, other = cases.RowsCase(130, 899).inputs(2)
    wanted = ops.rmsnorm(x, other[0].copy(), 1e-6, backend)
    backend.rmsnorm(x, other[0].copy(), 1e-6, x)
    np.testing.assert_array_equal(x, wanted)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("columns", [5, 16, 67])
def test_rows_that_are_equal_zero_or_of_great_size(isa: str, columns: int) -> None:
    backend = CpuBackend(1, isa=isa)
    weight = np.linspace(0.5, 2, columns, dtype=np.float32)
    for value in (1.0, -3.0, 1e4, 1e15, 1e-4):
        x = np.full((2, columns), value, np.float32)
        np.testing.assert_allclose(
            ops.rmsnorm(x, weight, 0.0, backend), np.sign(value) * weight[None].repeat(2, 0), 1e-6
        )
    zero = np.zeros((1, columns), np.float32)
    assert not ops.rmsnorm(zero, weight, 1e-5, backend).any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("column", [0, 20, 36])
def test_what_is_not_finite_comes_out_as_such(isa: str, column: int) -> None:
    x = np.ones((3, 37), np.float32)
    weight = np.ones(37, np.float32)
    clean = ops.rmsnorm(x, weight, 1e-5, CpuBackend(1, isa=isa))
    for bad in (np.nan, np.inf, -np.inf):
        x[1] = 1
        x[1, column] = bad
        got = ops.rmsnorm(x, weight, 1e-5, CpuBackend(1, isa=isa))
        assert np.isnan(got[1, column])
        assert np.isnan(bad) == np.isnan(got[1]).all()  # beside an infinity all else is 0
        np.testing.assert_array_equal(got[[0, 2]], clean[[0, 2]])


X, W = np.ones((2, 8), np.float32), np.ones(8, np.float32)


@pytest.mark.parametrize(
    ("x", "weight", "eps", "message"),
    [
        (X.astype("f8"), W, 0.0, r"x: got float64 \(2, 8\), wanted float32 \(any, any\)"),
        (X[0], W, 0.0, r"x: got float32 \(8,\)"),
        (X[:0], W, 0.0, r"x: got float32 \(0, 8\)"),
        (X[:, ::2], W[:4], 0.0, "x: got a strided array, wanted a C-contiguous one"),
        (X, W[:7], 0.0, r"weight: got float32 \(7,\), wanted float32 \(8\)"),
        (X, W.astype("f2"), 0.0, "weight: got float16"),
        (X, np.ones(16, "f4")[::2], 0.0, "weight: got a strided array"),
        (X, W, -1e-9, "eps: got -1e-09, wanted 0 or more"),
        (X, W, float("nan"), "eps: got nan"),
        (X, W, float("inf"), "eps: got inf"),
        (X.tolist(), W, 0.0, "x: got list, wanted float32"),
    ],
)
def test_the_door_names_what_is_wrong(x: object, weight: object, eps: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.rmsnorm(x, weight, eps, CpuBackend(1))
