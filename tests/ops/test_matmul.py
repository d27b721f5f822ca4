"""matmul on every instruction set, path and format against the float64 reference.

Also what one comparison of norms would not see: single wrong elements, extreme codes that could
saturate, rows and columns at the edges of tiles, and NaN or infinity that must not be hidden.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from rocmforge import ops
from rocmforge.cpu import _cpu
from rocmforge.cpu.backend import DENSE_FORMATS, CpuBackend, instruction_sets
from rocmforge.gguf.formats import FORMATS, PLAIN_FORMATS
from rocmforge.ops import Matrix, cases, reference

ISAS = instruction_sets()
BLOCKS = tuple(name for name in FORMATS if name not in PLAIN_FORMATS)
EXACT_TOLERANCE, INT8_TOLERANCE = (cases.TOLERANCES[name] for name in ("exact", "int8"))
INT8 = tuple(name for name in FORMATS if name not in DENSE_FORMATS)
Floats = NDArray[np.float32]
needs_bf16 = pytest.mark.skipif(not _cpu.Kernels("", 1).multiplies_pairs, reason="no AVX512-BF16")


@functools.cache
def case_data(case: cases.MatmulCase) -> tuple[Floats, Matrix, NDArray[np.float64]]:
    x, matrix = case.inputs()
    return x, matrix, reference.matmul(x, matrix)


def assert_close(got: Floats, wanted: NDArray[np.floating], tolerance: float) -> None:
    """Relative RMS within `tolerance`, and no element off by more than 8 times that.

    Elements are about 1 (Gaussian x, weights of 1/√K). A single one may be small by cancellation,
    where its rounding errors are not: they are then held against 1.
    """
    assert got.dtype == np.float32
    assert got.shape == wanted.shape
    rms = float(np.sqrt(np.mean(wanted**2)))
    if wanted.size < 32:
        rms = max(rms, 1.0)
    error = np.abs(got - wanted)
    assert np.sqrt(np.mean(error**2)) <= tolerance * rms
    assert error.max() <= 8 * tolerance * rms


def gaussian(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def matrix_of(name: str, rows: int, columns: int, seed: int = 0) -> Matrix:
    return Matrix.from_floats(gaussian(seed, rows, columns) / np.float32(columns**0.5), name)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", FORMATS)
def test_matmul_agrees_with_the_reference(name: str, isa: str) -> None:
    checks = cases.MATMUL_CHECKS[name]
    for case in checks[:-1] if isa == "portable" else checks:
        x, matrix, wanted = case_data(case)
        for exact in (True, False):
            one, two = (
                ops.matmul(x, ops.pack(matrix, CpuBackend(threads, exact, isa)))
                for threads in (1, 2)
            )
            precision = CpuBackend(1, exact, isa).matmul_precision(name, case.tokens)
            assert_close(one, wanted, case.tolerance(precision))
            # How the work is split must not show.
            np.testing.assert_array_equal(one, two)


@needs_bf16
@pytest.mark.parametrize("name", PLAIN_FORMATS)
def test_matmul_in_bfloat16_agrees_with_the_reference(name: str) -> None:
    odd = [cases.MatmulCase(tokens, 37, 63, name) for tokens in (1, 2, 3, 5, 16, 17, 300)]
    for case in [*cases.MATMUL_CHECKS[name], *odd]:
        x, matrix, wanted = case_data(case)
        one, two = (
            ops.matmul(x, ops.pack(matrix, CpuBackend(threads, bf16=True))) for threads in (1, 2)
        )
        precision = CpuBackend(1, bf16=True).matmul_precision(name, case.tokens)
        assert precision == "bf16"
        assert_close(one, wanted, case.tolerance(precision))
        np.testing.assert_array_equal(one, two)


@needs_bf16
@pytest.mark.parametrize("name", PLAIN_FORMATS)
def test_bfloat16_rounds_weights_to_nearest_even(name: str) -> None:
    columns = 33
    matrix = matrix_of(name, 19, columns)
    backend = CpuBackend(2, bf16=True)
    got = ops.matmul(np.eye(columns, dtype=np.float32), ops.pack(matrix, backend))
    bits = matrix.to_floats().T.copy().view(np.uint32)
    rounded = bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000
    np.testing.assert_array_equal(got, rounded.view(np.float32))


@pytest.mark.parametrize("isa", ISAS)
def test_every_code_of_mxfp6_e3m2_is_multiplied_exactly(isa: str) -> None:
    sizes = [0, 1, 2, 3] + [(4 + m) * 2**e for e in range(7) for m in range(4)]  # sixteenths
    values = np.array([sizes, [-size for size in sizes]], np.float32).reshape(1, 64) / 16
    matrix = Matrix.from_floats(np.repeat(values, 3, axis=0), "MXFP6_E3M2")
    np.testing.assert_array_equal(matrix.to_floats()[0], values[0])
    packed = ops.pack(matrix, CpuBackend(1, isa=isa))
    for tokens in (1, 64):
        got = ops.matmul(np.eye(64, dtype=np.float32)[-tokens:], packed)
        np.testing.assert_array_equal(got, matrix.to_floats().T[-tokens:])


@pytest.mark.parametrize("isa", ISAS)
def test_the_largest_and_smallest_scales_of_mxfp6_e3m2(isa: str) -> None:
    matrix = Matrix.from_floats(np.full((1, 32), 0.25, np.float32), "MXFP6_E3M2")
    for code, size in ((1, 1.0), (100, 1.0), (250, 2.0**-30), (255, 2.0**-30)):
        x = np.full((2, 32), size, np.float32)
        raw = matrix.data.copy()
        raw[0, 0] = code
        scaled = Matrix(raw, matrix.format)
        got = ops.matmul(x, ops.pack(scaled, CpuBackend(1, isa=isa)))
        if code == 255:
            assert not np.isfinite(got).any()
        else:
            np.testing.assert_allclose(got, x @ scaled.to_floats().T, rtol=1e-6)


@needs_bf16
def test_bfloat16_leaves_quantized_weights_alone() -> None:
    x, matrix, _ = case_data(cases.MatmulCase(17, 40, 64, "MXFP6_E3M2"))
    packed = [ops.pack(matrix, CpuBackend(2, bf16=bf16)) for bf16 in (True, False)]
    np.testing.assert_array_equal(*(ops.matmul(x, one) for one in packed))


@needs_bf16
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bfloat16_hides_no_nan_or_infinity(bad: float) -> None:
    weights, x = gaussian(1, 20, 64), gaussian(2, 3, 64)
    x[1, 5] = bad
    weights[7, 9] = bad
    backend = CpuBackend(2, bf16=True)
    got = ops.matmul(x, ops.pack(Matrix(weights.view(np.uint8), FORMATS["F32"]), backend))
    assert not np.isfinite(got[1]).any()
    assert not np.isfinite(got[:, 7]).any()
    assert np.isfinite(np.delete(got[[0, 2]], 7, axis=1)).all()


@pytest.mark.parametrize("name", INT8)
def test_the_tolerance_would_notice_a_wrong_scale_or_row(name: str) -> None:
    x, matrix, wanted = case_data(cases.MATMUL_CHECKS[name][3])
    backend = CpuBackend(2, exact=False)
    good = ops.matmul(x, ops.pack(matrix, backend))
    swapped = good.copy()
    swapped[:, [0, 1]] = swapped[:, [1, 0]]
    for broken in (good * np.float32(1.05), swapped):
        with pytest.raises(AssertionError):
            assert_close(broken, wanted, INT8_TOLERANCE)


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "int8"])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_the_identity_read_back_every_weight(name: str, isa: str, exact: bool) -> None:
    """x = 1 reads the packed matrix as it is: each element must be the dequantized weight."""
    columns = 2 * max(FORMATS[name].block_len, 32)
    matrix = matrix_of(name, 19, columns)
    got = ops.matmul(np.eye(columns, dtype=np.float32), ops.pack(matrix, CpuBackend(2, exact, isa)))
    weights = matrix.to_floats().T
    if exact or name in DENSE_FORMATS:
        np.testing.assert_array_equal(got, weights)
    else:
        # 127 · (1 / 127) is 1 but for rounding; offsets meet 31 zeros and one such 1.
        np.testing.assert_allclose(got, weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", BLOCKS)
def test_arbitrary_bytes_read_back_every_weight(name: str, isa: str) -> None:
    fmt = FORMATS[name]
    rng = np.random.default_rng(5)
    raw = rng.integers(0, 256, (400, fmt.block_bytes), np.uint8)
    weights = Matrix(raw, fmt).to_floats()
    # Blocks that a quantizer could write; scales of NaN, infinity or 1e-37 are not meant here.
    sane = np.isfinite(weights).all(1) & (np.abs(weights).max(1) < 1e30)
    sane &= np.abs(weights).max(1) > 1e-30
    matrix = Matrix(np.ascontiguousarray(raw[sane][:35]), fmt)
    assert matrix.rows == 35
    identity = np.eye(matrix.columns, dtype=np.float32)
    got = ops.matmul(identity, ops.pack(matrix, CpuBackend(1, True, isa)))
    np.testing.assert_array_equal(got, matrix.to_floats().T)
    for tokens in (1, 6):
        x = gaussian(tokens, tokens, matrix.columns)
        wanted = reference.matmul(x, matrix)
        for exact in (True, False):
            got = ops.matmul(x, ops.pack(matrix, CpuBackend(2, exact, isa)))
            # Scales differ from row to row by orders of magnitude: each row by itself.
            size = np.linalg.norm(matrix.to_floats().astype(np.float64), axis=1)
            bound = 1e-5 if exact or name in DENSE_FORMATS else 0.05
            error = np.abs(got - wanted)
            assert (error <= bound * size * (1 + np.abs(x).max())).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", INT8)
@pytest.mark.parametrize("tokens", [1, 4, 5, 16, 40])
def test_extreme_codes_do_not_saturate(name: str, isa: str, tokens: int) -> None:
    """Largest codes against largest activations of equal and of alternating sign."""
    fmt = FORMATS[name]
    ones = np.ones((1, 4 * max(fmt.block_len, 32)), np.float32)
    alternating = ones.copy()
    alternating[:, 1::2] = -1
    rows = [Matrix.from_floats(w, name).data for w in (ones, -ones, alternating, -alternating)]
    if name == "Q8_0":  # −128, which no quantizer writes but a file may hold
        lowest = rows[0].copy().reshape(-1, fmt.block_bytes)
        lowest[:, 2:] = 0x80
        rows.append(lowest.reshape(1, -1))
    matrix = Matrix(np.ascontiguousarray(np.concatenate(rows)), fmt)
    for signs in (ones, alternating):
        x = np.repeat(signs * np.float32(127), tokens, axis=0)
        got = ops.matmul(x, ops.pack(matrix, CpuBackend(1, False, isa)))
        wanted = reference.matmul(x, matrix)
        bound = 1e-5 * np.abs(x).astype(np.float64) @ np.abs(matrix.to_floats()).T
        assert (np.abs(got - wanted) <= bound).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", INT8)
def test_the_largest_codes_do_not_saturate(name: str, isa: str) -> None:
    """All bits of all codes and sub-block scales set, as no quantizer writes them."""
    fmt = FORMATS[name]
    raw = np.full((2, fmt.block_bytes), 0xFF, np.uint8)
    scales = {"Q2_K": (80, 84), "Q3_K": (108, 110), "Q6_K": (208, 210)}
    scales |= {"TQ2_0": (64, 66), "TQ1_0": (52, 54)}
    two = name.endswith("_1") or name in ("Q4_K", "Q5_K")
    first, last = scales.get(name, (0, 4 if two else 2))
    if name.startswith("MX"):
        raw[:, 0] = 120  # 2^-7
    elif name == "NVFP4":
        raw[:, :4] = 0x7E  # 448
    elif name == "IQ1_M":  # float16 of 2^-8, in the upper halves of four bytes
        raw[:, 49:56:2] = 0x0F, 0x0F, 0xCF, 0x1F
    else:
        raw[:, first:last:2], raw[:, first + 1 : last : 2] = 0x00, 0x1C  # float16 of 2^-8
    row = np.tile(raw.reshape(-1), max(1, 32 // fmt.block_len))
    matrix = Matrix(np.tile(row, (20, 1)), fmt)
    weights = matrix.to_floats()
    assert np.isfinite(weights).all()
    assert name.startswith(("IQ1", "IQ2", "IQ3")) or len(np.unique(np.abs(weights))) == 1
    packed = ops.pack(matrix, CpuBackend(1, False, isa))
    for tokens in (1, 2, 4, 5, 16, 40):
        for sign in (1, -1):
            x = np.full((tokens, matrix.columns), 127 * sign, np.float32)
            wanted = reference.matmul(x, matrix)
            np.testing.assert_allclose(ops.matmul(x, packed), wanted, rtol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
def test_matrices_of_nvfp4_have_factors(isa: str) -> None:
    """The scales of blocks take them with them, as float16."""
    matrix = matrix_of("NVFP4", 64, 128)
    factors = np.array([0.0371, 3.3e-6, 0.0, 100.0], np.float32)
    backend = CpuBackend(2, True, isa)
    packed = backend.pack(matrix.data, matrix.format, 128, factors=factors)
    got = np.empty((128, 64), np.float32)
    backend.matmul(np.eye(128, dtype=np.float32), [packed], [got])
    wanted = matrix.to_floats() * np.repeat(factors, 16)[:, None]
    # Half a step of float16: of the scale, which codes of up to 6 multiply.
    np.testing.assert_allclose(got.T, wanted, rtol=2**-11, atol=6 * 2**-25)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("columns", [1, 7, 33])
def test_dense_columns_need_not_fill_a_vector(columns: int, name: str, isa: str) -> None:
    for rows in (1, 15, 17, 40):
        matrix = matrix_of(name, rows, columns, seed=rows)
        for tokens in (1, 2, 3, 5, 17):
            x = gaussian(tokens, tokens, columns)
            for exact in (True, False):
                got = ops.matmul(x, ops.pack(matrix, CpuBackend(2, exact, isa)))
                assert_close(got, reference.matmul(x, matrix), EXACT_TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("name", "columns"),
    [("Q4_0", 1056), ("Q4_K", 1280), ("Q2_K", 1280), ("Q6_K", 768), ("F16", 70)],
)
def test_a_batch_crosses_blocks_of_tokens_and_of_columns(name: str, columns: int, isa: str) -> None:
    matrix = matrix_of(name, 33, columns)
    x = gaussian(3, 130 if isa == "portable" else 300, columns)
    wanted = reference.matmul(x, matrix)
    for exact in (True, False):
        packed = ops.pack(matrix, CpuBackend(2, exact, isa))
        for tokens in {x.shape[0], 129} | ({257, 272} if isa != "portable" else set()):
            got = ops.matmul(x[:tokens], packed)
            dense = exact or name in DENSE_FORMATS
            tolerance = EXACT_TOLERANCE if dense else INT8_TOLERANCE
            assert_close(got, wanted[:tokens], tolerance)


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "int8"])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_token_does_not_feel_its_batch(name: str, isa: str, exact: bool) -> None:
    """Alone or among others, a token's activations are rounded alike."""
    matrix = matrix_of(name, 20, 2 * max(FORMATS[name].block_len, 32))
    x = gaussian(9, 19, matrix.columns)
    packed = ops.pack(matrix, CpuBackend(1, exact, isa))
    alone = np.concatenate([ops.matmul(row[None], packed) for row in x])
    for tokens in (2, 3, 7, 12, 16, 19):
        got = ops.matmul(x[:tokens], packed)
        assert cases.relative_rms(got, alone[:tokens].astype(np.float64)) < 1e-6


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "int8"])
@pytest.mark.parametrize("isa", ISAS)
def test_scaling_by_a_power_of_two_is_exact(isa: str, exact: bool) -> None:
    matrix = matrix_of("Q4_K", 20, 512)
    packed = ops.pack(matrix, CpuBackend(1, exact, isa))
    for tokens in (1, 4, 20):
        x = gaussian(2, tokens, 512)
        base = ops.matmul(x, packed)
        for power in (-40, -20, 20, 40):
            factor = np.float32(2.0**power)
            np.testing.assert_array_equal(ops.matmul(x * factor, packed), base * factor)


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "int8"])
@pytest.mark.parametrize("isa", ISAS)
def test_activations_of_zero_and_of_great_size(isa: str, exact: bool) -> None:
    matrix = matrix_of("Q4_0", 20, 96)
    packed = ops.pack(matrix, CpuBackend(1, exact, isa))
    tolerance = EXACT_TOLERANCE if exact else INT8_TOLERANCE
    for tokens in (1, 3, 13, 20):
        assert not ops.matmul(np.zeros((tokens, 96), np.float32), packed).any()
        for size in (1e30, 1e-18):
            x = gaussian(4, tokens, 96) * np.float32(size)
            wanted = reference.matmul(x, matrix)
            got = ops.matmul(x, packed)
            assert cases.relative_rms(got / size, wanted / size) <= tolerance
        x = gaussian(5, tokens, 96)
        x[:, 40] = 1e4  # an outlier costs its own block of 32 columns, no other
        error = np.abs(ops.matmul(x, packed) - reference.matmul(x, matrix))
        assert error.max() <= (0.01 if exact else 40 * 0.5 * 1e4 / 127 / 96**0.5)


@pytest.mark.parametrize(("name", "columns"), [("Q4_0", 32), ("Q4_K", 128), ("Q6_K", 128)])
@pytest.mark.parametrize("isa", ISAS)
def test_an_outlier_costs_the_columns_of_its_scale(name: str, columns: int, isa: str) -> None:
    matrix = matrix_of(name, 20, 512)
    packed = ops.pack(matrix, CpuBackend(1, False, isa))
    weights = matrix.to_floats()
    for tokens in (1, 20):
        x = gaussian(5, tokens, 512)
        x[:, 200] = 1e6  # what shares its scale is rounded to zero
        lost = x.copy()
        first = 200 // columns * columns
        lost[:, first : first + columns] = 0
        lost[:, 200] = 1e6
        got = ops.matmul(x, packed) - 1e6 * weights[:, 200]
        wanted = lost.astype(np.float64) @ weights.T - 1e6 * weights[:, 200]
        assert cases.relative_rms(got, wanted) < 0.1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=["nan", "inf", "-inf"])
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "int8"])
@pytest.mark.parametrize("isa", ISAS)
def test_what_is_not_finite_comes_out_as_such(isa: str, exact: bool, bad: float) -> None:
    for name in FORMATS:
        matrix = matrix_of(name, 18, 2 * max(FORMATS[name].block_len, 32))
        packed = ops.pack(matrix, CpuBackend(1, exact, isa))
        # Infinity times a weight of zero is a NaN, times another an infinity.
        for tokens in (1, 2, 5, 16, 17):
            clean = gaussian(7, tokens, matrix.columns)
            wanted = ops.matmul(clean, packed)
            for column in (0, 17, matrix.columns - 1):
                x = clean.copy()
                x[tokens - 1, column] = bad
                got = ops.matmul(x, packed)
                assert not np.isfinite(got[-1]).any(), (name, tokens, column)
                np.testing.assert_array_equal(got[:-1], wanted[:-1])


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "int8"])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 3, 20])
def test_several_weights_of_many_formats_in_one_call(tokens: int, isa: str, exact: bool) -> None:
    backend = CpuBackend(2, exact, isa)
    x = gaussian(1, tokens, 256)
    rows = (1, 16, 17, 33, 48, 5, 64, 31, 2, 15, 18, 32, 7, 49, 3, 20, 34, 19)
    assert len(rows) < len(FORMATS)
    matrices = [matrix_of(name, n, 256, seed=n) for name, n in zip(FORMATS, itertools.cycle(rows))]
    weights = [backend.pack(m.data, m.format, 256) for m in matrices]
    biases = [gaussian(i, m.rows) if i % 2 else None for i, m in enumerate(matrices)]
    before = [gaussian(50 + i, tokens, m.rows) for i, m in enumerate(matrices)]
    for accumulate in (False, True):
        outs = [b.copy() for b in before]
        backend.matmul(x, weights, outs, biases, accumulate)
        for matrix, bias, start, out in zip(matrices, biases, before, outs, strict=True):
            product = reference.matmul(x, matrix, bias)
            wanted = product + start if accumulate else product
            tolerance = (
                2 * EXACT_TOLERANCE
                if exact or matrix.format.name in DENSE_FORMATS
                else INT8_TOLERANCE
            )
            size = np.linalg.norm(product - (0 if bias is None else bias))
            assert np.linalg.norm(out - wanted) <= tolerance * (size + np.linalg.norm(wanted))


@pytest.mark.parametrize("isa", ISAS)
def test_bias_is_added_once_to_every_token(isa: str) -> None:
    matrix = matrix_of("Q8_0", 21, 64)
    packed = ops.pack(matrix, CpuBackend(1, True, isa))
    bias = gaussian(8, 21)
    for tokens in (1, 4, 130):
        x = gaussian(9, tokens, 64)
        got = ops.matmul(x, packed, bias)
        assert_close(got, reference.matmul(x, matrix, bias), EXACT_TOLERANCE)
        np.testing.assert_array_equal(got, ops.matmul(x, packed) + bias)


def test_one_backend_serves_shapes_that_grow_and_shrink() -> None:
    """The workspace is kept between calls; what an earlier call left there must not matter."""
    backend = CpuBackend(2, exact=False)
    for tokens, columns, name in (
        (3, 64, "Q4_0"),
        (200, 2048, "Q6_K"),
        (1, 32, "Q4_0"),
        (17, 512, "Q6_K"),
        (200, 2048, "Q4_0"),
    ):
        matrix = matrix_of(name, 20, columns)
        x = gaussian(tokens, tokens, columns)
        got = ops.matmul(x, ops.pack(matrix, backend))
        fresh = ops.matmul(x, ops.pack(matrix, CpuBackend(2, exact=False)))
        np.testing.assert_array_equal(got, fresh)


@pytest.mark.parametrize("name", FORMATS)
def test_cases_with_many_weights_have_their_deviation(name: str) -> None:
    matrix = cases.random_matrix(1024, 1024, name, np.random.default_rng(0))
    assert (matrix.rows, matrix.columns) == (1024, 1024)
    weights = 32 * matrix.to_floats().astype(np.float64)
    assert weights.std() == pytest.approx(1, rel=0.04)
    assert abs(weights.mean()) < 0.01
