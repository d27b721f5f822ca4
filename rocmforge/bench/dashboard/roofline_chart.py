"""Lays out the chart of roofline fractions: one row a format, model or context.

A benchmark's value is its time over the least time that the device could take. The chart shows the
inverse: 100 % is the roofline.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from rocmforge.bench.formatting import ends, iso, plain_params
from rocmforge.bench.formatting import measured as at_commit
from rocmforge.bench.results import Result, ResultSet

UNIT = "times ideal"
WIDTH, ROW, LEFT, RIGHT, TOP = 420, 20, 104, 24, 26  # pixels
_LEAST_AXIS, _LONGEST_AXIS = 1.0, 10.0  # of the roofline; what is beyond lies at the edge
_TICKS = 12  # at most, about
_SUITE = "roofline."


@dataclass(frozen=True, slots=True)
class Point:
    """A benchmark: where it lies, what it is. ``series`` numbers the kind of work."""

    x: float
    low: float
    high: float
    series: int
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture: rows of points, ticks of the axis, names of the series, all in pixels.

    ``measured`` names the commits that its values are of, with their dates.
    """

    device: str
    measured: tuple[str, ...]
    rows: tuple[tuple[str, float, tuple[Point, ...]], ...]
    ticks: tuple[tuple[str, float], ...]
    series: tuple[str, ...]
    height: int


def charts(results: Iterable[tuple[Result, ResultSet]]) -> list[Chart]:
    """Lay out roofline benchmarks, a picture for each device; none: no picture.

    Parameters
    ----------
    results
        Benchmarks of any kind, each with the run that it is of, as `machines.latest` returns them.
    """
    of_device: dict[str, list[tuple[Result, ResultSet]]] = {}
    for result, run in results:
        if result.unit == UNIT and result.name.startswith(_SUITE) and result.value:
            of_device.setdefault(_device(result), []).append((result, run))
    return [
        _chart(device, [result for result, _ in found], [run for _, run in found])
        for device, found in of_device.items()
    ]


def _chart(device: str, measured: list[Result], runs: list[ResultSet]) -> Chart:
    series = tuple(dict.fromkeys(_work(result) for result in measured))
    labels = dict.fromkeys(_row(result) for result in measured)
    most = max([_LEAST_AXIS, *(_fraction(result.value) for result in measured)])
    top = math.ceil(min(most, _LONGEST_AXIS) * 4) / 4
    width = WIDTH - LEFT - RIGHT

    def across(fraction: float) -> float:
        return round(LEFT + width * min(max(fraction, 0.0), top) / top, 1)

    def point(result: Result) -> Point:
        middle = _fraction(result.value)
        slow, fast = reversed(ends(result.summary))
        low, high = (_fraction(end) if end else middle for end in (slow, fast))
        spread = f" ({100 * low:.0f} … {100 * high:.0f} %)" if slow and fast else ""
        what = f"{_row(result)}, {_work(result)}: {100 * middle:.0f} % of the roofline{spread}"
        return Point(across(middle), across(low), across(high), series.index(_work(result)), what)

    rows = tuple(
        (label, TOP + ROW * (at + 0.5), tuple(point(r) for r in measured if _row(r) == label))
        for at, label in enumerate(labels)
    )
    steps = range(0, round(100 * top) + 1, 25 * math.ceil(4 * top / _TICKS))
    ticks = tuple((f"{step} %", across(step / 100)) for step in steps)
    dates = {run.commit: iso(run.commit_date) for run in runs}
    named = tuple(at_commit(commit, date) for commit, date in dates.items())
    return Chart(device, named, rows, ticks, series, TOP + ROW * len(rows) + 6)


def _fraction(value: float | None) -> float:
    return 1 / value if value else 0.0


def _device(result: Result) -> str:
    return plain_params(result).get("device", "")


def _work(result: Result) -> str:
    """``Matmul, 1 token``: the class of the benchmark and how much it does at once."""
    name = result.name.split(".")[1].lower()
    tokens = plain_params(result).get("tokens")
    return name if tokens is None else f"{name}, {tokens} token{'s' if tokens != '1' else ''}"


def _row(result: Result) -> str:
    """What the row is named after: format, model or context."""
    params = plain_params(result)
    shown = [v for key, v in params.items() if key not in ("device", "tokens")]
    words = ", ".join(shown) or result.name
    return f"context {words}" if "context" in params else words
