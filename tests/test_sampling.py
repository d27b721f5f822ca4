"""Sampler: frequencies against exact probabilities, each filter against its definition, errors."""

from __future__ import annotations

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray
from scipy.stats import chisquare

from rocmforge.sampling import BLOCK, Sampler, SamplingParams, _draw

N_DRAWS = 4000
PROPERTY = settings(max_examples=80, derandomize=True, database=None)

# Coarse steps, so that ties are common; -inf is a forbidden token.
LOGITS = hnp.arrays(
    np.float32,
    st.integers(1, 40),
    elements=st.integers(-24, 24).map(lambda i: i / 4) | st.just(-np.inf),
).filter(lambda logits: np.isfinite(logits).any())


def draws(logits: NDArray[np.float32], params: SamplingParams, n: int) -> NDArray[np.int64]:
    sampler = Sampler(params)
    return np.array([sampler.sample(logits, ()) for _ in range(n)])


def allowed(logits: NDArray[np.float32], params: SamplingParams) -> dict[int, float]:
    """Token → probability, straight from the definitions, in float64 with a full sort."""
    scaled = logits.astype(np.float64) / params.temperature
    ranked = sorted((-value, token) for token, value in enumerate(scaled.tolist()))
    kept = [token for _, token in ranked[: params.top_k or None]]
    weight = {token: float(np.exp(scaled[token] - scaled.max())) for token in kept}
    total, running, nucleus = sum(weight.values()), 0.0, []
    for token in kept:
        nucleus.append(token)
        running += weight[token] / total
        if running >= params.top_p:
            break
    kept = [token for token in nucleus if weight[token] >= params.min_p and weight[token] > 0]
    total = sum(weight[token] for token in kept)
    return {token: weight[token] / total for token in kept}


def test_greedy_takes_the_lowest_id_of_the_largest() -> None:
    logits = np.array([0, 3, 1, 3, -np.inf, 3], np.float32)
    assert Sampler(SamplingParams()).sample(logits, []) == 1


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, seed=1),
        SamplingParams(temperature=0.5, seed=2),
        SamplingParams(temperature=2.0, seed=3),
        SamplingParams(temperature=1.0, top_k=4, seed=4),
        SamplingParams(temperature=1.0, top_p=0.8, seed=5),
        SamplingParams(temperature=1.5, min_p=0.2, seed=6),
        SamplingParams(temperature=1.3, top_k=6, top_p=0.9, min_p=0.1, seed=7),
    ],
    ids=["T1", "T0.5", "T2", "top_k", "top_p", "min_p", "all"],
)
def test_frequencies(params: SamplingParams) -> None:
    rng = np.random.default_rng(0)
    logits = rng.permutation(np.linspace(-2, 2, 12)).astype(np.float32)
    wanted = allowed(logits, params)
    tokens, counts = np.unique(draws(logits, params, N_DRAWS), return_counts=True)
    assert tokens.tolist() == sorted(wanted)
    expected = N_DRAWS * np.array([wanted[token] for token in tokens.tolist()])
    assert chisquare(counts, expected).pvalue > 1e-3


def test_frequencies_over_many_blocks() -> None:
    """A quarter of the ids holds half the weight, cut so that block sums and insides both count."""
    n = 5 * BLOCK + 77
    logits = np.zeros(n, np.float32)
    heavy = np.arange(n) % 4 == 1
    logits[heavy] = np.log(3)
    tokens = draws(logits, SamplingParams(temperature=1.0, seed=8), N_DRAWS)
    share = 3 * heavy.sum() / (3 * heavy.sum() + (~heavy).sum())
    n_heavy = int(heavy[tokens].sum())
    expected = N_DRAWS * np.array([share, 1 - share])
    assert chisquare([n_heavy, N_DRAWS - n_heavy], expected).pvalue > 1e-3
    weights = np.where(heavy, 3, 1)
    eighths = [part.sum() / weights.sum() for part in np.array_split(weights, 8)]
    edges = np.cumsum([part.size for part in np.array_split(weights, 8)])
    counts = np.bincount(np.searchsorted(edges, tokens, side="right"), minlength=8)
    assert chisquare(counts, N_DRAWS * np.array(eighths)).pvalue > 1e-3


@PROPERTY
@given(
    logits=LOGITS,
    temperature=st.sampled_from([0.1, 0.7, 1.0, 3.0, 100.0]),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([1e-9, 0.11, 0.53, 0.87, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.013, 0.21, 0.9]),
    seed=st.integers(0, 2**64),
)
def test_result_is_in_the_allowed_set(
    logits: NDArray[np.float32],
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
) -> None:
    params = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed
    )
    before = logits.copy()
    # Half a permille of leeway in the bounds: float32 may round to the other side of them.
    loose = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=min(1.0, top_p * 1.0005), min_p=min_p * 0.9995
    )
    assert set(draws(logits, params, 5).tolist()) <= set(allowed(logits, loose))
    np.testing.assert_array_equal(logits, before)


@PROPERTY
@given(logits=LOGITS, seed=st.integers(0, 2**32), temperature=st.floats(1e-3, 1e3))
def test_narrowest_filters_equal_greedy(
    logits: NDArray[np.float32], seed: int, temperature: float
) -> None:
    greedy = Sampler(SamplingParams()).sample(logits, ())
    for narrow in ({"top_k": 1}, {"top_p": 1e-12}, {"top_p": 5e-324}):
        params = SamplingParams(temperature=temperature, seed=seed, **narrow)
        assert Sampler(params).sample(logits, ()) == greedy


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("top_p", [0.02, 0.5, 0.95, 0.9999])
def test_nucleus_of_a_large_vocabulary(scale: float, top_p: float) -> None:
    """The draws of many seeds reach the nucleus to its edge and never leave it."""
    rng = np.random.default_rng(9)
    logits = (scale * rng.normal(size=20_000)).astype(np.float32)
    params = SamplingParams(temperature=scale, top_p=top_p, seed=10)
    wanted = allowed(logits, SamplingParams(temperature=scale, top_p=min(1.0, top_p * 1.0005)))
    tokens = draws(logits, params, 300)
    assert set(tokens.tolist()) <= set(wanted)
    # Ranked by likelihood, the running probability at a draw is uniform: mean 1/2, sd 1/sqrt(12).
    order = sorted(wanted, key=lambda token: (-wanted[token], token))
    reach = dict(zip(order, np.cumsum([wanted[token] for token in order]), strict=True))
    tops = np.array([reach[token] - wanted[token] / 2 for token in tokens.tolist()])
    assert abs(tops.mean() - 0.5) < 4 / np.sqrt(12 * tokens.size)


def test_ties_at_the_edge_go_to_the_lower_ids() -> None:
    logits = np.array([1, 0, 1, 1, 1, 0], np.float32)
    top_k = draws(logits, SamplingParams(temperature=1.0, top_k=3, seed=11), 200)
    assert sorted(set(top_k.tolist())) == [0, 2, 3]
    logits = np.zeros(1000, np.float32)
    top_p = draws(logits, SamplingParams(temperature=1.0, top_p=0.0095, seed=12), 400)
    assert sorted(set(top_p.tolist())) == list(range(10))
    # Two values in one bin of the histogram, its width set by the last token.
    logits = np.append(np.random.default_rng(0).choice([0, -1e-3], 1000), -100).astype(np.float32)
    params = SamplingParams(temperature=1.0, top_p=0.7, seed=12)
    assert set(draws(logits, params, 1000).tolist()) <= set(allowed(logits, params))


@pytest.mark.parametrize("at", [0, 3, BLOCK - 1, BLOCK, 2 * BLOCK + 1, 3 * BLOCK - 1])
def test_extreme_draws_meet_no_token_of_weight_zero(at: int) -> None:
    weights = np.zeros(3 * BLOCK, np.float32)
    weights[at] = 0.7
    for share in (0.0, 0.5, 1 - 2**-53):
        assert _draw(weights, share) == at


def test_last_draw_stays_inside_whatever_the_block_sums_round_to() -> None:
    rng = np.random.default_rng(18)
    lifted = 0
    for _ in range(50):
        weights = rng.random(BLOCK, np.float32)
        lifted += bool(np.add.reduceat(weights, [0])[0] > weights.sum(dtype=np.float64))
        assert _draw(weights, 1 - 2**-53) == BLOCK - 1
    assert lifted > 5


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-40, 1e-10])
def test_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = np.array([-3e38, 2, 2.0000002, -np.inf, 3e38, 1], np.float32)
    params = SamplingParams(temperature=temperature, top_p=0.9, min_p=0.1, seed=13)
    assert set(draws(logits, params, 20).tolist()) == {4}


def test_huge_temperature_is_uniform_over_possible_tokens() -> None:
    logits = np.array([-50, -np.inf, 50, 0], np.float32)
    for temperature in (1e30, 1e300):
        tokens = draws(logits, SamplingParams(temperature=temperature, seed=14), 1000)
        counts = np.bincount(tokens, minlength=4)
        assert counts[1] == 0
        assert chisquare(counts[[0, 2, 3]]).pvalue > 1e-3


def test_seed_repeats_and_sequences_do_not_disturb_each_other() -> None:
    rng = np.random.default_rng(15)
    logits = rng.normal(size=(40, 500)).astype(np.float32)

    def alone(seed: int | None) -> list[int]:
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed))
        return [sampler.sample(row, ()) for row in logits]

    pair = [Sampler(SamplingParams(temperature=1.0, seed=seed)) for seed in (1, 2)]
    together = [[sampler.sample(row, ()) for sampler in pair] for row in logits]
    assert [list(column) for column in zip(*together, strict=True)] == [alone(1), alone(2)]
    assert alone(1) != alone(2)
    assert alone(None) != alone(None)


def test_penalty_divides_positive_and_multiplies_negative_once_per_token() -> None:
    logits = np.array([4, -1, 3, -4, 0], np.float32)
    before = logits.copy()
    sampler = Sampler(SamplingParams(repetition_penalty=2.0))
    assert sampler.sample(logits, []) == 0
    assert sampler.sample(logits, [0]) == 2  # 4 / 2 < 3
    assert sampler.sample(logits, [0, 2]) == 0  # 2 > 1.5
    assert sampler.sample(logits, [2, 2, 0, 0, 0, 0]) == 0  # counted once: 2 > 1.5
    negative = np.array([-1, -1.5, -3], np.float32)
    assert sampler.sample(negative, [0]) == 1  # -2 < -1.5
    assert sampler.sample(negative, np.array([0, 1], np.int32)) == 0  # -2 > -3 = -3
    np.testing.assert_array_equal(logits, before)


@PROPERTY
@given(logits=LOGITS, penalty=st.floats(1.01, 5), data=st.data())
def test_penalty_lowers_the_chance_of_history(
    logits: NDArray[np.float32], penalty: float, data: st.DataObject
) -> None:
    """With one seed, an unseen first token is drawn under the penalty wherever it was without."""
    logits = np.concatenate([[np.float32(1.0)], logits[np.isfinite(logits)]])
    seen = data.draw(st.lists(st.integers(1, logits.size - 1), min_size=1), label="history")
    plain = Sampler(SamplingParams(temperature=1.0, seed=16))
    penalized = Sampler(SamplingParams(temperature=1.0, seed=16, repetition_penalty=penalty))
    for _ in range(20):
        without, under = plain.sample(logits, seen), penalized.sample(logits, seen)
        assert without != 0 or under == 0


def test_penalty_frequencies() -> None:
    logits = np.array([1.0, 0.5, -0.5, 0.0], np.float32)
    params = SamplingParams(temperature=1.0, repetition_penalty=1.8, seed=17)
    sampler = Sampler(params)
    counts = np.bincount([sampler.sample(logits, [0, 2]) for _ in range(N_DRAWS)], minlength=4)
    weights = np.exp([1.0 / 1.8, 0.5, -0.5 * 1.8, 0.0])
    assert chisquare(counts, N_DRAWS * weights / weights.sum()).pvalue > 1e-3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("penalty", [1.0, 1.5])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([0, np.nan, np.inf, np.nan], r"got NaN for token 1 \(3 of 4 are NaN or \+inf\)"),
        ([0, -np.inf, np.inf], r"got \+inf for token 2 \(1 of 3"),
        ([-np.inf, -np.inf], "got -inf for all 2 tokens, wanted one possible"),
    ],
    ids=["NaN", "+inf", "all -inf"],
)
def test_impossible_logits_are_named(
    temperature: float, penalty: float, bad: list[float], message: str
) -> None:
    sampler = Sampler(SamplingParams(temperature=temperature, repetition_penalty=penalty))
    with pytest.raises(ValueError, match=f"logits: {message}"):
        sampler.sample(np.array(bad, np.float32), [0])


def test_logits_of_another_shape_or_type_are_named() -> None:
    sampler = Sampler(SamplingParams())
    for shape in ((0,), (2, 3), ()):
        with pytest.raises(ValueError, match=r"logits: got shape \(.*\), wanted \(V,\)"):
            sampler.sample(np.zeros(shape, np.float32), [])
    with pytest.raises(TypeError, match="logits: got float64, wanted a numpy array of float32"):
        sampler.sample(np.zeros(3), [])
    with pytest.raises(TypeError, match="logits: got list"):
        sampler.sample([0.0, 1.0], [])


def test_bad_history_is_named() -> None:
    logits = np.zeros(3, np.float32)
    sampler = Sampler(SamplingParams(repetition_penalty=1.1))
    for token in (-1, 3):
        with pytest.raises(ValueError, match=f"history: got token id {token}, wanted 0 to 2"):
            sampler.sample(logits, [0, token])
    with pytest.raises(TypeError, match="history: got float64, wanted integer token ids"):
        sampler.sample(logits, [0.5])


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("max_tokens", (0, -1, 1.0, True, None)),
        ("temperature", (-0.1, np.nan, np.inf, "1", True, None)),
        ("top_k", (-1, 1.5, False, None)),
        ("top_p", (0, -0.1, 1.1, np.nan, "1", None)),
        ("min_p", (-0.1, 1.1, np.nan, None)),
        ("repetition_penalty", (0, -1, 0.001, 1000, np.nan, np.inf, None)),
        ("seed", (-1, 0.5, "1", True)),
        ("stop", ("text", ["text"], ("",), (1,), None)),
        ("stop_ids", ({1}, [1], frozenset({-1}), frozenset({"a"}), 1, None)),
        ("ignore_eos", (0, 1, None, "no")),
    ],
)
def test_bad_parameters_are_named(name: str, bad: tuple[object, ...]) -> None:
    for value in bad:
        with pytest.raises(ValueError, match=f"^{name}: got .*, wanted "):
            SamplingParams(**{name: value})


def test_good_parameters_are_kept() -> None:
    params = SamplingParams(
        max_tokens=1,
        temperature=np.float32(0.5),
        top_k=np.int64(3),
        top_p=1,
        min_p=1,
        repetition_penalty=0.01,
        seed=2**80,
        stop=("a", "\n"),
        stop_ids=frozenset({0, 7}),
        ignore_eos=True,
    )
    assert (params.temperature, params.top_k, params.stop) == (0.5, 3, ("a", "\n"))
    assert SamplingParams() == SamplingParams(max_tokens=128, temperature=0.0)
    with pytest.raises(AttributeError, match="cannot assign to field 'seed'"):
        params.seed = 1
