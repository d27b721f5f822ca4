"""softcap against the float64 reference: shapes, caps, scales."""

from __future__ import annotations

import numpy as np
import pytest
from guarded import Gpu

from rocmforge.gpu.ops import softcap as op
from rocmforge.ops import cases, reference
from rocmforge.ops.cases import RowsCase


@pytest.mark.parametrize("case", [*cases.ROWS_CHECKS[:4], RowsCase(1, 32001)], ids=str)
@pytest.mark.parametrize(("scale", "cap"), [(1.0, 30.0), (0.25, 0.0), (-2.0, 0.5)])
def test_softcap_agrees_with_the_reference(
    gpu: Gpu, case: RowsCase, scale: float, cap: float
) -> None:
    (x,) = case.inputs()
    x *= 5
    at, (rows, columns) = gpu.upload(x), x.shape
    gpu.run(op.softcap(gpu.kernels, x=at, rows=rows, columns=columns, scale=scale, cap=cap))
    got = gpu.download(at, x.shape, np.float32)
    wanted = reference.softcap(scale * x, cap) if cap else scale * x.astype(np.float64)
    np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=3e-7 * cap)
