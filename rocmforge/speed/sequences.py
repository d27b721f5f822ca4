"""Times an engine's work: a prompt, decode steps at a depth, the time to the first token.

These are times of the host, from the call until the next token is known: the likeliest one, chosen
where the logits are. Token ids are random with a fixed seed: speed depends on none.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from rocmforge.engine import Engine
from rocmforge.sampling import Sampler, SamplingParams

GREEDY = Sampler(SamplingParams()).draw()


def random_ids(engine: Engine, length: int, seed: int = 0) -> list[int]:
    """Return token ids of the engine's vocabulary; the same for the same length and seed."""
    random = np.random.default_rng((length, seed))
    ids: list[int] = random.integers(0, engine.config.vocab_size, length).tolist()
    return ids


def ttft(engine: Engine, length: int) -> float:
    """Seconds from the call of `generate` with a prompt until its first token is known."""
    generation = engine.generate([random_ids(engine, length)], SamplingParams(max_tokens=1))
    for _ in generation:
        pass
    return generation.stats.ttft


def prefill_seconds(engine: Engine, length: int) -> float:
    """Seconds of one `prefill` in a sequence of its own."""
    with Sequences(engine, 0, 1, length) as sequences:
        return sequences.prefill_seconds(length)


class Sequences:
    """Some sequences that hold `depth` tokens each, to time what comes behind them.

    They end with the `with` block; `ids` are theirs in the engine.

    Parameters
    ----------
    engine
        Has room for them.
    depth
        Tokens in each of them; 0: they are empty.
    count
        How many there are, at least 1.
    room
        Tokens for which each of them has pages behind those.
    filled
        Called after each sequence has been filled.

    Raises
    ------
    OutOfPagesError
        The engine's cache is too small.
    ValueError
        `depth` exceeds the engine's context.
    """

    def __init__(
        self,
        engine: Engine,
        depth: int,
        count: int = 1,
        room: int = 1,
        filled: Callable[[], None] | None = None,
    ) -> None:
        self._engine = engine
        self._depth = depth
        self.ids: list[int] = []
        self._first: list[int] = []
        try:
            for seed in range(count):
                self.ids.append(engine.add_sequence(depth + room))
                self._first.append(self._fill(self.ids[-1], seed))
                if depth:
                    engine.cache.table.mark(self.ids[-1])
                if filled is not None:
                    filled()
        except BaseException:  # Ctrl-C too
            self.close()
            raise
        self._next = list(self._first)

    def __enter__(self) -> Sequences:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sequences."""
        while self.ids:
            self._engine.remove_sequence(self.ids.pop())

    def prefill_seconds(self, length: int) -> float:
        """Seconds of a prompt behind the first sequence, which then is as before."""
        ids = random_ids(self._engine, length)
        begin = time.perf_counter()
        self._engine.prefill_token(self.ids[0], ids, GREEDY)
        seconds = time.perf_counter() - begin
        self.rewind()
        return seconds

    def step_seconds(self, batch: int | None = None) -> float:
        """Seconds of one step in which each of the first `batch` sequences grows by a token."""
        return self.steps_seconds(1, batch)

    def steps_seconds(self, count: int, batch: int | None = None) -> float:
        """Seconds of some steps in a row, where a GPU may begin each during the one before."""
        sequences, ids = self.ids[:batch], self._next[:batch]
        draws = [GREEDY] * len(sequences)
        begin = time.perf_counter()
        for left in reversed(range(count)):
            ids = self._engine.decode_tokens(sequences, ids, draws, draws if left else None)
        seconds = time.perf_counter() - begin
        self._next[: len(ids)] = ids
        return seconds

    def rewind(self) -> None:
        """Forget what has been appended since the sequences were filled."""
        for sequence in self.ids:
            self._engine.cache.table.truncate(sequence, self._depth)
        self._next = list(self._first)

    def _fill(self, sequence: int, seed: int) -> int:
        """Fill a sequence; return the token that it continues with."""
        if self._depth == 0:
            return random_ids(self._engine, 1, seed)[0]
        ids = random_ids(self._engine, self._depth, seed)
        return self._engine.prefill_token(sequence, ids, GREEDY)
