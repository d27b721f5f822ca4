"""Chooses the next token from logits: greedy, temperature, top-k, top-p, min-p, repetition penalty.

One `Sampler` belongs to one sequence and owns its random numbers, so that its tokens depend on its
seed and its logits, never on other sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from rocmforge.sampling_params import SamplingParams

__all__ = ["DRAW", "Draw", "Sampler", "SamplingParams", "choose"]

DRAW = np.dtype(
    [
        ("uniform", "<f8"),
        ("top_p", "<f8"),
        ("temperature", "<f4"),
        ("min_p", "<f4"),
        ("top_k", "<i4"),
        ("unused", "<i4"),
    ]
)
"""How to draw from one row of logits: `Draw` of kernels/sample.hip. Ranges are those of
`SamplingParams`: a temperature of 0 is greedy, a top_k of 0, a top_p of 1 and a min_p of 0 keep
all; uniform lies in [0, 1)."""

Draw = tuple[float, float, float, float, int, int]
"""The fields of a `DRAW`."""

BLOCK = 512  # weights that are summed as one before a draw
N_BINS = 4096  # of the histogram for top-p
MAX_TOP_K = 2**31 - 1  # fits an int32; no vocabulary is so large
MAX_SPAN = 40.0  # exp(-40) of the likeliest is nothing, even 2**20 times over: one bin for the rest


class Sampler:
    """Draws the tokens of one sequence.

    The steps, in this order: repetition penalty, temperature, top-k, top-p, min-p; then one draw
    from the tokens that are left, in proportion to exp(logit / temperature). With temperature 0,
    only the penalty is applied and the likeliest token is taken. Among equal logits the lower id
    ranks first in every step.

    Parameters
    ----------
    params
        How to draw; its seed starts this sampler's own generator.
    """

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self._random: np.random.Generator | None = None
        self._temperature = params.temperature
        if params.temperature > 0:
            self._random = np.random.default_rng(params.seed)  # numpy 2 loads this in 10 ms
            limits = np.finfo(np.float32)  # the temperature stays above 0, and finite, in float32
            self._temperature = min(max(params.temperature, float(limits.tiny)), float(limits.max))

    @property
    def needs_logits(self) -> bool:
        """Whether `sample` has to choose: a `draw` does not know the repetition penalty."""
        return self.params.repetition_penalty != 1

    def draw(self) -> Draw:
        """Return the next token's `DRAW`, which takes the next of this sampler's random numbers.

        `choose` makes a token of it, here or on a device: the one that `sample` would choose.
        """
        params = self.params
        uniform = 0.0 if self._random is None else self._random.random()
        top_k = min(params.top_k, MAX_TOP_K)
        return uniform, params.top_p, self._temperature, params.min_p, top_k, 0

    def sample(self, logits: NDArray[np.float32], history: Sequence[int]) -> int:
        """Choose the next token.

        Parameters
        ----------
        logits
            (V,) float32; -inf forbids a token. Not changed.
        history
            The sequence so far: ids that the repetition penalty applies to, each once however
            often it occurs. Not read where the penalty is 1.

        Returns
        -------
        int
            Token id, 0 to V - 1.

        Raises
        ------
        TypeError
            `logits` are not float32, or `history` holds other things than integers.
        ValueError
            `logits` are not one row, hold NaN or +inf, or forbid every token; an id of
            `history` is not below V.

        Notes
        -----
        Penalty as in Keskar et al. 2019 (CTRL), with the sign rule of Hugging Face; top-p as in
        Holtzman et al. 2019; min-p as in Nguyen et al. 2024.
        """
        if not isinstance(logits, np.ndarray) or logits.dtype != np.float32:
            got = getattr(logits, "dtype", type(logits).__name__)
            raise TypeError(f"logits: got {got}, wanted a numpy array of float32")
        if logits.ndim != 1 or not logits.size:
            raise ValueError(f"logits: got shape {logits.shape}, wanted (V,)")
        if self.needs_logits:
            logits = _penalized(logits, history, self.params.repetition_penalty)
        return choose(logits, self.draw())


def choose(logits: NDArray[np.float32], draw: Any) -> int:
    """Choose a token as a `DRAW` says.

    Parameters
    ----------
    logits
        (V,) float32; -inf forbids a token. Not changed.
    draw
        From `Sampler.draw`, or an element of an array of them.

    Raises
    ------
    ValueError
        `logits` hold NaN or +inf, or forbid every token.
    """
    uniform, top_p, temperature, min_p, top_k, _ = draw
    best = int(logits.argmax())  # argmax takes a NaN for the largest
    top: np.float32 = logits[best]
    if not np.isfinite(top):
        _refuse(logits, best)
    if temperature == 0:
        return best

    ids: NDArray[np.intp] | None = None  # None: every token is still in
    if 0 < top_k < logits.size:
        ids = _largest(logits, int(top_k))
        logits = logits[ids]
    exponents = _exponents(logits, top, temperature)
    weights = np.exp(exponents)  # probabilities up to their common factor; 1 for the likeliest
    if top_p < 1:
        weights *= _nucleus(logits, exponents, weights, top_p)
    if min_p > 0:
        weights *= weights >= np.float32(min_p)
    chosen = _draw(weights, uniform)
    return chosen if ids is None else int(ids[chosen])


def _draw(weights: NDArray[np.float32], share: float) -> int:
    """Index at which the running sum of the weights passes `share`, in [0, 1), of the total.

    A weight of 0 is never drawn. Sums of blocks come first, then the running sum inside one block:
    a running sum over all V would cost more than everything else.
    """
    blocks = np.add.reduceat(weights, np.arange(0, weights.size, BLOCK))
    reach = blocks.cumsum(dtype=np.float64)
    goal = share * reach[-1]  # rounded or not, below the total: share is at most 1 - 2**-53
    block = int(reach.searchsorted(goal, side="right"))
    if block:
        goal -= reach[block - 1]
    start = block * BLOCK
    inside = weights[start : start + BLOCK].cumsum(dtype=np.float64)
    # The block's sum in float32 may lie a little above its running sum in float64.
    goal = min(goal, np.nextafter(inside[-1], 0))
    return start + int(inside.searchsorted(goal, side="right"))


def _largest(logits: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Indices, ascending, of the `count` largest logits."""
    cut = logits.size - count
    smallest = np.partition(logits, cut)[cut]
    keep = logits > smallest
    ties = np.flatnonzero(logits == smallest)
    keep[ties[: count - int(np.count_nonzero(keep))]] = True
    return np.flatnonzero(keep)


def _exponents(
    logits: NDArray[np.float32], top: np.float32, temperature: float
) -> NDArray[np.float32]:
    """(logit - top) / temperature: 0 for the likeliest token, negative for the others."""
    with np.errstate(over="ignore"):  # to -inf, whose weight is 0
        exponents: NDArray[np.float32] = (logits - top) / np.float32(temperature)
    return exponents


def _nucleus(
    logits: NDArray[np.float32],
    exponents: NDArray[np.float32],
    weights: NDArray[np.float32],
    top_p: float,
) -> NDArray[np.bool_]:
    """(V,) bool: the fewest largest logits that hold `top_p` of the weight.

    A histogram over the exponents finds where the share is reached; only that bin is sorted.
    """
    span = min(max(-float(exponents.min()), 1e-6), MAX_SPAN)
    with np.errstate(over="ignore"):
        depth = np.minimum(exponents * np.float32(-N_BINS / span), np.float32(N_BINS - 1))
    bins = depth.astype(np.intp)
    reach = np.bincount(bins, weights, N_BINS).cumsum()  # float64
    target = top_p * float(reach[-1])
    edge = min(int(reach.searchsorted(target)), N_BINS - 1)
    before = float(reach[edge - 1]) if edge else 0.0
    inside = np.flatnonzero(bins == edge)
    inside = inside[np.argsort(-logits[inside], kind="stable")]
    count = int((before + weights[inside].cumsum(dtype=np.float64)).searchsorted(target)) + 1
    keep: NDArray[np.bool_] = bins < edge
    keep[inside[:count]] = True
    return keep


def _penalized(
    logits: NDArray[np.float32], history: Sequence[int], penalty: float
) -> NDArray[np.float32]:
    ids = np.asarray(history)
    if not ids.size:
        return logits
    if ids.dtype.kind not in "iu":
        raise TypeError(f"history: got {ids.dtype}, wanted integer token ids")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= logits.size:
        wrong = low if low < 0 else high
        raise ValueError(f"history: got token id {wrong}, wanted 0 to {logits.size - 1}")
    seen: NDArray[np.float32] = logits[ids]
    changed: NDArray[np.float32] = logits.copy()
    with np.errstate(over="ignore"):  # an infinity that comes of it is refused by the caller
        changed[ids] = np.where(seen > 0, seen / penalty, seen * penalty)
    return changed


def _refuse(logits: NDArray[np.float32], best: int) -> NoReturn:
    value = logits[best]
    if np.isneginf(value):
        raise ValueError(f"logits: got -inf for all {logits.size} tokens, wanted one possible")
    count = int((np.isnan(logits) | np.isposinf(logits)).sum())
    raise ValueError(
        f"logits: got {'NaN' if np.isnan(value) else '+inf'} for token {best} "
        f"({count} of {logits.size} are NaN or +inf), wanted numbers or -inf"
    )
