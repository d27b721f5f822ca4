"""rope on every instruction set: both layouts, whole and partial rotation, NaN, wrong arguments."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from rocmforge import ops
from rocmforge.cpu.backend import CpuBackend, instruction_sets
from rocmforge.ops import cases, reference
from rocmforge.ops.cases import RopeCase

ISAS = instruction_sets()
Floats = NDArray[np.float32]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "halves"])
@pytest.mark.parametrize("case", cases.ROPE_CHECKS, ids=str)
def test_rope_agrees_with_the_reference(case: RopeCase, interleaved: bool, isa: str) -> None:
    x, cos, sin = case.inputs()
    assert case.bytes == 2 * x.nbytes + cos.nbytes + sin.nbytes
    before = x.copy()
    one, two = (ops.rope(x, cos, sin, interleaved, CpuBackend(n, isa=isa)) for n in (1, 2))
    assert cases.relative_rms(one, reference.rope(x, cos, sin, interleaved)) <= case.tolerance
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one[..., case.rotated :], x[..., case.rotated :])
    np.testing.assert_array_equal(x, before)  # the public op leaves its argument alone


def test_the_two_layouts_are_one_rotation_of_permuted_dims() -> None:
    x, cos, sin = RopeCase(6, 2, 32, 32).inputs()
    order = np.concatenate([np.arange(0, 32, 2), np.arange(1, 32, 2)])
    backend = CpuBackend(1)
    halves = ops.rope(np.ascontiguousarray(x[..., order]), cos, sin, False, backend)
    interleaved = ops.rope(x, cos, sin, True, backend)
    np.testing.assert_allclose(halves, interleaved[..., order], rtol=1e-6, atol=1e-6)
    assert np.abs(interleaved - ops.rope(x, cos, sin, False, backend)).max() > 0.1


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "halves"])
def test_nan_stays_in_its_pair(isa: str, interleaved: bool) -> None:
    x, cos, sin = RopeCase(3, 2, 16, 16).inputs()
    x[1, 1, 4] = np.nan
    got = ops.rope(x, cos, sin, interleaved, CpuBackend(1, isa=isa))
    wrong = np.argwhere(np.isnan(got)).tolist()
    assert wrong == [[1, 1, 4], [1, 1, 5 if interleaved else 12]]


X, C, S = RopeCase(3, 2, 16, 16).inputs()


@pytest.mark.parametrize(
    ("x", "cos", "sin", "message"),
    [
        (X.astype("f8"), C, S, r"x: got float64 \(3, 2, 16\), wanted float32 \(any, any, any\)"),
        (X[0], C, S, r"x: got float32 \(2, 16\)"),
        (X.transpose(0, 2, 1), C, S, "x: got a strided array"),
        (X, C[:2], S, r"cos: got float32 \(2, 8\), wanted float32 \(3, any\)"),
        (X, C.astype("f8"), S, "cos: got float64"),
        (X, C, S[:, :7], r"sin: got float32 \(3, 7\), wanted float32 \(3, 8\)"),
        (X, C[:, ::2], S[:, ::2], "cos: got a strided array"),
        (X, np.ones((3, 9), "f4"), np.ones((3, 9), "f4"), r"cos: got 9 pairs, .* D / 2 = 8"),
        (X, np.ones((3, 0), "f4"), np.ones((3, 0), "f4"), r"cos: got float32 \(3, 0\)"),
    ],
)
def test_the_door_names_what_is_wrong(x: Floats, cos: Floats, sin: Floats, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.rope(x, cos, sin, True, CpuBackend(1))
