"""How well a model predicts a text: perplexity, and how far one set of weights is from another.

A text is scored in windows of the model's context. Each window begins with the model's BOS token,
if it has one. Windows overlap by half, and only tokens with at least half a window before them
count; in the first window all do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rocmforge.engine import Engine
from rocmforge.plan.protocols import Progress


@dataclass(frozen=True)
class Perplexity:
    """The score of one text.

    Parameters
    ----------
    tokens
        Tokens that were predicted.
    nll
        Mean negative log-likelihood of a token, in nats.
    standard_error
        Of `nll`, as if tokens were independent.
    """

    tokens: int
    nll: float
    standard_error: float

    @property
    def value(self) -> float:
        """exp(nll): the model is as uncertain as among so many equally likely tokens."""
        return math.exp(self.nll)

    def row(self) -> dict[str, float]:
        """Return the columns of tables and files; the error is in units of the perplexity."""
        return {"perplexity": self.value, "standard_error": self.value * self.standard_error}


@dataclass(frozen=True)
class Divergence:
    """How far an engine's predictions are from a reference engine's, over the same tokens.

    Parameters
    ----------
    perplexity, reference
        Scores of both.
    kl
        Mean of KL(reference ‖ engine) = Σ p (ln p − ln q) over the vocabulary, in nats.
    top1_agreement
        Share of tokens at which both find the same token likeliest, 0 to 1.
    """

    perplexity: Perplexity
    reference: Perplexity
    kl: float
    top1_agreement: float

    def row(self) -> dict[str, float]:
        """Return the columns of tables and files."""
        return {
            **self.perplexity.row(),
            "kl_nats": self.kl,
            "top1_agreement": self.top1_agreement,
        }


def perplexity(
    engine: Engine,
    ids: Sequence[int],
    bos: int | None = None,
    window: int = 512,
    progress: Progress | None = None,
) -> Perplexity:
    """Score a text.

    Parameters
    ----------
    engine
        The model.
    ids
        Token ids of the text, at least two, without BOS.
    bos
        Put before each window; None: nothing.
    window
        Tokens of a window, 4 or more; at most the engine's `ctx`.
    progress
        Called with tokens scored and tokens in all.

    Raises
    ------
    ValueError
        Too few ids, or a window that is out of range.
    """
    parts = [
        _picked(one, _log_softmax(one.rows(engine)))
        for one in _windows(engine, ids, bos, window, progress)
    ]
    return _score(parts)


def divergence(
    engines: Sequence[Engine],
    reference: Engine,
    ids: Sequence[int],
    bos: int | None = None,
    window: int = 512,
    progress: Progress | None = None,
) -> list[Divergence]:
    """Score a text with engines of one vocabulary, and how each differs from a reference.

    The reference runs once, however many engines there are.

    Parameters
    ----------
    engines
        One or more, each with a context of at least `window`.
    reference
        Another engine with the same vocabulary.
    ids, bos, window, progress
        As in `perplexity`.

    Returns
    -------
    One result for each engine, in their order.

    Raises
    ------
    ValueError
        No engine, another vocabulary, too few ids, or a window that is out of range.
    """
    if not engines:
        raise ValueError("engines: got none, wanted at least one")
    wanted = reference.config.vocab_size
    for engine in engines:
        if engine.config.vocab_size != wanted:
            got = engine.config.vocab_size
            raise ValueError(f"vocabulary: got {got} tokens, wanted the reference's {wanted}")
    shortest = min([*engines, reference], key=lambda engine: engine.ctx)
    tallies = [_Tally() for _ in engines]
    reference_scores: list[NDArray[np.float64]] = []
    for one in _windows(shortest, ids, bos, window, progress):
        p = _log_softmax(one.rows(reference))
        reference_scores.append(_picked(one, p))
        for engine, tally in zip(engines, tallies, strict=True):
            q = _log_softmax(one.rows(engine))
            tally.scores.append(_picked(one, q))
            tally.kl.append((np.exp(p) * (p - q)).sum(axis=1))
            tally.same.append(p.argmax(axis=1) == q.argmax(axis=1))
    score = _score(reference_scores)
    return [
        Divergence(
            perplexity=_score(tally.scores),
            reference=score,
            kl=float(np.concatenate(tally.kl).mean()),
            top1_agreement=float(np.concatenate(tally.same).mean()),
        )
        for tally in tallies
    ]


@dataclass(frozen=True)
class _Tally:
    """What one engine collects, window by window, each (counted,)."""

    scores: list[NDArray[np.float64]] = field(default_factory=list)
    kl: list[NDArray[np.float64]] = field(default_factory=list)
    same: list[NDArray[np.bool_]] = field(default_factory=list)


@dataclass(frozen=True)
class _Window:
    """Tokens to run, and the last `counted` of them to score, each by the row before it."""

    ids: list[int]
    counted: int

    def rows(self, engine: Engine) -> NDArray[np.float32]:
        """Logits (counted, V) that predict the counted tokens."""
        return engine.logits(self.ids)[-1 - self.counted : -1]


def _windows(
    engine: Engine,
    ids: Sequence[int],
    bos: int | None,
    window: int,
    progress: Progress | None,
) -> Iterator[_Window]:
    if not 4 <= window <= engine.ctx:
        raise ValueError(f"window: got {window}, wanted 4 to {engine.ctx}, the engine's context")
    if len(ids) < 2:
        raise ValueError(f"text: got {len(ids)} tokens, wanted at least 2 to score")
    opening = [] if bos is None else [bos]
    room = window - len(opening)
    scored = 0 if opening else 1  # a first token with nothing before it cannot be predicted
    if progress is not None:
        progress(0, len(ids))
    while scored < len(ids):
        start = max(0, scored - room // 2)
        end = min(len(ids), start + room)
        yield _Window([*opening, *ids[start:end]], end - scored)
        scored = end
        if progress is not None:
            progress(scored, len(ids))


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


def _picked(window: _Window, log_p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log-probability of each counted token."""
    picked: NDArray[np.float64] = log_p[np.arange(window.counted), window.ids[-window.counted :]]
    return picked


def _score(parts: Sequence[NDArray[np.float64]]) -> Perplexity:
    nll = -np.concatenate(parts)
    return Perplexity(
        tokens=nll.size,
        nll=float(nll.mean()),
        standard_error=float(nll.std() / math.sqrt(nll.size)),
    )
