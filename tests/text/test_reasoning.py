"""Reasoning is told from the answer, wherever a piece of the reply ends."""

from __future__ import annotations

import pytest

from rocmforge.text.reasoning import MARKS, Marks, ReplyParts, history_name, marks_of

THINK, GRANITE = MARKS["<think>"], MARKS["<response></response>"]
HARMONY = MARKS["<|channel|>analysis<|message|>"]
ANALYSIS = "<|channel|>analysis<|message|>"
COMMENTARY = "<|start|>assistant<|channel|>commentary<|message|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>"

# marks, end of the prompt, reply, its reasoning, its answer
REPLIES = {
    "both": (THINK, "", "<think>\nOne two\n</think>\n\nThree.", "One two", "Three."),
    "opened by the prompt": (
        THINK,
        "<think>\n",
        "One\n\ntwo\n</think>\nThree",
        "One\n\ntwo",
        "Three",
    ),
    "closed by the prompt": (THINK, "<think>\n\n</think>\n\n", " Three ", "", " Three "),
    "empty": (THINK, "", "<think>\n\n</think>\n\nThree", "", "Three"),
    "never closed": (THINK, "", "<think>One <two </thin", "One <two </thin", ""),
    "opened by the prompt, never closed": (THINK, "<think>", "One\n", "One", ""),
    "no mark": (THINK, "", "\n One < two </think> ", "", "\n One < two </think> "),
    "a mark in the answer": (THINK, "", "Write <think> first", "", "Write <think> first"),
    "a second opening": (THINK, "", "<think>a<think>b</think>c<think>d", "a<think>b", "c<think>d"),
    "almost a mark": (THINK, "", "<<think>> <think", "", "<<think>> <think"),
    "blanks before": (THINK, "", " \n<think>One</think>Two", "One", "Two"),
    "seed": (MARKS["<seed:think>"], "", "<seed:think>a</seed:think>b", "a", "b"),
    "granite": (GRANITE, "", "<think>a</think><response>b\n\nc</response>", "a", "b\n\nc"),
    "harmony": (HARMONY, "", f"{ANALYSIS}One<|end|>{FINAL}Two", "One", "Two"),
    "harmony, answer alone": (HARMONY, "", "<|channel|>final<|message|>Two", "", "Two"),
    "harmony, opened by the prompt": (HARMONY, ANALYSIS, f"One<|end|>{FINAL}Two", "One", "Two"),
    "harmony, twice": (
        HARMONY,
        "",
        f"{ANALYSIS}a<|end|>{COMMENTARY}b<|end|><|start|>assistant{ANALYSIS}c<|end|>{FINAL}d",
        "a\n\nc",
        "b\n\nd",
    ),
    "unmarked model": (None, "<think>", "<think>a</think>b ", "", "<think>a</think>b "),
}


def parts_of(marks: Marks | None, prompt: str, pieces: list[str]) -> tuple[str, str]:
    """Return the parts of a reply; what push and flush return must add up to them."""
    parts = ReplyParts(marks, f"<user>Hello<assistant>{prompt}")
    said = [*(parts.push(piece) for piece in pieces), parts.flush()]
    reasoning, answer = ("".join(column) for column in zip(*said, strict=True))
    assert (reasoning, answer) == (parts.reasoning, parts.answer)
    return reasoning, answer


@pytest.mark.parametrize("name", REPLIES)
def test_a_reply_is_cut_alike_however_it_comes(name: str) -> None:
    marks, prompt, reply, *wanted = REPLIES[name]
    for size in range(1, len(reply) + 1):
        pieces = [reply[at : at + size] for at in range(0, len(reply), size)]
        assert parts_of(marks, prompt, pieces) == tuple(wanted), size
    for at in range(len(reply)):
        assert parts_of(marks, prompt, [reply[:at], "", reply[at:]]) == tuple(wanted), at


def test_text_comes_as_soon_as_it_is_certain() -> None:
    parts = ReplyParts(THINK, "")
    said = [
        parts.push(piece) for piece in ("<th", "ink>One", " two", " </th", "e", "</think>", "Three")
    ]
    assert said == [
        ("", ""),
        ("One", ""),
        (" two", ""),
        ("", ""),
        (" </the", ""),
        ("", ""),
        ("", "Three"),
    ]


def test_blanks_behind_a_mark_are_dropped_however_many_come() -> None:
    parts = ReplyParts(THINK, "<think>")
    assert {parts.push(" ") for _ in range(1000)} == {("", "")}
    assert parts.push("x \n") == ("x", "")
    assert parts.push("y</think>") == (" \ny", "")


@pytest.mark.parametrize(
    ("template", "special", "wanted"),
    [
        ("{% if '</think>' in content %}", [], THINK),
        ("{{ '<think>' + reasoning_content + '</think>' }}", [], THINK),
        ("between <think></think> and your response between <response></response>", [], GRANITE),
        ("{{ '<|channel|>analysis<|message|>' }} <think>", [], HARMONY),
        ("{{ '[THINK]' }}", [], MARKS["[THINK]"]),
        ("<|START_THINKING|><|END_THINKING|>", [], MARKS["<|START_THINKING|>"]),
        ("<|end|>", [], None),  # Phi 3
        ("", ["<think>", "</think>"], THINK),
        ("", ["<think>"], None),
        ("", [], None),
    ],
)
def test_marks_are_found_in_the_template_or_the_vocabulary(
    template: str, special: list[str], wanted: Marks | None
) -> None:
    assert marks_of(template, special) == wanted


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ("{% if message.reasoning_content is string %}", "reasoning_content"),
        ("{{ message['reasoning_content'] }}", "reasoning_content"),
        ('{% if "thinking" in message %}{{ message.thinking }}', "thinking"),
        ("{% if enable_thinking %}", None),
    ],
)
def test_the_name_of_earlier_reasoning(template: str, wanted: str | None) -> None:
    assert history_name(template) == wanted
