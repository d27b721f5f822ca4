"""Activations, soft caps and norms on each instruction set, against numpy."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from rocmforge.cpu.backend import CpuBackend, instruction_sets
from rocmforge.gguf.formats import FORMATS
from rocmforge.gguf.quants import quantize
from rocmforge.ops import reference
from rocmforge.ops.matrix import Matrix
from rocmforge.plan.operands import Activation

SHAPES = [(1, 1), (1, 17), (3, 64), (7, 100), (130, 896)]


@pytest.fixture(params=instruction_sets())
def backend(request: pytest.FixtureRequest) -> CpuBackend:
    return CpuBackend(2, isa=str(request.param))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("activation", get_args(Activation))
def test_gate_and_up(backend: CpuBackend, activation: Activation, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    gate, up = 6 * rng.standard_normal((2, *shape), np.float32)
    wanted = reference.swiglu(gate, up, activation)
    out = np.full(shape, np.nan, np.float32)
    backend.swiglu(gate, up, out, activation)
    np.testing.assert_allclose(out, wanted, rtol=2e-6, atol=2e-6)
    backend.swiglu(gate, up, gate, activation)  # in place
    np.testing.assert_array_equal(gate, out)


@pytest.mark.parametrize("shape", SHAPES)
def test_gelu_and_soft_caps(backend: CpuBackend, shape: tuple[int, int]) -> None:
    x = 8 * np.random.default_rng(2).standard_normal(shape, np.float32)
    x[0, 0] = 0.0
    out = np.full(shape, np.nan, np.float32)
    backend.gelu(x, out)
    np.testing.assert_allclose(out, reference.gelu(x), rtol=2e-6, atol=2e-6)
    for cap in (0.5, 30.0):
        backend.softcap(x, cap, out)
        np.testing.assert_allclose(out, reference.softcap(x, cap), rtol=1e-6, atol=3e-7 * cap)


def test_large_values_stay_numbers_and_nan_stays(backend: CpuBackend) -> None:
    x = np.array([[-1e12, -1e4, 1e4, 1e12, np.nan]], np.float32)
    out = np.empty_like(x)
    backend.gelu(x, out)
    np.testing.assert_allclose(out, [[0, 0, 1e4, 1e12, np.nan]], atol=1e-20)
    backend.softcap(x, 30.0, out)
    np.testing.assert_array_equal(out, [[-30, -30, 30, 30, np.nan]])
    backend.swiglu(x, np.ones_like(x), out, "clamped")
    np.testing.assert_allclose(out, [[0, 0, 14, 14, np.nan]], rtol=1e-4, atol=1e-20)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("biased", [True, False])
def test_layernorm(backend: CpuBackend, shape: tuple[int, int], biased: bool) -> None:
    rng = np.random.default_rng(3)
    x = 100 + rng.standard_normal(shape, np.float32)  # a mean that must go
    weight, bias = rng.standard_normal((2, shape[1]), np.float32)
    wanted = reference.layernorm(x, weight, bias if biased else None, 1e-5)
    out = np.full(shape, np.nan, np.float32)
    backend.layernorm(x, weight, bias if biased else None, 1e-5, out)
    np.testing.assert_allclose(out, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_norm_is_added(backend: CpuBackend, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(4)
    x, out = rng.standard_normal((2, *shape), np.float32)
    weight = rng.standard_normal(shape[1], np.float32)
    wanted = out + reference.rmsnorm(x, weight, 1e-5)
    backend.rmsnorm(x, weight, 1e-5, out, accumulate=True)
    np.testing.assert_allclose(out, wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("tokens", [1, 9, 40])
@pytest.mark.parametrize("fmt", ["F32", "Q8_0", "Q4_K"])
def test_products_and_biases_are_scaled(backend: CpuBackend, fmt: str, tokens: int) -> None:
    rng = np.random.default_rng(5)
    raw = quantize(rng.standard_normal((37, 256), np.float32), FORMATS[fmt])
    x, bias = rng.standard_normal((tokens, 256), np.float32), rng.standard_normal(37, np.float32)
    first = rng.standard_normal((tokens, 37), np.float32)
    packed = backend.pack(raw, FORMATS[fmt], 256)
    for accumulate in (False, True):
        out = first.copy()
        backend.matmul(x, [packed], [out], [bias], accumulate, 0.25)
        product = 0.25 * reference.matmul(x, Matrix(raw, FORMATS[fmt]), bias)
        wanted = product + (first if accumulate else 0.0)
        np.testing.assert_allclose(out, wanted, atol=0.3 if fmt != "F32" else 1e-4)


@pytest.mark.parametrize("activation", get_args(Activation))
def test_the_product_of_gate_and_up_ends_with_it(
    backend: CpuBackend, activation: Activation
) -> None:
    rng = np.random.default_rng(6)
    fmt = FORMATS["F32"]
    raw = [quantize(rng.standard_normal((50, 96), np.float32), fmt) for _ in range(2)]
    x, out = rng.standard_normal((3, 96), np.float32), np.empty((3, 50), np.float32)
    backend.gate_up_swiglu(x, *(backend.pack(one, fmt, 96) for one in raw), activation, out)
    gate, up = (reference.matmul(x, Matrix(one, fmt)) for one in raw)
    np.testing.assert_allclose(out, reference.swiglu(gate, up, activation), rtol=1e-4, atol=1e-4)
