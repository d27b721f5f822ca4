"""matmul of prompts by dot products of bytes, against the float64 reference on the rounded
activations: every quantized format, awkward shapes, both tiles, what becomes of the sums."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from guarded import Gpu
from numpy.typing import NDArray
from packed_streams import upload, upload_q8

from rocmforge.gguf.formats import FORMATS
from rocmforge.gpu.arrays import F16, F32
from rocmforge.gpu.matrix import DENSE
from rocmforge.gpu.ops import matmul_dot4 as op
from rocmforge.ops import reference
from rocmforge.ops.cases import relative_rms
from rocmforge.ops.matrix import Matrix

TOLERANCE = 2e-6  # integers are exact, scales and sums are float32
QUANTIZED = [name for name in FORMATS if name not in DENSE]
SHAPES = ((1, 1, 96), (17, 31, 160), (129, 130, 96))  # tokens, rows, columns
K_SHAPES = ((1, 1, 256), (17, 31, 768), (129, 130, 256))
EVERY_FORMAT = [
    (name, shape)
    for name in QUANTIZED
    for shape in (K_SHAPES if FORMATS[name].block_len > 32 else SHAPES)
]


@functools.cache
def data(tokens: int, rows: int, columns: int, name: str) -> tuple[NDArray[np.float32], Matrix]:
    random = np.random.default_rng([tokens, rows, columns])
    x = random.standard_normal((tokens, columns), np.float32)
    w = random.standard_normal((rows, columns), np.float32) / np.float32(np.sqrt(columns))
    return x, Matrix.from_floats(w, name)


def multiply(
    gpu: Gpu,
    x: NDArray[np.float32],
    matrix: Matrix,
    before: NDArray[np.float32] | None = None,
    bias: NDArray[np.float32] | None = None,
    dtype: type = F32,
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """What the kernel gives, (T, N), and what the reference does without `before`."""
    shape = (len(x), matrix.rows)
    size = shape[0] * shape[1] * (4 if dtype is F32 else 2)
    out = dtype(gpu.empty(size) if before is None else gpu.upload(before))
    rounded, exact = upload_q8(gpu, x)
    gpu.run(
        op.matmul_dot4(
            gpu.kernels,
            x=rounded,
            weight=upload(gpu, matrix),
            out=out,
            tokens=len(x),
            bias=None if bias is None else gpu.upload(bias),
            accumulate=before is not None,
        )
    )
    got = gpu.download(out.address, shape, np.float32 if dtype is F32 else np.float16)
    return got.astype(np.float32), reference.matmul(exact, matrix, bias)


@pytest.mark.parametrize(("name", "shape"), EVERY_FORMAT, ids=str)
def test_matmul_dot4_agrees_with_the_reference(
    gpu: Gpu, name: str, shape: tuple[int, int, int]
) -> None:
    got, wanted = multiply(gpu, *data(*shape, name))
    assert relative_rms(got, wanted) <= TOLERANCE * (1 + 4 / np.sqrt(wanted.size))


@pytest.mark.parametrize("constants", [op.LARGE, op.SMALL], ids=["large", "small"])
@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q2_K"])
def test_both_tiles(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, name: str, constants: op.Constants
) -> None:
    monkeypatch.setattr(op, "choose", lambda *_: constants)
    got, wanted = multiply(gpu, *data(130, 129, 256, name))
    assert relative_rms(got, wanted) <= TOLERANCE


@pytest.mark.parametrize("dtype", [F32, F16])
def test_bias_is_added_and_results_are_stored_in_both_dtypes(gpu: Gpu, dtype: type) -> None:
    bias = np.random.default_rng(3).standard_normal(31, np.float32)
    got, wanted = multiply(gpu, *data(17, 31, 160, "Q5_1"), bias=bias, dtype=dtype)
    assert relative_rms(got, wanted) <= (TOLERANCE if dtype is F32 else 5e-4)


def test_results_are_added_to_the_residual(gpu: Gpu) -> None:
    before = np.random.default_rng(3).standard_normal((17, 31), np.float32)
    got, wanted = multiply(gpu, *data(17, 31, 160, "Q5_0"), before=before)
    assert relative_rms(got, wanted + before) <= TOLERANCE


def test_a_scale_that_is_not_a_number_stays_in_its_row(gpu: Gpu) -> None:
    x, matrix = data(17, 31, 160, "Q4_1")
    raw = matrix.data.copy()
    raw[7, 20:22] = np.array([np.nan], np.float16).view(np.uint8)
    got, wanted = multiply(gpu, x, Matrix(raw, matrix.format))
    assert np.isnan(got[:, 7]).all()
    others = np.arange(31) != 7
    assert relative_rms(got[:, others], wanted[:, others]) <= TOLERANCE


def test_choose_takes_small_tiles_where_large_ones_leave_units_idle() -> None:
    assert op.choose(512, 4096, 72) == op.LARGE
    assert op.choose(64, 4096, 72) == op.SMALL


@pytest.mark.parametrize("architecture", ["gfx1100", "gfx1200", "gfx90a", "gfx942", "sm_90"])
def test_nothing_is_built_where_there_are_matrix_units(architecture: str) -> None:
    assert not list(op.builds(architecture))
