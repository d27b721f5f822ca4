"""An engine whose next token is the last one plus 1, and a tokenizer of letters, for generation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rocmforge.errors import OutOfPagesError
from rocmforge.sampling import Draw, choose

V = 32
END = 31


class CountingEngine:
    """EngineSteps whose next token is always the last one plus 1; room for `room` tokens in all."""

    def __init__(self, ctx: int = 100, room: int = 1000) -> None:
        self.ctx = ctx
        self.room = room
        self.clock = 0.0
        self.held: dict[int, list[int]] = {}
        self.reserved: dict[int, int] = {}
        self.owners: dict[int, object] = {}
        self.batches: list[int] = []
        self.fail_at: int | None = None  # decode call that raises
        self.runs_ahead = False
        self.ahead: list[bool] = []  # of each step: whether the next one was asked for with it
        self.draws: list[Draw] = []
        self._next = 0

    def add_sequence(self, reserve_tokens: int = 0, owner: object = None) -> int:
        free = self.room - sum(self.reserved.values())
        if reserve_tokens > free:
            raise OutOfPagesError(reserve_tokens, free, self.room)
        self._next += 1
        self.held[self._next], self.reserved[self._next] = [], reserve_tokens
        self.owners[self._next] = owner
        return self._next

    def remove_sequence(self, sequence: int) -> None:
        del self.held[sequence], self.reserved[sequence], self.owners[sequence]

    def release(self, owner: object) -> None:
        for sequence in [s for s, other in self.owners.items() if other is owner]:
            self.remove_sequence(sequence)

    def prefill(self, sequence: int, ids: Sequence[int]) -> NDArray[np.float32]:
        self.clock += 2.0
        return self._append(sequence, ids)

    def decode(self, sequences: Sequence[int], ids: Sequence[int]) -> NDArray[np.float32]:
        self.clock += 0.25
        if len(self.batches) == self.fail_at:
            raise KeyboardInterrupt
        self.batches.append(len(sequences))
        return np.stack([self._append(s, [i]) for s, i in zip(sequences, ids, strict=True)])

    def prefill_token(self, sequence: int, ids: Sequence[int], draw: Draw) -> int:
        return choose(self.prefill(sequence, ids), draw)

    def decode_tokens(
        self,
        sequences: Sequence[int],
        ids: Sequence[int],
        draws: Sequence[Draw],
        following: Sequence[Draw] | None = None,
    ) -> list[int]:
        if following is not None:
            assert self.runs_ahead
            assert len(following) == len(sequences)
        self.ahead.append(following is not None)
        self.draws += draws
        return list(map(choose, self.decode(sequences, ids), draws))

    def _append(self, sequence: int, ids: Sequence[int]) -> NDArray[np.float32]:
        self.held[sequence] += ids
        assert len(self.held[sequence]) <= min(self.ctx, self.reserved[sequence])
        logits = np.zeros(V, np.float32)
        logits[(ids[-1] + 1) % V] = 1.0
        return logits


class Stream:
    """Turns id i into the i-th letter; what it is given last it holds back until flushed."""

    def __init__(self, pieces: Sequence[str] | None = None, tail: str = "") -> None:
        self._pieces = pieces or [chr(ord("a") + i) for i in range(V)]
        self._tail = tail

    def push(self, token: int) -> str:
        return self._pieces[token]

    def flush(self) -> str:
        return self._tail


class Letters:
    """The part of a tokenizer that Generation uses."""

    end_ids = frozenset({END})

    def __init__(self) -> None:
        self.asked: list[tuple[bool, bool]] = []

    def stream(self, skip_special: bool, continuation: bool, shown: frozenset[int]) -> Stream:
        self.asked.append((skip_special, continuation))
        return Stream()
