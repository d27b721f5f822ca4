"""Options that subcommands share, and types for argparse whose errors say what was wanted."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

from rocmforge.bench.defaults import OTHERS_LIMIT, PROFILES, RESULTS


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


def share(text: str) -> float:
    """Return 0.2 for "20"; argparse.ArgumentTypeError for what is not 0 to 100."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted 0 to 100")
    return value / 100


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a type of whole numbers in a range."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least or (most and int(text) > most):
            wanted = f"{least} to {most}" if most else f"{least} or more"
            raise argparse.ArgumentTypeError(f"got {text!r}, wanted {wanted}")
        return int(text)

    return number


def wholes(least: int, most: int | None = None) -> Callable[[str], list[int]]:
    """Return a type of lists of whole numbers in a range, with commas between them."""
    number = whole(least, most)
    return lambda text: [number(part.strip()) for part in text.split(",")]


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
    from rocmforge.bench.plots import SUFFIXES

    if Path(text).suffix not in SUFFIXES:
        raise argparse.ArgumentTypeError(
            f"got {text!r}, wanted a name that ends in {', '.join(SUFFIXES)}"
        )
    return Path(text)


def figures(text: str) -> Path:
    """Return the path of a figure, or of a folder for several; errors as of `figure`."""
    return figure(text) if Path(text).suffix else Path(text)


def add_bench(parser: argparse.ArgumentParser, otherwise: str = "all") -> None:
    """Add --bench: a list of expressions, empty where it is not given."""
    parser.add_argument(
        "--bench",
        action="append",
        default=[],
        type=expression,
        metavar="REGEX",
        help="only benchmarks in whose name(parameters) this is found; may be repeated "
        f"(default: {otherwise})",
    )


def add_profile(parser: argparse.ArgumentParser) -> None:
    """Add --profile and --bench: what is measured."""
    parser.add_argument(
        "--profile",
        choices=PROFILES,
        default=PROFILES[0],
        help="those of benchmarks/quick.txt or standard.txt, or all (default: %(default)s)",
    )
    add_bench(parser, "those of the profile, which this option sets aside")


def add_max_load(parser: argparse.ArgumentParser) -> None:
    """Add --max-load: from which other work on a benchmark is marked."""
    parser.add_argument(
        "--max-load",
        type=share,
        default=OTHERS_LIMIT,
        metavar="PERCENT",
        help="other work that takes more of the CPU time marks a benchmark "
        f"(default: {100 * OTHERS_LIMIT:.0f}); a run of which most is marked is refused",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write it there as JSON")


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose among asv's results."""
    parser.add_argument(
        "--results",
        type=Path,
        default=RESULTS,
        metavar="DIR",
        help="asv's results directory (default: %(default)s)",
    )
    parser.add_argument(
        "--machine", metavar="NAME", help="folder in DIR (default: the only one, or this machine's)"
    )
    parser.add_argument(
        "--environment",
        metavar="NAME",
        help="asv's (default: the only one, or the one of both commits; of a history the newest)",
    )


def add_judging(parser: argparse.ArgumentParser) -> None:
    """Add the options of what is judged, and by what."""
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
        help="of `bench noise --save` (default: that of this hardware in baselines/, if any)",
    )
    add_bench(parser)
