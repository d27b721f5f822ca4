"""The sequences of a loaded model, and the passes that append tokens to them: prefill, decode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rocmforge.array_types import Floats
from rocmforge.one_call import Calls, one_call
from rocmforge.plan.protocols import Cache, Executor, TimedPass
from rocmforge.sampling import DRAW, Draw

LOGITS_CHUNK = 512  # tokens of one pass whose logits are all wanted: bounds the memory of logits
R = TypeVar("R")


class SequencePasses:
    """Runs passes of any number of sequences, whose keys and values lie in one cache.

    Parameters
    ----------
    executor
        Runs the model, and has the cache.
    ctx
        Most tokens of one sequence.
    vocab_size
        V.
    prefill_chunk
        Most tokens of a prompt in one pass; None, or above the executor's: as many as that one
        takes.
    """

    def __init__(
        self, executor: Executor, ctx: int, vocab_size: int, prefill_chunk: int | None = None
    ) -> None:
        self._calls: Calls = {}
        self._executor = executor
        self._vocab_size = vocab_size
        self._prefill_chunk = prefill_chunk
        self.cache: Cache = executor.cache
        self.ctx = ctx

    @property
    def prefill_chunk(self) -> int:
        """Most tokens of a prompt in one pass, which bounds the memory of activations."""
        own = self._executor.prefill_chunk
        return own if self._prefill_chunk is None else min(self._prefill_chunk, own)

    @one_call
    def logits(self, ids: ArrayLike) -> Floats:
        """Return the logits after each token of a text, in a sequence of its own.

        Parameters
        ----------
        ids
            (T,) token ids, 1 to `ctx` of them.

        Returns
        -------
        (T, V) float32: row t scores the token that follows ids[0..t].

        Raises
        ------
        ValueError
            No ids, too many, or one that is not in the vocabulary.
        OutOfPagesError
            Other sequences hold the pages that this would need.
        """
        tokens = self._tokens(ids, room=self.ctx)
        table = self.cache.table
        try:
            sequence = table.add_sequence(tokens.size, owner=tokens)
            logits = np.empty((tokens.size, self._vocab_size), np.float32)
            most = min(LOGITS_CHUNK, self.prefill_chunk)
            for start in range(0, tokens.size, most):
                chunk = tokens[start : start + most]
                rows = np.arange(chunk.size, dtype=np.int32)
                logits[start : start + chunk.size] = self._executor.forward(
                    chunk, [sequence], [chunk.size], rows
                )
            return logits
        finally:
            table.release(tokens)

    @one_call
    def add_sequence(self, reserve_tokens: int = 0, owner: object = None) -> int:
        """Start an empty sequence and return its id.

        Parameters
        ----------
        reserve_tokens
            Length for which to take pages now, where it is known.
        owner
            Whose it is, for callers that an interrupt may keep from learning the id: `release`
            ends it by its owner, and so does the next `add_sequence` once the owner is gone.
            None: it lasts until `remove_sequence`.

        Raises
        ------
        OutOfPagesError
            Too few pages are free.
        """
        return self.cache.table.add_sequence(reserve_tokens, owner)

    @one_call
    def add_prompt(
        self, ids: ArrayLike, reserve_tokens: int = 0, owner: object = None
    ) -> tuple[int, int]:
        """Start a sequence for a prompt, with the keys and values that earlier prompts left of it.

        The prompts of such sequences share the full pages in which they begin with the same
        tokens. Once `prefill` or `prefill_token` has appended all that was missing, in one call,
        later prompts find this one's pages. They stay when the sequence ends; those used longest
        ago go first where room is needed. Nobody else's sequence is changed by that: pages that
        may be shared are never written.

        Parameters
        ----------
        ids
            (T,) token ids of the whole prompt.
        reserve_tokens, owner
            As of `add_sequence`.

        Returns
        -------
        sequence, held
            Its id, and how many tokens of the prompt it has, below T and a multiple of the page
            size. Continue with ``prefill(sequence, ids[held:])``.

        Raises
        ------
        ValueError
            No ids, too many, or one that is not in the vocabulary.
        OutOfPagesError
            Too few pages are free.
        """
        tokens = self._tokens(ids, room=self.ctx)
        sequence = self.cache.table.add_sequence(reserve_tokens, owner, tokens)
        return sequence, self.cache.table.length(sequence)

    @one_call
    def remove_sequence(self, sequence: int) -> None:
        """End a sequence and free its pages; ValueError where there is none of that id."""
        self.cache.table.remove(sequence)

    def release(self, owner: object) -> None:
        """End the sequences of an owner and free their pages; nothing where it has none.

        Any thread may do so while another one uses other sequences.
        """
        self.cache.table.release(owner)

    @one_call
    def prefill(self, sequence: int, ids: ArrayLike) -> Floats:
        """Append a prompt, or a further piece of one, to a sequence.

        Parameters
        ----------
        sequence
            Id from `add_sequence`.
        ids
            (T,) token ids, at least one.

        Returns
        -------
        (V,) float32 logits after the last token.

        Raises
        ------
        ValueError
            No such sequence, no ids, one that is not in the vocabulary, or more than `ctx` leaves.
        OutOfPagesError
            Too few pages are free; the sequence is as before.
        """

        def logits(last: NDArray[np.int64]) -> Floats:
            rows = np.array([last.size - 1], np.int32)
            row: Floats = self._executor.forward(last, [sequence], [last.size], rows)[0]
            return row

        return self._append(sequence, ids, logits)

    @one_call
    def prefill_token(self, sequence: int, ids: ArrayLike, draw: Draw) -> int:
        """Append a prompt as `prefill` does; return the token that follows it.

        Parameters
        ----------
        sequence, ids
            As of `prefill`.
        draw
            How to choose the token, from `rocmforge.sampling.Sampler.draw`.

        Raises
        ------
        ValueError
            As of `prefill`; or the logits hold NaN or +inf, or forbid every token.
        OutOfPagesError
            Too few pages are free; the sequence is as before.
        """

        def token(last: NDArray[np.int64]) -> int:
            draws = np.array([draw], DRAW)
            return self._executor.next_tokens(last, [sequence], [last.size], draws)[0]

        return self._append(sequence, ids, token)

    def _append(self, sequence: int, ids: ArrayLike, run: Callable[[NDArray[np.int64]], R]) -> R:
        """Append a prompt, if there are pages for all of it; `run` runs its last chunk."""
        table = self.cache.table
        length = table.length(sequence)
        tokens = rest = self._tokens(ids, room=self.ctx - length)
        table.reserve(sequence, length + tokens.size)
        most = self.prefill_chunk
        while rest.size > most:
            rows = np.array([most - 1], np.int32)
            self._executor.forward(rest[:most], [sequence], [most], rows)
            rest = rest[most:]
        result = run(rest)
        table.share(sequence, length, tokens)
        return result

    @one_call
    def decode(self, sequences: Sequence[int], ids: ArrayLike) -> Floats:
        """Append one token to each of some sequences, in one pass.

        Parameters
        ----------
        sequences
            S different ids from `add_sequence`.
        ids
            (S,) token ids.

        Returns
        -------
        (S, V) float32 logits after those tokens.

        Raises
        ------
        ValueError
            Lengths differ, a sequence is unknown, repeated or full, an id is not in the vocabulary.
        OutOfPagesError
            Too few pages are free; no sequence has grown.
        """
        tokens = self._one_each(sequences, ids)
        rows = np.arange(tokens.size, dtype=np.int32)
        return self._executor.forward(tokens, sequences, [1] * len(sequences), rows)

    @property
    def runs_ahead(self) -> bool:
        """Whether `decode_tokens` with `following` begins the next step before it returns."""
        return self._executor.runs_ahead

    @one_call
    def decode_tokens(
        self,
        sequences: Sequence[int],
        ids: ArrayLike,
        draws: Sequence[Draw],
        following: Sequence[Draw] | None = None,
    ) -> list[int]:
        """Append one token to each of some sequences as `decode` does; return the next of each.

        Parameters
        ----------
        sequences, ids
            As of `decode`.
        draws
            How to choose each token, from `rocmforge.sampling.Sampler.draw`.
        following
            The draws of the next call, where all sequences are expected to go on with the tokens
            that this call returns: a GPU starts that step before this call returns (asynchronous
            scheduling). Another call throws it away.

        Raises
        ------
        ValueError
            As of `decode`; or the logits of one hold NaN or +inf, or forbid every token.
        OutOfPagesError
            Too few pages are free; no sequence has grown.
        """
        tokens = self._one_each(sequences, ids)
        if len(draws) != len(sequences):
            raise ValueError(f"draws: got {len(draws)}, wanted {len(sequences)}, one a sequence")
        if following is not None and len(following) != len(sequences):
            raise ValueError(
                f"following: got {len(following)}, wanted {len(sequences)}, one a sequence"
            )
        each = np.array(list(draws), DRAW)
        ahead = None if following is None else np.array(list(following), DRAW)
        return self._executor.next_tokens(tokens, sequences, [1] * len(sequences), each, ahead)

    def _one_each(self, sequences: Sequence[int], ids: ArrayLike) -> NDArray[np.int64]:
        """Check the sequences and ids of a step; return the ids."""
        _check_different(sequences)
        longest = self.cache.table.longest(sequences)
        if longest >= self.ctx:
            raise ValueError(f"ctx: got a sequence of {longest} tokens, wanted below {self.ctx}")
        tokens = self._tokens(ids, room=len(sequences))
        if tokens.size != len(sequences):
            raise ValueError(f"ids: got {tokens.size}, wanted {len(sequences)}, one a sequence")
        return tokens

    @one_call
    def timed_pass(self, sequences: Sequence[int], ids: Sequence[ArrayLike]) -> TimedPass:
        """Append tokens to sequences in one pass, and return that pass for timing.

        Parameters
        ----------
        sequences
            S different ids from `add_sequence`.
        ids
            (T,) token ids for each of them. The pass is that of `decode` where each gets one, and
            that of `prefill` where one sequence gets several: then at most `prefill_chunk`.

        Returns
        -------
        TimedPass
            Its whole time, and its steps with their times, bytes and flops. Close it before the
            engine; nothing else may run while it is being timed.

        Raises
        ------
        ValueError
            As of `prefill` and `decode`, or the tokens are more than one pass takes.
        OutOfPagesError
            Too few pages are free; no sequence has grown.
        """
        _check_different(sequences)
        if len(ids) != len(sequences):
            raise ValueError(f"ids: got those of {len(ids)} sequences, wanted {len(sequences)}")
        table = self.cache.table
        each = [
            self._tokens(own, room=self.ctx - table.length(sequence))
            for sequence, own in zip(sequences, ids, strict=True)
        ]
        counts = [own.size for own in each]
        most = self._executor.prefill_chunk if max(counts) == 1 else self.prefill_chunk
        if sum(counts) > most:
            raise ValueError(f"ids: got {sum(counts)}, wanted at most {most} in one pass")
        last = (np.cumsum(counts) - 1).astype(np.int32)
        return self._executor.timed_pass(np.concatenate(each), sequences, counts, last)

    def _tokens(self, ids: ArrayLike, room: int) -> NDArray[np.int64]:
        tokens = np.asarray(ids)
        if tokens.ndim == 0 and tokens.dtype.kind in "US":
            raise ValueError(f"ids: got text, {ids!r:.60}, wanted token ids: `Tokenizer.encode`")
        if tokens.ndim != 1 or not tokens.size:
            raise ValueError(f"ids: got shape {tokens.shape}, wanted (T,) with at least one id")
        if tokens.dtype.kind not in "iu":
            raise ValueError(f"ids: got {tokens.dtype}, wanted integer token ids")
        if tokens.size > room:
            raise ValueError(f"ids: got {tokens.size}, wanted at most {room} (ctx {self.ctx})")
        wrong = tokens[(tokens < 0) | (tokens >= self._vocab_size)]
        if wrong.size:
            raise ValueError(f"ids: got {wrong[0]}, wanted 0 to {self._vocab_size - 1}")
        return tokens.astype(np.int64)


def _check_different(sequences: Sequence[int]) -> None:
    if len(set(sequences)) != len(sequences) or not sequences:
        raise ValueError(f"sequences: got {list(sequences)}, wanted different ids, at least 1")
