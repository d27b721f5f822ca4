"""swiglu on every instruction set against the float64 reference, and its edge cases."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rocmforge import ops
from rocmforge.cpu.backend import CpuBackend, instruction_sets
from rocmforge.ops import cases, reference

ISAS = instruction_sets()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", cases.ROWS_CHECKS, ids=str)
def test_swiglu_agrees_with_the_reference(case: cases.RowsCase, isa: str) -> None:
    gate, up = case.inputs(2)
    assert case.bytes("swiglu") == 3 * gate.nbytes
    for size in (1, 10):
        wanted = reference.swiglu(gate * np.float32(size), up)
        one, two = (ops.swiglu(gate * np.float32(size), up, CpuBackend(n, isa=isa)) for n in (1, 2))
        assert cases.relative_rms(one, wanted) <= case.tolerance("swiglu")
        np.testing.assert_allclose(one, wanted, rtol=5e-6, atol=1e-6 * np.abs(wanted).max())
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("isa", ISAS)
def test_it_may_run_in_place(isa: str) -> None:
    backend = CpuBackend(2, isa=isa)
    gate, up = cases.RowsCase(40, 1003).inputs(2)
    wanted = ops.swiglu(gate, up, backend)
    backend.swiglu(gate, up, gate)
    np.testing.assert_array_equal(gate, wanted)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("columns", [3, 16, 21])
def test_gates_from_minus_to_plus_a_lot(isa: str, columns: int) -> None:
    backend = CpuBackend(1, isa=isa)
    for gate in (-1e4, -100.0, -87.0, -30.0, 0.0, 30.0, 87.0, 100.0, 1e4):
        for up in (1.0, -5.0):
            g = np.full((2, columns), gate, np.float32)
            u = np.full((2, columns), up, np.float32)
            got = ops.swiglu(g, u, backend)
            # Not by the reference: its 1 + tanh loses digits where the sigmoid is tiny.
            sigmoid = math.exp(min(gate, 0.0)) / (1 + math.exp(-abs(gate)))
            np.testing.assert_allclose(got, gate * sigmoid * up, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("column", [2, 36])
def test_what_is_not_finite_comes_out_as_such(isa: str, column: int) -> None:
    gate, up = cases.RowsCase(1, 37).inputs(2)
    clean = ops.swiglu(gate, up, CpuBackend(1, isa=isa))
    others = np.arange(37) != column
    for bad in (np.nan, np.inf, -np.inf):
        for which in (gate, up):
            kept = which[0, column]
            which[0, column] = bad
            got = ops.swiglu(gate, up, CpuBackend(1, isa=isa))
            which[0, column] = kept
            assert not np.isfinite(got[0, column])
            np.testing.assert_array_equal(got[0, others], clean[0, others])


GOOD = np.ones((2, 8), np.float32)


@pytest.mark.parametrize(
    ("gate", "up", "message"),
    [
        (GOOD.astype("f2"), GOOD, r"gate: got float16 \(2, 8\), wanted float32 \(any, any\)"),
        (GOOD[0], GOOD, r"gate: got float32 \(8,\)"),
        (GOOD.T, GOOD.T, "gate: got a strided array"),
        (GOOD, GOOD[:1], r"up: got float32 \(1, 8\), wanted float32 \(2, 8\)"),
        (GOOD, GOOD.astype("f8"), "up: got float64"),
        (GOOD, np.ones((2, 16), "f4")[:, ::2], "up: got a strided array"),
        (GOOD, None, "up: got NoneType"),
    ],
)
def test_the_door_names_what_is_wrong(gate: object, up: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.swiglu(gate, up, CpuBackend(1))
