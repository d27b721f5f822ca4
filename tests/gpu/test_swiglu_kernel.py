"""swiglu against the float64 reference: shapes, dtypes of the output, gates far from zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import output_dtypes
import pytest
from guarded import Gpu
from numpy.typing import NDArray

from rocmforge.gpu.arrays import F32
from rocmforge.gpu.ops import swiglu as op
from rocmforge.ops import cases, reference
from rocmforge.ops.cases import RowsCase

CHECKS = (*cases.ROWS_CHECKS[:4], RowsCase(5, 896), RowsCase(1, 11008), RowsCase(31, 31))


def swiglu(
    gpu: Gpu,
    gate: NDArray[np.float32],
    up: NDArray[np.float32],
    dtype: output_dtypes.Dtype = F32,
    activation: str = "silu",
) -> NDArray[np.float64]:
    rows, columns = gate.shape
    out = output_dtypes.make(gpu, dtype, rows, columns)
    gate_at, up_at = gpu.upload(gate), gpu.upload(up)
    shape = {"rows": rows, "columns": columns}
    gpu.run(op.swiglu(gpu.kernels, gate=gate_at, up=up_at, out=out, activation=activation, **shape))
    return output_dtypes.read(gpu, out, rows, columns)


@pytest.mark.parametrize("case", CHECKS, ids=str)
def test_swiglu_agrees_with_the_reference(gpu: Gpu, case: RowsCase) -> None:
    gate, up = case.inputs(2)
    gate *= 3
    wanted = reference.swiglu(gate, up)
    for dtype in output_dtypes.fitting(case.columns):
        tolerance = case.tolerance("swiglu") + output_dtypes.TOLERANCES[dtype]
        assert cases.relative_rms(swiglu(gpu, gate, up, dtype), wanted) <= tolerance


@pytest.mark.parametrize("activation", ["gelu", "clamped", "gelu_alone"])
def test_other_activations(gpu: Gpu, activation: Any) -> None:
    gate, up = RowsCase(5, 896).inputs(2)
    gate *= 4
    up *= 4
    if activation == "gelu_alone":
        wanted = reference.gelu(gate)
    else:
        wanted = reference.swiglu(gate, up, activation)
    for dtype in output_dtypes.fitting(896):
        tolerance = 1e-6 + output_dtypes.TOLERANCES[dtype]
        got = swiglu(gpu, gate, up, dtype, activation)
        assert cases.relative_rms(got, wanted) <= tolerance


def test_it_may_run_in_place(gpu: Gpu) -> None:
    gate, up = RowsCase(3, 67).inputs(2)
    wanted = swiglu(gpu, gate, up)
    for target in (0, 1):
        at = [gpu.upload(gate), gpu.upload(up)]
        out = F32(at[target])
        gpu.run(op.swiglu(gpu.kernels, gate=at[0], up=at[1], out=out, rows=3, columns=67))
        np.testing.assert_array_equal(output_dtypes.read(gpu, out, 3, 67), wanted)


def test_gates_far_from_zero(gpu: Gpu) -> None:
    gate = np.array([[-1e30, -200, -80, -1, 0, 1, 80, 200, 1e30]], np.float32)
    got = swiglu(gpu, gate, np.full_like(gate, 2))
    np.testing.assert_allclose(got, reference.swiglu(gate, np.full_like(gate, 2)), 2e-6, 1e-30)
    odd = np.array([[np.nan, 1.0]], np.float32)
    assert np.isnan(swiglu(gpu, odd, np.ones_like(odd))[0, 0])
