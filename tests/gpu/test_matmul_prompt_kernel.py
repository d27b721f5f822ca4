"""matmul of prompts against the float64 reference: every format, awkward shapes, each tile, what
becomes of the sums, and scales that float16 does not hold."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
from guarded import Gpu
from numpy.typing import NDArray
from output_dtypes import read
from packed_streams import upload

from rocmforge.gguf.formats import FORMATS
from rocmforge.gpu.arrays import F16, F32, Halves, Permuted
from rocmforge.gpu.compiler import wave_size
from rocmforge.gpu.ops import matmul_prompt as op
from rocmforge.ops import reference
from rocmforge.ops.cases import relative_rms
from rocmforge.ops.matrix import Matrix

TOLERANCE = 2e-3  # weights are rounded to float16; activations are given as such
ARCHITECTURES = ("gfx1100", "gfx90a", "sm_90")
SHAPES = ((1, 1, 96), (17, 31, 160), (129, 130, 96))  # tokens, rows, columns
K_SHAPES = ((1, 1, 256), (17, 31, 768), (129, 130, 256))
DENSE_SHAPES = ((1, 1, 1), (3, 5, 7), (17, 31, 100), (65, 66, 72))


@dataclasses.dataclass(frozen=True)
class Data:
    """x (T, K) float16, weights, and what the reference makes of them, (T, N)."""

    x: NDArray[np.float16]
    matrix: Matrix
    wanted: NDArray[np.float64]


@functools.cache
def data(tokens: int, rows: int, columns: int, name: str, seed: int = 0) -> Data:
    random = np.random.default_rng([tokens, rows, columns, seed])
    x = random.standard_normal((tokens, columns), np.float32).astype(np.float16)
    w = random.standard_normal((rows, columns), np.float32) / np.float32(np.sqrt(columns))
    matrix = Matrix.from_floats(w, name)
    return Data(x, matrix, reference.matmul(x, matrix))


def multiply(
    gpu: Gpu,
    x: NDArray[np.float16],
    matrix: Matrix,
    before: NDArray[np.float32] | None = None,
    bias: NDArray[np.float32] | None = None,
    dtype: type = F32,
) -> NDArray[np.float32]:
    """What the kernel gives, (T, N); added to `before` where that is given."""
    shape = (len(x), matrix.rows)
    size = shape[0] * shape[1] * (4 if dtype is F32 else 2)
    out = dtype(gpu.empty(size) if before is None else gpu.upload(before))
    gpu.run(
        op.matmul_prompt(
            gpu.kernels,
            x=F16(gpu.upload(x)),
            weight=upload(gpu, matrix),
            out=out,
            tokens=len(x),
            bias=None if bias is None else gpu.upload(bias),
            accumulate=before is not None,
        )
    )
    got = gpu.download(out.address, shape, np.float32 if dtype is F32 else np.float16)
    return got.astype(np.float32)


def shapes(name: str) -> tuple[tuple[int, int, int], ...]:
    block = FORMATS[name].block_len
    return {1: DENSE_SHAPES, 64: K_SHAPES, 256: K_SHAPES}.get(block, SHAPES)


EVERY_FORMAT = [(name, shape) for name in FORMATS for shape in shapes(name)]
EVERY_TILE = list(
    dict.fromkeys(
        (wave_size(architecture), name, tile.constants)
        for architecture in ARCHITECTURES
        for name in ("Q4_K", "Q8_0", "F32")
        for tile in op.tiles(architecture, name)
    )
)


@pytest.mark.parametrize(("name", "shape"), EVERY_FORMAT, ids=str)
def test_matmul_prompt_agrees_with_the_reference(
    gpu: Gpu, name: str, shape: tuple[int, int, int]
) -> None:
    given = data(*shape, name)
    got = multiply(gpu, given.x, given.matrix)
    assert relative_rms(got, given.wanted) <= TOLERANCE
    assert np.abs(got - given.wanted).max() <= 8 * TOLERANCE * np.sqrt(np.mean(given.wanted**2))


@pytest.mark.parametrize(("wave", "name", "constants"), EVERY_TILE, ids=str)
def test_every_tile(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, wave: int, name: str, constants: op.Constants
) -> None:
    if wave != gpu.runtime.properties.wave_size:
        pytest.skip("a tile for another wave size")
    monkeypatch.setattr(op, "choose", lambda *_: constants)
    given = data(130, 129, 256, name)
    assert relative_rms(multiply(gpu, given.x, given.matrix), given.wanted) <= TOLERANCE


@pytest.mark.parametrize("dtype", [F32, F16])
def test_bias_is_added_and_results_are_stored_in_both_dtypes(gpu: Gpu, dtype: type) -> None:
    given = data(17, 31, 160, "Q5_0")
    bias = np.random.default_rng(3).standard_normal(31, np.float32)
    got = multiply(gpu, given.x, given.matrix, bias=bias, dtype=dtype)
    assert relative_rms(got, given.wanted + bias) <= TOLERANCE


def test_results_are_added_to_the_residual(gpu: Gpu) -> None:
    given = data(17, 31, 160, "Q5_0")
    before = np.random.default_rng(3).standard_normal((17, 31), np.float32)
    got = multiply(gpu, given.x, given.matrix, before=before)
    assert relative_rms(got - before, given.wanted) <= TOLERANCE


def test_results_beyond_float16_are_its_largest_numbers(gpu: Gpu) -> None:
    x = np.array([[300.0], [-300.0]], np.float16)
    matrix = Matrix.from_floats(np.array([[300.0], [2.0]], np.float32), "F32")
    got = multiply(gpu, x, matrix, dtype=F16)
    np.testing.assert_array_equal(got, [[65504.0, 600.0], [-65504.0, -600.0]])


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("Q4_K", (17, 65, 256), F16),
        ("Q4_K", (17, 128, 256), Permuted),
        ("Q8_0", (3, 31, 96), F16),
        ("BF16", (5, 40, 33), F16),
    ],
)
def test_gate_up_swiglu_prompt(
    gpu: Gpu, name: str, shape: tuple[int, int, int], dtype: type[Halves]
) -> None:
    gate, up = data(*shape, name, seed=1), data(*shape, name, seed=2)
    out = dtype(gpu.empty(2 * shape[0] * shape[1]))
    gpu.run(
        op.gate_up_swiglu_prompt(
            gpu.kernels,
            x=F16(gpu.upload(gate.x)),
            gate=upload(gpu, gate.matrix),
            up=upload(gpu, up.matrix),
            out=out,
            tokens=shape[0],
        )
    )
    got = read(gpu, out, *shape[:2])
    wanted = reference.swiglu(gate.wanted, reference.matmul(gate.x, up.matrix))
    assert relative_rms(got, wanted) <= TOLERANCE


def test_weights_beyond_float16_are_its_largest_numbers(gpu: Gpu) -> None:
    raw = np.zeros((2, 34), np.uint8)  # Q8_0: 40000 · code and 700 · code
    raw[0, :2] = np.array([40000.0], np.float16).view(np.uint8)
    raw[1, :2] = np.array([700.0], np.float16).view(np.uint8)
    raw[:, 2:] = np.resize(np.array([0, 1, 2, -1, -2, 93, -94, 127], np.int8), 32).view(np.uint8)
    matrix = Matrix(raw, FORMATS["Q8_0"])
    x = (np.eye(8, 32) / 64).astype(np.float16)
    wanted = np.clip(matrix.to_floats(), -65504, 65504)[:, :8].T / 64
    np.testing.assert_allclose(multiply(gpu, x, matrix), wanted, rtol=1e-3)


def test_a_scale_that_is_not_a_number_stays_in_its_row(gpu: Gpu) -> None:
    given = data(17, 31, 160, "Q4_1")
    raw = given.matrix.data.copy()
    raw[7, 20:22] = np.array([np.nan], np.float16).view(np.uint8)
    got = multiply(gpu, given.x, Matrix(raw, given.matrix.format))
    assert np.isnan(got[:, 7]).all()
    others = np.arange(31) != 7
    assert relative_rms(got[:, others], given.wanted[:, others]) <= TOLERANCE


@pytest.mark.parametrize("architecture", ["gfx1100", "gfx1200", "gfx90a", "gfx942"])
def test_choose_takes_small_tiles_where_large_ones_leave_units_idle(architecture: str) -> None:
    large, small = (tile.constants for tile in op.tiles(architecture, "Q4_K"))
    assert op.choose(architecture, "Q4_K", 2048, 11008, 4096, 60) == large
    assert op.choose(architecture, "Q4_K", 32, 4096, 4096, 60) == small


@pytest.mark.parametrize(
    ("tokens", "rows", "tile"),
    [
        (2048, 22016, (128, 128, 64, 64)),
        (512, 4096, (128, 128, 64, 32)),
        (128, 22016, (128, 64, 64, 32)),
        (128, 4096, (64, 64, 32, 32)),
        (32, 4096, (32, 64, 16, 32)),
    ],
)
def test_choose_takes_what_was_fastest_on_the_h200(
    tokens: int, rows: int, tile: tuple[int, int, int, int]
) -> None:
    constants = op.choose("sm_90", "Q4_K", tokens, rows, 4096, 132)
    assert dataclasses.astuple(constants)[:4] == tile


def test_tiles_divide() -> None:
    for architecture in ARCHITECTURES:
        for tile in op.tiles(architecture, "Q4_K"):
            c = tile.constants
            assert c.TILE_TOKENS % c.WAVE_TOKENS == 0 == c.WAVE_TOKENS % 16
            assert c.TILE_ROWS % c.WAVE_ROWS == 0 == c.WAVE_ROWS % 32
            assert 64 * c.STAGES * c.GROUPS * (c.TILE_TOKENS + c.TILE_ROWS) <= 48 * 1024


def test_prompt_kernel_knows_who_has_matrix_units() -> None:
    for architecture in ("gfx1030", "gfx906"):
        assert op.prompt_kernel(architecture, "Q4_K") == "matmul_dot4"
        assert op.prompt_kernel(architecture, "BF16") == "matmul_prompt"
    for architecture in ("gfx1010", "gfx1100", "gfx1201", "gfx90a", "gfx942", "sm_90"):
        assert op.prompt_kernel(architecture, "Q4_K") == "matmul_prompt"
