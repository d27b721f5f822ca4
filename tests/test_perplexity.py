"""Perplexity: every token scored once, uniform and certain models, what is refused."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rocmforge.perplexity import divergence, perplexity

V = 50


class Fake:
    """An engine whose logits depend on the last token alone."""

    def __init__(self, rows: NDArray[np.float32], ctx: int = 64) -> None:
        self.ctx = ctx
        self.config = SimpleNamespace(vocab_size=rows.shape[1])
        self.rows = rows
        self.seen: list[list[int]] = []

    def logits(self, ids: list[int]) -> NDArray[np.float32]:
        self.seen.append(list(ids))
        assert len(ids) <= self.ctx
        return self.rows[np.asarray(ids)]


def engine(rows: NDArray[np.float32], **options: Any) -> Any:
    return Fake(rows.astype(np.float32), **options)


@pytest.mark.parametrize("bos", [None, 1])
@pytest.mark.parametrize("n", [2, 3, 15, 16, 17, 100])
@pytest.mark.parametrize("window", [4, 5, 16, 64])
def test_every_token_is_scored_once(bos: int | None, n: int, window: int) -> None:
    rows = np.random.default_rng(n).standard_normal((V, V)).astype(np.float32)
    ids = np.random.default_rng(window).integers(2, V, n).tolist()
    log_p = rows - np.log(np.exp(rows.astype(np.float64)).sum(axis=1, keepdims=True))
    before = [bos, *ids[:-1]] if bos is not None else ids[:-1]
    after = ids if bos is not None else ids[1:]
    wanted = -np.mean([log_p[a, b] for a, b in zip(before, after, strict=True)])
    fake = engine(rows)
    found = perplexity(fake, ids, bos, window)
    assert found.tokens == len(after)
    assert found.nll == pytest.approx(wanted, rel=1e-6)
    assert all(bos is None or seen[0] == bos for seen in fake.seen)


def test_uniform_and_certain() -> None:
    ids = [i % V for i in range(40)]
    assert perplexity(engine(np.zeros((V, V))), ids, window=16).value == pytest.approx(V)
    sure = np.roll(np.eye(V), 1, axis=1) * 80
    assert perplexity(engine(sure), ids, window=16).value == pytest.approx(1, abs=1e-6)


def test_divergence() -> None:
    flat, sure = engine(np.zeros((V, V))), engine(np.roll(np.eye(V), 1, axis=1) * 80)
    ids = [i % V for i in range(40)]
    own, found = divergence([sure, flat], sure, ids, window=16)
    assert (own.kl, own.top1_agreement) == (0, 1)
    assert found.kl == pytest.approx(math.log(V), rel=1e-5)
    assert found.top1_agreement < 0.1
    assert found.perplexity.value == pytest.approx(V)
    assert found.reference.value == pytest.approx(1, abs=1e-6)
    assert found.row() == {
        "perplexity": found.perplexity.value,
        "standard_error": found.perplexity.value * found.perplexity.standard_error,
        "kl_nats": found.kl,
        "top1_agreement": found.top1_agreement,
    }


def test_many_engines_are_scored_as_each_alone_and_the_reference_once() -> None:
    rng = np.random.default_rng(5)
    engines = [engine(rng.standard_normal((V, V))) for _ in range(3)]
    reference = engine(rng.standard_normal((V, V)))
    ids = rng.integers(2, V, 100).tolist()
    together = divergence(engines, reference, ids, 1, 16)
    passes = len(reference.seen)
    assert {len(one.seen) for one in engines} == {passes}
    assert together == [divergence([one], reference, ids, 1, 16)[0] for one in engines]
    assert together[0].reference == perplexity(reference, ids, 1, 16)
    assert len({found.kl for found in together}) == 3


def test_the_shortest_context_bounds_the_window() -> None:
    short, long = engine(np.zeros((V, V)), ctx=8), engine(np.zeros((V, V)))
    for engines, reference in (([long, short], long), ([long], short)):
        with pytest.raises(ValueError, match="window: got 9, wanted 4 to 8"):
            divergence(engines, reference, [1, 2, 3], window=9)
    with pytest.raises(ValueError, match="engines: got none"):
        divergence([], long, [1, 2, 3])


def test_progress_ends_at_the_end() -> None:
    calls: list[tuple[int, int]] = []
    ids = [3] * 40
    perplexity(engine(np.zeros((V, V))), ids, window=16, progress=lambda *c: calls.append(c))
    assert calls[-1] == (40, 40)
    assert calls == sorted(calls)


@pytest.mark.parametrize(
    ("ids", "window", "message"),
    [
        ([1], 16, "text: got 1 tokens, wanted at least 2"),
        ([1, 2], 3, "window: got 3, wanted 4 to 64"),
        ([1, 2], 65, "window: got 65, wanted 4 to 64"),
    ],
)
def test_what_is_refused(ids: list[int], window: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        perplexity(engine(np.zeros((V, V))), ids, window=window)


def test_vocabularies_must_be_the_same() -> None:
    other = engine(np.zeros((V + 1, V + 1)))
    with pytest.raises(ValueError, match="vocabulary: got 50 tokens, wanted the reference's 51"):
        divergence([engine(np.zeros((V, V)))], other, [1, 2, 3])
