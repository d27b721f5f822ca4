"""Runs one request after another, and tokens behind the last: plain and observed, in turns.

Observed runs give the parts. Plain ones beside them say what observing costs, even where the
machine's speed changes meanwhile. The first request after loading is neither.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

from rocmforge.engine import Engine
from rocmforge.profiling.memory import MemoryProfile, memory_profile
from rocmforge.profiling.telemetry import Telemetry, step_seconds
from rocmforge.profiling.ttft import Prompt, Request, request
from rocmforge.profiling.turns import Turn, take_turn
from rocmforge.text.tokenizer import Tokenizer

REQUESTS = 3  # of either kind, of which the one of median time counts,
PATIENCE_S = 4.0  # unless one takes longer than this: then one of either kind
WARM_TURNS = 3  # of decode: a GPU captures its graph in the second


@dataclass
class Measured:
    """What was measured of an engine.

    Parameters
    ----------
    cold_seconds
        Of the first request after loading.
    request, prefill
        The observed request of median time, and its passes.
    plain_prefill
        Wall time of the same turn, not observed; the median.
    turns, decode
        Observed turns of decode, and their passes.
    plain_decode
        Wall time of as many turns that were not observed.
    step_seconds, copy_seconds
        Of a decode step that is replayed as one graph: seconds of one call of each op by label, and
        of the copies to and from the device, timed alone.
    memory
        While the last sequence has all its tokens.
    """

    cold_seconds: float
    request: Request
    prefill: Telemetry
    plain_prefill: float
    turns: list[Turn] = field(default_factory=list)
    decode: Telemetry = field(default_factory=Telemetry)
    plain_decode: float = 0.0
    step_seconds: dict[str, float] = field(default_factory=dict)
    copy_seconds: tuple[float, float] | None = None
    memory: MemoryProfile | None = None


def measure(
    engine: Engine,
    tokenizer: Tokenizer,
    prompt: Prompt,
    tokens: int,
    advance: Callable[[], None],
) -> Measured:
    """Measure requests with a prompt, and `tokens` - 1 turns of decode behind one.

    Parameters
    ----------
    engine, tokenizer
        Of one model; the engine has room for prompt and tokens.
    prompt
        From `prompt_of`.
    tokens
        To generate, at least 1: the first comes from the prompt's pass.
    advance
        Called after each of `measurements(tokens)`.
    """

    def one(telemetry: Telemetry | None = None) -> Request:
        made = request(engine, tokenizer, prompt, telemetry=telemetry)
        engine.remove_sequence(made.sequence)
        advance()
        return made

    cold = one()
    plain, observed = [], []
    for _ in range(REQUESTS if cold.seconds < PATIENCE_S else 1):
        plain.append(one().turn.seconds)
        telemetry = Telemetry()
        observed.append((one(telemetry), telemetry))
    observed.sort(key=lambda pair: pair[0].turn.seconds)
    found, telemetry = observed[len(observed) // 2]
    measured = Measured(cold.seconds, found, telemetry, statistics.median(plain))
    _decode(engine, tokenizer, prompt, tokens, measured, advance)
    return measured


def measurements(tokens: int) -> int:
    """How many measurements `measure` makes at most."""
    return 1 + 2 * REQUESTS + tokens - 1


def _decode(
    engine: Engine,
    tokenizer: Tokenizer,
    prompt: Prompt,
    tokens: int,
    measured: Measured,
    advance: Callable[[], None],
) -> None:
    """Run each turn twice, plain and observed; then time a step's ops alone where it is a graph."""
    one = request(engine, tokenizer, prompt, room=tokens - 1)
    try:
        engine.cache.table.mark(one.sequence)  # `_alone` goes back behind it
        steps = _Decoding(engine, one, measured.decode)
        for observed in (False, True) * (WARM_TURNS if tokens > 1 else 0):
            steps.turn(observed)
            steps.undo()
        measured.decode.passes.clear()
        for number in range(tokens - 1):
            first = number % 2 == 0  # the second of a pair may find caches warm
            for observed in (first, not first):
                turn = steps.turn(observed)
                if observed:
                    measured.turns.append(turn)
                else:
                    measured.plain_decode += turn.seconds
                if observed == first:
                    steps.undo()
            advance()
        measured.memory = memory_profile(engine)
        # A prompt's last token may be a pass of its own, and then it is a graph too.
        if any(seen.graph for seen in (*measured.prefill.passes, *measured.decode.passes)):
            _alone(engine, one, prompt.tokens + (tokens - 2) // 2, measured)
    finally:
        engine.remove_sequence(one.sequence)


class _Decoding:
    """Turns of decode behind a request."""

    def __init__(self, engine: Engine, one: Request, telemetry: Telemetry) -> None:
        self._engine = engine
        self._one = one
        self._telemetry = telemetry

    def turn(self, observed: bool) -> Turn:
        """Take in the last token, and choose the next."""
        engine, one = self._engine, self._one
        last = one.history[-1]
        with engine.observed(self._telemetry) if observed else nullcontext():
            return take_turn(
                lambda: engine.decode([one.sequence], [last])[0],
                one.sampler,
                one.history,
                one.stream,
                self._telemetry.passes if observed else (),
            )

    def undo(self) -> None:
        """Be as before the last turn."""
        self._one.history.pop()
        length = len(self._one.history) - 1  # the last token is not in the cache yet
        self._engine.cache.table.truncate(self._one.sequence, length)


def _alone(engine: Engine, one: Request, length: int, measured: Measured) -> None:
    """Time the ops of a decode step behind `length` tokens by themselves."""
    engine.cache.table.truncate(one.sequence, length)
    timed = engine.timed_pass([one.sequence], [[one.history[length]]])
    try:
        measured.step_seconds = step_seconds(timed)
        measured.copy_seconds = timed.copy_seconds()
    finally:
        timed.close()
