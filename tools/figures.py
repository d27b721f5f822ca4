"""Draws the figures of docs/FIGURES.md as SVG, and says whether a drawn one is current.

The same numbers give the same bytes with the same matplotlib. A file's first comment holds a digest
of its numbers and of this file, and one of the rest of the picture. So a stale or an edited figure
is found without drawing it, whatever matplotlib is here.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from figure_data import Figure, Panel

WIDTH = 5.2  # inches: readable on a phone too
LINE = 0.2  # inches of a row
COLOURS = ("#0b5fa5", "#b35900", "#1a7f37", "#8250df", "#9a6700", "#cf222e")
SHAPES = ("o", "s", "^", "D", "v", "P")
SETTINGS = {
    "svg.hashsalt": "rocmforge",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Arial", "sans-serif"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.color": "0.88",
    "axes.axisbelow": True,
    "legend.fontsize": 8,
    "figure.facecolor": "white",
}
STAMP = re.compile(r"<!-- numbers (\w+), picture (\w+) -->\n")


def digest(text: str) -> str:
    """Return a digest of a text, as the comment has it."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def numbers(figure: Figure) -> str:
    """Return the digest of what a figure is drawn from: its numbers, and how they are drawn."""
    shown = json.dumps([figure.alt, figure.panels], sort_keys=True)
    return digest(shown + Path(__file__).read_text("utf-8"))


def is_current(figure: Figure, path: Path) -> bool:
    """Return whether the file shows these numbers and is as it was drawn."""
    text = path.read_text("utf-8") if path.exists() else ""
    stamp = STAMP.search(text)
    return bool(stamp) and stamp.groups() == (numbers(figure), digest(STAMP.sub("", text)))


def svg(figure: Figure) -> str:
    """Return a figure as SVG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas

    with rc_context(SETTINGS):
        heights = [height(panel) for panel in figure.panels]
        canvas = Canvas(figsize=(WIDTH, sum(heights)), layout="constrained")
        grid = canvas.subplots(len(heights), squeeze=False, height_ratios=heights)
        for axes, panel in zip(grid[:, 0], figure.panels, strict=True):
            axes.set_title(panel["title"])
            axes.set_xlabel(panel["x"])
            DRAW[panel["kind"]](axes, panel)
        file = io.StringIO()
        metadata = {"Date": None, "Creator": None, "Title": figure.alt}
        canvas.savefig(file, format="svg", metadata=metadata)
    text = re.sub(r" +$", "", file.getvalue(), flags=re.M)
    stamp = f"<!-- numbers {numbers(figure)}, picture {digest(text)} -->\n"
    return re.sub(r"(<svg )", rf"{stamp}\1", text, count=1)


def height(panel: Panel) -> float:
    """Return a panel's height in inches."""
    if panel["kind"] == "dots":
        return 1.0 + 0.15 * panel["x"].count("\n") + LINE * len(labels(panel))
    if panel["kind"] == "stack":
        return 1.7 + 1.6 * LINE * len(panel["bars"])
    return 1.8 if "ticks" in panel else 2.9


def labels(panel: Panel) -> list[str]:
    """Return the rows of a panel of dots: a row for each label, of all series."""
    return list(dict.fromkeys(row["label"] for rows in panel["rows"].values() for row in rows))


def mark(axes: Any, x: float, y: float, at: int, hollow: bool, label: str | None = None) -> None:
    """Draw one value; what other work disturbed is hollow."""
    colour = COLOURS[at % len(COLOURS)]
    axes.plot(
        x,
        y,
        SHAPES[at % len(SHAPES)],
        color=colour,
        markerfacecolor="white" if hollow else colour,
        markersize=5,
        label=label,
    )


def dots(axes: Any, panel: Panel) -> None:
    """A row for each label, a mark for each series, a line for the interval."""
    names = labels(panel)
    many = len(panel["rows"])
    for at, (series, rows) in enumerate(panel["rows"].items()):
        for row in rows:
            y = names.index(row["label"]) + (at - (many - 1) / 2) * 0.3
            if row["low"] is not None:
                axes.hlines(y, row["low"], row["high"], color=COLOURS[at], linewidth=1.5)
            mark(axes, row["value"], y, at, row["marked"])
        axes.plot([], [], SHAPES[at], color=COLOURS[at], label=series)
    if "line" in panel:
        axes.axvline(panel["line"], color="0.35", linewidth=1)
    if "log" in panel:
        axes.set_xscale("log", base=panel["log"])
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        axes.set_xlim(left=0)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    if many > 1:
        legend(axes, panel["rows"])


def legend(axes: Any, series: Mapping[str, Any]) -> None:
    """Put the names of the series above the panel's right end."""
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=min(len(series), 3),
        frameon=False,
        borderaxespad=0,
        handletextpad=0.2,
        columnspacing=0.8,
    )


def lines(axes: Any, panel: Panel) -> None:
    """A line for each series over numbers or commits."""
    from matplotlib.ticker import LogLocator, NullLocator

    for at, (name, points) in enumerate(panel["series"].items()):
        points = sorted(points, key=lambda one: one["x"])
        axes.plot(
            [one["x"] for one in points],
            [one["y"] for one in points],
            color=COLOURS[at % len(COLOURS)],
            linewidth=1,
        )
        for one in points:
            if one["low"] is not None:
                axes.vlines(one["x"], one["low"], one["high"], color=COLOURS[at % len(COLOURS)])
            mark(axes, one["x"], one["y"], at, one["marked"])
        axes.plot([], [], SHAPES[at % len(SHAPES)], color=COLOURS[at % len(COLOURS)], label=name)
    axes.set_ylabel(panel["y"])
    xs = sorted({one["x"] for points in panel["series"].values() for one in points})
    if panel.get("xlog"):
        axes.set_xscale("symlog", base=2, linthresh=1 if xs[0] else xs[1] / 2)  # 0 has a place
        axes.set_xticks(xs, [f"{x // 1024}k" if x >= 1024 else str(x) for x in xs])
        axes.set_xticks([], minor=True)
    if panel.get("ylog"):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(bottom=0)
    if "ticks" in panel:
        chosen = range(0, len(panel["ticks"]), -(-len(panel["ticks"]) // 6))
        axes.set_xticks(chosen, [panel["ticks"][x] for x in chosen], fontsize=7)
        axes.set_xlim(-0.5, len(panel["ticks"]) - 0.5)
    if [*panel["series"]] != [""]:
        axes.legend(fontsize=7.5)


def stack(axes: Any, panel: Panel) -> None:
    """A bar for each model, its parts one after another."""
    parts = list(dict.fromkeys(part for bar in panel["bars"].values() for part in bar))
    names = list(panel["bars"])
    left = [0.0] * len(names)
    for at, part in enumerate(parts):
        widths = [panel["bars"][name].get(part, 0.0) for name in names]
        axes.barh(names, widths, left=left, color=COLOURS[at % len(COLOURS)], label=part)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.25), ncols=2, frameon=False)


DRAW = {"dots": dots, "lines": lines, "stack": stack}
"""How each kind of panel is drawn."""
