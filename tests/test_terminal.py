"""Printing for the command line: what reaches a terminal, progress, sizes."""

from __future__ import annotations

import sys

import pytest

from rocmforge import quantities, terminal


def test_control_characters_do_not_reach_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_terminal in (False, True):
        monkeypatch.setattr(sys.stdout, "isatty", lambda value=is_terminal: value)
        out = terminal.Output()
        out.write("a\x1b[2J\tb\x9b\r\n")
        out.end()
        out.write("c")
        out.write("")
        out.end()
        shown = capsys.readouterr().out
        assert shown == ("a\ufffd[2J\tb\ufffd\nc\n" if is_terminal else "a\x1b[2J\tb\x9b\r\nc\n")


MOVING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c\u2028\u2029\x85"
HIDING = "\u2060\u2061\u206a\u206f\ufeff\ufff9\ufffb\U000e0001\U000e0041\ud800"
READABLE = (
    "👩\u200d👩\u200d👧 ❤\ufe0f می\u200cخواهم עִבְרִית العربية ក្រ\u200bខ្មែរ Sil\u00adbe",
    "\u0600\u06dd e\u0301 \u00a0\u3000\u2009 \ue000 你好",
)


def test_a_models_text_cannot_reorder_or_break_a_terminals_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(text: str, is_terminal: bool) -> str:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
        terminal.Output().write(text)
        return capsys.readouterr().out

    for character in MOVING + HIDING:
        assert shown(f"a{character}b", True) == "a\ufffdb"
        assert not character.isprintable()
    for text in READABLE:
        assert shown(text, True) == text
    assert shown(MOVING + HIDING[:-1], False) == MOVING + HIDING[:-1]


def test_progress_shows_only_where_and_when_it_should(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich take anything for a terminal
    monkeypatch.setattr(terminal, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with terminal.ProgressBar("loading") as bar:
        bar(1024, 2048)
    assert "1.0/2.0 KiB" in capsys.readouterr().err
    monkeypatch.setattr(terminal, "QUIET_SECONDS", 60.0)
    with terminal.ProgressBar("loading") as bar:
        bar(1, 2)
    assert capsys.readouterr().err == ""
    with terminal.ProgressBar("scoring", counts_bytes=False) as bar:
        bar(0, 2)  # long work begins
    assert "0/2" in capsys.readouterr().err


def test_progress_is_a_line_now_and_then_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter([0.0, 1.0, 5.0, 6.0, 10.5])
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(seconds))
    with terminal.ProgressBar("scoring", counts_bytes=False) as bar:
        for done in (100, 200, 300, 400):
            bar(done, 400)
    assert capsys.readouterr().err == "scoring: 200 of 400\nscoring: 400 of 400\n"
    seconds = iter([0.0, 9.0])
    with terminal.ProgressBar("loading") as bar:
        bar(1 << 20, 3 << 20)
    assert capsys.readouterr().err == "loading: 1.0 MiB of 3.0 MiB\n"


def test_text_of_foreign_origin_is_short_and_harmless() -> None:
    assert terminal.printable("a\x1b[2J\nb") == "a\ufffd[2J\ufffdb"
    shown = terminal.printable("x" * 10_000_000)
    assert len(shown) == terminal.LONGEST
    assert shown.endswith("x…")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (5 << 20, "5.0 MiB"),
        (3 << 29, "1.50 GiB"),
        (1 << 42, "4096.00 GiB"),
    ],
)
def test_sizes(number: int, text: str) -> None:
    assert quantities.human_size(number) == text


@pytest.mark.parametrize(
    ("number", "text"), [(7, "7"), (1500, "1.50 k"), (1_234_567, "1.23 M"), (7 * 10**9, "7.00 G")]
)
def test_counts(number: int, text: str) -> None:
    assert quantities.human_count(number) == text
