"""layernorm against the float64 reference: row lengths, dtypes of the output, a large mean."""

from __future__ import annotations

import numpy as np
import output_dtypes
import pytest
from guarded import Gpu

from rocmforge.gpu.ops import layernorm as op
from rocmforge.ops import cases, reference
from rocmforge.ops.cases import RowsCase

CHECKS = (
    *cases.ROWS_CHECKS[1:4],
    RowsCase(3, 32),
    RowsCase(13, 896),
    RowsCase(1, 4096),
    RowsCase(2, 16384 + 96),  # longer than the registers of a block hold
)


@pytest.mark.parametrize("case", CHECKS, ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_layernorm_agrees_with_the_reference(gpu: Gpu, case: RowsCase, biased: bool) -> None:
    x, other, more = case.inputs(3)
    x += 20.0
    weight, bias = other[0], more[0] if biased else None
    rows, columns = x.shape
    wanted = reference.layernorm(x, weight, bias, 1e-5)
    for dtype in output_dtypes.fitting(columns):
        out = output_dtypes.make(gpu, dtype, rows, columns)
        gpu.run(
            op.layernorm(
                gpu.kernels,
                x=gpu.upload(x),
                weight=gpu.upload(weight),
                bias=None if bias is None else gpu.upload(bias),
                out=out,
                rows=rows,
                columns=columns,
                eps=1e-5,
            )
        )
        got = output_dtypes.read(gpu, out, rows, columns)
        assert cases.relative_rms(got, wanted) <= 5e-6 + output_dtypes.TOLERANCES[dtype]


def test_equal_numbers_become_the_bias(gpu: Gpu) -> None:
    x, out = np.full((3, 64), 7.0, np.float32), gpu.empty(3 * 64 * 4)
    bias = np.arange(64, dtype=np.float32)
    gpu.run(
        op.layernorm(
            gpu.kernels,
            x=gpu.upload(x),
            weight=gpu.upload(np.ones(64, np.float32)),
            bias=gpu.upload(bias),
            out=op.F32(out),
            rows=3,
            columns=64,
            eps=1e-5,
        )
    )
    np.testing.assert_allclose(gpu.download(out, (3, 64), np.float32), np.tile(bias, (3, 1)))
