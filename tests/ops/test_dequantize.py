"""dequantize and embedding: bit for bit what the numpy reference gives, for any bytes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from rocmforge import ops
from rocmforge.cpu.backend import CpuBackend, instruction_sets
from rocmforge.gguf.formats import FORMATS
from rocmforge.ops import Matrix

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
@pytest.mark.parametrize("name", FORMATS)
def test_blocks_of_a_quantizer(name: str, isa: str, threads: int) -> None:
    block = FORMATS[name].block_len
    rng = np.random.default_rng(1)
    for rows, columns in ((1, block), (7, 3 * block), (33, 5 * max(block, 7))):
        weights = rng.standard_normal((rows, columns), np.float32)
        matrix = Matrix.from_floats(weights, name)
        backend = CpuBackend(threads, isa=isa)
        assert_same_bits(matrix.format.name, ops.dequantize(matrix, backend), matrix.to_floats())


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


@pytest.mark.parametrize("name", FORMATS)
def test_embedding_gathers_rows_in_any_order(name: str) -> None:
    columns = 2 * FORMATS[name].block_len
    weights = np.random.default_rng(4).standard_normal((11, columns), np.float32)
    table = Matrix.from_floats(weights, name)
    backend = CpuBackend(1)
    for ids in ([0], [10, 0, 10, 3], list(range(11))):
        for kind in (np.int32, np.int64, np.uint8):
            got = ops.embedding(table, np.array(ids, kind), backend)
            assert_same_bits(name, got, table.to_floats()[ids])


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.array([3, 11]), "ids: got 3 to 11, wanted 0 to 10"),
        (np.array([-1, 2]), "ids: got -1 to 2, wanted 0 to 10"),
        (np.array([], np.int64), r"ids: got int64 \(0,\), wanted integers \(T,\), T ≥ 1"),
        (np.array([[1]]), r"ids: got int64 \(1, 1\), wanted integers"),
        (np.array([1.0]), r"ids: got float64 \(1,\), wanted integers"),
        (np.array([True]), r"ids: got bool \(1,\), wanted integers"),
    ],
)
def test_embedding_names_wrong_ids(ids: NDArray[np.generic], message: str) -> None:
    table = Matrix.from_floats(np.zeros((11, 4), np.float32), "F32")
    with pytest.raises(ValueError, match=message):
        ops.embedding(table, ids, CpuBackend(1))
