"""How numbers, units, directions and dates read on the pages. Knows no page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timezone

from rocmforge.bench.report import digits, scale_for
from rocmforge.bench.results import Direction, Result
from rocmforge.bench.statistics import Summary

NA = "n/a"
_BETTER = {Direction.HIGHER: "↑ higher", Direction.LOWER: "↓ lower", None: NA}


def value_and_unit(value: float | None, unit: str) -> str:
    """``0.00123``, ``"seconds"`` → ``"1.23 ms"``; None → n/a."""
    if value is None:
        return NA
    scale, name = scale_for((value,), unit)
    return f"{digits(value / scale)} {name}".strip()


def interval(low: float | None, high: float | None, unit: str) -> str:
    """Both ends in the unit that suits the larger; n/a where one is unknown."""
    if low is None or high is None:
        return NA
    scale, name = scale_for((low, high), unit)
    return f"{digits(low / scale)} … {digits(high / scale)} {name}".strip()


def better(direction: Direction | None) -> str:
    """Which way is better, as a word with an arrow."""
    return _BETTER[direction]


def arrow(direction: Direction | None) -> str:
    """``↑`` where higher is better, ``↓`` where lower is; nothing where that is unknown."""
    return "" if direction is None else better(direction)[0]


def iso(milliseconds: int | None) -> str | None:
    """Milliseconds since 1970 as ``2026-11-21T20:48:51+00:00``; None stays None."""
    if milliseconds is None:
        return None
    moment = datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
    return moment.isoformat(timespec="seconds")


def measured(commit: str | None, date: str | None) -> str:
    """Commit and day: ``1c199231, 2026-11-21``."""
    return f"{commit[:8] if commit else NA}, {date[:10] if date else NA}"


def extremes(values: Sequence[float], unit: str = "", digits_after: int = 0) -> str:
    """``min … max unit``; n/a of nothing."""
    if not values:
        return NA
    low, high = (f"{end:.{digits_after}f}" for end in (min(values), max(values)))
    return f"{low} {unit}".strip() if low == high else f"{low} … {high} {unit}".strip()


def plain_params(result: Result) -> dict[str, str]:
    """Parameters by their names, without the quotes of their repr."""
    pairs = zip(result.param_names, result.params, strict=True)
    return {name: value.strip("'\"") for name, value in pairs}


def ends(summary: Summary | None) -> tuple[float | None, float | None]:
    """Both ends of a record's interval; None where there were too few samples."""
    if summary is None or not math.isfinite(summary.ci_low + summary.ci_high):
        return None, None
    return summary.ci_low, summary.ci_high
