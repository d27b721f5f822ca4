"""Values of command lines: what they mean, and what is refused."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from rocmforge.bench.arguments import expression, figures, fraction


@pytest.mark.parametrize(
    ("text", "value"), [("10", 0.1), ("2.5%", 0.025), (" 15 % ", 0.15), ("0.5%", 0.005)]
)
def test_percentages(text: str, value: float) -> None:
    assert fraction(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["0", "-1", "0.1", "ten", "", "0%", "1e1", "10 % %"])
def test_what_is_no_percentage(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="wanted percent"):
        fraction(text)


def test_expressions() -> None:
    assert expression("a.c").search("xabc")
    with pytest.raises(argparse.ArgumentTypeError, match=r"got '\(', wanted an expression"):
        expression("(")


def test_figures() -> None:
    assert figures("a/b.svg") == Path("a/b.svg")
    assert figures("folder") == Path("folder")
    with pytest.raises(argparse.ArgumentTypeError, match=r"wanted a name .* \.svg"):
        figures("a.gif")
