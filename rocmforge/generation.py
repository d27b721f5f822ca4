"""Generating for many prompts at once: scheduling, stop rules, streamed text, and timings.

Prompts wait until the KV cache has room for their whole length, are prefilled one by one, and
then decode together: each step adds a token to each sequence.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from rocmforge.errors import OutOfMemoryError, OutOfPagesError
from rocmforge.sampling import Draw, Sampler, SamplingParams, choose
from rocmforge.text.stream_ends import beginning_at_end
from rocmforge.text.tokenizer import StreamDecoder, Tokenizer

FinishReason = Literal["stop", "length"]


class EngineSteps(Protocol):
    """What generation needs of an engine."""

    @property
    def ctx(self) -> int:
        """Most tokens of one sequence."""

    def add_sequence(self, reserve_tokens: int = 0, owner: object = None) -> int:
        """Start a sequence with room for so many tokens."""

    def remove_sequence(self, sequence: int) -> None:
        """End a sequence."""

    def release(self, owner: object) -> None:
        """End all sequences of an owner; it may be called again."""

    def prefill(self, sequence: int, ids: Sequence[int]) -> NDArray[np.float32]:
        """Append a prompt; logits (V,) of its last token."""

    def prefill_token(self, sequence: int, ids: Sequence[int], draw: Draw) -> int:
        """Append a prompt; the token that follows it."""

    def decode(self, sequences: Sequence[int], ids: Sequence[int]) -> NDArray[np.float32]:
        """Append one token to each sequence; logits (S, V)."""

    @property
    def runs_ahead(self) -> bool:
        """Whether `decode_tokens` begins the next step before it returns."""

    def decode_tokens(
        self,
        sequences: Sequence[int],
        ids: Sequence[int],
        draws: Sequence[Draw],
        following: Sequence[Draw] | None = None,
    ) -> list[int]:
        """Append one token to each sequence; the token that follows each."""


@dataclass(frozen=True)
class GeneratedToken:
    """One step of one prompt's continuation.

    Parameters
    ----------
    prompt
        Index of the prompt.
    id
        Token id.
    text
        What this token adds to the text. Empty without a tokenizer, and while the text is held
        back: it may be part of a character or of a stop string.
    finish_reason
        None while the continuation goes on; "stop" at an end token or a stop string, "length"
        at `max_tokens` or the end of the context.
    """

    prompt: int
    id: int
    text: str
    finish_reason: FinishReason | None


@dataclass
class GenerationStats:
    """Tokens and times of a generation. Times are wall-clock seconds.

    Parameters
    ----------
    prompt_tokens, generated_tokens
        Over all prompts.
    ttft
        From the start until the first token of any prompt was known; NaN before. It is that of a
        shorter prompt where `cached_tokens` is not 0.
    prefill_seconds, decode_seconds
        Spent in prefill and decode calls, with the sampling of the tokens. A decode step that a
        GPU begins ahead counts from the end of the one before, with what the caller does meanwhile.
    decode_tokens
        Tokens that came from decode calls: all but the first of each prompt.
    cached_tokens
        Of `prompt_tokens`, those that did not run: earlier prompts had left their keys and values.
    """

    prompt_tokens: int = 0
    generated_tokens: int = 0
    ttft: float = float("nan")
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    decode_tokens: int = 0
    cached_tokens: int = 0

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prompt tokens that ran over prefill time; NaN where none was measured."""
        return _rate(self.prompt_tokens - self.cached_tokens, self.prefill_seconds)

    @property
    def decode_tokens_per_second(self) -> float:
        """Decoded tokens of all prompts over decode time; NaN where none was measured."""
        return _rate(self.decode_tokens, self.decode_seconds)


def _rate(count: int, seconds: float) -> float:
    return count / seconds if count and seconds > 0 else float("nan")


class StopText:
    """Streams text and holds back what could be the beginning of a stop string.

    Parameters
    ----------
    stream
        Turns token ids into text.
    stop
        Strings at which the text ends; the string itself is not part of it.
    """

    def __init__(self, stream: StreamDecoder, stop: tuple[str, ...]) -> None:
        self._stream = stream
        self._stop = stop
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Take a token; return the text that is now certain."""
        return self._release(self._stream.push(token))

    def flush(self) -> str:
        """Return what is held back: no more tokens come."""
        text = self._release(self._stream.flush())
        if not self.stopped:
            text, self._held = text + self._held, ""
        return text

    def _release(self, text: str) -> str:
        if self.stopped:
            return ""
        held = self._held + text
        found = [at for at in (held.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return held[: min(found)]
        keep = max((beginning_at_end(held, stop) for stop in self._stop), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]


@dataclass
class _Running:
    prompt: int
    sequence: int
    history: list[int]
    sampler: Sampler
    text: StopText | None
    ends: frozenset[int]
    limit: int  # tokens to generate at most
    cached: int  # tokens of the prompt that need not run
    generated: int = 0
    _ahead: Draw | None = None

    def draw(self) -> Draw:
        """Return how to draw the next token."""
        ahead, self._ahead = self._ahead, None
        return self.sampler.draw() if ahead is None else ahead

    def draw_ahead(self) -> Draw:
        """Return what `draw` will return next."""
        if self._ahead is None:
            self._ahead = self.sampler.draw()
        return self._ahead


@dataclass
class Generation:
    """The continuations of some prompts; iterate to run it.

    Iterating yields a `GeneratedToken` for each token as soon as it is known. Leaving the loop
    early (`close`, an exception, Ctrl-C) frees the sequences. `stats` is valid at any time.

    This object owns its sequences from before they take pages. If Ctrl-C interrupts the freeing
    itself, the next `close` frees the rest; without one, the engine frees it when this object is
    gone and another sequence is added.

    `add_prompt` is the engine's where prompts share their beginnings, else None. `shown` are the
    special tokens that stand in the text.
    """

    engine: EngineSteps
    prompts: Sequence[Sequence[int]]
    params: Sequence[SamplingParams]
    tokenizer: Tokenizer | None
    add_prompt: Callable[[Sequence[int], int, object], tuple[int, int]] | None = None
    shown: frozenset[int] = frozenset()
    stats: GenerationStats = field(default_factory=GenerationStats)
    _since: float | None = field(default=None, init=False)
    """When the step began that a GPU runs already: it counts from there, whatever the caller of
    this object did meanwhile."""

    def __post_init__(self) -> None:
        """Start the run, which does nothing until it is iterated."""
        self._samplers = [Sampler(params) for params in self.params]
        self._tokens = self._run()

    def __iter__(self) -> Iterator[GeneratedToken]:
        """Return the one run of this generation."""
        return self

    def __next__(self) -> GeneratedToken:
        """Return the next token of any prompt."""
        return next(self._tokens)

    def close(self) -> None:
        """End the run and free its sequences."""
        self._tokens.close()
        self.engine.release(self)

    def _run(self) -> Generator[GeneratedToken, None, None]:
        begin = time.perf_counter()
        waiting = deque(range(len(self.prompts)))
        running: list[_Running] = []
        try:
            while waiting or running:
                while waiting:
                    one = self._admit(waiting[0], alone=not running)
                    if one is None:
                        break
                    waiting.popleft()
                    running.append(one)
                    self._since = None
                    start = time.perf_counter()
                    token = self._first(one)
                    now = time.perf_counter()
                    self.stats.prefill_seconds += now - start
                    self.stats.prompt_tokens += len(one.history)
                    self.stats.cached_tokens += one.cached
                    if self.stats.generated_tokens == 0:
                        self.stats.ttft = now - begin
                    yield self._take(one, token, running)
                if running:
                    yield from self._step(running)
        finally:
            self.engine.release(self)

    def _step(self, running: list[_Running]) -> Iterator[GeneratedToken]:
        batch = list(running)
        start = time.perf_counter() if self._since is None else self._since
        tokens = self._next(batch)
        now = time.perf_counter()
        self.stats.decode_seconds += now - start
        self._since = now if self._goes_on(batch) else None
        self.stats.decode_tokens += len(batch)
        for one, token in zip(batch, tokens, strict=True):
            yield self._take(one, token, running)

    def _first(self, one: _Running) -> int:
        """Run a prompt; choose its first token where the logits are, if that can be."""
        new = one.history[one.cached :]
        if not one.sampler.needs_logits:
            return self.engine.prefill_token(one.sequence, new, one.draw())
        logits = self.engine.prefill(one.sequence, new)
        return one.sampler.sample(logits, one.history)

    def _next(self, batch: Sequence[_Running]) -> list[int]:
        """Run a step; choose its tokens where the logits are, if that can be for all of them."""
        sequences, last = [r.sequence for r in batch], [r.history[-1] for r in batch]
        if not any(r.sampler.needs_logits for r in batch):
            draws = [r.draw() for r in batch]
            following = [r.draw_ahead() for r in batch] if self._goes_on(batch) else None
            return self.engine.decode_tokens(sequences, last, draws, following)
        logits = self.engine.decode(sequences, last)
        return [
            r.sampler.sample(logits[i], r.history)
            if r.sampler.needs_logits
            else choose(logits[i], r.draw())
            for i, r in enumerate(batch)
        ]

    def _goes_on(self, batch: Sequence[_Running]) -> bool:
        """Whether the step behind this one may begin with it: nobody ends by its limit."""
        return (
            self.engine.runs_ahead
            and all(r.generated + 1 < r.limit for r in batch)
            and not any(r.sampler.needs_logits for r in batch)
        )

    def _admit(self, prompt: int, alone: bool) -> _Running | None:
        """Start a prompt, or return None where it has to wait for others to end."""
        ids, params = list(self.prompts[prompt]), self.params[prompt]
        limit = min(params.max_tokens, self.engine.ctx - len(ids) + 1)
        room = len(ids) + limit - 1
        try:
            if self.add_prompt is None:
                sequence, cached = self.engine.add_sequence(room, owner=self), 0
            else:
                sequence, cached = self.add_prompt(ids, room, self)
        except (OutOfPagesError, OutOfMemoryError):
            if alone:
                raise
            return None
        text = None
        ends = params.stop_ids
        if self.tokenizer is not None:
            stream = self.tokenizer.stream(skip_special=True, continuation=True, shown=self.shown)
            text = StopText(stream, params.stop)
            if not params.ignore_eos:
                ends = ends | self.tokenizer.end_ids
        return _Running(prompt, sequence, ids, self._samplers[prompt], text, ends, limit, cached)

    def _take(self, one: _Running, token: int, running: list[_Running]) -> GeneratedToken:
        """Count a new token; end the sequence where a stop rule says so."""
        one.history.append(token)
        one.generated += 1
        self.stats.generated_tokens += 1
        reason: FinishReason | None = None
        text = ""
        if token in one.ends:
            reason = "stop"
        elif one.text is not None:
            text = one.text.push(token)
            if one.text.stopped:
                reason = "stop"
        if reason is None and one.generated >= one.limit:
            reason = "length"
        if reason is not None:
            if one.text is not None:
                text += one.text.flush()
            running.remove(one)
            self.engine.remove_sequence(one.sequence)
        return GeneratedToken(one.prompt, token, text, reason)
