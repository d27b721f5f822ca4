"""pack: the streams hold every weight of every format, bit for bit, wherever the rows come from."""

from __future__ import annotations

import numpy as np
import pytest
from guarded import Gpu
from packed_streams import download_weights, upload

from rocmforge.gguf.formats import FORMATS, PACKED_BITS
from rocmforge.gpu.matrix import DENSE, LAYOUTS, DeviceMatrix, stream_bytes
from rocmforge.ops import Matrix

PACKED = [name for name in FORMATS if DENSE.get(name) != name]


def arbitrary(name: str, rows: int, blocks: int) -> Matrix:
    """Every byte of a file can be anything; half of the rows are sparse in bits, half dense."""
    fmt = FORMATS[name]
    rng = np.random.default_rng(rows + blocks)
    raw = rng.integers(0, 256, (rows, blocks * fmt.block_bytes), np.uint8)
    raw[::3] &= rng.integers(0, 256, raw[::3].shape, np.uint8)
    raw[1::3] |= rng.integers(0, 256, raw[1::3].shape, np.uint8)
    return Matrix(raw, fmt)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("name", PACKED)
def test_streams_hold_every_weight(gpu: Gpu, name: str) -> None:
    per_256 = 256 // FORMATS[name].block_len
    for rows, blocks in ((1, 1), (3, 7), (11, 3 * per_256)):
        matrix = arbitrary(name, rows, blocks)
        got = download_weights(gpu, upload(gpu, matrix))
        wanted = matrix.to_floats()
        nan = np.isnan(wanted)
        np.testing.assert_array_equal(np.isnan(got), nan)
        np.testing.assert_array_equal(got[~nan], wanted[~nan])


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q5_1", "MXFP4", "MXFP6_E3M2"])
def test_rows_may_come_in_pieces(gpu: Gpu, name: str) -> None:
    block = FORMATS[name].block_len
    weights = np.random.default_rng(1).standard_normal((13, 3 * max(block, 96)), np.float32)
    matrix = Matrix.from_floats(weights, name)
    got = download_weights(gpu, upload(gpu, matrix, first=5))
    np.testing.assert_array_equal(got, matrix.to_floats())


@pytest.mark.parametrize("factor", [0.0371, 3.3e-6, 100.0])
def test_scales_of_nvfp4_take_a_factor(gpu: Gpu, factor: float) -> None:
    matrix = arbitrary("NVFP4", 11, 3)
    got = download_weights(gpu, upload(gpu, matrix, factor=factor))
    # Half a step of float16: of the scale, which codes of up to 6 multiply.
    np.testing.assert_allclose(got, matrix.to_floats() * factor, rtol=2**-11, atol=6 * 2**-25)


def test_streams_lie_one_after_another_and_aligned() -> None:
    for name in FORMATS:
        rows, columns = 7, 3 * 256
        matrix = DeviceMatrix.at(1 << 20, name, rows, columns)
        end = 1 << 20
        for address, size in zip(matrix.addresses, stream_bytes(name, rows, columns), strict=True):
            if size:
                assert address % 256 == 0
                assert end <= address < end + 256
                end = address + size
            else:
                assert address == 0
        assert 0 <= matrix.nbytes - (end - (1 << 20)) < 256


def test_streams_grow_little() -> None:
    """What the layout costs over the file's bytes."""
    growth = {
        name: sum(stream_bytes(name, 64, 4096)) / FORMATS[name].nbytes((64, 4096))
        for name in LAYOUTS
    }
    taken_apart = {name for name in growth if name.startswith(("IQ1", "IQ2", "IQ3", "TQ", "NV"))}
    assert {name for name, factor in growth.items() if factor > 1} - taken_apart == {
        *("Q3_K", "Q4_K", "Q5_K", "IQ4_XS", "MXFP6_E2M3")
    }
    assert max(growth[n] for n in growth if n not in {*taken_apart, "MXFP6_E2M3"}) < 1.05
    for name in taken_apart:
        bits = 8 * sum(stream_bytes(name, 64, 4096)) / (64 * 4096)
        assert bits == pytest.approx(PACKED_BITS[name], rel=1e-3), name


@pytest.mark.parametrize(
    ("name", "rows", "columns", "message"),
    [
        ("Q9_9", 1, 32, "format: got 'Q9_9', wanted one of F32, F16"),
        ("Q4_0", 0, 32, "got 0 rows of 32, wanted at least one"),
        ("Q4_K", 1, 128, "columns of a Q4_K row: got 128, wanted a multiple of 256"),
    ],
)
def test_a_matrix_that_cannot_be_is_refused(
    name: str, rows: int, columns: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        DeviceMatrix.at(0, name, rows, columns)
