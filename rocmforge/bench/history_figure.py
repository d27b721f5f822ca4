"""Draws a history: each benchmark's values over the commits, its levels, its steps and drifts.

Knows series and findings; decides nothing. matplotlib comes with the extra `bench`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rocmforge.bench.figure import SUFFIXES
from rocmforge.bench.files import write_whole
from rocmforge.bench.findings import Finding, State
from rocmforge.bench.history import History, Series
from rocmforge.bench.report import scale_for
from rocmforge.bench.results import Direction
from rocmforge.errors import MeasurementError

MOST_IN_A_FILE = 40
_COLOURS = {State.STANDS: "tab:red", State.MENDED: "tab:green", State.OUTDATED: "0.5"}


def history_figures(history: History, findings: Sequence[Finding], path: Path) -> list[Path]:
    """Draw one file of all benchmarks, or a file of each in a folder.

    Parameters
    ----------
    history
        What was measured; series of one label share their axes.
    findings
        What was found in it; these benchmarks come first.
    path
        A name that ends in .svg, .png or .pdf, or a folder, which is made where it is not there and
        gets SVG files.

    Returns
    -------
    list of Path
        What was written.

    Raises
    ------
    MeasurementError
        There is nothing to draw.
    ValueError
        The name ends in something else, or one file would hold more than `MOST_IN_A_FILE`.
    """
    if path.suffix and path.suffix not in SUFFIXES:
        raise ValueError(f"figure: got {path}, wanted a folder or one of {', '.join(SUFFIXES)}")
    worst = [finding.series.label for finding in findings]
    labels = list(dict.fromkeys([*worst, *(one.label for one in history.series)]))
    if not labels:
        raise MeasurementError("figure: no benchmark has a value")
    if path.suffix:
        if len(labels) > MOST_IN_A_FILE:
            raise ValueError(
                f"figure: got {len(labels)} benchmarks for {path}, wanted at most "
                f"{MOST_IN_A_FILE} in one file: name a folder, or choose by --benchmark"
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
    colour = _COLOURS[finding.state]
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
