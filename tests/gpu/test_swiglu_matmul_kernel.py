"""swiglu_matmul for up to eight tokens: every format against float64, and beside two kernels.

What it multiplies is what swiglu writes, to the last bit of the int8 codes: it must agree with
swiglu and then matmul as closely as float32 sums do, which one code that differs would break.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from guarded import Gpu
from numpy.typing import NDArray
from packed_streams import upload

from rocmforge.gguf.formats import FORMATS
from rocmforge.gpu.arrays import F32, Q8
from rocmforge.gpu.compiler import wave_size
from rocmforge.gpu.matrix import DENSE, DeviceMatrix
from rocmforge.gpu.ops import swiglu_matmul as op
from rocmforge.gpu.ops.dot_rows import COMMON, KERNEL_FORMATS, MAX_TOKENS, choose, defines
from rocmforge.gpu.ops.matmul import matmul
from rocmforge.gpu.ops.swiglu import swiglu
from rocmforge.ops import Matrix, reference
from rocmforge.ops.cases import MatmulCase, relative_rms

SAME = 2e-6
"""Between the two ways: other orders of float32 sums, relative to the norm of what they sum."""

Floats = NDArray[np.float32]
ARCHITECTURES = ("gfx1030", "gfx1100", "gfx1151", "gfx1200", "gfx90a", "gfx942", "sm_80", "sm_90")


def gaussian(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def matrix_of(name: str, rows: int, columns: int) -> Matrix:
    return Matrix.from_floats(gaussian(rows, rows, columns) / np.float32(columns**0.5), name)


def columns_of(name: str, blocks: int) -> int:
    return blocks * max(FORMATS[name].block_len, 32)


def fused(
    gpu: Gpu,
    gate: Floats,
    up: Floats,
    weight: DeviceMatrix,
    bias: Floats | None = None,
    start: Floats | None = None,
) -> Floats:
    shape = (len(gate), weight.rows)
    out = gpu.empty(4 * shape[0] * shape[1]) if start is None else gpu.upload(start)
    launch = op.swiglu_matmul(
        gpu.kernels,
        gate=gpu.upload(gate),
        up=gpu.upload(up),
        weight=weight,
        out=out,
        bias=None if bias is None else gpu.upload(bias),
        tokens=shape[0],
        accumulate=start is not None,
    )
    gpu.run(launch)
    got: Floats = gpu.download(out, shape, np.float32)
    return got


def apart(gpu: Gpu, gate: Floats, up: Floats, weight: DeviceMatrix) -> Floats:
    """The same by swiglu and matmul, with what is between in memory."""
    tokens, columns = gate.shape
    out = gpu.empty(4 * tokens * weight.rows)
    between: F32 | Q8 = F32(gpu.empty(4 * tokens * columns))
    if not weight.dense:
        between = Q8.at(gpu.empty(Q8.nbytes(tokens, columns)), tokens, columns)
    gate_at, up_at = gpu.upload(gate), gpu.upload(up)
    gpu.run(
        swiglu(gpu.kernels, gate=gate_at, up=up_at, out=between, rows=tokens, columns=columns),
        matmul(gpu.kernels, x=between, weights=[weight], outs=[out], biases=[None], tokens=tokens),
    )
    got: Floats = gpu.download(out, (tokens, weight.rows), np.float32)
    return got


def check(gpu: Gpu, name: str, tokens: int, rows: int, columns: int) -> None:
    """Against the reference, and against two kernels."""
    gate, up = 2 * gaussian(1, tokens, columns), gaussian(2, tokens, columns)
    matrix = matrix_of(name, rows, columns)
    weight = upload(gpu, matrix)
    got = fused(gpu, gate, up, weight)
    between = reference.swiglu(gate, up)
    case = MatmulCase(tokens, rows, columns, name)
    tolerance = case.tolerance("exact" if name in DENSE else "int8")
    assert relative_rms(got, reference.matmul(between, matrix)) <= tolerance
    sizes = np.linalg.norm(between, axis=1)[:, None] * np.linalg.norm(matrix.to_floats(), axis=1)
    assert (np.abs(got - apart(gpu, gate, up, weight)) <= SAME * sizes).all()


@pytest.mark.parametrize("name", FORMATS)
def test_it_agrees_with_the_reference_and_with_two_kernels(gpu: Gpu, name: str) -> None:
    """Rows that fill no block, columns that fill no wave, every number of tokens."""
    for tokens, rows, blocks in (
        *((1, 1, 1), (1, 37, 3), (2, 5, 5), (3, 33, 2)),
        *((4, 7, 7), (5, 17, 1), (6, 3, 4), (7, 2, 2), (8, 67, 3)),
    ):
        check(gpu, name, tokens, rows, columns_of(name, blocks))


@pytest.mark.parametrize(
    ("name", "columns", "tokens"),
    [
        ("Q4_K", 11008, 1),
        ("Q4_K", 14336 + 256, 8),
        ("Q4_0", 16384 + 32, 1),
        ("Q6_K", 5632 + 256, 4),
        ("Q8_0", 8192 + 96, 1),
        ("Q8_0", 4864, 8),
        ("F16", 4096 + 8, 1),
        ("F16", 2056, 8),
        ("F32", 4100, 2),
    ],
)
def test_columns_beyond_what_lds_holds(gpu: Gpu, name: str, columns: int, tokens: int) -> None:
    check(gpu, name, tokens, 5, columns)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("columns", [1, 7, 33, 516])
def test_dense_columns_need_not_fill_16_bytes(gpu: Gpu, name: str, columns: int) -> None:
    for tokens, rows in ((1, 15), (3, 2)):
        check(gpu, name, tokens, rows, columns)


@pytest.mark.parametrize("name", ["Q4_K", "Q8_0", "F16"])
@pytest.mark.parametrize("tokens", [1, 3])
def test_bias_and_accumulation(gpu: Gpu, name: str, tokens: int) -> None:
    gate, up, before = (gaussian(i, tokens, n) for i, n in enumerate((768, 768, 67)))
    weight = upload(gpu, matrix_of(name, 67, 768))
    bias = gaussian(9, 67)
    plain = fused(gpu, gate, up, weight)
    np.testing.assert_array_equal(fused(gpu, gate, up, weight, bias), bias + plain)
    np.testing.assert_array_equal(fused(gpu, gate, up, weight, None, before), before + plain)
    both = fused(gpu, gate, up, weight, bias, before)
    np.testing.assert_array_equal(both, bias + before + plain)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["Q4_K", "Q8_0", "F16"])
def test_what_is_not_finite_comes_out_as_such(gpu: Gpu, name: str, bad: float) -> None:
    gate, up = gaussian(1, 2, 768), gaussian(2, 2, 768)
    weight = upload(gpu, matrix_of(name, 5, 768))
    clean = fused(gpu, gate, up, weight)
    up[0, 767] = bad
    got = fused(gpu, gate, up, weight)
    assert not np.isfinite(got[0]).any()
    np.testing.assert_array_equal(got[1], clean[1])


def test_gates_far_from_zero(gpu: Gpu) -> None:
    gate = np.zeros((1, 32), np.float32)
    gate[0, :8] = -1e30, -200, -80, -1, 1, 80, 200, 1e4
    identity = Matrix.from_floats(np.eye(32, dtype=np.float32), "F32")
    got = fused(gpu, gate, np.full_like(gate, 2), upload(gpu, identity))
    np.testing.assert_allclose(got, reference.swiglu(gate, np.full_like(gate, 2)), 2e-6, 1e-30)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_constants_keep_to_the_kernels_limits(architecture: str) -> None:
    wave = wave_size(architecture)
    for name, tokens in itertools.product(KERNEL_FORMATS, range(1, MAX_TOKENS + 1)):
        c = choose(architecture, name, 4096, tokens, "swiglu_matmul")
        threads = c.WAVES * wave
        assert tokens <= c.TOKENS
        assert threads <= 1024
        assert threads // c.TOKENS % 8 == 0  # threads that bring a group of 32 are of one token
        assert c.TOKENS * c.ROWS <= c.LANES <= wave
        assert c.LANES * c.UNITS * c.TOKENS <= c.SLOTS
        assert 48 * c.SLOTS <= 48 * 1024


def test_common_formats_are_compiled_ahead_for_any_number_of_tokens() -> None:
    for architecture in ("gfx1100", "gfx942", "sm_90"):
        listed = [dict(b.defines or {}) for b in op.builds(architecture)]
        assert len(listed) == len({str(entry) for entry in listed})
        for name, tokens in itertools.product(COMMON, (1, 2, 3, 8)):
            constants = choose(architecture, name, 4096, tokens, "swiglu_matmul")
            assert defines(constants, [name]) in listed
