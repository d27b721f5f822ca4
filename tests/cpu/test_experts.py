"""The ops of a mixture of experts on each instruction set, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rocmforge.cpu.backend import CpuBackend, instruction_sets
from rocmforge.gguf.formats import FORMATS
from rocmforge.gguf.quants import dequantize, quantize
from rocmforge.ops import reference
from rocmforge.plan.operands import Activation

EXPERTS, ROWS, COLUMNS = 6, 48, 512
INT8 = 1.2e-2  # of rounded activations


@pytest.fixture(params=instruction_sets())
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def relative(got: NDArray[Any], wanted: NDArray[Any]) -> float:
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("fmt", ["F32", "BF16", "Q8_0", "Q4_K"])
@pytest.mark.parametrize(("tokens", "chosen"), [(1, 1), (1, 4), (5, 3), (37, 2), (600, 2)])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("biased", [False, True])
def test_products_are_those_of_the_chosen_experts(
    isa: str, fmt: str, tokens: int, chosen: int, exact: bool, biased: bool
) -> None:
    rng = np.random.default_rng(tokens)
    backend = CpuBackend(2, exact=exact, isa=isa)
    raw = [
        quantize(rng.standard_normal((EXPERTS * ROWS, COLUMNS), np.float32) / 20, FORMATS[fmt])
        for _ in range(2)
    ]
    gate, up = (backend.pack(one, FORMATS[fmt], COLUMNS) for one in raw)
    weights = [
        dequantize(one, FORMATS[fmt]).astype(np.float64).reshape(EXPERTS, ROWS, COLUMNS)
        for one in raw
    ]
    experts = np.argsort(rng.random((tokens, EXPERTS)))[:, :chosen].astype(np.int32)
    if tokens == 37:
        experts[:] = [3, 5]  # many tokens of two experts, none of the others

    biases = rng.standard_normal((2, EXPERTS, ROWS), np.float32)

    def products(x: NDArray[Any], which: int) -> NDArray[np.float64]:
        parts = [weights[which][experts[t]] @ x[t][..., None] for t in range(tokens)]
        bias = biases[which][experts] if biased else 0.0
        return (np.stack(parts)[..., 0] + bias).reshape(tokens, -1)

    tolerance = 2e-6 if exact or fmt in ("F32", "BF16") else INT8
    each = rng.standard_normal((tokens, chosen * COLUMNS), np.float32)
    out = np.full((tokens, chosen * ROWS), np.nan, np.float32)
    flat = biases.reshape(2, -1) if biased else (None, None)
    backend.expert_matmul(each, gate, flat[0], experts, EXPERTS, out)
    assert relative(out, products(each.reshape(tokens, chosen, COLUMNS), 0)) < tolerance
    x = rng.standard_normal((tokens, COLUMNS), np.float32)
    out[:] = np.nan
    activation: Activation = "clamped" if biased else "silu"
    both = flat[0], flat[1]
    backend.expert_gate_up_swiglu(x, gate, up, both, activation, experts, EXPERTS, out)
    wanted = reference.swiglu(products(x, 0), products(x, 1), activation)
    assert relative(out, wanted) < 2 * tolerance


def test_an_expert_that_does_not_exist_is_refused(isa: str) -> None:
    backend = CpuBackend(1, isa=isa)
    weight = backend.pack(np.zeros((EXPERTS * 16, 128), np.uint8), FORMATS["F32"], 32)
    x, out = np.zeros((1, 32), np.float32), np.zeros((1, 16), np.float32)
    for expert in (-1, EXPERTS):
        with pytest.raises(ValueError, match="expert out of range"):
            backend.expert_matmul(x, weight, None, np.array([[expert]], np.int32), EXPERTS, out)
    with pytest.raises(ValueError, match="multiple of 16 rows"):
        backend.expert_matmul(x, weight, None, np.zeros((1, 1), np.int32), 5, out)
    with pytest.raises(ValueError, match="out must be"):
        backend.expert_matmul(x, weight, None, np.zeros((1, 2), np.int32), EXPERTS, out)
    short = np.zeros(16, np.float32)
    with pytest.raises(ValueError, match="bias must be"):
        backend.expert_matmul(x, weight, short, np.zeros((1, 1), np.int32), EXPERTS, out)


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("sigmoid", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("count", "chosen"), [(1, 1), (5, 5), (8, 2), (128, 8), (1024, 3)])
def test_a_token_goes_to_the_experts_of_its_largest_scores(
    isa: str, count: int, chosen: int, normalized: bool, sigmoid: bool, biased: bool
) -> None:
    rng = np.random.default_rng(count)
    scores = 5 * rng.standard_normal((40, count), np.float32)
    scores[7] = 1.0  # of equal ones the first
    scores[8, 0] = 80.0 if sigmoid else 300.0  # no exponential may overflow
    bias = rng.standard_normal(count, np.float32) if biased else None
    experts, shares = np.empty((40, chosen), np.int32), np.empty((40, chosen), np.float32)
    CpuBackend(2, isa=isa).route(scores, normalized, sigmoid, 2.5, bias, experts, shares)
    wanted, parts = reference.route(scores, chosen, normalized, sigmoid, 2.5, bias)
    np.testing.assert_array_equal(experts, wanted)
    np.testing.assert_allclose(shares, parts, rtol=3e-6, atol=1e-30)


def test_scores_that_are_no_numbers_still_choose_different_experts(isa: str) -> None:
    scores = np.full((1, 4), np.nan, np.float32)
    experts, shares = np.empty((1, 3), np.int32), np.empty((1, 3), np.float32)
    CpuBackend(1, isa=isa).route(scores, True, False, 1.0, None, experts, shares)
    assert sorted(experts[0]) == [0, 1, 2]
    assert np.isnan(shares).all()


@pytest.mark.parametrize("columns", [1, 16, 40, 2048])
def test_results_are_added_in_their_shares(isa: str, columns: int) -> None:
    rng = np.random.default_rng(columns)
    parts = rng.standard_normal((9, 3 * columns), np.float32)
    shares, x = rng.random((9, 3), np.float32), rng.standard_normal((9, columns), np.float32)
    wanted = x + reference.add_experts(parts, shares)
    CpuBackend(2, isa=isa).add_experts(parts, shares, x)
    np.testing.assert_allclose(x, wanted, rtol=1e-5, atol=1e-5)
