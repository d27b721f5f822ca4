"""Reasoning in conversations: it is told from the answer, and the next prompt has the answer alone.

The replies are written here: the engine returns their tokens one by one.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rocmforge.chat import Conversation, ReplyToken
from rocmforge.cli import main
from rocmforge.model.synthetic import make_model
from rocmforge.sampling import Draw, SamplingParams
from rocmforge.text.subwords import BYTE_OF
from rocmforge.text.tokenizer import Tokenizer
from rocmforge.text.vocabulary import TokenType

PLAIN = "{% for m in messages %}<s>{{ m.role }}:{{ m.content }}<e>{% endfor %}<s>assistant:"
NAMED = (
    "{% for m in messages %}<s>{{ m.role }}:"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}<e>"
    "{% endfor %}<s>assistant:<think>"
)
HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{# <|channel|>analysis<|message|> #}<|start|>assistant"
)
SPECIAL = {
    **dict.fromkeys(("<s>", "<e>", "<|start|>", "<|end|>", "<|return|>", "<|call|>"), "control"),
    **dict.fromkeys(("<|channel|>", "<|message|>", "[THINK]", "[/THINK]"), "control"),
    **dict.fromkeys(("<think>", "</think>"), "user-defined"),
    **dict.fromkeys(("think", "[/"), "control"),  # parts of marks
}


def tokenizer_of(template: str) -> Tokenizer:
    kinds = {"control": TokenType.CONTROL, "user-defined": TokenType.USER_DEFINED}
    tokens = [*BYTE_OF, *SPECIAL]
    types = [TokenType.NORMAL] * len(BYTE_OF) + [kinds[kind] for kind in SPECIAL.values()]
    return Tokenizer(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": np.array(types, np.int32),
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.eos_token_id": tokens.index("<e>"),
            "tokenizer.chat_template": template,
        }
    )


class Speaker:
    """An engine whose replies are known; `prompts` are the texts that it was given."""

    ctx = 4096
    runs_ahead = False

    def __init__(self, tokenizer: Tokenizer, replies: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._replies = [tokenizer.encode(reply, False, parse_special=True) for reply in replies]
        self._rest: list[int] = []
        self.prompts: list[str] = []

    def add_sequence(self, reserve_tokens: int = 0, owner: object = None) -> int:
        return 0

    def remove_sequence(self, sequence: int) -> None:
        """Keep nothing."""

    def release(self, owner: object) -> None:
        """Keep nothing."""

    def prefill(self, sequence: int, ids: Sequence[int]) -> NDArray[np.float32]:
        raise NotImplementedError

    def decode(self, sequences: Sequence[int], ids: Sequence[int]) -> NDArray[np.float32]:
        raise NotImplementedError

    def prefill_token(self, sequence: int, ids: Sequence[int], draw: Draw) -> int:
        self.prompts.append(self._tokenizer.decode(ids))
        self._rest = self._replies.pop(0)
        return self._rest.pop(0)

    def decode_tokens(self, *arguments: Any) -> list[int]:
        return [self._rest.pop(0)]


def talk(template: str, *replies: str, **params: Any) -> tuple[Conversation, Speaker]:
    tokenizer = tokenizer_of(template)
    speaker = Speaker(tokenizer, replies)
    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 500, **params})
    return Conversation(speaker, tokenizer, sampling), speaker


def parts_of(tokens: Sequence[ReplyToken]) -> tuple[str, str]:
    return "".join(t.reasoning for t in tokens), "".join(t.text for t in tokens)


def test_reasoning_is_told_apart_and_not_sent_back() -> None:
    template = PLAIN + "{# </think> #}"
    conversation, speaker = talk(template, "<think>\nHm\n</think>\n\nYes<e>", "No<e>")
    assert parts_of(list(conversation.ask("a"))) == ("Hm", "Yes")
    assert conversation.messages[-1] == {"role": "assistant", "content": "Yes"}
    assert parts_of(list(conversation.ask("b"))) == ("", "No")
    assert speaker.prompts[1] == "<s>user:a<e><s>assistant:Yes<e><s>user:b<e><s>assistant:"


def test_a_template_that_names_reasoning_gets_it_and_may_open_it() -> None:
    conversation, speaker = talk(NAMED, "Hm</think>Yes<e>", "So</think>No<e>")
    assert parts_of(list(conversation.ask("a"))) == ("Hm", "Yes")
    wanted = {"role": "assistant", "content": "Yes", "reasoning_content": "Hm"}
    assert conversation.messages[-1] == wanted
    list(conversation.ask("b"))
    assert "<s>assistant:(Hm)Yes<e>" in speaker.prompts[1]


def test_channels_of_gpt_oss() -> None:
    reply = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>"
    conversation, speaker = talk(HARMONY, f"{reply}Yes<|return|>", f"{reply}No<|return|>")
    assert parts_of(list(conversation.ask("a"))) == ("Hm", "Yes")
    list(conversation.ask("b"))
    turns = "<|start|>user<|message|>a<|end|><|start|>assistant<|message|>Yes<|end|>"
    assert speaker.prompts[1].startswith(turns)


def test_marks_that_are_control_tokens_are_found_and_not_shown() -> None:
    template = PLAIN + "{# [THINK] #}"
    conversation, _ = talk(template, "[THINK]Hm[/THINK]Yes<e>")
    assert parts_of(list(conversation.ask("a"))) == ("Hm", "Yes")


@pytest.mark.parametrize("part", ["think", "[/"])
@pytest.mark.parametrize("opening", ["<think>", "[THINK]"])
def test_a_control_token_that_is_a_part_of_a_mark_is_not_shown(opening: str, part: str) -> None:
    closing = f"{opening[0]}/{opening[1:]}"
    conversation, _ = talk(f"{PLAIN}{{# {opening} #}}", f"{opening}Hm{closing}Yes{part}!<e>")
    assert parts_of(list(conversation.ask("a"))) == ("Hm", "Yes!")


def test_a_reply_without_marks_is_as_before() -> None:
    conversation, speaker = talk(PLAIN, " Yes \n<e>", "No<e>")
    assert parts_of(list(conversation.ask("a"))) == ("", " Yes \n")
    list(conversation.ask("b"))
    assert speaker.prompts[1] == "<e><s>user:b<e><s>assistant:"  # the rest is held


@pytest.mark.parametrize("max_tokens", [4, 12])
def test_reasoning_that_is_cut_leaves_an_empty_answer(max_tokens: int) -> None:
    conversation, _ = talk(NAMED, "Hm, let me see</think>Yes<e>", max_tokens=max_tokens)
    tokens = list(conversation.ask("a"))
    assert parts_of(tokens) == ("Hm, let me see"[:max_tokens].rstrip(), "")
    assert tokens[-1].finish_reason == "length"
    assert conversation.messages[-1]["content"] == ""


def test_a_closed_reply_keeps_the_reasoning_that_came() -> None:
    conversation, _ = talk(NAMED, "Hm</think>Yes<e>")
    reply = conversation.ask("a")
    next(reply)
    reply.close()
    assert conversation.messages[-1]["reasoning_content"] == "H"


def test_a_message_of_gpt_oss_does_not_end_the_turn() -> None:
    ids = tokenizer_of(HARMONY).special_ids
    assert tokenizer_of(HARMONY).end_ids == {ids["<e>"], ids["<|return|>"], ids["<|call|>"]}


class Thinker(Conversation):
    """Answers each message with the same tokens."""

    def ask(self, text: str) -> Any:
        return self._say()

    def _say(self) -> Iterator[ReplyToken]:
        yield ReplyToken(0, 1, "", None, "H")
        yield ReplyToken(0, 1, "", None, "m\n\x1b[2Jx")
        yield ReplyToken(0, 1, "Ye", None, "!")
        yield ReplyToken(0, 1, "s", "stop", "")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return str(make_model(path, "tiny", "Q8_0", layers=1))


@pytest.mark.parametrize(
    ("terminal", "option", "out", "err"),
    [
        (False, "show", "Yes\n", "Hm\n\ufffd[2Jx!\n"),
        (False, "hide", "Yes\n", ""),
        (True, "hide", "Yes\n", ""),
        (
            True,
            "show",
            "\x1b[2mH\x1b[22m\x1b[2mm\n\ufffd[2Jx\x1b[22m\x1b[2m!\x1b[22m\n\nYes\n",
            "",
        ),
    ],
)
def test_chat_shows_reasoning_apart_from_the_answer(
    model: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
    option: str,
    out: str,
    err: str,
) -> None:
    monkeypatch.setattr("rocmforge.commands.Conversation", Thinker)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hello\n"), "utf-8"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert main(["chat", model, *([] if option == "show" else ["--reasoning", option])]) == 0
    captured = capsys.readouterr()
    assert captured.out == out
    assert captured.err.startswith(err)
    assert captured.err.removeprefix(err).count("\n") == 1  # the timings
    assert ("Hm" in captured.err) == ("Hm" in err)
