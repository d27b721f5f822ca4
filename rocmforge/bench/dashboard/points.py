"""One measured value as the pages draw it: value, interval, commit, day and mark, JSON-ready."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rocmforge.bench.formatting import ends, iso
from rocmforge.bench.results import Direction, Result, ResultSet

DEVICE = "device"
BETTER = {Direction.LOWER: -1, Direction.HIGHER: 1, None: 0}
"""Which way is better, as the pages' scripts have it; 0: unknown."""


def rounded(value: float | None) -> float | None:
    """Return a number with six digits; pages show four. What is not finite is None."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def usable(value: float | None) -> bool:
    """Return whether a speed or a time can be a figure: above 0, it and its inverse finite."""
    return value is not None and 0 < value < math.inf and 1 / value < math.inf


def point(
    result: Result, run: ResultSet, of: Callable[[float], float] = lambda value: value
) -> dict[str, Any]:
    """Return a result that has a value as what a page draws of it.

    Parameters
    ----------
    result
        Its value is not None.
    run
        The run that it is of.
    of
        Turns a value into what is shown, as a time into a rate; rises or falls throughout.

    Returns
    -------
    dict
        ``value``; ``low`` and ``high``, the ends of the 99 % interval, None where there were too
        few samples; ``commit`` and ``date``; ``marked``, why it is not to be trusted, or None.
    """
    if result.value is None:
        raise ValueError(f"{result.label}: got no value, wanted one")
    low, high = ends(result.summary)
    sides = [of(end) for end in (low, high) if end is not None and end > 0]
    known = len(sides) == 2
    return {
        "value": rounded(of(result.value)),
        "low": rounded(min(sides)) if known else None,
        "high": rounded(max(sides)) if known else None,
        "commit": (result.commit or run.commit)[:8],
        "date": (iso(run.commit_date) or "")[:10] or None,
        "marked": result.marked,
    }
