"""How to continue a text: which tokens may be chosen, and when the text ends.

It checks the settings without numpy, so that the command line can do so before numpy is loaded.
sampling.py chooses the tokens, generation.py ends the text.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

MIN_PENALTY, MAX_PENALTY = 0.01, 100.0
MAX_NUMBER = sys.float_info.max


@dataclass(frozen=True)
class SamplingParams:
    """How to continue one prompt.

    Parameters
    ----------
    max_tokens
        Tokens to generate at most, at least 1.
    temperature
        Divides the logits; 0 means greedy: the likeliest token, the lowest id among equals.
    top_k
        Keep the k likeliest tokens; 0 keeps all.
    top_p
        Keep the fewest likeliest tokens whose probabilities add up to at least this; in (0, 1].
    min_p
        Keep tokens at least this many times as likely as the likeliest; in [0, 1].
    repetition_penalty
        Positive logits of tokens seen before are divided by it, negative ones multiplied; 0.01
        to 100, 1 changes nothing.
    seed
        0 or more: the same seed and logits give the same tokens (on one machine; numpy's exp may
        round otherwise on another); None: different each time.
    stop
        Strings, none empty, at which the text ends.
    stop_ids
        Token ids at which the text ends, besides the model's own.
    ignore_eos
        Go on past the model's end-of-text tokens.

    Raises
    ------
    ValueError
        A value is of the wrong type or out of its range; names the parameter.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        """Check every field."""
        low, high = MIN_PENALTY, MAX_PENALTY
        self._check("max_tokens", _whole(self.max_tokens, 1), "an integer from 1")
        self._check("temperature", _between(self.temperature, 0, MAX_NUMBER), "a number from 0")
        self._check("top_k", _whole(self.top_k, 0), "an integer from 0")
        in_range = _between(self.top_p, 0, 1) and self.top_p > 0
        self._check("top_p", in_range, "a number above 0, at most 1")
        self._check("min_p", _between(self.min_p, 0, 1), "a number from 0 to 1")
        in_range = _between(self.repetition_penalty, low, high)
        self._check("repetition_penalty", in_range, f"a number from {low} to {high}")
        in_range = self.seed is None or _whole(self.seed, 0)
        self._check("seed", in_range, "None or an integer from 0")
        in_range = isinstance(self.stop, tuple) and all(
            isinstance(text, str) and text for text in self.stop
        )
        self._check("stop", in_range, "a tuple of strings, none empty")
        in_range = isinstance(self.stop_ids, frozenset) and all(
            _whole(token, 0) for token in self.stop_ids
        )
        self._check("stop_ids", in_range, "a frozenset of token ids")
        self._check("ignore_eos", isinstance(self.ignore_eos, bool), "True or False")

    def _check(self, name: str, valid: bool, wanted: str) -> None:
        if not valid:
            raise ValueError(f"{name}: got {getattr(self, name)!r}, wanted {wanted}")


def is_integer(value: object) -> bool:
    """Whether a value is an integer, of Python or numpy, and no bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _whole(value: Any, low: int) -> bool:
    return is_integer(value) and int(value) >= low


def _between(value: object, low: float, high: float) -> bool:
    """True for a number in [low, high]; NaN is in no range."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    # A number of numpy would round the bounds to its type.
    return low <= (int(value) if isinstance(value, Integral) else float(value)) <= high
