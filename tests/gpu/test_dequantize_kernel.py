"""dequantize: bit for bit what the numpy reference gives, for any bytes, as float32 and float16."""

from __future__ import annotations

import numpy as np
import pytest
from guarded import Gpu
from numpy.typing import NDArray

from rocmforge.gguf.formats import FORMATS
from rocmforge.gpu.arrays import F16, F32
from rocmforge.gpu.ops.dequantize import dequantize
from rocmforge.ops import Matrix, cases


def run(gpu: Gpu, matrix: Matrix, half: bool = False) -> NDArray[np.floating]:
    shape = (matrix.rows, matrix.columns)
    dtype = np.float16 if half else np.float32
    out = gpu.empty(matrix.rows * matrix.columns * np.dtype(dtype).itemsize)
    gpu.run(
        dequantize(
            gpu.kernels,
            raw=gpu.upload(matrix.data),
            format=matrix.format.name,
            out=F16(out) if half else F32(out),
            rows=matrix.rows,
            columns=matrix.columns,
        )
    )
    result: NDArray[np.floating] = gpu.download(out, shape, dtype)
    return result


def assert_same_bits(name: str, got: NDArray[np.floating], wanted: NDArray[np.floating]) -> None:
    """NaNs may have any payload, and MXFP6 codes of −0 read as 0; all else is equal."""
    if name.startswith("MXFP6"):
        got, wanted = got + got.dtype.type(0), wanted + wanted.dtype.type(0)
    bits = np.uint32 if got.dtype == np.float32 else np.uint16
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got.view(bits)[~nan], wanted.view(bits)[~nan])


@pytest.mark.parametrize("case", cases.DEQUANTIZE_CHECKS, ids=str)
def test_blocks_of_a_quantizer(gpu: Gpu, case: cases.DequantizeCase) -> None:
    matrix = case.inputs()
    wanted = matrix.to_floats()
    assert_same_bits(case.format, run(gpu, matrix), wanted)
    assert_same_bits(case.format, run(gpu, matrix, half=True), wanted.astype(np.float16))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("name", FORMATS)
def test_arbitrary_bytes(gpu: Gpu, name: str) -> None:
    """Every byte of a file can be anything, scales of NaN, infinity and subnormals too."""
    fmt = FORMATS[name]
    rng = np.random.default_rng(2)
    raw = rng.integers(0, 256, (24, 8448 // fmt.block_len * fmt.block_bytes // 8), np.uint8)
    raw = np.ascontiguousarray(raw[:, : raw.shape[1] // fmt.block_bytes * fmt.block_bytes])
    raw[:6] &= rng.integers(0, 256, raw[:6].shape, np.uint8)
    raw[6:12] |= rng.integers(0, 256, raw[6:12].shape, np.uint8)
    raw[12], raw[13] = 0x00, 0xFF
    matrix = Matrix(raw, fmt)
    assert_same_bits(name, run(gpu, matrix), matrix.to_floats())


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_every_half_and_bfloat(gpu: Gpu, name: str) -> None:
    every = np.arange(65536, dtype=np.uint16).view(np.uint8).reshape(1, -1)
    for data in (every, every[:, 2 * 65 : 2 * 84]):
        matrix = Matrix(np.ascontiguousarray(data), FORMATS[name])
        assert_same_bits(name, run(gpu, matrix), matrix.to_floats())


@pytest.mark.parametrize("name", ["MXFP4", "MXFP6_E2M3", "MXFP6_E3M2"])
def test_every_scale_of_the_mx_formats(gpu: Gpu, name: str) -> None:
    fmt = FORMATS[name]
    raw = np.random.default_rng(3).integers(0, 256, (256, fmt.block_bytes), np.uint8)
    raw[:, 0] = np.arange(256)
    matrix = Matrix(raw, fmt)
    with np.errstate(all="ignore"):
        wanted = matrix.to_floats()
    assert_same_bits(name, run(gpu, matrix), wanted)
