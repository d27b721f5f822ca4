"""Plots: the forest plot of a comparison, and the benchmarks of a history over its commits.

matplotlib comes with the extra `bench` and is imported only where a plot is drawn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rocmforge.bench.comparison import Comparison, Row
from rocmforge.bench.decision import Verdict, of_ratio
from rocmforge.bench.files import write_whole
from rocmforge.bench.findings import Finding, State
from rocmforge.bench.formatting import scale_for
from rocmforge.bench.history import History, Series
from rocmforge.bench.results import Direction
from rocmforge.errors import MeasurementError

SUFFIXES = (".svg", ".png", ".pdf")
MOST_IN_A_FILE = 40
_VERDICT_COLOURS = {
    Verdict.REGRESSION: "tab:red",
    Verdict.CANNOT_TELL: "tab:orange",
    Verdict.IMPROVED: "tab:green",
    Verdict.OK: "0.4",
}
_STATE_COLOURS = {
    State.STANDS: "tab:red",
    State.MENDED: "tab:green",
    State.OUTDATED: "0.5",
    State.CANNOT_TELL: "0.5",
}


def forest_plot(comparison: Comparison, path: Path) -> int:
    """Plot the slowdown of each benchmark with its interval, beside the threshold.

    The worst benchmark stands at the top. The file's name decides: SVG, PNG or PDF.

    Parameters
    ----------
    comparison
        Rows that have a slowdown are drawn. Where higher is better the slowdown is before / after:
        to the right is worse in every row.
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
        raise ValueError(f"plot: got {path}, wanted a name that ends in {', '.join(SUFFIXES)}")
    rows = [(row, _slowdown(row)) for row in comparison.rows if row.verdict in _VERDICT_COLOURS]
    drawn = [(row, ends) for row, ends in rows if ends is not None]
    if not drawn:
        raise MeasurementError("plot: no benchmark has a value on both sides")
    drawn.sort(key=lambda one: one[1][0])

    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(10, 1.2 + 0.24 * len(drawn)), layout="constrained")
    for at, (row, (middle, low, high)) in enumerate(drawn):
        colour = _VERDICT_COLOURS[row.verdict]
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
    for verdict, colour in _VERDICT_COLOURS.items():
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


def history_plots(history: History, findings: Sequence[Finding], path: Path) -> list[Path]:
    """Plot each benchmark over the commits: its values, its levels, its change points and drifts.

    One file holds all benchmarks, or a folder gets one file for each.

    Parameters
    ----------
    history
        What was measured. Series of one label share their axes.
    findings
        What was found in it. These benchmarks come first.
    path
        A name that ends in .svg, .png or .pdf, or a folder. The folder is made where it is missing,
        and gets SVG files.

    Returns
    -------
    list of Path
        The files that were written.

    Raises
    ------
    MeasurementError
        There is nothing to draw.
    ValueError
        The name ends in something else, or one file would hold more than `MOST_IN_A_FILE`
        benchmarks.
    """
    if path.suffix and path.suffix not in SUFFIXES:
        raise ValueError(f"plot: got {path}, wanted a folder or one of {', '.join(SUFFIXES)}")
    worst = [finding.series.label for finding in findings]
    labels = list(dict.fromkeys([*worst, *(one.label for one in history.series)]))
    if not labels:
        raise MeasurementError("plot: no benchmark has a value")
    if path.suffix:
        if len(labels) > MOST_IN_A_FILE:
            raise ValueError(
                f"plot: got {len(labels)} benchmarks for {path}, wanted at most "
                f"{MOST_IN_A_FILE} in one file: name a folder, or choose by --bench"
            )
        _draw(history, findings, labels, path)
        return [path]
    names: dict[Path, str] = {}
    for label in labels:
        stem = re.sub(r"[^\w.-]+", "_", label).strip("_")
        file = path / f"{stem}.svg"
        names[file if file not in names else path / f"{stem}-{len(names)}.svg"] = label
    for file, label in names.items():
        _draw(history, findings, [label], file)
    return list(names)


def _draw(history: History, findings: Sequence[Finding], labels: Sequence[str], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    size = (10, 0.6 + 2.4 * len(labels))
    figure, grid = plt.subplots(
        len(labels), squeeze=False, figsize=size, layout="constrained", sharex=True
    )
    for axes, label in zip(grid[:, 0], labels, strict=True):
        for series in history.series:
            if series.label == label:
                _draw_series(axes, series)
        for finding in findings:
            if finding.series.label == label:
                _mark(axes, finding, history)
        axes.set_title(label, fontsize=8)
    bottom = grid[-1, 0]
    shown = _spread(history.measured)
    bottom.set_xticks(shown, [history.commits[at][:8] for at in shown], rotation=45, fontsize=7)
    bottom.set_xlabel(f"commit, by first parents ({history.machine})", fontsize=8)
    write_whole(path, lambda file: figure.savefig(file, format=path.suffix.removeprefix(".")))
    plt.close(figure)


def _draw_series(axes: Any, series: Series) -> None:
    divisor, unit = scale_for([point.value for point in series.points], series.unit)
    at = [point.position for point in series.points]
    values = [point.value / divisor for point in series.points]
    axes.plot(at, values, ".-", color="0.3", linewidth=0.6, markersize=4)
    known = [p for p in series.points if math.isfinite(p.low) and math.isfinite(p.high)]
    if known:
        ends = [[p.low / divisor for p in known], [p.high / divisor for p in known]]
        axes.fill_between(
            [p.position for p in known], *ends, color="tab:blue", alpha=0.2, step=None
        )
    better = "higher" if series.direction is Direction.HIGHER else "lower"
    axes.set_ylabel(f"{unit} ({better} is better)", fontsize=8)


def _mark(axes: Any, finding: Finding, history: History) -> None:
    """Both levels, and the commits among which it happened."""
    divisor, _ = scale_for([point.value for point in finding.series.points], finding.series.unit)
    colour = _STATE_COLOURS[finding.state]
    axes.axvspan(finding.good, finding.bad, color=colour, alpha=0.2, linewidth=0)
    stop = history.measured[-1] if finding.mended is None else finding.mended
    start = finding.series.points[0].position
    axes.hlines(finding.before.value / divisor, start, finding.good, color=colour)
    axes.hlines(finding.after.value / divisor, finding.bad, stop, color=colour)
    text = f"{finding.kind.value} × {finding.factor:.2f}, {finding.state.value}"
    axes.annotate(
        text,
        (finding.bad, finding.after.value / divisor),
        color=colour,
        fontsize=7,
        textcoords="offset points",
        xytext=(4, 4),
    )


def _spread(positions: Sequence[int], most: int = 12) -> list[int]:
    """At most so many of the positions, the last among them."""
    stride = -(-len(positions) // most)
    return list(positions[::-1][::stride])[::-1]
