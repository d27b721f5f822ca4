"""rmsnorm_route against float64: the normed row in each dtype, the scores, and whom they choose."""

from __future__ import annotations

from typing import Any

import numpy as np
import output_dtypes
import pytest
from guarded import Gpu
from packed_streams import upload

from rocmforge.gpu.arrays import F32, Q8
from rocmforge.gpu.lowering import ARRIVALS, GEMV_ROWS
from rocmforge.gpu.ops import rmsnorm_route as op
from rocmforge.gpu.ops.experts import Choice
from rocmforge.model.config import MAX_EXPERTS
from rocmforge.ops import Matrix, cases, reference

EXACT = 4e-6


@pytest.mark.parametrize(
    ("count", "chosen", "columns", "name"),
    [
        (1, 1, 32, "F32"),
        (5, 3, 96, "F16"),
        (5, 5, 96, "F16"),  # all are chosen: each score shows
        (32, 4, 2880, "F32"),
        (40, 40, 256, "F32"),
        (128, 8, 2048, "BF16"),
        (300, 2, 4384, "F32"),  # more experts than threads of a block, longer than it holds
    ],
)
@pytest.mark.parametrize("dtype", [F32, Q8])
@pytest.mark.parametrize("biased", [True, False])
def test_a_row_is_normed_scored_and_sent_to_experts(
    gpu: Gpu, count: int, chosen: int, columns: int, name: str, dtype: Any, biased: bool
) -> None:
    tokens = GEMV_ROWS if count <= 40 else 1
    rng = np.random.default_rng(count)
    x = 3 * rng.standard_normal((tokens, columns), np.float32)
    norm = 1 + rng.random(columns, np.float32)
    weights = rng.standard_normal((count, columns), np.float32) / np.float32(columns**0.5)
    router = Matrix.from_floats(weights, name)
    bias = rng.standard_normal(count, np.float32) if biased else None
    out = output_dtypes.make(gpu, dtype, tokens, columns)
    experts, shares = gpu.empty(4 * tokens * chosen), gpu.empty(4 * tokens * chosen)
    words = gpu.upload(np.zeros((tokens, count), np.uint64))
    choice = Choice(None, experts, shares, count, chosen, True, False, 2.5)
    launch = op.rmsnorm_route(
        gpu.kernels,
        x=gpu.upload(x),
        norm=gpu.upload(norm),
        eps=1e-5,
        router=upload(gpu, router),
        bias=None if bias is None else gpu.upload(bias),
        words=words,
        out=out,
        tokens=tokens,
        choice=choice,
    )
    gpu.run(launch)
    assert not gpu.download(words, (tokens, count), np.uint64).any()
    gpu.run(launch)
    normed = reference.rmsnorm(x, norm, 1e-5)
    got = output_dtypes.read(gpu, out, tokens, columns)
    assert cases.relative_rms(got, normed) <= EXACT + output_dtypes.TOLERANCES[dtype]
    wanted = normed @ router.to_floats().astype(np.float64).T
    if bias is not None:
        wanted = wanted + bias
    who, parts = reference.route(wanted.astype(np.float32), chosen, True, False, 2.5, None)
    np.testing.assert_array_equal(gpu.download(experts, (tokens, chosen), np.int32), who)
    got_parts = gpu.download(shares, (tokens, chosen), np.float32)
    np.testing.assert_allclose(got_parts, parts, rtol=3e-6, atol=1e-30)
    if chosen == count > 1:  # the logarithms of shares are scores, less the same number for all
        scores = np.log(got_parts.astype(np.float64))
        best = -np.sort(-wanted)
        both = [each - each.mean(1, keepdims=True) for each in (scores, best)]
        assert cases.relative_rms(*both) <= EXACT
    assert not gpu.download(words, (tokens, count), np.uint64).any()


def test_the_words_of_all_experts_fit_the_memory_of_counters() -> None:
    assert ARRIVALS.nbytes >= 8 * GEMV_ROWS * MAX_EXPERTS
