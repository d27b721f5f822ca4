"""sample: the host sampler's token for the same random number, on every path through the kernel.

Where the token differs, a float64 computation of the same steps has to say that the number lies at
the edge between the two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from guarded import Gpu
from numpy.typing import NDArray
from scipy.stats import chi2

from rocmforge.gpu.ops import sample as op
from rocmforge.sampling import DRAW, Sampler, SamplingParams

EDGE = 2e-5  # relative error of a running sum of weights


def sample(
    gpu: Gpu, logits: NDArray[np.float32], params: list[SamplingParams], uniforms: list[float]
) -> list[int]:
    rows, columns = logits.shape
    draws = np.zeros(rows, DRAW)
    for draw, p, uniform in zip(draws, params, uniforms, strict=True):
        draw["uniform"], draw["top_p"], draw["min_p"] = uniform, p.top_p, p.min_p
        draw["temperature"], draw["top_k"] = p.temperature, p.top_k
    out = gpu.empty(4 * rows)
    pinned = gpu.runtime.allocate_pinned(4 * rows)
    gpu.run(
        *op.sample(
            gpu.kernels,
            logits=gpu.upload(logits),
            out=out,
            draws=gpu.upload(draws),
            parts=gpu.empty(op.parts_bytes(rows)),
            rows=rows,
            columns=columns,
            host=pinned.ctypes.data,
        )
    )
    tokens: list[int] = gpu.download(out, rows, np.int32).tolist()
    assert pinned.view(np.int32).tolist() == tokens
    gpu.runtime.free_pinned(pinned)
    return tokens


def running_sums(logits: NDArray[np.float32], params: SamplingParams) -> NDArray[np.float64]:
    """(V,) sums of the kept weights up to each token, of the total 1."""
    order = np.argsort(-logits, kind="stable")
    if params.top_k:
        order = order[: params.top_k]
    weights = np.exp((logits.astype(np.float64) - logits.max()) / params.temperature)
    reach = weights[order].cumsum()
    order = order[: int(reach.searchsorted(params.top_p * reach[-1] * (1 - 1e-12))) + 1]
    order = order[weights[order] >= params.min_p]
    kept = np.zeros(logits.shape)
    kept[order] = weights[order]
    sums: NDArray[np.float64] = kept.cumsum() / kept.sum()
    return sums


def expect(
    gpu: Gpu, logits: NDArray[np.float32], params: list[SamplingParams], *, others: int = 0
) -> None:
    """Check one token for each row; `others` may differ from the host's at an edge."""
    uniforms = [float(np.random.default_rng(p.seed).random()) for p in params]
    got = sample(gpu, logits, params, uniforms)
    different = 0
    for row, p, uniform, token in zip(logits, params, uniforms, got, strict=True):
        if token == Sampler(p).sample(row, ()):
            continue
        different += 1
        sums = running_sums(row, p)
        before = sums[token - 1] if token else 0.0
        assert before - EDGE <= uniform <= sums[token] + EDGE, (p, token)
    assert different <= others


def rows_of(columns: int, rows: int, spread: float = 3.0, seed: int = 0) -> NDArray[np.float32]:
    random = np.random.default_rng(columns + seed)
    return random.normal(0, spread, (rows, columns)).astype(np.float32)


@dataclass(frozen=True)
class Setting:
    """Parameters but the seed, and how logits are spread."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    spread: float = 3.0

    def params(self, rows: int) -> list[SamplingParams]:
        return [
            SamplingParams(
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                seed=seed,
            )
            for seed in range(rows)
        ]


SETTINGS = (
    Setting(),
    Setting(0.0),
    Setting(0.7, top_k=40),
    Setting(0.05, top_k=40),
    Setting(0.8, top_k=60, top_p=0.95),
    Setting(5.0, top_k=1),
    Setting(1.0, top_k=700),
    Setting(0.8, top_p=0.95),
    Setting(1.5, top_p=0.5),
    Setting(1.0, top_p=0.999),
    Setting(1.0, top_p=1e-300),
    Setting(30.0, top_k=300, top_p=1 - 2.0**-53, spread=0.5),
    Setting(1.0, min_p=0.05),
    Setting(1.0, min_p=1.0),
    Setting(1.0, min_p=1e-30),
    Setting(0.6, top_k=20, top_p=0.95),
    Setting(2.0, top_p=0.9, min_p=0.1),
    Setting(1.0, top_k=50, top_p=0.9, min_p=0.02),
    Setting(1e-3),
    Setting(300.0, top_p=0.9),
)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_token_is_the_hosts(gpu: Gpu, setting: Setting) -> None:
    for columns in (997, 1024):
        expect(gpu, rows_of(columns, 8, setting.spread), setting.params(8))


@pytest.mark.either_wave
@pytest.mark.parametrize("top_k", [62, 63, 64, 65])
@pytest.mark.parametrize("columns", [2048, 4093])
def test_top_k_of_about_as_many_as_there_are_groups(gpu: Gpu, columns: int, top_k: int) -> None:
    """All 64 groups have columns: the floor is low, and some rows list more than 256 columns."""
    expect(gpu, rows_of(columns, 8), Setting(0.8, top_k=top_k, top_p=0.95).params(8))


@pytest.mark.parametrize("columns", [1, 2, 5, 8, 63])
def test_few_columns(gpu: Gpu, columns: int) -> None:
    for setting in (Setting(), Setting(0.7, top_k=3), Setting(top_p=0.8), Setting(min_p=0.2)):
        expect(gpu, rows_of(columns, 5), setting.params(5))


@pytest.mark.parametrize(
    "setting",
    [
        Setting(1.5, top_p=0.97),  # a list of what lies about the edge, a draw from the row
        Setting(1.0, top_k=6000),
        Setting(1.0, top_k=5500, top_p=0.999, spread=1.0),
        Setting(1.0, min_p=1e-4, spread=1.0),  # too many above the floor for a list
        Setting(1.0, top_p=0.9, min_p=1e-4, spread=1.0),
        Setting(300.0, top_p=0.9),  # too many about the edge: a search in the row
        Setting(1.0, top_p=0.9999999),
        Setting(0.05, top_k=9000),
    ],
    ids=str,
)
def test_more_is_kept_than_the_list_holds(gpu: Gpu, setting: Setting) -> None:
    expect(gpu, rows_of(12000, 3, setting.spread), setting.params(3), others=1)


@pytest.mark.parametrize("setting", [Setting(), Setting(0.8, top_k=40, top_p=0.95)], ids=str)
def test_a_real_vocabulary(gpu: Gpu, setting: Setting) -> None:
    expect(gpu, rows_of(32003, 1), setting.params(1), others=1)
    expect(gpu, rows_of(32000, 2), setting.params(2), others=1)


@pytest.mark.parametrize("columns", [500, 6000, 12000])
def test_equal_logits_are_kept_from_the_lowest_id_on(gpu: Gpu, columns: int) -> None:
    logits = np.full((5, columns), 2, np.float32)
    logits[:, ::3] = 1  # two thirds of the tokens are equally likely
    params = [
        SamplingParams(temperature=1.0, top_k=7, seed=1),
        SamplingParams(temperature=1.0, top_p=0.1, seed=2),
        SamplingParams(temperature=1.0, top_k=columns // 2, top_p=0.3, seed=3),
        SamplingParams(temperature=1.0, seed=4),
        SamplingParams(temperature=1.0, top_k=40, seed=5),
    ]
    expect(gpu, logits, params)
    last = sample(gpu, logits[:1], params[:1], [1 - 2.0**-53])
    assert last == [np.flatnonzero(logits[0] == 2)[6]]


def test_top_k_of_more_tokens_than_are_allowed(gpu: Gpu) -> None:
    logits = np.full((2, 9000), -np.inf, np.float32)
    logits[:, 100:9000:300] = rows_of(30, 2)
    settings = [Setting(0.8, top_k=40, top_p=0.95), Setting(1.0, top_k=31)]
    expect(gpu, logits, [setting.params(1)[0] for setting in settings])


@pytest.mark.either_wave
@pytest.mark.parametrize("columns", [4093, 40000])
def test_a_list_of_more_columns_than_lanes(gpu: Gpu, columns: int) -> None:
    expect(gpu, rows_of(columns, 2), Setting(3.0, top_k=60, top_p=0.98).params(2))


def test_minus_zero_equals_zero(gpu: Gpu) -> None:
    logits = np.zeros((1, 40), np.float32)
    logits[0, ::2] = -0.0
    params = [SamplingParams(temperature=1.0, top_k=3)]
    assert [sample(gpu, logits, params, [u])[0] for u in (0.0, 0.5, 0.99)] == [0, 1, 2]


def test_the_ends_of_the_range_draw_the_first_and_the_last_token(gpu: Gpu) -> None:
    logits = np.full((1, 300), -np.inf, np.float32)
    logits[0, [17, 150, 299]] = 0.0, 1.0, 0.5
    params = [SamplingParams(temperature=1.0)]
    assert sample(gpu, logits, params, [0.0]) == [17]
    assert sample(gpu, logits, params, [1 - 2.0**-53]) == [299]
    for top_k in (2, 5):
        params = [SamplingParams(temperature=1.0, top_k=top_k)]
        assert sample(gpu, logits, params, [0.0]) == [150 if top_k == 2 else 17]


def test_rows_have_parameters_of_their_own(gpu: Gpu) -> None:
    params = [setting.params(1)[0] for setting in SETTINGS]
    expect(gpu, rows_of(1024, len(params), seed=1), params)


def test_rows_that_the_host_refuses_give_minus_one(gpu: Gpu) -> None:
    logits = rows_of(600, 6)
    logits[0, 599] = np.nan
    logits[1, 5] = np.inf
    logits[2] = -np.inf
    logits[3, :-1] = -np.inf
    logits[4] = np.nan
    for params in (SamplingParams(temperature=1.0, top_k=4), SamplingParams()):
        got = sample(gpu, logits, [params] * 6, [0.5] * 6)
        assert got[:5] == [-1, -1, -1, 599, -1]
        assert got[5] >= 0


def test_tokens_come_as_often_as_their_weights_say(gpu: Gpu) -> None:
    logits = np.tile(np.log(np.array([0.1, 0.2, 0.3, 0.4], np.float32)), (200, 1))
    uniforms = [(i + 0.5) / 200 for i in range(200)]
    got = sample(gpu, logits, [SamplingParams(temperature=1.0)] * 200, uniforms)
    np.testing.assert_allclose(np.bincount(got), [20, 40, 60, 80], atol=1)


@pytest.mark.either_wave
def test_tokens_are_as_frequent_as_their_probabilities(gpu: Gpu) -> None:
    rows, params = 500, SamplingParams(temperature=0.8, top_k=12, top_p=0.95, seed=11)
    row = rows_of(100, 1, spread=1.5)
    draws = Sampler(params)
    uniforms = [draws.draw()[0] for _ in range(rows)]
    tokens = sample(gpu, np.repeat(row, rows, axis=0), [params] * rows, uniforms)
    wanted = rows * np.diff(running_sums(row[0], params), prepend=0.0)
    seen = np.bincount(tokens, minlength=100)
    kept = wanted > 0
    assert not seen[~kept].any()
    statistic = float(((seen - wanted)[kept] ** 2 / wanted[kept]).sum())
    assert 5 < int(kept.sum()) <= 12
    assert statistic < chi2.ppf(0.999, int(kept.sum()) - 1)
