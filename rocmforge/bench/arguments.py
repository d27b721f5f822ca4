"""Command lines of the tools: percentages, expressions, names of figures, options that tools share.

The functions but the last are types for argparse, with errors that say more. Knows no tool.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from rocmforge.bench.plots import SUFFIXES


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


def add_judging(parser: argparse.ArgumentParser) -> None:
    """Add the options of what is judged, and by what: of tools that read asv's results."""
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="DIR", help="asv's (%(default)s)"
    )
    parser.add_argument(
        "--machine", metavar="NAME", help="folder in DIR (default: the only one, or this machine's)"
    )
    parser.add_argument(
        "--threshold",
        type=fraction,
        metavar="PERCENT",
        help="e.g. 10 or 2.5%% (default: regressions_thresholds of asv.conf.json, else 10)",
    )
    parser.add_argument(
        "--noise",
        type=Path,
        metavar="FILE",
        help="a file of repeatability.py (default: that of this hardware in baselines/, if any)",
    )
    parser.add_argument(
        "--benchmark",
        type=expression,
        metavar="REGEX",
        help="only benchmarks in whose name(parameters) this is found",
    )
