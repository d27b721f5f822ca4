"""Encoders and decoders of every format: error on Gaussian weights, exact values, edge cases.

What our encoders write is read back by the `gguf` package, MXFP6 by a slow decoder written here.
"""

from __future__ import annotations

import math
import tracemalloc
import warnings
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_parameters import others_slow

from rocmforge.gguf.formats import FORMATS, Format
from rocmforge.gguf.quants import dequantize, quantize

ALL = list(FORMATS)
BLOCKED = [name for name, fmt in FORMATS.items() if fmt.block_len > 1]
MXFP6 = ["MXFP6_E2M3", "MXFP6_E3M2"]
GRIDS = [name for name in BLOCKED if name.startswith(("IQ1", "IQ2", "IQ3"))]
FINE = [name for name in BLOCKED if name not in GRIDS]
"""Codes near every weight of a block; in a grid a weight depends on its neighbours."""
HALF_SCALED = [name for name in BLOCKED if not name.startswith(("MX", "NV"))]
# These encoders are ours, so their scales must hold up in f16's subnormals too.
OWN_HALF_SCALED = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]

# llama.cpp's own error on Gaussian weights: relative RMS of dequantized against original; of the
# formats of grids with equal importance of all weights, which is less than without.
LLAMA_CPP_ERROR = {
    "Q8_0": 0.0054,
    "Q6_K": 0.0177,
    "Q5_K": 0.0361,
    "Q5_1": 0.0378,
    "Q5_0": 0.0427,
    "Q4_K": 0.0713,
    "IQ4_NL": 0.0762,
    "IQ4_XS": 0.0768,
    "Q4_1": 0.0782,
    "Q4_0": 0.0860,
    "MXFP4": 0.116,
    "NVFP4": 0.1032,
    "IQ3_S": 0.1368,
    "IQ3_XXS": 0.1817,
    "IQ2_S": 0.2488,
    "IQ2_XS": 0.2993,
    "IQ2_XXS": 0.3440,
    "IQ1_M": 0.4517,
    "IQ1_S": 0.4856,
    "TQ2_0": 0.8077,
    "TQ1_0": 0.8077,
    "Q3_K": 0.151,
    "Q2_K": 0.296,
}

# Every MXFP6 magnitude, by code without its sign bit (OCP MX v1.0, 5.3.2).
E2M3 = [
    *[0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875],
    *[1.0, 1.125, 1.25, 1.375, 1.5, 1.625, 1.75, 1.875],
    *[2.0, 2.25, 2.5, 2.75, 3.0, 3.25, 3.5, 3.75],
    *[4.0, 4.5, 5.0, 5.5, 6.0, 6.5, 7.0, 7.5],
]
E3M2 = [
    *[0.0, 0.0625, 0.125, 0.1875],
    *[0.25, 0.3125, 0.375, 0.4375],
    *[0.5, 0.625, 0.75, 0.875],
    *[1.0, 1.25, 1.5, 1.75],
    *[2.0, 2.5, 3.0, 3.5],
    *[4.0, 5.0, 6.0, 7.0],
    *[8.0, 10.0, 12.0, 14.0],
    *[16.0, 20.0, 24.0, 28.0],
]
MXFP6_VALUES = {
    "MXFP6_E2M3": E2M3 + [-v for v in E2M3],
    "MXFP6_E3M2": E3M2 + [-v for v in E3M2],
}


def scalar_mxfp6(block: bytes, values: list[float]) -> list[float]:
    """Decode one block of 25 bytes, one bit string at a time."""
    if block[0] == 255:
        return [math.nan] * 32
    bits = int.from_bytes(block[1:], "little")
    return [values[(bits >> 6 * i) & 63] * 2.0 ** (block[0] - 127) for i in range(32)]


def oracle(data: np.ndarray, fmt: Format) -> np.ndarray:
    """Decode by code that is not ours."""
    if fmt.name in MXFP6_VALUES:
        values = MXFP6_VALUES[fmt.name]
        rows = [scalar_mxfp6(bytes(b), values) for b in data.reshape(-1, 25)]
        shape = (*data.shape[:-1], data.shape[-1] // 25 * 32)
        return np.array(rows, np.float32).reshape(shape)
    return gguf.quants.dequantize(data, gguf.GGMLQuantizationType[fmt.name])


def rel_rms(got: np.ndarray, wanted: np.ndarray) -> float:
    wanted = wanted.astype(np.float64)
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


def round_trip(x: np.ndarray, name: str) -> np.ndarray:
    """Encode by us, decode by the oracle; any warning is an error."""
    fmt = FORMATS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = quantize(x, fmt)
        assert data.dtype == np.uint8
        assert data.shape == (*x.shape[:-1], fmt.row_bytes(x.shape[-1]))
        return oracle(data, fmt)


@pytest.fixture(scope="module")
def gaussian() -> np.ndarray:
    return np.random.default_rng(7).standard_normal((64, 4096), dtype=np.float32)


@pytest.mark.parametrize("name", LLAMA_CPP_ERROR)
def test_error_on_gaussian_weights(name: str, gaussian: np.ndarray) -> None:
    error = rel_rms(round_trip(gaussian * np.float32(0.02), name), gaussian * np.float32(0.02))
    assert error <= 1.1 * LLAMA_CPP_ERROR[name]
    # Twice the levels halve the error: far below the figure would mean a broken measurement.
    assert error >= 0.8 * LLAMA_CPP_ERROR[name]


@pytest.mark.parametrize("name", [*OWN_HALF_SCALED, *GRIDS, "NVFP4"])
def test_our_search_is_no_worse_than_llama_cpps(name: str, gaussian: np.ndarray) -> None:
    assert rel_rms(round_trip(gaussian, name), gaussian) < LLAMA_CPP_ERROR[name]


def expected_mx_error(mantissa_bits: int, lowest: int, top: int) -> float:
    """Relative RMS error of Gaussian weights under OCP's scale rule, by integration.

    The largest of 32 magnitudes has the density 32·F(m)³¹·f(m), f and F being those of |N(0,1)|. It
    sets the scale 2^(floor(log2 m) − top); the other 31 weights have the density f / F(m) below m.
    A weight in binade 2^k of the scaled block is rounded to a multiple of
    2^(max(k, lowest) − mantissa_bits), at most to the greatest element.
    """
    m = (np.arange(70_000) + 0.5) * 1e-4
    f = math.sqrt(2 / math.pi) * np.exp(-m * m / 2) * 1e-4
    cdf = np.cumsum(f)
    largest = 32 * cdf**31 * f
    power = np.floor(np.log2(m))
    total = 0.0
    for k in np.unique(power):
        scale = 2.0 ** (k - top)
        step = scale * 2.0 ** (np.clip(power - k + top, lowest, top) - mantissa_bits)
        greatest = scale * 2.0**top * (2 - 2.0**-mantissa_bits)
        own = (np.minimum(np.rint(m / step) * step, greatest) - m) ** 2
        others = np.cumsum(own * f) / cdf
        here = power == k
        total += float(np.sum((largest * (own + 31 * others))[here]))
    return math.sqrt(total / 32)


@pytest.mark.parametrize(
    ("name", "shape", "about"),
    [
        ("MXFP4", (1, 0, 2), 0.115),
        ("MXFP6_E2M3", (3, 0, 2), 0.0284),
        ("MXFP6_E3M2", (2, -2, 4), 0.0539),
    ],
)
def test_mx_error_is_what_the_steps_predict(
    name: str, shape: tuple[int, int, int], about: float, gaussian: np.ndarray
) -> None:
    expected = expected_mx_error(*shape)
    assert expected == pytest.approx(about, rel=0.003)
    error = rel_rms(round_trip(gaussian, name), gaussian)
    # Never worse than OCP's rule; the choice of the next scale gains a little.
    assert 0.95 * expected < error < expected


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q4_K_M", "Q6_K", "MXFP4"])
def test_error_on_a_models_weights_is_no_worse_than_llama_cpps(name: str, reference: Path) -> None:
    original = gguf.GGUFReader(reference / "models" / "tiny-f16.gguf")
    weights = {t.name: t.data.astype(np.float32) for t in original.tensors}
    compared = 0
    for tensor in gguf.GGUFReader(reference / "models" / f"tiny-{name}.gguf").tensors:
        fmt = FORMATS[tensor.tensor_type.name]
        if fmt.name == "F32":
            continue
        x = weights[tensor.name]
        theirs = dequantize(np.asarray(tensor.data), fmt)
        assert rel_rms(round_trip(x, fmt.name), x) <= 1.002 * rel_rms(theirs, x), tensor.name
        compared += 1
    assert compared == 30


@pytest.mark.parametrize("name", MXFP6)
def test_every_mxfp6_code(name: str) -> None:
    fmt, values = FORMATS[name], MXFP6_VALUES[name]
    for scale in (0, 1, 126, 127, 128, 200):
        for start in (0, 32):
            codes = sum(code << 6 * i for i, code in enumerate(range(start, start + 32)))
            block = np.frombuffer(bytes([scale]) + codes.to_bytes(24, "little"), np.uint8)
            wanted = np.array(values[start : start + 32]) * 2.0 ** (scale - 127)
            np.testing.assert_array_equal(dequantize(block, fmt), wanted.astype(np.float32))


@pytest.mark.parametrize("name", MXFP6)
def test_mxfp6_values_encode_to_themselves(name: str) -> None:
    values = np.array(MXFP6_VALUES[name], np.float32)
    for power in (-120, -1, 0, 5, 120):
        x = values.reshape(2, 32) * np.float32(2.0**power)
        np.testing.assert_array_equal(round_trip(x, name), x)


@pytest.mark.parametrize("name", ["MXFP4", *MXFP6])
def test_mx_rounds_to_the_nearest_code(name: str) -> None:
    """With the scale pinned by its largest value, each weight goes to the closest table entry."""
    fmt = FORMATS[name]
    positive = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    table = np.array(MXFP6_VALUES.get(name, positive + [-v for v in positive]))
    x = np.random.default_rng(3).uniform(-table.max(), table.max(), (500, 32)).astype(np.float32)
    x[:, 0] = table.max()
    data = quantize(x, fmt)
    pinned = data[:, 0] == 127
    assert pinned.mean() > 0.9
    nearest = np.abs(x[..., None] - table).min(axis=-1)
    np.testing.assert_allclose(
        np.abs(oracle(data, fmt) - x)[pinned], nearest[pinned], rtol=0, atol=1e-6
    )


def test_mxfp6_nan_scale_is_nan() -> None:
    block = np.full(25, 255, np.uint8)
    assert np.isnan(dequantize(block, FORMATS["MXFP6_E2M3"])).all()


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 40), fill=st.sampled_from([None, 0, 255]))
def test_any_bytes_decode_without_a_warning(name: str, seed: int, n: int, fill: int | None) -> None:
    fmt = FORMATS[name]
    data = np.random.default_rng(seed).integers(0, 256, (2, n * fmt.block_bytes), np.uint8)
    if fill is not None:
        data[:] = fill
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = dequantize(data, fmt)
    assert y.shape == (2, n * fmt.block_len)
    assert y.dtype == np.float32
    with np.errstate(all="ignore"):
        wanted = oracle(data, fmt)
    np.testing.assert_array_equal(
        y.view(np.uint32)[~np.isnan(wanted)], wanted.view(np.uint32)[~np.isnan(wanted)]
    )
    assert np.isnan(y[np.isnan(wanted)]).all()


@pytest.mark.parametrize("name", ALL)
def test_zeros_stay_zeros(name: str) -> None:
    x = np.zeros((3, 512), np.float32)
    np.testing.assert_array_equal(round_trip(x, name), x)


@pytest.mark.parametrize("name", ALL)
def test_a_zero_block_beside_others_stays_zero(name: str) -> None:
    x = np.random.default_rng(1).standard_normal((3, 256), dtype=np.float32)
    x[1] = 0
    np.testing.assert_array_equal(round_trip(x, name)[1], 0)


@pytest.mark.parametrize("value", [1.0, -1.0, 0.37, -0.0123, 300.0])
@pytest.mark.parametrize("name", FINE)
def test_constant_blocks(name: str, value: float) -> None:
    x = np.full((1, 256), value, np.float32)
    # One code can hit the value up to the rounding of the scale. That is f16's, but Q6_K's d is so
    # small that f16 is coarse there, and half a step of an int8 scale is left. The scales of MX are
    # powers of two: the nearest element lies up to half a mantissa step away.
    # So are the smallest of NVFP4; a step between two others is an eighth at most.
    steps = {"Q6_K": 2**-8, "MXFP4": 2**-2, "MXFP6_E2M3": 2**-4, "MXFP6_E3M2": 2**-3}
    steps["NVFP4"] = 2**-4 if abs(value) > 0.1 else 0.5
    allowed = steps.get(name, 2**-10)
    np.testing.assert_allclose(round_trip(x, name), x, rtol=allowed)


@pytest.mark.parametrize("name", BLOCKED)
def test_negative_only(name: str) -> None:
    x = -np.abs(np.random.default_rng(2).standard_normal((16, 1024), dtype=np.float32)) - 0.1
    y = round_trip(x, name)
    assert rel_rms(y, x) < 1.2 * LLAMA_CPP_ERROR.get(name, 0.055)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", FINE)
def test_one_outlier_is_kept(name: str, sign: int) -> None:
    x = np.random.default_rng(4).standard_normal((1, 256), dtype=np.float32) * np.float32(0.01)
    x[0, 77] = 50 * sign
    y = round_trip(x, name)
    assert y[0, 77] == pytest.approx(50 * sign, rel=0.26 if name == "MXFP4" else 0.13)
    assert rel_rms(y, x) < (0.26 if name == "MXFP4" else 0.13)


@pytest.mark.parametrize("name", OWN_HALF_SCALED)
@pytest.mark.parametrize("size", [1e-3, 1e-4, 1e-5])
def test_scales_in_the_subnormals_of_f16_keep_the_weights(name: str, size: float) -> None:
    """2^-24 is the least step; as long as the codes still have room there, so has the error."""
    x = np.random.default_rng(5).standard_normal((4, 1024), dtype=np.float32) * np.float32(size)
    grid = 2**-24 / math.sqrt(12) / size
    assert rel_rms(round_trip(x, name), x) < math.hypot(1.5 * LLAMA_CPP_ERROR[name], 2 * grid)


@pytest.mark.parametrize("size", [1e-7, 2e-8, 1e-9, 1e-20, 1e-38, 1e-42])
@pytest.mark.parametrize("name", BLOCKED)
def test_tiny_weights_give_finite_ones_of_their_size(name: str, size: float) -> None:
    x = np.random.default_rng(6).standard_normal((4, 256), dtype=np.float32) * np.float32(size)
    y = round_trip(x, name)
    assert np.isfinite(y).all()
    # f16 scales are multiples of 2^-24: each weight lies within some codes' reach of its own.
    reach = 0 if name.startswith("MX") else 32 * 2**-24
    reach = 6 * 2**-9 if name == "NVFP4" else reach
    assert np.abs(y).max() <= 1.5 * np.abs(x).max() + reach


@pytest.mark.parametrize("size", [1e-30, 1e-36])
@pytest.mark.parametrize("name", ["MXFP4", *MXFP6])
def test_mx_keeps_weights_down_to_the_least_scale(name: str, size: float) -> None:
    x = np.random.default_rng(6).standard_normal((4, 256), dtype=np.float32) * np.float32(size)
    assert rel_rms(round_trip(x, name), x) < 0.13


@pytest.mark.parametrize("name", HALF_SCALED)
def test_huge_weights_up_to_the_f16_range(name: str) -> None:
    x = np.random.default_rng(8).uniform(-65504, 65504, (4, 1024)).astype(np.float32)
    x[:, 0], x[:, 1] = 65504, -65504
    assert rel_rms(round_trip(x, name), x) < 1.1 * LLAMA_CPP_ERROR[name]


@pytest.mark.parametrize("name", ["MXFP4", *MXFP6])
def test_huge_weights_of_mx(name: str) -> None:
    x = np.random.default_rng(8).uniform(-1.7e38, 1.7e38, (4, 256)).astype(np.float32)
    x[:, 0] = 2.0**127
    y = round_trip(x, name)
    assert np.isfinite(y).all()
    assert rel_rms(y / np.float32(2**100), x / np.float32(2**100)) < 0.13


@pytest.mark.parametrize(
    ("name", "value"),
    [(n, 65536.0) for n in ["F16", *HALF_SCALED]]
    + [("NVFP4", 2689.0)]
    + [(n, 3e38) for n in ["MXFP4", *MXFP6]]
    + [("BF16", 3.4e38)]
    + [(n, v) for n in ALL for v in (math.nan, math.inf, -math.inf)],
)
def test_weights_that_a_format_cannot_hold_are_named(name: str, value: float) -> None:
    x = np.zeros((2, 3, 512), np.float32)
    x[1, 2, 300] = value
    with pytest.raises(ValueError, match=rf"\(1, 2, 300\): got .*{name}"):
        quantize(x, FORMATS[name])


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shape", [(256,), (3, 256), (2, 3, 512), (1, 1, 1, 256)])
def test_leading_dimensions(name: str, shape: tuple[int, ...]) -> None:
    fmt = FORMATS[name]
    x = np.random.default_rng(9).standard_normal(shape, dtype=np.float32)
    data = quantize(x, fmt)
    assert data.shape == (*shape[:-1], fmt.row_bytes(shape[-1]))
    flat = quantize(x.reshape(-1, shape[-1]), fmt)
    np.testing.assert_array_equal(data.reshape(flat.shape), flat)
    y = dequantize(data, fmt)
    assert y.shape == shape
    assert rel_rms(y, x) < max(0.35, 1.1 * LLAMA_CPP_ERROR.get(name, 0))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shape", [(0, 256), (4, 0), (0,), (2, 0, 512)])
def test_empty(name: str, shape: tuple[int, ...]) -> None:
    fmt = FORMATS[name]
    data = quantize(np.zeros(shape, np.float32), fmt)
    assert data.shape == (*shape[:-1], fmt.row_bytes(shape[-1]))
    assert dequantize(data, fmt).shape == shape


@pytest.mark.parametrize("name", ALL)
def test_pieces_join_seamlessly(name: str) -> None:
    """Each block is coded by itself: a long array gives the bytes of its parts."""
    fmt = FORMATS[name]
    x = np.random.default_rng(10).standard_normal((1, 3 * 65536 + 512), dtype=np.float32)
    data = quantize(x, fmt)
    for start, stop in ((0, 512), (65536 - 256, 65536 + 256), (3 * 65536, 3 * 65536 + 512)):
        at = slice(fmt.row_bytes(start), fmt.row_bytes(stop))
        np.testing.assert_array_equal(data[:, at], quantize(x[:, start:stop], fmt))
        np.testing.assert_array_equal(
            dequantize(data, fmt)[:, start:stop], dequantize(data[:, at], fmt)
        )


@pytest.mark.parametrize("name", others_slow(BLOCKED, ("Q8_0", "Q4_K", "IQ3_S", "MXFP4")))
def test_working_memory_is_bounded(name: str) -> None:
    x = np.random.default_rng(13).standard_normal((1, 1 << 21), dtype=np.float32)
    tracemalloc.start()
    try:
        data = quantize(x, FORMATS[name])
        encoding = tracemalloc.get_traced_memory()[1] - data.nbytes
        tracemalloc.reset_peak()
        y = dequantize(data, FORMATS[name])
        decoding = tracemalloc.get_traced_memory()[1] - data.nbytes - y.nbytes
    finally:
        tracemalloc.stop()
    assert encoding < 4 << 20, "half of the input's 8 MiB"
    assert decoding < 4 << 20


@pytest.mark.parametrize("name", ALL)
def test_strided_and_read_only_input(name: str) -> None:
    fmt = FORMATS[name]
    x = np.random.default_rng(11).standard_normal((256, 6), dtype=np.float32)
    wanted = quantize(np.ascontiguousarray(x.T), fmt)
    np.testing.assert_array_equal(quantize(x.T, fmt), wanted)
    wanted.flags.writeable = False
    wide = np.zeros((6, wanted.shape[1] + 3), np.uint8)
    wide[:, 3:] = wanted
    np.testing.assert_array_equal(dequantize(wide[:, 3:], fmt), dequantize(wanted, fmt))


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_floats_are_rounded_to_nearest(name: str) -> None:
    x = np.random.default_rng(12).standard_normal((5, 77), dtype=np.float32)
    bits = {"F32": 24, "F16": 11, "BF16": 8}[name]
    y = round_trip(x, name)
    assert (np.abs(y - x) <= np.abs(x) * 2.0**-bits).all()
    np.testing.assert_array_equal(round_trip(y, name), y)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", ">f4"])
def test_weights_of_another_type_are_refused(dtype: str) -> None:
    with pytest.raises(ValueError, match="wanted float32"):
        quantize(np.zeros((1, 32), dtype), FORMATS["Q4_0"])


def test_things_that_are_no_rows_are_refused() -> None:
    q4_0 = FORMATS["Q4_0"]
    with pytest.raises(ValueError, match=r"got list, wanted float32"):
        quantize([0.0] * 32, q4_0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"got float32 \(\), wanted float32"):
        quantize(np.array(1, np.float32), q4_0)
    with pytest.raises(ValueError, match=r"got int8 \(18,\), wanted uint8"):
        dequantize(np.zeros(18, np.int8), q4_0)
    with pytest.raises(ValueError, match=r"got bytes, wanted uint8"):
        dequantize(bytes(18), q4_0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"got uint8 \(\), wanted uint8"):
        dequantize(np.array(1, np.uint8), q4_0)


@pytest.mark.parametrize("name", BLOCKED)
def test_broken_rows_are_refused(name: str) -> None:
    fmt = FORMATS[name]
    with pytest.raises(ValueError, match=rf"{name} row.*multiple of {fmt.block_len}"):
        quantize(np.zeros((2, fmt.block_len + 1), np.float32), fmt)
    with pytest.raises(ValueError, match=rf"{name} row.*multiple of {fmt.block_bytes}"):
        dequantize(np.zeros((2, fmt.block_bytes - 1), np.uint8), fmt)


def test_a_format_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match=r"format: got .*Q4_0"):
        quantize(np.zeros((1, 32), np.float32), Format("Q4_0", 32, 19, 2))
    with pytest.raises(ValueError, match=r"format: got .*Q9_Z"):
        dequantize(np.zeros((1, 32), np.uint8), Format("Q9_Z", 32, 32, None))
