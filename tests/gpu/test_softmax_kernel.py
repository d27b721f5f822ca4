"""softmax against the float64 reference: row lengths, in place, and what is not finite."""

from __future__ import annotations

import numpy as np
import pytest
from guarded import Gpu
from numpy.typing import NDArray

from rocmforge.gpu.ops import softmax as op
from rocmforge.ops import cases, reference
from rocmforge.ops.cases import RowsCase

CHECKS = (
    *cases.ROWS_CHECKS[:4],
    RowsCase(9, 896),
    RowsCase(1, 4096),
    RowsCase(2, 11008),
    RowsCase(1, 20000),  # longer than the registers of a block hold
    RowsCase(2, 4099),
)


def softmax(gpu: Gpu, x: NDArray[np.float32], in_place: bool = False) -> NDArray[np.float32]:
    source = gpu.upload(x)
    out = source if in_place else gpu.empty(x.nbytes)
    rows, columns = x.shape
    gpu.run(op.softmax(gpu.kernels, x=source, out=out, rows=rows, columns=columns))
    return gpu.download(out, x.shape, np.float32)


@pytest.mark.parametrize("case", CHECKS, ids=str)
def test_softmax_agrees_with_the_reference(gpu: Gpu, case: RowsCase) -> None:
    (x,) = case.inputs()
    for scale, last in ((1.0, 0.0), (9.0, 0.0), (1.0, 200.0)):
        x *= np.float32(scale)
        x[:, -1] += np.float32(last)
        got = softmax(gpu, x)
        assert cases.relative_rms(got, reference.softmax(x)) <= case.tolerance("softmax")
        np.testing.assert_allclose(got.sum(axis=1, dtype=np.float64), 1, 2e-6)
    np.testing.assert_array_equal(softmax(gpu, x, in_place=True), got)


@pytest.mark.parametrize("columns", [37, 128, 300])
def test_what_is_not_finite_stays_in_its_row(gpu: Gpu, columns: int) -> None:
    x = np.random.default_rng(2).standard_normal((6, columns), np.float32)
    x[0, 5] = -np.inf
    x[1, 30] = np.nan
    x[2, 3] = np.inf
    x[3] = -np.inf
    x[4, 1:] = -np.inf
    x[5] += 1e30
    got = softmax(gpu, x)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(got, reference.softmax(x), 2e-6)
    assert got[0, 5] == 0
    assert np.isnan(got[1:4]).all()
    assert got[4, 0] == 1
    np.testing.assert_allclose(got[5], 1 / columns, 1e-6)
