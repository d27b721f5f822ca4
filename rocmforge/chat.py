"""A conversation with a model: its chat template over one sequence that is kept between turns.

A turn prefills only what the sequence does not hold yet. `Generation` chooses the tokens and ends
the replies. `text/reasoning.py` tells reasoning from answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rocmforge.generation import EngineSteps, GeneratedToken, Generation, GenerationStats
from rocmforge.sampling import Draw
from rocmforge.sampling_params import SamplingParams
from rocmforge.text.reasoning import ReplyParts, history_name, marks_of
from rocmforge.text.tokenizer import Tokenizer

R = TypeVar("R")


class KeptSequence:
    """One sequence of an engine that outlives its generations: `EngineSteps` for one prompt.

    A prompt that begins with all the tokens that the sequence holds continues it. Any other prompt
    starts a new sequence, and so does the first one after a pass that was cut short.

    Parameters
    ----------
    engine
        Runs the passes.

    Attributes
    ----------
    prefilled : int
        Tokens of the last prompt that had to be run; the sequence held the others.
    """

    def __init__(self, engine: EngineSteps) -> None:
        self._engine = engine
        self._sequence: int | None = None
        self._held: list[int] = []
        self.prefilled = 0

    @property
    def ctx(self) -> int:
        """Most tokens of the sequence."""
        return self._engine.ctx

    def add_sequence(self, reserve_tokens: int = 0, owner: object = None) -> int:
        """Return 0, the name of the one sequence; its pages come as it grows."""
        return 0

    def remove_sequence(self, sequence: int) -> None:
        """Keep it: the next prompt may continue it."""

    def release(self, owner: object) -> None:
        """Keep it as well."""

    def clear(self) -> None:
        """Free the pages."""
        self._held, self._sequence = [], None
        self._engine.release(self)

    @property
    def length(self) -> int:
        """Tokens that it holds."""
        return len(self._held)

    def prefill(self, sequence: int, ids: Sequence[int]) -> NDArray[np.float32]:
        """Make the sequence hold `ids`; logits (V,) of the last of them."""
        return self._prefill(ids, self._engine.prefill)

    def prefill_token(self, sequence: int, ids: Sequence[int], draw: Draw) -> int:
        """Make the sequence hold `ids`; the token that follows them."""
        return self._prefill(ids, lambda where, new: self._engine.prefill_token(where, new, draw))

    def _prefill(self, ids: Sequence[int], run: Callable[[int, Sequence[int]], R]) -> R:
        where, kept = self._sequence, len(self._held)
        if where is None or not 0 < kept < len(ids) or list(ids[:kept]) != self._held:
            self.clear()
            where, kept = self._engine.add_sequence(owner=self), 0
            self._sequence = where
        self._held = []  # unknown if the pass is cut short
        try:
            result = run(where, ids[kept:])
        except BaseException:
            self.clear()
            raise
        self._held = list(ids)
        self.prefilled = len(ids) - kept
        return result

    def decode(self, sequences: Sequence[int], ids: Sequence[int]) -> NDArray[np.float32]:
        """Append one token; logits (1, V)."""
        return self._decode(ids, lambda where: self._engine.decode(where, ids))

    @property
    def runs_ahead(self) -> bool:
        """As the engine's."""
        return self._engine.runs_ahead

    def decode_tokens(
        self,
        sequences: Sequence[int],
        ids: Sequence[int],
        draws: Sequence[Draw],
        following: Sequence[Draw] | None = None,
    ) -> list[int]:
        """Append one token; the one that follows it."""
        engine = self._engine
        return self._decode(ids, lambda where: engine.decode_tokens(where, ids, draws, following))

    def _decode(self, ids: Sequence[int], run: Callable[[Sequence[int]], R]) -> R:
        if self._sequence is None:
            raise ValueError("sequence: got none, wanted a prefill before the first decode")
        held, self._held = self._held, []
        try:
            result = run([self._sequence])
        except BaseException:
            self.clear()
            raise
        held += ids
        self._held = held
        return result


@dataclass(frozen=True)
class ReplyToken(GeneratedToken):
    """One token of a reply; `text` is what it adds to the answer.

    Parameters
    ----------
    reasoning
        What it adds to the reasoning before the answer.
    """

    reasoning: str


class Conversation:
    """Messages so far, and the model's replies to further ones.

    Parameters
    ----------
    engine
        Runs the model.
    tokenizer
        The model's, with a chat template.
    params
        How every reply is sampled.
    system
        Text of the system message that opens the conversation; None: no such message.
    variables
        Of the chat template, see `Tokenizer.apply_chat_template`.

    Attributes
    ----------
    messages : list of dict
        Each with "role" and "content". Reasoning is no part of the content; it stands beside it
        where the chat template has a name for it.
    stats : GenerationStats
        Of the last reply; its prompt tokens are those that the sequence did not hold yet.
    kept_tokens : int
        Tokens of the last reply's prompt that the sequence held already.
    dropped : int
        Messages and replies that were dropped to make room for the last message.
    """

    def __init__(
        self,
        engine: EngineSteps,
        tokenizer: Tokenizer,
        params: SamplingParams,
        system: str | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> None:
        self._sequence = KeptSequence(engine)
        self._variables = variables
        self._tokenizer = tokenizer
        self._params = params
        self._opening = opening(system)
        template, special = tokenizer.chat_template or "", tokenizer.special_ids
        self._marks = marks_of(template, special)
        self._history_name = history_name(template)
        pieces = self._marks.tokens if self._marks else frozenset()
        self._mark_ids = frozenset(special[text] for text in pieces if text in special)
        self.stats = GenerationStats()
        self.kept_tokens = 0
        self.dropped = 0
        self.reset()

    @property
    def length(self) -> int:
        """Tokens of the context that are taken."""
        return self._sequence.length

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = list(self._opening)
        self._text = ""  # the last prompt with its reply,
        self._ids: list[int] = []  # and the ids of both
        self._sequence.clear()

    def ask(self, text: str) -> Generator[ReplyToken, None, None]:
        """Return the reply to a message, streaming; iterate to run it, close it to stop it early.

        Message and reply join the conversation when the iteration ends, early or not, if at least
        one token came. If they could fill the context, the oldest messages and their replies are
        dropped until half of what they may take is free; the system message stays.

        Raises
        ------
        ValueError
            The message alone is longer than the context; the conversation is as before.
        TokenizerError
            There is no chat template, or it refuses the conversation.
        """
        ctx = self._sequence.ctx
        messages = [*self.messages, {"role": "user", "content": text}]
        prompt, ids = self._prompt(messages)
        if len(ids) > ctx - min(self._params.max_tokens, ctx // 4):
            messages = self._shortened(messages)
            prompt, ids = self._prompt(messages)
        if not 0 < len(ids) <= ctx:
            raise ValueError(f"message: got {len(ids)} tokens, wanted 1 to {ctx} (ctx)")
        self.dropped = len(self.messages) + 1 - len(messages)
        return self._reply(messages, prompt, ids)

    def _shortened(self, messages: list[dict[str, str]]) -> list[dict[str, str]]:
        """Drop the oldest messages, with their replies, as `ask` says."""
        first = len(self._opening)
        pairs = (len(messages) - first - 1) // 2

        def without(dropped: int) -> list[dict[str, str]]:
            return messages[:first] + messages[first + 2 * dropped :]

        def length(dropped: int) -> int:
            return len(self._prompt(without(dropped))[1])

        most = (self._sequence.ctx + length(pairs)) // 2
        return without(bisect_left(range(pairs), True, key=lambda dropped: length(dropped) <= most))

    def _prompt(self, messages: list[dict[str, str]]) -> tuple[str, list[int]]:
        prompt = self._tokenizer.apply_chat_template(messages, variables=self._variables)
        return prompt, self._encode(prompt)

    def _reply(
        self, messages: list[dict[str, str]], prompt: str, ids: list[int]
    ) -> Generator[ReplyToken, None, None]:
        generation = Generation(
            self._sequence, [ids], [self._params], self._tokenizer, shown=self._mark_ids
        )
        self.stats, self.kept_tokens = generation.stats, 0
        parts = ReplyParts(self._marks, prompt)
        reply: list[int] = []
        text = ""
        try:
            for token in generation:
                reply.append(token.id)
                text += token.text
                reasoning, answer = parts.push(token.text)
                if token.finish_reason is not None:
                    more_reasoning, more_answer = parts.flush()
                    reasoning, answer = reasoning + more_reasoning, answer + more_answer
                yield ReplyToken(token.prompt, token.id, answer, token.finish_reason, reasoning)
        finally:
            if reply:
                self.stats.prompt_tokens = self._sequence.prefilled
                self.kept_tokens = len(ids) - self._sequence.prefilled
                parts.flush()
                message = {"role": "assistant", "content": parts.answer}
                if self._history_name and parts.reasoning:
                    message[self._history_name] = parts.reasoning
                self.messages = [*messages, message]
                if reply[-1] in self._tokenizer.end_ids:  # the template writes it again
                    reply.pop()
                self._text, self._ids = prompt + text, ids + reply
                if self._shown(reply, self._mark_ids) != text:
                    self._text, self._ids = "", []  # a stop string was cut off, or text is held

    def _encode(self, prompt: str) -> list[int]:
        """Ids of a prompt. A beginning that has run before keeps the ids that it ran with.

        A model may spell its reply in other tokens than the tokenizer would, and only the same ids
        continue the sequence. The rest must begin with a special token, so that cutting the text
        there changes none of its ids.
        """
        if self._ids and prompt.startswith(self._text):
            rest = self._tokenizer.encode(prompt[len(self._text) :], False, parse_special=True)
            if rest and not self._shown(rest[:1]):
                return self._ids + rest
        return self._tokenizer.encode(prompt, False, parse_special=True)

    def _shown(self, ids: list[int], special: frozenset[int] = frozenset()) -> str:
        return self._tokenizer.decode(ids, True, continuation=True, shown=special)


def opening(system: str | None) -> list[dict[str, str]]:
    """Return the messages that a conversation begins with."""
    return [] if system is None else [{"role": "system", "content": system}]
