"""Reasoning before a reply: which marks a model writes around it, and cutting a stream at them.

`marks_of` finds a model's in its chat template or vocabulary;
`ReplyParts` cuts what the model writes, piece by piece, also where a piece ends inside a mark.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from rocmforge.text.stream_ends import beginning_at_end


class Marks(NamedTuple):
    """How a family of models marks its reasoning.

    `opening` and `closing` stand around it. `dropped` are other marks of the answer, which are not
    part of its text. `repeated`: reasoning may come again after text of the answer.
    """

    opening: str
    closing: str
    dropped: tuple[str, ...] = ()
    repeated: bool = False

    @property
    def all(self) -> tuple[str, ...]:
        """Every mark."""
        return (self.opening, self.closing, *self.dropped)

    @property
    def tokens(self) -> frozenset[str]:
        """What may be a special token in them: each piece in brackets, whole."""
        return frozenset(re.findall(r"<[^<>]+>|\[[^\[\]]+\]", "".join(self.all)))


_HARMONY = Marks(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    (
        "<|start|>assistant",
        "<|channel|>final<|message|>",
        "<|channel|>commentary<|message|>",
        "<|end|>",
    ),
    repeated=True,
)
_COHERE = Marks(
    "<|START_THINKING|>",
    "<|END_THINKING|>",
    ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
)
_THINK = Marks("<think>", "</think>")

MARKS: Mapping[str, Marks] = MappingProxyType(
    {
        _HARMONY.opening: _HARMONY,  # gpt-oss
        _COHERE.opening: _COHERE,  # Command R7B, Command A
        "<seed:think>": Marks("<seed:think>", "</seed:think>"),  # Seed-OSS
        "[THINK]": Marks("[THINK]", "[/THINK]"),  # Magistral, Ministral 3
        "<response></response>": Marks(*_THINK[:2], ("<response>", "</response>")),  # Granite 3.3
        "<think>": _THINK,
        "</think>": _THINK,  # the template takes it out of earlier replies
    }
)
"""What stands in a chat template → the marks of its model; the first that it has counts."""

_HISTORY_NAMES = ("reasoning_content", "thinking")


def marks_of(template: str, special: Collection[str]) -> Marks | None:
    """Return the marks that a chat template names, else those that are special tokens.

    Parameters
    ----------
    template
        Its source.
    special
        Texts of the vocabulary's control and user-defined tokens.

    Returns
    -------
    None where neither has a mark.
    """
    for text, marks in MARKS.items():
        if text in template:
            return marks
    known = set(special)
    plainest_first = reversed(tuple(MARKS.values()))
    return next((marks for marks in plainest_first if {*marks[:2]} <= known), None)


def history_name(template: str) -> str | None:
    """Return the name under which a template reads the reasoning of earlier replies, or None."""
    names = (f"{quote}{name}" for name in _HISTORY_NAMES for quote in (".", "'", '"'))
    return next((name[1:] for name in names if name in template), None)


class ReplyParts:
    """Cuts a reply, which comes in pieces, into reasoning and answer.

    Blanks beside marks are dropped; a reply without a mark stays as it is. Reasoning whose closing
    mark does not come is all that follows.

    Parameters
    ----------
    marks
        The model's; None: it does not mark reasoning, all is answer and comes at once.
    prompt
        The prompt's text: where it ends with the opening mark, the reply begins inside.

    Attributes
    ----------
    reasoning, answer : str
        All that is certain so far.
    """

    def __init__(self, marks: Marks | None, prompt: str) -> None:
        self._marks = marks
        self._inside = marks is not None and prompt.rstrip().endswith(marks.opening)
        self._marked = self._inside  # whether any mark came
        self._behind_mark = self._inside  # and nothing but blanks since
        self._held = ""  # could be the beginning of a mark
        self._blanks = ""  # stand before the next text of their part, if any comes
        self.reasoning = ""
        self.answer = ""

    def push(self, text: str) -> tuple[str, str]:
        """Take a piece; return what it adds to (reasoning, answer), perhaps nothing."""
        if self._marks is None:
            self.answer += text
            return "", text
        return self._cut(self._held + text, ended=False)

    def flush(self) -> tuple[str, str]:
        """Return what is held back, as `push` does: no more pieces come."""
        return self._cut(self._held, ended=True)

    def _cut(self, text: str, ended: bool) -> tuple[str, str]:
        reasoning, answer = len(self.reasoning), len(self.answer)
        while found := self._first_mark(text):
            at, mark = found
            self._add(text[:at])
            text = text[at + len(mark) :]
            self._inside = self._marks is not None and mark == self._marks.opening
            self._marked = self._behind_mark = True
            part = self.reasoning if self._inside else self.answer
            self._blanks = "\n\n" if part else ""
        cut = [] if ended else [beginning_at_end(text, mark) for mark in self._wanted()]
        keep = max(cut, default=0)
        self._held = text[len(text) - keep :]
        self._add(text[: len(text) - keep])
        if ended and not self._marked:
            self.answer, self._blanks = self.answer + self._blanks, ""
        return self.reasoning[reasoning:], self.answer[answer:]

    def _first_mark(self, text: str) -> tuple[int, str] | None:
        """Return the place and text of the first mark, of two at one place the longer."""
        found = [(at, -len(mark), mark) for mark in self._wanted() if (at := text.find(mark)) >= 0]
        if self._marks and not self._inside and not self._marks.repeated:
            found = [
                one for one in found if one[2] != self._marks.opening or not text[: one[0]].strip()
            ]
        at, _, mark = min(found, default=(-1, 0, ""))
        return (at, mark) if mark else None

    def _wanted(self) -> tuple[str, ...]:
        """Return the marks that have a meaning here."""
        marks = self._marks
        if marks is None:
            return ()
        if self._inside:
            return (marks.closing,)
        if marks.repeated or not self.answer:
            return (marks.opening, *marks.dropped)
        return marks.dropped

    def _add(self, text: str) -> None:
        if self._behind_mark:
            text = text.lstrip()
        shown = text.rstrip()
        if not shown:
            self._blanks += text
            return
        shown, self._blanks = self._blanks + shown, text[len(shown) :]
        self._behind_mark = False
        if self._inside:
            self.reasoning += shown
        else:
            self.answer += shown
