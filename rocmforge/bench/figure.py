"""Draws a comparison: each benchmark's slowdown with its interval, beside the threshold.

Knows comparisons only; decides nothing. matplotlib comes with the extra `bench`.
"""

from __future__ import annotations

import math
from pathlib import Path

from rocmforge.bench.compare import Comparison, Row
from rocmforge.bench.decision import Verdict, of_ratio
from rocmforge.bench.files import write_whole
from rocmforge.bench.results import Direction
from rocmforge.errors import MeasurementError

SUFFIXES = (".svg", ".png", ".pdf")
_COLOURS = {
    Verdict.REGRESSION: "tab:red",
    Verdict.CANNOT_TELL: "tab:orange",
    Verdict.IMPROVED: "tab:green",
    Verdict.OK: "0.4",
}


def forest_plot(comparison: Comparison, path: Path) -> int:
    """Write a forest plot, the worst benchmark first, as SVG, PNG or PDF by the file's name.

    Parameters
    ----------
    comparison
        What to draw: rows that have a slowdown. Where higher is better it is before / after, so
        that right is worse in every row.
    path
        Target; replaced whole.

    Returns
    -------
    int
        Number of benchmarks drawn.

    Raises
    ------
    MeasurementError
        No row has a slowdown.
    ValueError
        The file's name ends in none of SUFFIXES.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"figure: got {path}, wanted a name that ends in {', '.join(SUFFIXES)}")
    rows = [(row, _slowdown(row)) for row in comparison.rows if row.verdict in _COLOURS]
    drawn = [(row, ends) for row, ends in rows if ends is not None]
    if not drawn:
        raise MeasurementError("figure: no benchmark has a value on both sides")
    drawn.sort(key=lambda one: one[1][0])

    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(10, 1.2 + 0.24 * len(drawn)), layout="constrained")
    for at, (row, (middle, low, high)) in enumerate(drawn):
        colour = _COLOURS[row.verdict]
        axes.hlines(at, low, high, color=colour, linewidth=2)
        axes.plot(middle, at, "o", color=colour, markersize=4)
        if row.threshold != comparison.threshold:
            axes.plot(1 + row.threshold, at, "|", color="0.3", markersize=8)
    limit = 1 + comparison.threshold
    axes.axvline(1.0, color="0.6", linewidth=0.8)
    for edge in (limit, 1 / limit):
        axes.axvline(edge, color="0.6", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    ticks = [1.0, limit, 1 / limit]
    axes.set_xticks(ticks, [f"{tick:.2f}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(drawn)), [row.label for row, _ in drawn], fontsize=7)
    axes.set_ylim(-0.7, len(drawn) - 0.3)
    axes.set_xlabel(
        f"slowdown with its 99 % interval (right is worse; dotted: {limit - 1:.0%}, "
        "a tick: a threshold of its own)"
    )
    axes.set_title(f"{comparison.before}\n{comparison.after}", fontsize=8)
    for verdict, colour in _COLOURS.items():
        axes.plot([], [], "o", color=colour, label=verdict.value)
    axes.legend(loc="lower right", fontsize=7)
    write_whole(path, lambda file: figure.savefig(file, format=path.suffix.removeprefix(".")))
    plt.close(figure)
    return len(drawn)


def _slowdown(row: Row) -> tuple[float, float, float] | None:
    """Slowdown and its interval, a point where that is unknown; None where there is none."""
    if row.ratio is None or row.ratio <= 0 or row.direction is None:
        return None
    low = row.ratio if row.low is None else row.low
    high = row.ratio if row.high is None else row.high
    if not all(math.isfinite(end) and end > 0 for end in (low, high)):
        return None
    middle = 1 / row.ratio if row.direction is Direction.HIGHER else row.ratio
    return middle, *of_ratio(low, high, row.direction)
