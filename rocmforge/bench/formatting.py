"""How numbers, units, directions, dates and parameters are written, in every table and page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timezone

from rocmforge.bench.results import Direction, Result
from rocmforge.bench.statistics import Summary

NA = "n/a"
_BETTER = {Direction.HIGHER: "↑ higher", Direction.LOWER: "↓ lower", None: NA}
_SCALES = {
    "seconds": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "elements/s": ((1e9, "G elements/s"), (1e6, "M elements/s"), (1.0, "elements/s")),
    "bytes": ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
}
_SPELLED = {"us": "µs"}  # units of benchmarks that cannot be renamed without losing their history


def scale_for(values: Sequence[float | None], unit: str) -> tuple[float, str]:
    """Return the divisor and the unit in which values of `unit` are easiest to read.

    Parameters
    ----------
    values
        The values of one row. The largest decides; None and 0 do not count.
    unit
        ``"seconds"``, ``"elements/s"`` and ``"bytes"`` are scaled. Any other unit is returned with
        divisor 1, "us" as "µs".
    """
    scales = _SCALES.get(unit)
    if scales is None:
        return 1.0, _SPELLED.get(unit, unit)
    largest = max((abs(value) for value in values if value), default=0.0)
    return next((s for s in scales if largest >= s[0]), scales[-1])


def digits(value: float) -> str:
    """Return a number with four digits, or with all of its digits before the point."""
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def value_and_unit(value: float | None, unit: str) -> str:
    """``0.00123``, ``"seconds"`` → ``"1.23 ms"``; None → n/a."""
    if value is None:
        return NA
    scale, name = scale_for((value,), unit)
    return f"{digits(value / scale)} {name}".strip()


def interval(low: float | None, high: float | None, unit: str) -> str:
    """Both ends, in the unit that suits the larger one; n/a where an end is unknown."""
    if low is None or high is None:
        return NA
    scale, name = scale_for((low, high), unit)
    return f"{digits(low / scale)} … {digits(high / scale)} {name}".strip()


def better(direction: Direction | None) -> str:
    """Which way is better: an arrow and a word."""
    return _BETTER[direction]


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
    """``min … max unit``; n/a where there is no value."""
    if not values:
        return NA
    low, high = (f"{end:.{digits_after}f}" for end in (min(values), max(values)))
    return f"{low} {unit}".strip() if low == high else f"{low} … {high} {unit}".strip()


def plain_params(result: Result) -> dict[str, str]:
    """Parameters by name, without the quotes of their repr."""
    pairs = zip(result.param_names, result.params, strict=True)
    return {name: value.strip("'\"") for name, value in pairs}


def ends(summary: Summary | None) -> tuple[float | None, float | None]:
    """Both ends of the 99 % interval; None where there were too few samples."""
    if summary is None or not math.isfinite(summary.ci_low + summary.ci_high):
        return None, None
    return summary.ci_low, summary.ci_high
