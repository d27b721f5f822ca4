"""Choosing experts, their products and adding up: against float64.

Activations are rounded here, so that what is compared is the kernel's own arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from guarded import Gpu
from numpy.typing import NDArray
from output_dtypes import TOLERANCES, Dtype, make, read
from packed_streams import upload, upload_q8

from rocmforge.errors import UnsupportedModelError
from rocmforge.gguf.formats import FORMATS
from rocmforge.gpu.arrays import F32, Q8
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.matrix import DeviceMatrix
from rocmforge.gpu.ops import experts as op
from rocmforge.gpu.ops.expert_constants import choose
from rocmforge.gpu.ops.rmsnorm_route import rmsnorm_route
from rocmforge.gpu.replay import Replay
from rocmforge.ops import Matrix, cases, reference

EXACT = 4e-6
EXPERTS, CHOSEN, ROWS = 5, 3, 48
GROUPS_ROWS = 96  # whole groups of 32

Floats = NDArray[np.float32]
Exact = NDArray[np.float64]


def run(gpu: Gpu, launches: Sequence[Launch]) -> None:
    for launch in launches:
        gpu.run(launch)


def jobs(gpu: Gpu, of: NDArray[np.int32], count: int = EXPERTS) -> op.Jobs:
    tokens, chosen = of.shape
    scratch = gpu.empty(max(4, op.scratch_bytes(tokens, chosen, count)))
    return op.Jobs(gpu.kernels, gpu.upload(of), tokens, chosen, count, scratch)


def matrix_of(name: str, rng: np.random.Generator, blocks: int = 3, rows: int = ROWS) -> Matrix:
    columns = blocks * max(FORMATS[name].block_len, 32)
    weights = rng.standard_normal((EXPERTS * rows, columns), np.float32)
    return Matrix.from_floats(weights / np.float32(columns**0.5), name)


def activations(gpu: Gpu, x: Floats, dense: bool) -> tuple[Q8 | F32, Exact]:
    return (F32(gpu.upload(x)), x.astype(np.float64)) if dense else upload_q8(gpu, x)


def each(x: Exact, matrix: Matrix, bias: Floats | None, chosen: NDArray[Any]) -> Exact:
    """(T, k, N) of x (T, k, K)."""
    weights = matrix.to_floats().astype(np.float64).reshape(EXPERTS, -1, x.shape[-1])
    product: Exact = np.einsum("tkc,tknc->tkn", x, weights[chosen])
    return product if bias is None else product + bias.reshape(EXPERTS, -1)[chosen]


@pytest.mark.parametrize("name", ["F32", "F16", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4"])
@pytest.mark.parametrize(("tokens", "blocks"), [(1, 3), (1, 36), (5, 3), (2, 35), (21, 3)])
def test_products_are_those_of_the_chosen_experts(
    gpu: Gpu, name: str, tokens: int, blocks: int
) -> None:
    rng = np.random.default_rng(tokens)
    matrix = matrix_of(name, rng, min(blocks, 1280 // max(FORMATS[name].block_len, 32)))
    placed, columns = upload(gpu, matrix), matrix.columns
    chosen = np.argsort(rng.random((tokens, EXPERTS)))[:, :CHOSEN].astype(np.int32)
    bias = rng.standard_normal(EXPERTS * ROWS, np.float32) if tokens > 1 else None
    x, exact = activations(
        gpu, rng.standard_normal((tokens, CHOSEN * columns), np.float32), placed.dense
    )
    out = gpu.empty(4 * tokens * CHOSEN * ROWS)
    run(
        gpu,
        op.expert_matmul(
            jobs(gpu, chosen),
            x=x,
            weight=placed,
            bias=None if bias is None else gpu.upload(bias),
            out=out,
        ),
    )
    got = gpu.download(out, (tokens, CHOSEN, ROWS), np.float32)
    wanted = each(exact.reshape(tokens, CHOSEN, columns), matrix, bias, chosen)
    assert cases.relative_rms(got, wanted) <= EXACT


@pytest.mark.parametrize(
    ("names", "activation"),
    [
        (("Q4_K", "Q4_K"), "silu"),
        (("Q4_K", "Q6_K"), "gelu"),
        (("MXFP4", "MXFP4"), "clamped"),
        (("F16", "F16"), "silu"),
        (("F32", "BF16"), "clamped"),
    ],
)
@pytest.mark.parametrize(("tokens", "columns"), [(1, 512), (1, 1280), (7, 512), (40, 512)])
@pytest.mark.parametrize(("dtype", "rows"), [(F32, ROWS), (Q8, GROUPS_ROWS)])
def test_gate_and_up(
    gpu: Gpu,
    names: tuple[str, str],
    activation: Any,
    tokens: int,
    columns: int,
    dtype: Dtype,
    rows: int,
) -> None:
    rng = np.random.default_rng(tokens)
    both = [
        Matrix.from_floats(rng.standard_normal((EXPERTS * rows, columns), np.float32) / 20, name)
        for name in names
    ]
    placed = [upload(gpu, matrix) for matrix in both]
    chosen = np.argsort(rng.random((tokens, EXPERTS)))[:, :CHOSEN].astype(np.int32)
    biases = rng.standard_normal((2, EXPERTS * rows), np.float32)
    x, exact = activations(gpu, rng.standard_normal((tokens, columns), np.float32), placed[0].dense)
    out: Any = make(gpu, dtype, tokens * CHOSEN, rows)
    run(
        gpu,
        op.expert_gate_up(
            jobs(gpu, chosen),
            x=x,
            gate=placed[0],
            up=placed[1],
            gate_bias=gpu.upload(biases[0]),
            up_bias=gpu.upload(biases[1]),
            out=out,
            activation=activation,
        ),
    )
    got = read(gpu, out, tokens * CHOSEN, rows).reshape(tokens, CHOSEN, rows)
    wide = np.repeat(exact[:, None], CHOSEN, axis=1)
    parts = [each(wide, m, b, chosen) for m, b in zip(both, biases, strict=True)]
    allowed = 2 * EXACT + TOLERANCES[dtype]
    assert cases.relative_rms(got, reference.swiglu(*parts, activation)) <= allowed


def test_short_rows_are_shared_by_eight_lanes(gpu: Gpu) -> None:
    for columns, tokens, lanes in ((768, 1, 8), (1024, 1, 32), (1280, 1, 32), (768, 9, 32)):
        weight = DeviceMatrix.at(0, "Q4_K", EXPERTS * ROWS, columns)
        one = op.Jobs(gpu.kernels, 0, tokens, CHOSEN, EXPERTS, 0)
        constants, _, _ = one.shape(weight, "expert_matmul")
        assert lanes == constants.rows.LANES
    dense = DeviceMatrix.at(0, "F16", EXPERTS * ROWS, 768)
    one = op.Jobs(gpu.kernels, 0, 1, CHOSEN, EXPERTS, 0)
    constants, _, _ = one.shape(dense, "expert_matmul")
    assert constants.rows.LANES == 32


@pytest.mark.parametrize(
    ("columns", "lanes", "units"), [(768, 8, 3), (512, 8, 2), (2048, 32, 2), (2880, 32, 3)]
)
def test_lanes_of_cuda_have_whole_rows_in_flight(columns: int, lanes: int, units: int) -> None:
    constants = choose("sm_90", "MXFP4", (8192, columns), 1, "expert_gate_up")
    assert (lanes, units) == (constants.rows.LANES, constants.rows.UNITS)


@pytest.fixture
def constants_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of experts take those of sm_90 on every device."""
    monkeypatch.setattr(op, "choose", lambda architecture, *shape: choose("sm_90", *shape))


@pytest.mark.usefixtures("constants_of_cuda")
@pytest.mark.parametrize("columns", [768, 2880])
@pytest.mark.parametrize("name", ["MXFP4", "Q4_0"])
def test_constants_of_cuda_give_the_same_products(gpu: Gpu, name: str, columns: int) -> None:
    rng = np.random.default_rng(columns)
    weights = rng.standard_normal((EXPERTS * ROWS, columns), np.float32) / 30
    matrix = Matrix.from_floats(weights, name)
    x, exact = upload_q8(gpu, rng.standard_normal((1, CHOSEN * columns), np.float32))
    out = gpu.empty(4 * CHOSEN * ROWS)
    of = np.array([[4, 0, 2]], np.int32)
    run(
        gpu,
        op.expert_matmul(jobs(gpu, of), x=x, weight=upload(gpu, matrix), bias=None, out=out),
    )
    wanted = each(exact.reshape(1, CHOSEN, columns), matrix, None, of)
    got = gpu.download(out, (1, CHOSEN, ROWS), np.float32)
    assert cases.relative_rms(got, wanted) <= EXACT


@pytest.mark.usefixtures("constants_of_cuda")
@pytest.mark.parametrize("name", ["IQ4_XS", "NVFP4", "MXFP4"])
@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_constants_of_cuda_give_the_same_gate_and_up(gpu: Gpu, name: str, tokens: int) -> None:
    test_gate_and_up(gpu, (name, name), "silu", tokens, 1280, Q8, GROUPS_ROWS)


def test_steps_that_start_early_read_the_experts_that_they_chose(gpu: Gpu) -> None:
    """One graph of steps that share where their experts stand, each with another row of x.

    On NVIDIA each launch begins while the one before runs. Down reads its experts before it waits.
    """
    steps, count, chosen, columns, rows = 24, 32, 4, 512, 64
    rng = np.random.default_rng(3)
    x = rng.standard_normal((steps, columns), np.float32)
    router = rng.standard_normal((count, columns), np.float32) / np.float32(columns**0.5)
    gate, up = rng.standard_normal((2, count * rows, columns), np.float32) / 20
    down = rng.standard_normal((count * columns, rows), np.float32) / 8
    matrices = [Matrix.from_floats(one, "Q8_0") for one in (gate, up, down)]
    placed = [upload(gpu, matrix) for matrix in matrices]
    scoring = upload(gpu, Matrix.from_floats(router, "F32"))
    words, shares = gpu.upload(np.zeros(count, np.uint64)), gpu.empty(4 * chosen)
    job = jobs(gpu, np.zeros((1, chosen), np.int32), count)
    normed, hidden = make(gpu, Q8, 1, columns), make(gpu, Q8, chosen, rows)
    start, out = gpu.upload(x), gpu.empty(4 * steps * chosen * columns)
    norm = gpu.upload(np.ones(columns, np.float32))
    launches: list[Launch] = []
    for step in range(steps):
        launches += [
            rmsnorm_route(
                gpu.kernels,
                x=start + 4 * step * columns,
                norm=norm,
                eps=1e-5,
                router=scoring,
                bias=None,
                words=words,
                out=normed,
                tokens=1,
                choice=op.Choice(None, job.experts, shares, count, chosen, True, False, 1.0),
            ),
            *op.expert_gate_up(
                job,
                x=normed,
                gate=placed[0],
                up=placed[1],
                gate_bias=None,
                up_bias=None,
                out=hidden,
                activation="silu",
            ),
            *op.expert_matmul(
                job,
                x=hidden,
                weight=placed[2],
                bias=None,
                out=out + 4 * step * chosen * columns,
            ),
        ]
    early = [replace(launch, early=True) for launch in launches]
    replayed = Replay(gpu.kernels.runtime, early, steps)
    replayed.seconds()
    replayed.close()
    got = gpu.download(out, (steps, chosen, columns), np.float32)
    exact = reference.rmsnorm(x, np.ones(columns), 1e-5)
    of, _ = reference.route((exact @ router.T).astype(np.float32), chosen, True, False, 1.0, None)
    assert len({tuple(one) for one in of}) > steps / 2
    weights = [m.to_floats().astype(np.float64).reshape(count, -1, m.columns) for m in matrices]
    products = [np.einsum("tc,tknc->tkn", exact, one[of]) for one in weights[:2]]
    inner = reference.swiglu(*products, "silu")
    wanted = np.einsum("tkc,tknc->tkn", inner, weights[2][of])
    errors = [cases.relative_rms(a, b) for a, b in zip(got, wanted, strict=True)]
    assert max(errors) < 0.03  # activations are rounded twice; another expert's are off by 1


def test_a_dense_gate_beside_a_quantized_up_is_refused(gpu: Gpu) -> None:
    both = [upload(gpu, matrix_of(name, np.random.default_rng(1))) for name in ("F16", "Q4_0")]
    one = jobs(gpu, np.zeros((1, 1), np.int32))
    with pytest.raises(UnsupportedModelError, match="got F16 and Q4_0, wanted both quantized or"):
        op.expert_gate_up(
            one,
            x=F32(0),
            gate=both[0],
            up=both[1],
            gate_bias=None,
            up_bias=None,
            out=F32(0),
            activation="silu",
        )


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("sigmoid", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("count", "chosen"), [(1, 1), (5, 5), (128, 8), (100, 70), (1024, 3)])
def test_a_token_goes_to_the_experts_of_its_largest_scores(
    gpu: Gpu, count: int, chosen: int, normalized: bool, sigmoid: bool, biased: bool
) -> None:
    rng = np.random.default_rng(count)
    scores = 5 * rng.standard_normal((9, count), np.float32)
    scores[7] = 1.0  # of equal ones the first
    bias = np.linspace(-1, 1, count).astype(np.float32) if biased else None
    experts, shares = gpu.empty(4 * 9 * chosen), gpu.empty(4 * 9 * chosen)
    gpu.run(
        op.route(
            gpu.kernels,
            scores=gpu.upload(scores),
            tokens=9,
            choice=op.Choice(
                bias=None if bias is None else gpu.upload(bias),
                experts=experts,
                shares=shares,
                count=count,
                chosen=chosen,
                normalized=normalized,
                sigmoid=sigmoid,
                scale=2.5,
            ),
        )
    )
    wanted, parts = reference.route(scores, chosen, normalized, sigmoid, 2.5, bias)
    np.testing.assert_array_equal(gpu.download(experts, (9, chosen), np.int32), wanted)
    got = gpu.download(shares, (9, chosen), np.float32)
    np.testing.assert_allclose(got, parts, rtol=3e-6, atol=1e-30)


def test_scores_that_are_no_numbers_still_choose_different_experts(gpu: Gpu) -> None:
    experts, shares = gpu.empty(12), gpu.empty(12)
    choice = op.Choice(None, experts, shares, 4, 3, True, False, 1.0)
    scores = gpu.upload(np.full((1, 4), np.nan, np.float32))
    gpu.run(op.route(gpu.kernels, scores=scores, tokens=1, choice=choice))
    assert sorted(gpu.download(experts, 3, np.int32)) == [0, 1, 2]


@pytest.mark.parametrize("columns", [16, 1040])
def test_results_are_added_in_their_shares(gpu: Gpu, columns: int) -> None:
    rng = np.random.default_rng(columns)
    parts = rng.standard_normal((5, 3 * columns), np.float32)
    shares, x = rng.random((5, 3), np.float32), rng.standard_normal((5, columns), np.float32)
    at = gpu.upload(x)
    gpu.run(
        op.add_experts(
            gpu.kernels,
            parts=gpu.upload(parts),
            shares=gpu.upload(shares),
            x=at,
            tokens=5,
            chosen=3,
            columns=columns,
        )
    )
    wanted = x + reference.add_experts(parts, shares)
    np.testing.assert_allclose(gpu.download(at, x.shape, np.float32), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("columns", [32, 288, 1056])
def test_what_is_added_in_shares_is_normed_but_for_a_factor(gpu: Gpu, columns: int) -> None:
    rng = np.random.default_rng(columns)
    parts = rng.standard_normal((2, 3 * columns), np.float32)
    shares, x = rng.random((2, 3), np.float32), rng.standard_normal((2, columns), np.float32)
    norm = 1 + rng.random(columns, np.float32)
    at, squares = gpu.upload(x), gpu.empty(4 * 2 * columns // 32)
    normed: Any = make(gpu, Q8, 2, columns)
    gpu.run(
        op.add_experts_rmsnorm(
            gpu.kernels,
            parts=gpu.upload(parts),
            shares=gpu.upload(shares),
            x=at,
            norm=gpu.upload(norm),
            normed=normed,
            squares_out=squares,
            tokens=2,
            chosen=3,
            columns=columns,
        )
    )
    wanted = x + reference.add_experts(parts, shares)
    np.testing.assert_allclose(gpu.download(at, x.shape, np.float32), wanted, rtol=1e-5, atol=1e-5)
    got = read(gpu, normed, 2, columns)
    assert cases.relative_rms(got, wanted * norm) <= TOLERANCES[Q8]
    sums = (wanted.reshape(2, -1, 32) ** 2).sum(axis=-1)
    held = gpu.download(squares, sums.shape, np.float32)
    np.testing.assert_allclose(held, sums, rtol=1e-5)


@pytest.mark.parametrize(
    ("tokens", "chosen", "count", "size"),
    [(9, 1, 1, 8), (300, 3, 64, 8), (300, 3, 64, 32), (11, 2, 1024, 64)],
)
def test_each_job_is_in_one_group_of_its_expert(
    gpu: Gpu, tokens: int, chosen: int, count: int, size: int
) -> None:
    rng = np.random.default_rng(count)
    of = rng.integers(0, count, (tokens, chosen)).astype(np.int32)
    of[:40] = count - 1
    n, grouping = of.size, jobs(gpu, of, count).groups(size)
    gpu.run(grouping.launch())
    order = gpu.download(grouping.order, n, np.int32)
    groups = gpu.download(grouping.groups, (grouping.most, 3), np.int32)
    assert sorted(order) == list(range(n))
    groups = groups[groups[:, 2] > 0]
    assert groups[:, 2].max() <= size
    assert groups[:, 2].sum() == n
    for expert, first, held in groups:
        assert (of.ravel()[order[first : first + held]] == expert).all()
    wanted = sum(-(-n // size) for n in np.bincount(of.ravel()))
    assert len(groups) == wanted
