"""Products of a mixture of experts on the matrix units: against float64.

Activations are f16 here, as the kernels read them. Weights are rounded to f16 on their way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from guarded import Gpu
from numpy.typing import NDArray
from output_dtypes import Dtype, batch_input, make, read
from packed_streams import upload
from test_expert_kernels import CHOSEN, EXPERTS, ROWS, each, jobs, matrix_of, run
from test_matmul_batch_kernel import with_tiles
from test_matmul_prompt_kernel import TOLERANCE

from rocmforge.gpu.arrays import F16, F32, Halves, Permuted
from rocmforge.gpu.compiler import wave_size
from rocmforge.gpu.matrix import DeviceMatrix
from rocmforge.gpu.ops import experts_batch as op
from rocmforge.gpu.ops.experts import Groups
from rocmforge.gpu.ops.matmul_batch import TOKENS, WIDE
from rocmforge.ops import cases, reference


def choose(tokens: int) -> NDArray[np.int32]:
    """Experts of each token: the last one has none, the first one has all tokens."""
    rest = np.arange(1, EXPERTS - 1)
    rng = np.random.default_rng(tokens)
    return np.array(
        [[0, *rng.permutation(rest)[: CHOSEN - 1]] for _ in range(tokens)], dtype=np.int32
    )


def groups(gpu: Gpu, chosen: NDArray[np.int32], name: str, size: int) -> Groups:
    """Groups of that size, if the device has them for a format."""
    most = op.group_size(gpu.runtime.properties.architecture, name, 1 << 20, 1, 1)
    if most < size:
        pytest.skip(f"no groups of {size}")
    return jobs(gpu, chosen).groups(size)


@pytest.mark.parametrize("name", ["Q4_K", "Q8_0", "F16", "IQ2_XS"])
@pytest.mark.parametrize(
    ("tokens", "size"),
    [(9, 16), (40, 32), (70, 64), pytest.param(130, 128, marks=pytest.mark.hopper)],
)
def test_products_are_those_of_the_chosen_experts(
    gpu: Gpu, name: str, tokens: int, size: int
) -> None:
    rng = np.random.default_rng(tokens)
    matrix, chosen = matrix_of(name, rng), choose(tokens)
    columns = matrix.columns
    bias = rng.standard_normal(EXPERTS * ROWS, np.float32) if tokens > 9 else None
    x = rng.standard_normal((tokens, CHOSEN * columns), np.float32).astype(np.float16)
    out = gpu.empty(4 * tokens * CHOSEN * ROWS)
    run(
        gpu,
        op.expert_matmul_batch(
            groups(gpu, chosen, name, size),
            x=batch_input(gpu, x.reshape(-1, columns)),
            weight=upload(gpu, matrix),
            bias=None if bias is None else gpu.upload(bias),
            out=out,
        ),
    )
    got = gpu.download(out, (tokens, CHOSEN, ROWS), np.float32)
    exact = x.astype(np.float64).reshape(tokens, CHOSEN, columns)
    assert cases.relative_rms(got, each(exact, matrix, bias, chosen)) <= TOLERANCE


@pytest.mark.parametrize(
    ("name", "activation"), [("Q6_K", "silu"), ("MXFP4", "clamped"), ("Q8_0", "gelu")]
)
@pytest.mark.parametrize(
    ("tokens", "size"),
    [(10, 16), (33, 32), (65, 64), pytest.param(200, 128, marks=pytest.mark.hopper)],
)
@pytest.mark.parametrize(("dtype", "rows"), [(F16, ROWS), (F32, ROWS), (Permuted, 128)])
def test_gate_and_up(
    gpu: Gpu, name: str, activation: Any, tokens: int, size: int, dtype: Dtype, rows: int
) -> None:
    rng = np.random.default_rng(tokens)
    both, chosen = [matrix_of(name, rng, rows=rows) for _ in range(2)], choose(tokens)
    placed = [upload(gpu, matrix) for matrix in both]
    biases = rng.standard_normal((2, EXPERTS * rows), np.float32)
    x = rng.standard_normal((tokens, both[0].columns), np.float32).astype(np.float16)
    out = make(gpu, dtype, tokens, CHOSEN * rows)
    assert isinstance(out, (F32, Halves))
    run(
        gpu,
        op.expert_gate_up_batch(
            groups(gpu, chosen, name, size),
            x=batch_input(gpu, x, spaced=True),
            gate=placed[0],
            up=placed[1],
            gate_bias=gpu.upload(biases[0]),
            up_bias=gpu.upload(biases[1]),
            out=out,
            activation=activation,
        ),
    )
    got = read(gpu, out, tokens, CHOSEN * rows).reshape(tokens, CHOSEN, rows)
    wide = np.repeat(x.astype(np.float64)[:, None], CHOSEN, axis=1)
    parts = [each(wide, m, b, chosen) for m, b in zip(both, biases, strict=True)]
    assert cases.relative_rms(got, reference.swiglu(*parts, activation)) <= 2 * TOLERANCE


@pytest.mark.parametrize(("tokens", "size"), [(10, 16), (65, 64)])
def test_waves_of_one_tile_have_rows_of_both(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tokens: int, size: int
) -> None:
    with_tiles(gpu, monkeypatch, 1)
    test_gate_and_up(gpu, "Q4_K", "silu", tokens, size, F16, ROWS)


def test_matrix_units_take_nine_tokens_and_more() -> None:
    def runs(architecture: str, tokens: int, *names: str, columns: int = 512) -> bool:
        weights = [DeviceMatrix.at(0, name, 256 * 32, columns) for name in names]
        return op.runs(architecture, weights, tokens)

    assert runs("sm_90", 9, "Q4_K", "Q4_K")
    assert runs("gfx1100", 9, "MXFP4")
    assert not runs("sm_90", 8, "Q4_K", "Q4_K")
    assert not runs("sm_90", 9, "Q4_K", "Q6_K")
    assert not runs("gfx1030", 9, "Q4_K")
    assert runs("sm_90", 9, "F32")
    assert not runs("sm_90", 9, "F16", columns=16)


def test_groups_are_as_large_as_most_experts_need_or_as_there_are() -> None:
    def sizes(architecture: str, name: str) -> list[int]:
        numbers = (64, 199, 200, 429, 430, 1870, 1890, 4096)
        return [op.group_size(architecture, name, tokens, 8, 128) for tokens in numbers]

    common = [TOKENS[0], TOKENS[0], TOKENS[1], TOKENS[1], TOKENS[2], TOKENS[2]]
    assert sizes("gfx1100", "Q4_K") == sizes("sm_90", "F16") == [*common, TOKENS[2], TOKENS[2]]
    assert sizes("sm_90", "Q4_K") == [*common, WIDE.TOKENS, WIDE.TOKENS]


def test_the_wide_tile_fits_a_multiprocessor() -> None:
    constants = op.choose("sm_90", "Q4_K", WIDE.TOKENS)
    assert constants.fits("sm_90", 32, 227 << 10)
    assert constants.TOKENS == WIDE.TOKENS


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "gfx1100"])
@pytest.mark.parametrize("size", TOKENS)
@pytest.mark.parametrize("name", ["Q4_K", "F16", "F32"])
def test_constants_fit_the_kernel(architecture: str, size: int, name: str) -> None:
    constants = op.choose(architecture, name, size)
    assert constants.fits(architecture, wave_size(architecture), 48 << 10)
    assert size == constants.TOKENS
