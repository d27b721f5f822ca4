"""Conversations: what is kept between turns and what is run again; replies do not depend on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from rocmforge.chat import Conversation, KeptSequence
from rocmforge.engine import Engine
from rocmforge.model.synthetic import make_model
from rocmforge.sampling import Draw, SamplingParams
from rocmforge.text.tokenizer import Tokenizer

Result = TypeVar("Result")


class Recorder:
    """An engine behind which every pass is written down; `fail` makes the next one raise."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.ctx = engine.ctx
        self.prefilled: list[list[int]] = []
        self.fail = False

    def add_sequence(self, reserve_tokens: int = 0, owner: object = None) -> int:
        return self.engine.add_sequence(reserve_tokens, owner)

    def remove_sequence(self, sequence: int) -> None:
        self.engine.remove_sequence(sequence)

    def release(self, owner: object) -> None:
        self.engine.release(owner)

    def prefill(self, sequence: int, ids: Sequence[int]) -> NDArray[np.float32]:
        self.prefilled.append(list(ids))
        return self._checked(self.engine.prefill(sequence, ids))

    def prefill_token(self, sequence: int, ids: Sequence[int], draw: Draw) -> int:
        self.prefilled.append(list(ids))
        return self._checked(self.engine.prefill_token(sequence, ids, draw))

    def decode(self, sequences: Sequence[int], ids: Sequence[int]) -> NDArray[np.float32]:
        return self._checked(self.engine.decode(sequences, ids))

    @property
    def runs_ahead(self) -> bool:
        return self.engine.runs_ahead

    def decode_tokens(
        self,
        sequences: Sequence[int],
        ids: Sequence[int],
        draws: Sequence[Draw],
        following: Sequence[Draw] | None = None,
    ) -> list[int]:
        return self._checked(self.engine.decode_tokens(sequences, ids, draws, following))

    def _checked(self, result: Result) -> Result:
        if self.fail:
            self.fail = False
            raise KeyboardInterrupt
        return result


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "tiny.gguf", "tiny", "Q8_0", layers=2)


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.from_gguf(model)


@pytest.fixture
def recorder(model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    monkeypatch.setenv("ROCMFORGE_CPU_EXACT", "1")
    with Engine.from_gguf(model, "cpu", ctx=256, threads=1) as engine:
        yield Recorder(engine)


def ids_of(reply: Iterator[object]) -> list[int]:
    return [token.id for token in reply]  # type: ignore[attr-defined]


def text_of(reply: Iterator[object]) -> str:
    return "".join(token.text for token in reply)  # type: ignore[attr-defined]


# --- the kept sequence


def test_only_what_is_not_held_is_run(recorder: Recorder) -> None:
    kept = KeptSequence(recorder)
    kept.prefill(0, [1, 5, 6])
    kept.decode([0], [7])
    assert kept.length == 4
    logits = kept.prefill(0, [1, 5, 6, 7, 8, 9])
    assert recorder.prefilled == [[1, 5, 6], [8, 9]]
    assert kept.prefilled == 2
    np.testing.assert_allclose(
        logits, recorder.engine.logits([1, 5, 6, 7, 8, 9])[-1], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("ids", [[1, 5, 8, 9], [1, 5], [1, 5, 6]])
def test_another_beginning_starts_anew(recorder: Recorder, ids: list[int]) -> None:
    kept = KeptSequence(recorder)
    kept.prefill(0, [1, 5, 6])
    kept.prefill(0, ids)
    assert recorder.prefilled == [[1, 5, 6], ids]
    assert kept.length == len(ids)


@pytest.mark.parametrize("step", ["prefill", "decode"])
def test_after_a_pass_that_was_cut_short_all_is_run_again(recorder: Recorder, step: str) -> None:
    allocator = recorder.engine.cache.table.allocator
    kept = KeptSequence(recorder)
    kept.prefill(0, [1, 5, 6])
    recorder.fail = True
    with pytest.raises(KeyboardInterrupt):
        kept.decode([0], [7]) if step == "decode" else kept.prefill(0, [1, 5, 6, 7])
    assert allocator.n_free == allocator.n_pages
    assert kept.length == 0
    kept.prefill(0, [1, 5, 6, 7])
    assert recorder.prefilled[-1] == [1, 5, 6, 7]


def test_decode_needs_a_prefill(recorder: Recorder) -> None:
    with pytest.raises(ValueError, match="wanted a prefill"):
        KeptSequence(recorder).decode([0], [1])


# --- conversations


def test_turns_reuse_what_is_held_and_say_the_same(
    recorder: Recorder, tokenizer: Tokenizer
) -> None:
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    conversation = Conversation(recorder, tokenizer, params, system="Be brief")
    first = ids_of(conversation.ask("Hello"))
    prompt = recorder.prefilled[0]
    assert conversation.kept_tokens == 0
    second = ids_of(conversation.ask("And more"))
    new = recorder.prefilled[1]
    held = prompt + first[:-1]  # the last token was sampled but never run
    assert conversation.kept_tokens == len(held)
    assert conversation.stats.prompt_tokens == len(new) < len(held)
    alone = list(recorder.engine.generate([held + new], params, tokenizer))
    assert second == [token.id for token in alone]
    assert [m["role"] for m in conversation.messages] == [
        *("system", "user", "assistant", "user", "assistant")
    ]


def test_the_templates_end_token_is_not_written_twice(
    recorder: Recorder, tokenizer: Tokenizer
) -> None:
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    greedy = ids_of(Conversation(recorder, tokenizer, params).ask("Hello"))
    end = tokenizer.eos_id
    assert end is not None

    class Ending(Recorder):
        """Makes EOS the token of the second step behind the first prompt."""

        steps = 0

        def decode_tokens(
            self,
            sequences: Sequence[int],
            ids: Sequence[int],
            draws: Sequence[Draw],
            following: Sequence[Draw] | None = None,
        ) -> list[int]:
            self.steps += 1
            tokens = super().decode_tokens(sequences, ids, draws, following)
            return [end] if self.steps == 2 else tokens

    ending = Ending(recorder.engine)
    conversation = Conversation(ending, tokenizer, SamplingParams(max_tokens=8))
    assert ids_of(conversation.ask("Hello")) == [*greedy[:2], end]
    list(conversation.ask("More"))
    assert ending.prefilled[1][0] == end
    assert ending.prefilled[1].count(end) == 2  # of the reply, and of the new message


def test_a_reply_cut_by_a_stop_string_is_encoded_again(
    recorder: Recorder, tokenizer: Tokenizer
) -> None:
    text = text_of(Conversation(recorder, tokenizer, SamplingParams(max_tokens=8)).ask("Hello"))
    stop = text[4:6]
    params = SamplingParams(max_tokens=8, stop=(stop,))
    conversation = Conversation(recorder, tokenizer, params)
    shown = text_of(conversation.ask("Hello"))
    assert shown == text[: text.index(stop)]
    list(conversation.ask("More"))
    assert conversation.kept_tokens == 0
    whole = tokenizer.apply_chat_template(
        [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": shown},
            {"role": "user", "content": "More"},
        ]
    )
    assert recorder.prefilled[-1] == tokenizer.encode(whole, False, parse_special=True)


def test_reset_forgets_all_but_the_system_message(recorder: Recorder, tokenizer: Tokenizer) -> None:
    conversation = Conversation(recorder, tokenizer, SamplingParams(max_tokens=4), "Be brief")
    before = text_of(conversation.ask("Hello"))
    text_of(conversation.ask("More"))
    conversation.reset()
    assert conversation.messages == [{"role": "system", "content": "Be brief"}]
    allocator = recorder.engine.cache.table.allocator
    assert allocator.n_free == allocator.n_pages
    assert text_of(conversation.ask("Hello")) == before


def test_a_closed_reply_stays_as_far_as_it_came(recorder: Recorder, tokenizer: Tokenizer) -> None:
    conversation = Conversation(recorder, tokenizer, SamplingParams(max_tokens=8, ignore_eos=True))
    reply = conversation.ask("Hello")
    part = next(reply).text + next(reply).text
    reply.close()
    assert conversation.messages[-1] == {"role": "assistant", "content": part}
    assert conversation.stats.generated_tokens == 2
    assert len(ids_of(conversation.ask("More"))) == 8


def test_an_interrupted_prefill_leaves_the_conversation_as_it_was(
    recorder: Recorder, tokenizer: Tokenizer
) -> None:
    conversation = Conversation(recorder, tokenizer, SamplingParams(max_tokens=4))
    recorder.fail = True
    with pytest.raises(KeyboardInterrupt):
        list(conversation.ask("Hello"))
    assert conversation.messages == []
    assert len(ids_of(conversation.ask("Hello"))) == 4


def test_a_message_longer_than_the_context_is_refused_and_the_conversation_kept(
    recorder: Recorder, tokenizer: Tokenizer
) -> None:
    conversation = Conversation(recorder, tokenizer, SamplingParams(max_tokens=4))
    list(conversation.ask("Hello"))
    messages = list(conversation.messages)
    with pytest.raises(ValueError, match=r"message: got \d+ tokens, wanted 1 to 256"):
        conversation.ask("word " * 300)
    assert conversation.messages == messages
    assert len(ids_of(conversation.ask("Short"))) == 4


def test_the_oldest_messages_are_dropped_where_the_context_would_be_full(
    recorder: Recorder, tokenizer: Tokenizer
) -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    conversation = Conversation(recorder, tokenizer, params, system="Be brief")
    dropped = []
    for i in range(8):
        before = list(conversation.messages)
        assert len(ids_of(conversation.ask(f"Message {i}"))) == 40
        dropped.append(conversation.dropped)
        kept = before[1 + conversation.dropped :]
        assert conversation.messages[:-2] == [*before[:1], *kept]
    assert dropped[0] == 0
    assert sum(dropped) >= 4
    assert dropped.count(0) >= 4  # half of the context is free each time
    assert [m["role"] for m in conversation.messages[:3]] == ["system", "user", "assistant"]
    assert conversation.length <= recorder.ctx


def test_a_long_opening_leaves_room_for_what_was_said(
    recorder: Recorder, tokenizer: Tokenizer
) -> None:
    params = SamplingParams(max_tokens=10, ignore_eos=True)
    opening = "word " * 40
    conversation = Conversation(recorder, tokenizer, params, system=opening)
    for i in range(12):
        list(conversation.ask(f"Message {i}"))
        assert conversation.length <= recorder.ctx
        assert conversation.messages[0] == {"role": "system", "content": opening}
        assert len(conversation.messages) >= min(2 * i + 3, 5)  # one exchange before this one
    assert conversation.dropped < len(conversation.messages)


def test_messages_are_dropped_after_few_looks(
    recorder: Recorder, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = Conversation(recorder, tokenizer, SamplingParams(max_tokens=2))
    said = [{"role": role, "content": "hi"} for _ in range(100) for role in ("user", "assistant")]
    conversation.messages = said
    rendered = []
    apply = tokenizer.apply_chat_template
    monkeypatch.setattr(
        tokenizer, "apply_chat_template", lambda m, **_: rendered.append(len(m)) or apply(m)
    )
    list(conversation.ask("Hello"))
    assert conversation.dropped > 100
    assert len(rendered) < 12


def test_a_reply_may_fill_the_context(recorder: Recorder, tokenizer: Tokenizer) -> None:
    params = SamplingParams(max_tokens=1000, ignore_eos=True)
    conversation = Conversation(recorder, tokenizer, params)
    tokens = list(conversation.ask("Hello"))
    assert tokens[-1].finish_reason == "length"
    assert conversation.length == recorder.ctx
    next(conversation.ask("More"))
    assert conversation.dropped == 2
