"""softmax on every instruction set against the float64 reference, and its edge cases."""

from __future__ import annotations

import numpy as np
import pytest

from rocmforge import ops
from rocmforge.cpu.backend import CpuBackend, instruction_sets
from rocmforge.ops import cases, reference

ISAS = instruction_sets()
NOTHING = 1e-37  # what e^(−∞) may be


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", cases.ROWS_CHECKS, ids=str)
def test_softmax_agrees_with_the_reference(case: cases.RowsCase, isa: str) -> None:
    (x,) = case.inputs()
    assert case.bytes("softmax") == 2 * x.nbytes
    for size in (1, 10, 100):
        wanted = reference.softmax(x * np.float32(size))
        one, two = (ops.softmax(x * np.float32(size), CpuBackend(n, isa=isa)) for n in (1, 2))
        assert cases.relative_rms(one, wanted) <= case.tolerance("softmax")
        # e^d is off by d · 2⁻²⁴ where the difference d is rounded.
        np.testing.assert_allclose(one, wanted, rtol=3e-5, atol=NOTHING)
        np.testing.assert_allclose(one.sum(1, np.float64), 1, rtol=3e-6)
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("isa", ISAS)
def test_it_may_run_in_place(isa: str) -> None:
    backend = CpuBackend(2, isa=isa)
    (x,) = cases.RowsCase(40, 1003).inputs()
    wanted = ops.softmax(x, backend)
    backend.softmax(x, x)
    np.testing.assert_array_equal(x, wanted)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("columns", [1, 5, 16, 67])
def test_equal_huge_and_infinite_entries(isa: str, columns: int) -> None:
    backend = CpuBackend(1, isa=isa)
    for value in (0.0, 1e4, -1e4, 3e38, -3e38):
        got = ops.softmax(np.full((2, columns), value, np.float32), backend)
        np.testing.assert_allclose(got, 1 / columns, rtol=1e-6)
    for low in (-1e4, -3e38, -np.inf):
        for at in {0, columns // 2, columns - 1}:
            x = np.full((1, columns), low, np.float32)
            x[0, at] = 1e4
            got = ops.softmax(x, backend)
            np.testing.assert_allclose(got, np.eye(columns)[[at]], rtol=1e-6, atol=NOTHING)
    x = np.random.default_rng(0).standard_normal((4, columns)).astype(np.float32)
    x[:, 1::3] = -np.inf
    np.testing.assert_allclose(
        ops.softmax(x, backend), reference.softmax(x), rtol=1e-6, atol=NOTHING
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("columns", [1, 16, 37])
def test_what_has_no_softmax_comes_out_as_nan(isa: str, columns: int) -> None:
    backend = CpuBackend(1, isa=isa)
    clean = np.random.default_rng(0).standard_normal((3, columns)).astype(np.float32)
    wanted = ops.softmax(clean, backend)
    for bad in (np.nan, np.inf):
        for column in {0, columns // 2, columns - 1}:
            x = clean.copy()
            x[1, column] = bad
            got = ops.softmax(x, backend)
            assert np.isnan(got[1]).any()
            if np.isnan(bad):
                assert np.isnan(got[1]).all()
            np.testing.assert_array_equal(got[[0, 2]], wanted[[0, 2]])
    nothing = np.full((1, columns), -np.inf, np.float32)
    assert np.isnan(ops.softmax(nothing, backend)).all()


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ones((2, 3)), r"x: got float64 \(2, 3\), wanted float32 \(any, any\)"),
        (np.ones(3, "f4"), r"x: got float32 \(3,\)"),
        (np.ones((2, 0), "f4"), r"x: got float32 \(2, 0\)"),
        (np.ones((4, 3), "f4")[::2], "x: got a strided array"),
        (1.0, "x: got float, wanted float32"),
    ],
)
def test_the_door_names_what_is_wrong(x: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.softmax(x, CpuBackend(1))
