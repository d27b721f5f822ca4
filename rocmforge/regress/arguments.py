"""Values of command lines: percentages, expressions, names of figures, with errors that say more.

Each is a type for argparse. Knows no tool.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from rocmforge.regress.figure import SUFFIXES


def fraction(text: str) -> float:
    """Return 0.1 for "10" and "10 %"; below one percent the sign must be written.

    Raises
    ------
    argparse.ArgumentTypeError
        It is no percentage above 0.
    """
    number = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%?)", text.strip())
    percent = float(number[1]) if number else 0.0
    if number is None or percent <= 0 or (percent < 1 and not number[2]):
        raise argparse.ArgumentTypeError(
            f"got {text!r}, wanted percent: 10 is 10 %; below one write the sign, e.g. 0.5%"
        )
    return percent / 100


def expression(text: str) -> re.Pattern[str]:
    """Return a compiled expression.

    Raises
    ------
    argparse.ArgumentTypeError
        It is none.
    """
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted an expression: {error}") from error


def figure(text: str) -> Path:
    """Return the path of a figure.

    Raises
    ------
    argparse.ArgumentTypeError
        The name ends in something that is not drawn.
    """
    if Path(text).suffix not in SUFFIXES:
        raise argparse.ArgumentTypeError(
            f"got {text!r}, wanted a name that ends in {', '.join(SUFFIXES)}"
        )
    return Path(text)


def figures(text: str) -> Path:
    """Return the path of a figure, or of a folder for several; errors as of `figure`."""
    return figure(text) if Path(text).suffix else Path(text)
