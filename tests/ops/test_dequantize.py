"""dequantize: bit for bit what the numpy reference gives, for any bytes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from rocmforge import ops
from rocmforge.cpu.backend import CpuBackend, instruction_sets
from rocmforge.gguf.formats import FORMATS
from rocmforge.ops import Matrix, cases, reference

ISAS = instruction_sets()


def assert_same_bits(name: str, got: NDArray[np.float32], wanted: NDArray[np.float32]) -> None:
    """NaNs may have any payload, and MXFP6 codes of −0 read as 0; all else is equal."""
    assert got.shape == wanted.shape
    if name.startswith("MXFP6"):
        got, wanted = got + np.float32(0), wanted + np.float32(0)
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got.view(np.uint32)[~nan], wanted.view(np.uint32)[~nan])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", cases.DEQUANTIZE_CHECKS, ids=str)
def test_blocks_of_a_quantizer(case: cases.DequantizeCase, isa: str, threads: int) -> None:
    matrix = case.inputs()
    got = ops.dequantize(matrix, CpuBackend(threads, isa=isa))
    assert_same_bits(case.format, got, matrix.to_floats())
    assert cases.relative_rms(got, reference.dequantize(matrix)) <= case.tolerance
    assert matrix.data.nbytes + got.nbytes == case.bytes


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", FORMATS)
def test_arbitrary_bytes(name: str, isa: str) -> None:
    """Every byte of a file can be anything, scales of NaN, infinity and subnormals too."""
    fmt = FORMATS[name]
    rng = np.random.default_rng(2)
    blocks = 64 if fmt.block_len > 1 else 4096
    raw = rng.integers(0, 256, (24, blocks * fmt.block_bytes), np.uint8)
    raw[:6] &= rng.integers(0, 256, raw[:6].shape, np.uint8)
    raw[6:12] |= rng.integers(0, 256, raw[6:12].shape, np.uint8)
    raw[12], raw[13] = 0x00, 0xFF
    matrix = Matrix(raw, fmt)
    assert_same_bits(
        matrix.format.name, ops.dequantize(matrix, CpuBackend(2, isa=isa)), matrix.to_floats()
    )


@pytest.mark.parametrize("isa", ISAS)
def test_every_half_and_bfloat(isa: str) -> None:
    every = np.arange(65536, dtype=np.uint16).view(np.uint8)
    for name in ("F16", "BF16"):
        for matrix in (
            Matrix(every.reshape(1, -1), FORMATS[name]),
            Matrix(every.reshape(-1, 2), FORMATS[name]),  # a single column: no whole vector
        ):
            assert_same_bits(
                matrix.format.name,
                ops.dequantize(matrix, CpuBackend(1, isa=isa)),
                matrix.to_floats(),
            )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["MXFP4", "MXFP6_E2M3", "MXFP6_E3M2"])
def test_every_scale_of_the_mx_formats(name: str, isa: str) -> None:
    fmt = FORMATS[name]
    raw = np.random.default_rng(3).integers(0, 256, (256, fmt.block_bytes), np.uint8)
    raw[:, 0] = np.arange(256)
    matrix = Matrix(raw, fmt)
    with np.errstate(all="ignore"):
        wanted = matrix.to_floats()
    assert_same_bits(matrix.format.name, ops.dequantize(matrix, CpuBackend(1, isa=isa)), wanted)


def test_into_an_array_of_the_callers() -> None:
    matrix = cases.DequantizeCase(4, 64, "Q4_0").inputs()
    out = np.full((4, 64), np.nan, np.float32)
    assert ops.dequantize(matrix, CpuBackend(1), out) is out
    assert_same_bits("Q4_0", out, matrix.to_floats())


@pytest.mark.parametrize(
    "out",
    [np.empty((4, 32), np.float32), np.empty((4, 64), np.float64), np.empty((64, 4), np.float32).T],
    ids=["shape", "dtype", "order"],
)
def test_an_array_that_does_not_fit_is_refused(out: NDArray[np.floating]) -> None:
    matrix = cases.DequantizeCase(4, 64, "Q4_0").inputs()
    with pytest.raises(ValueError, match=r"out: got .*, wanted"):
        ops.dequantize(matrix, CpuBackend(1), out)  # type: ignore[arg-type]


def test_a_read_only_array_is_refused() -> None:
    matrix = cases.DequantizeCase(4, 64, "Q4_0").inputs()
    out = np.zeros((4, 64), np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out: got an array that is read-only"):
        ops.dequantize(matrix, CpuBackend(1), out)
    assert not out.any()
