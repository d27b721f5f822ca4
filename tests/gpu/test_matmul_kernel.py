"""GEMVs by dot products of lanes, for up to eight tokens: every format against float64.

Activations are rounded here, so that what is compared is the kernel's own arithmetic: integer dots
and float32 sums, far closer than the tolerance of rounding to int8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from format_kinds import of_each_kind
from guarded import Gpu
from numpy.typing import NDArray
from packed_streams import upload, upload_q8

from rocmforge.gguf.formats import FORMATS
from rocmforge.gpu.arrays import F16, F32, Q8, Squares
from rocmforge.gpu.matrix import DENSE, LAYOUTS
from rocmforge.gpu.ops import matmul as op
from rocmforge.gpu.ops.dot_rows import (
    DOT_TOKENS,
    Constants,
    reads_f16,
)
from rocmforge.gpu.ops.gemv_constants import MATRIX_LANES, TOKENS, Cut, row_classes
from rocmforge.ops import Matrix

EXACT = 2e-6
"""Of float32 sums, relative to the norm of what they sum."""

Floats = NDArray[np.float32]
Exact = NDArray[np.float64]


def gaussian(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def matrix_of(name: str, rows: int, columns: int, seed: int = 0) -> Matrix:
    return Matrix.from_floats(gaussian(seed, rows, columns) / np.float32(columns**0.5), name)


def columns_of(name: str, blocks: int) -> int:
    return blocks * max(FORMATS[name].block_len, 32)


def by_lanes(gpu: Gpu, name: str, tokens: int) -> int:
    """As many tokens, but no more than lanes compute; see test_matrix_rows_kernel.py for others."""
    architecture = gpu.runtime.properties.architecture
    return min(tokens, DOT_TOKENS) if reads_f16(architecture, name, tokens) else tokens


def activations(gpu: Gpu, x: Floats, dense: bool) -> tuple[Q8 | F32, Exact]:
    """On the device, and what they stand for exactly."""
    if dense:
        return F32(gpu.upload(x)), x.astype(np.float64)
    return upload_q8(gpu, x)


EPS = 1e-5


def row_scale(gpu: Gpu, h: Floats) -> Squares:
    """What says how much rows of x lack, where x was made of rows of h (T, K)."""
    groups = (h.reshape(len(h), -1, 32).astype(np.float64) ** 2).sum(2)
    return Squares(gpu.upload(groups.astype(np.float32)), EPS)


def factors(h: Floats) -> Exact:
    """What that is, (T, 1)."""
    wanted: Exact = 1 / np.sqrt((h.astype(np.float64) ** 2).mean(1, keepdims=True) + EPS)
    return wanted


def product(x: Exact, matrix: Matrix) -> Exact:
    wanted: Exact = x @ matrix.to_floats().astype(np.float64).T
    return wanted


def assert_close(got: Floats, wanted: Exact, sizes: Exact | float = 1.0) -> None:
    """Within float32's rounding of sums whose terms have the norm `sizes`."""
    assert got.shape == wanted.shape
    error = np.abs(got - wanted)
    assert (error <= 4 * EXACT * (np.abs(wanted) + sizes)).all(), error.max()


def run(
    gpu: Gpu,
    x: Floats,
    matrices: Sequence[Matrix],
    biases: Sequence[Floats | None] | None = None,
    start: Sequence[Floats] | None = None,
    h: Floats | None = None,
) -> tuple[list[Floats], Exact]:
    """The outputs of one launch, and the activations that it saw; with `h`, times its factors."""
    rounded, exact = activations(gpu, x, matrices[0].format.name in DENSE)
    scale = None if h is None else row_scale(gpu, h)
    got = multiply(gpu, rounded, len(x), matrices, biases, start, scale)
    return got, exact if h is None else exact * factors(h)


def multiply(
    gpu: Gpu,
    x: Q8 | F16 | F32,
    tokens: int,
    matrices: Sequence[Matrix],
    biases: Sequence[Floats | None] | None = None,
    start: Sequence[Floats] | None = None,
    scale: Squares | None = None,
) -> list[Floats]:
    """The outputs of one launch for activations on the device."""
    biases = biases or [None] * len(matrices)
    if start is None:
        outs = [gpu.empty(4 * tokens * m.rows) for m in matrices]
    else:
        outs = [gpu.upload(s) for s in start]
    gpu.run(
        op.matmul(
            gpu.kernels,
            x=x,
            weights=[upload(gpu, m) for m in matrices],
            outs=outs,
            biases=[None if b is None else gpu.upload(b) for b in biases],
            tokens=tokens,
            accumulate=start is not None,
            x_scale=scale,
        )
    )
    shapes = [(tokens, m.rows) for m in matrices]
    return [gpu.download(o, s, np.float32) for o, s in zip(outs, shapes, strict=True)]


@pytest.mark.every_format
@pytest.mark.parametrize("name", FORMATS)
def test_matmul_agrees_with_float64(gpu: Gpu, name: str) -> None:
    """Rows that fill no block, columns that fill no wave, one token and five to eight."""
    for tokens, rows, blocks in (
        *((1, 1, 1), (1, 37, 3)),
        *((5, 17, 1), (6, 3, 4), (7, 2, 2), (8, 35, 3)),
    ):
        check_matmul(gpu, name, tokens, rows, blocks)


@pytest.mark.parametrize("name", of_each_kind(FORMATS))
def test_matmul_of_two_to_four_tokens(gpu: Gpu, name: str) -> None:
    """Builds that are for fewer tokens; they unpack as those above do."""
    for tokens, rows, blocks in ((2, 5, 5), (3, 33, 2), (4, 7, 7)):
        check_matmul(gpu, name, tokens, rows, blocks)


FORMAT_OF = {"nibbles": "Q4_K", "short blocks": "MXFP4", "bytes": "Q8_0", "planes": "Q6_K"}
CUTS = sorted(  # of NVIDIA's constants, those that AMD has nothing like
    {
        (op_name, FORMAT_OF[kind], tokens, cut)
        for op_name in ("matmul", "gate_up_swiglu")
        for one in row_classes("sm_90", op_name)
        for kind in FORMAT_OF
        for tokens, cut in zip(TOKENS, one.constants(kind), strict=True)
        if cut.lanes != MATRIX_LANES
        if cut.lanes != 32 or cut.rows * cut.units > 4 or cut.buffers > 1
    }
)


@pytest.mark.parametrize(("op_name", "name", "tokens", "cut"), CUTS, ids=str)
def test_rows_may_be_cut_in_other_ways(
    gpu: Gpu, op_name: str, name: str, tokens: int, cut: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = op.choose

    def chosen(*given: Any, **named: Any) -> Constants:
        constants = own(*given, **named)
        waves, rows, units, lanes, buffers = cut
        cuts = {"WAVES": waves, "ROWS": rows, "UNITS": units, "LANES": lanes}
        return replace(constants, BUFFERS=buffers, **cuts)

    monkeypatch.setattr(op, "choose", chosen)
    for blocks in (1, 12):
        if op_name == "matmul":
            check_matmul(gpu, name, tokens, 37, blocks)
        else:
            check_gate_up(gpu, (name, name), tokens, 96, columns_of(name, blocks), Q8)


def check_matmul(gpu: Gpu, name: str, tokens: int, rows: int, blocks: int) -> None:
    matrix = matrix_of(name, rows, columns_of(name, blocks))
    x = gaussian(tokens, by_lanes(gpu, name, tokens), matrix.columns)
    (got,), exact = run(gpu, x, [matrix])
    assert_close(got, product(exact, matrix))


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_the_identity_read_back_every_weight(gpu: Gpu, name: str) -> None:
    matrix = matrix_of(name, 3, columns_of(name, 1), seed=1)
    identity = np.eye(matrix.columns, dtype=np.float32)
    weights = matrix.to_floats().T
    count = by_lanes(gpu, name, 8)
    for start in (0, matrix.columns // 2, matrix.columns - count):
        (got,), exact = run(gpu, identity[start : start + count], [matrix])
        if name in DENSE:
            np.testing.assert_array_equal(got, weights[start : start + count])
        else:
            assert_close(got, exact @ weights.astype(np.float64), sizes=0.01)


@pytest.mark.parametrize(
    ("name", "columns", "tokens"),
    [
        ("Q4_K", 11008 - 256, 1),
        ("Q4_0", 4096 + 32, 1),
        ("Q6_K", 4096 + 256, 8),
        ("Q8_0", 4096 + 96, 1),
        ("Q8_0", 896, 8),
        ("IQ4_NL", 896, 2),
        ("MXFP6_E2M3", 2048 + 32, 4),
        ("F16", 4096 + 8, 1),
        ("F16", 2056, 8),
        ("F32", 4100, 2),
        ("BF16", 11008, 1),
    ],
)
def test_columns_beyond_what_is_in_flight_and_in_lds(
    gpu: Gpu, name: str, columns: int, tokens: int
) -> None:
    matrix = matrix_of(name, 5, columns)
    (got,), exact = run(gpu, gaussian(1, by_lanes(gpu, name, tokens), columns), [matrix])
    assert_close(got, product(exact, matrix))


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("columns", [1, 7, 33, 516])
def test_dense_columns_need_not_fill_16_bytes(gpu: Gpu, name: str, columns: int) -> None:
    for tokens, rows in ((1, 15), (3, 2)):
        matrix = matrix_of(name, rows, columns, seed=rows)
        (got,), exact = run(gpu, gaussian(tokens, tokens, columns), [matrix])
        assert_close(got, product(exact, matrix))


@pytest.mark.parametrize(
    "names",
    [
        ("Q4_K", "Q4_K", "Q6_K"),
        ("Q6_K", "Q4_K", "Q4_K"),
        ("Q4_K", "Q6_K", "Q4_K"),
        ("Q4_0", "Q8_0", "MXFP4"),
        ("Q8_0", "Q2_K"),
        ("Q5_K", "Q5_K", "Q5_K"),
        ("F16", "F32", "MXFP6_E3M2"),
        ("Q3_K",),
    ],
    ids="-".join,
)
def test_several_matrices_bias_and_accumulation(gpu: Gpu, names: tuple[str, ...]) -> None:
    rows = (33, 16, 2)
    matrices = [matrix_of(name, n, 256, seed=n) for name, n in zip(names, rows, strict=False)]
    biases = [gaussian(9 + i, m.rows) if i != 1 else None for i, m in enumerate(matrices)]
    for tokens in (1, 3):
        x = gaussian(tokens, tokens, 256)
        before = [gaussian(50 + i, tokens, m.rows) for i, m in enumerate(matrices)]
        for start in (None, before):
            got, exact = run(gpu, x, matrices, biases, start)
            for i, (one, matrix, bias) in enumerate(zip(got, matrices, biases, strict=True)):
                wanted = product(exact, matrix) + (0 if bias is None else bias)
                assert_close(one, wanted + (0 if start is None else before[i]))


@pytest.mark.parametrize("name", of_each_kind(LAYOUTS))
def test_rows_that_lack_a_factor_are_multiplied_by_it(gpu: Gpu, name: str) -> None:
    for most, rows, blocks in ((1, 37, 3), (2, 5, 5), (3, 33, 1), (8, 35, 2)):
        tokens = by_lanes(gpu, name, most)
        matrix = matrix_of(name, rows, columns_of(name, blocks))
        x = gaussian(tokens, tokens, matrix.columns)
        h = x * gaussian(9, tokens, 1) + np.float32(0.25)
        bias, before = gaussian(1, rows), gaussian(2, tokens, rows)
        (got,), exact = run(gpu, x, [matrix], [bias], [before], h)
        assert_close(got, product(exact, matrix) + bias + before, np.abs(factors(h)) + 1)


@pytest.mark.parametrize("name", of_each_kind(FORMATS))
def test_matmul_rmsnorm(gpu: Gpu, name: str) -> None:
    for tokens, rows, blocks in ((1, 96, 1), (2, 32, 3), (5, 64, 2), (8, 160, 1)):
        matrix = matrix_of(name, rows, columns_of(name, blocks))
        placed = upload(gpu, matrix)
        x, exact = activations(gpu, gaussian(7, tokens, matrix.columns), placed.dense)
        before, norm = gaussian(1, tokens, rows), gaussian(2, rows)
        for bias in (None, gaussian(3, rows)):
            out, sums = gpu.upload(before), gpu.empty(4 * tokens * rows // 32)
            normed = Q8.at(gpu.empty(Q8.nbytes(tokens, rows)), tokens, rows)
            gpu.run(
                op.matmul_rmsnorm(
                    gpu.kernels,
                    x=x,
                    weight=placed,
                    bias=None if bias is None else gpu.upload(bias),
                    out=out,
                    norm=gpu.upload(norm),
                    normed=normed,
                    squares_out=sums,
                    tokens=tokens,
                )
            )
            wanted = product(exact, matrix) + before + (0 if bias is None else bias)
            assert_close(gpu.download(out, (tokens, rows), np.float32), wanted)
            squares = (wanted**2).reshape(tokens, -1, 32).sum(2)
            got = gpu.download(sums, (tokens, rows // 32), np.float32)
            np.testing.assert_allclose(got, squares, rtol=1e-5)
            assert_rounded(gpu, normed, wanted * norm)


@pytest.mark.parametrize("name", LAYOUTS)
def test_extreme_codes_do_not_overflow(gpu: Gpu, name: str) -> None:
    """Largest codes against largest activations of equal and of alternating sign."""
    fmt = FORMATS[name]
    ones = np.ones((1, columns_of(name, 2)), np.float32)
    alternating = ones.copy()
    alternating[:, 1::2] = -1
    rows = [Matrix.from_floats(w, name).data for w in (ones, -ones, alternating, -alternating)]
    rows += [np.full_like(rows[0], 0xFF), np.zeros_like(rows[0])]
    for block in rows[-2].reshape(-1, fmt.block_bytes):
        _sane_scales(name, block)
    matrix = Matrix(np.ascontiguousarray(np.concatenate(rows)), fmt)
    x = np.concatenate([ones, alternating]) * np.float32(127)
    (got,), exact = run(gpu, x, [matrix])
    weights = np.abs(matrix.to_floats().astype(np.float64))
    assert_close(got, product(exact, matrix), sizes=np.abs(exact) @ weights.T)


def _sane_scales(name: str, block: NDArray[np.uint8]) -> None:
    """Set the f16 or E8M0 scales of a block of 0xFF bytes to 1; they would be NaN."""
    if name.startswith("MX"):
        block[0] = 127
        return
    if name == "NVFP4":
        block[:4] = 0x38
        return
    if name == "IQ1_M":  # in the upper halves of four bytes
        block[49:56:2] = 0x0F, 0x0F, 0xCF, 0x3F
        return
    at = {"Q2_K": 80, "Q3_K": 108, "Q6_K": 208, "TQ2_0": 64, "TQ1_0": 52}.get(name, 0)
    count = 2 if name in ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K") else 1
    block[at : at + 2 * count] = np.ones(count, np.float16).view(np.uint8)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q8_0", "F16"])
def test_what_is_not_finite_comes_out_as_such(gpu: Gpu, name: str, bad: float) -> None:
    matrix = matrix_of(name, 5, 768)
    x = gaussian(3, 2, 768)
    (clean,), _ = run(gpu, x, [matrix])
    rounded, _ = activations(gpu, x, name in DENSE)
    where = rounded.scales if isinstance(rounded, Q8) else rounded.address
    gpu.runtime.copy_to_device(where + 4 * (767 // 32 if name not in DENSE else 767), _float(bad))
    out = gpu.empty(4 * 2 * 5)
    gpu.run(
        op.matmul(
            gpu.kernels,
            x=rounded,
            weights=[upload(gpu, matrix)],
            outs=[out],
            biases=[None],
            tokens=2,
        )
    )
    got = gpu.download(out, (2, 5), np.float32)
    assert not np.isfinite(got[0]).any()
    np.testing.assert_array_equal(got[1], clean[1])


def _float(value: float) -> Floats:
    return np.array([value], np.float32)


@pytest.mark.parametrize("name", of_each_kind(FORMATS))
def test_gate_up_swiglu(gpu: Gpu, name: str) -> None:
    for tokens, rows, blocks in ((1, 96, 1), (2, 32, 3), (by_lanes(gpu, name, 5), 64, 2)):
        check_gate_up(gpu, (name, name), tokens, rows, columns_of(name, blocks), Q8)


@pytest.mark.parametrize("names", [("Q4_K", "Q4_K"), ("Q8_0", "Q6_K")])
def test_gate_and_up_of_rows_that_lack_a_factor(gpu: Gpu, names: tuple[str, str]) -> None:
    for tokens in (1, 2, by_lanes(gpu, names[0], 8)):
        h = gaussian(8, tokens, 512) * gaussian(9, tokens, 1)
        check_gate_up(gpu, names, tokens, 64, 512, Q8, h)


@pytest.mark.parametrize("dtype", [F32, F16, Q8])
@pytest.mark.parametrize("names", [("Q4_K", "Q8_0"), ("MXFP6_E2M3", "Q6_K"), ("F16", "F32")])
def test_gate_and_up_of_two_formats(gpu: Gpu, names: tuple[str, str], dtype: type) -> None:
    for tokens in (1, 3):
        check_gate_up(gpu, names, tokens, 64 if dtype is Q8 else 37, 512, dtype)


def check_gate_up(
    gpu: Gpu,
    names: tuple[str, str],
    tokens: int,
    rows: int,
    columns: int,
    dtype: type,
    h: Floats | None = None,
) -> None:
    x, exact = activations(gpu, gaussian(7, tokens, columns), names[0] in DENSE)
    scale = None if h is None else row_scale(gpu, h)
    exact = exact if h is None else exact * factors(h)
    out, wanted = gate_and_up(gpu, names, x, exact, rows, dtype, scale)
    if isinstance(out, Q8):
        assert_rounded(gpu, out, wanted)
    elif isinstance(out, F16):
        got = gpu.download(out.address, (tokens, rows), np.float16)
        np.testing.assert_allclose(got, wanted, rtol=2**-10, atol=1e-5)
    else:
        assert_close(gpu.download(out.address, (tokens, rows), np.float32), wanted)


def gate_and_up(
    gpu: Gpu,
    names: tuple[str, str],
    x: Q8 | F16 | F32,
    exact: Exact,
    rows: int,
    dtype: type,
    scale: Squares | None = None,
) -> tuple[Any, Exact]:
    """The output of one launch for activations on the device, and what it has to be."""
    tokens, columns = exact.shape
    gate, up = (matrix_of(name, rows, columns, seed=i) for i, name in enumerate(names))
    memory = gpu.empty(Q8.nbytes(tokens, rows) if dtype is Q8 else 4 * tokens * rows)
    out = Q8.at(memory, tokens, rows) if dtype is Q8 else dtype(memory)
    gpu.run(
        op.gate_up_swiglu(
            gpu.kernels,
            x=x,
            gate=upload(gpu, gate),
            up=upload(gpu, up),
            out=out,
            tokens=tokens,
            x_scale=scale,
        )
    )
    g, u = product(exact, gate), product(exact, up)
    return out, g / (1 + np.exp(-g)) * u


def assert_rounded(gpu: Gpu, out: Q8, wanted: Exact) -> None:
    """Within half a step of each group, and the sums of the codes are right."""
    tokens, rows = wanted.shape
    codes = gpu.download(out.codes, (tokens, rows // 32, 32), np.int8)
    scales = gpu.download(out.scales, (tokens, rows // 32), np.float32)
    sums = gpu.download(out.sums, (tokens, rows // 32), np.uint32)
    halves = codes.reshape(tokens, -1, 2, 16).sum(3, dtype=np.int16)
    np.testing.assert_array_equal(sums.view(np.int16).reshape(halves.shape), halves)
    got = (codes * scales[..., None]).reshape(tokens, rows)
    groups = np.abs(wanted).reshape(tokens, -1, 32).max(2).repeat(32, 1)
    assert (np.abs(got - wanted) <= 0.006 * groups).all()
