"""Matrix, pack and the door of matmul: what is refused, and with which words."""

from __future__ import annotations

import numpy as np
import pytest

from rocmforge import ops
from rocmforge.cpu.backend import CpuBackend
from rocmforge.gguf.formats import FORMATS, PACKED_BITS
from rocmforge.ops import Matrix

Q4_0 = FORMATS["Q4_0"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.zeros((2, 18), np.int8), r"matrix data: got int8 \(2, 18\), wanted uint8"),
        (np.zeros(18, np.uint8), r"matrix data: got uint8 \(18,\)"),
        (b"\0" * 18, "matrix data: got bytes, wanted uint8"),
        (np.zeros((2, 36), np.uint8)[:, ::2], "matrix data: got a strided array"),
        (np.zeros((0, 18), np.uint8), r"matrix data: got shape \(0, 18\), wanted at least one row"),
        (np.zeros((2, 0), np.uint8), r"matrix data: got shape \(2, 0\)"),
        (np.zeros((2, 35), np.uint8), r"got shape \(2, 35\), .* Q4_0 blocks \(18 bytes each\)"),
    ],
)
def test_matrix_names_what_is_wrong(data: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Matrix(data, Q4_0)


def test_matrix_knows_its_shape() -> None:
    matrix = Matrix.from_floats(np.ones((5, 96), np.float32), "Q4_0")
    assert (matrix.rows, matrix.columns, matrix.data.shape) == (5, 96, (5, 54))
    np.testing.assert_allclose(matrix.to_floats(), 1, rtol=1e-3)


@pytest.mark.parametrize(
    ("columns", "name", "message"),
    [
        (64, "Q4_9", "format: got 'Q4_9', wanted one of F32, F16"),
        (65, "Q4_0", "65.*multiple of 32"),
    ],
)
def test_from_floats_names_what_is_wrong(columns: int, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Matrix.from_floats(np.ones((5, columns), np.float32), name)


@pytest.mark.parametrize("name", FORMATS)
def test_packing_takes_little_more_than_the_file(name: str) -> None:
    matrix = Matrix.from_floats(np.ones((32, 512), np.float32), name)
    packed = ops.pack(matrix, CpuBackend(1)).packed
    assert (packed.rows, packed.columns, packed.format) == (32, 512, name)
    # The codes of MXFP6 become bytes, as do the 6-bit scales of K types.
    bits = {"MXFP6_E2M3": 8.25, "MXFP6_E3M2": 8.25, **PACKED_BITS}
    wanted = bits.get(name, matrix.format.bits_per_weight) * 32 * 512 / 8
    assert wanted <= packed.nbytes <= 1.04 * wanted


WEIGHTS = ops.pack(Matrix.from_floats(np.ones((5, 64), np.float32), "Q4_0"), CpuBackend(1))
X = np.ones((3, 64), np.float32)


@pytest.mark.parametrize(
    ("x", "bias", "message"),
    [
        (X.astype("f8"), None, r"x: got float64 \(3, 64\), wanted float32 \(any, 64\)"),
        (X[:, :32].copy(), None, r"x: got float32 \(3, 32\)"),
        (X[0], None, r"x: got float32 \(64,\)"),
        (X[:0], None, r"x: got float32 \(0, 64\)"),
        (np.ones((3, 128), "f4")[:, ::2], None, "x: got a strided array"),
        (X.tolist(), None, "x: got list"),
        (X, np.ones(4, "f4"), r"bias: got float32 \(4,\), wanted float32 \(5\)"),
        (X, np.ones(5), "bias: got float64"),
        (X, np.ones((1, 5), "f4"), r"bias: got float32 \(1, 5\)"),
        (X, np.ones(10, "f4")[::2], "bias: got a strided array"),
    ],
)
def test_matmul_names_what_is_wrong(x: object, bias: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.matmul(x, WEIGHTS, bias)
