"""What a monitor saw over a run, as small pictures: one SVG for each quantity, over the phases.

Colors follow the page that they stand in: its custom properties --text, --faint, --line, and its
classes band, b1 and b2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rocmforge.profiling.profile import Profile, Span

_QUANTITIES = (
    ("clock", "MHz", "clock_mhz", 1.0),
    ("memory clock", "MHz", "memory_clock_mhz", 1.0),
    ("power", "W", "power_watts", 1.0),
    ("temperature", "°C", "temperature_celsius", 1.0),
    ("utilization", "%", "utilization", 100.0),
    ("memory in use", "MiB", "memory_used_bytes", 1 / 2**20),
    ("load average", "processes", "load_average", 1.0),
)
_OF_CPU = {"memory in use": "memory of this process"}
"""What a quantity is called where the monitor watches a CPU."""

WIDTH, HEIGHT = 360, 150
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 20, 24
NARROW = 40  # pixels: a phase that is narrower gets no name


@dataclass(frozen=True, slots=True)
class Series:
    """One quantity over the run: its values by time, its extremes, its picture.

    Parameters
    ----------
    name, unit
        As "power" and "W".
    points
        Seconds from the profile's zero, and the value; None: not shown at that moment.
    """

    name: str
    unit: str
    points: tuple[tuple[float, float | None], ...]

    @property
    def values(self) -> list[float]:
        """The values that there are; at least one."""
        return [value for _, value in self.points if value is not None]


def quantities(device: str) -> list[tuple[str, str, str, float]]:
    """Return what is shown of a device: name, unit, field of a sample, factor between them."""
    names = _OF_CPU if device == "cpu" else {}
    return [
        (names.get(name, name), unit, field, factor) for name, unit, field, factor in _QUANTITIES
    ]


def series_of(profile: Profile) -> list[Series]:
    """Return each quantity of which the monitor saw a value; none without a monitor."""
    if profile.monitor is None:
        return []
    found = []
    for name, unit, field, factor in quantities(profile.monitor.device):
        points = tuple(
            (sample.seconds, _scaled(getattr(sample, field), factor))
            for sample in profile.monitor.samples
        )
        if any(value is not None for _, value in points):
            found.append(Series(name, unit, points))
    return found


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None or not math.isfinite(value) else value * factor


def chart(series: Series, spans: Sequence[Span]) -> str:
    """Return the picture of a quantity, with the phases behind it.

    Parameters
    ----------
    series
        From `series_of`.
    spans
        Of the profile.
    """
    times = [seconds for seconds, _ in series.points]
    first, last = min([0.0, *times]), max(times)
    low, high = _ends(series.values)

    def across(seconds: float) -> float:
        share = (min(max(seconds, first), last) - first) / ((last - first) or 1.0)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def up(value: float) -> float:
        share = (value - low) / (high - low)
        return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)

    mean = sum(series.values) / len(series.values)
    said = (
        f"{series.name} from {min(series.values):.4g} to {max(series.values):.4g} {series.unit}, "
        f"{mean:.4g} on average"
    )
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{said}">',
        *(
            _band(number, name, across(begin), across(end))
            for number, (name, begin, end) in enumerate(_phases(spans))
        ),
        *(_label(f"{value:.4g}", LEFT - 5, up(value) + 4, "end") for value in (low, high)),
        *(
            f'<line x1="{LEFT}" y1="{up(value):.1f}" x2="{WIDTH - RIGHT}" y2="{up(value):.1f}" '
            'style="stroke:var(--line)"/>'
            for value in (low, high)
        ),
        _label(f"{round(first, 2) + 0.0:g} s", LEFT, HEIGHT - 8, "start"),
        _label(f"{round(last, 2):g} s", WIDTH - RIGHT, HEIGHT - 8, "end"),
        *_lines([(across(t), None if v is None else up(v)) for t, v in series.points]),
        "</svg>",
    ]
    return "\n".join(parts)


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Ends of the axis: from 0, unless the values lie close together far above it."""
    low, high = min(values), max(values)
    if low < 0.7 * high:
        return min(low, 0.0), high
    room = (high - low) * 0.1 or abs(high) * 0.05 or 1.0
    return low - room, high + room


def _phases(spans: Sequence[Span]) -> Iterator[tuple[str, float, float]]:
    for name in ("load", "prefill", "decode"):
        own = [span for span in spans if span.name == name and span.category in PHASE_KINDS]
        if own:
            yield name, own[0].start, max(span.start + span.seconds for span in own)


PHASE_KINDS = ("request", "phase")


def _band(number: int, name: str, left: float, right: float) -> str:
    place = f'x="{left:.1f}" y="{TOP}" width="{max(right - left, 2):.1f}"'
    height = f'height="{HEIGHT - TOP - BOTTOM}"'
    shown = f'<rect class="band b{number}" {place} {height}><title>{name}</title></rect>'
    return shown + (_label(name, left + 2, TOP - 6, "start") if right - left >= NARROW else "")


def _label(text: str, x: float, y: float, anchor: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} style="fill:var(--faint);font:11px system-ui">{text}</text>'


def _lines(points: Sequence[tuple[float, float | None]]) -> Iterator[str]:
    """Lines through neighbouring samples; where one is missing, the line is broken."""
    run: list[tuple[float, float]] = []
    for x, y in (*points, (0.0, None)):
        if y is not None:
            run.append((x, y))
            continue
        if len(run) == 1:
            yield f'<circle cx="{run[0][0]:.1f}" cy="{run[0][1]:.1f}" r="2" fill="var(--text)"/>'
        elif run:
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in run)
            style = "fill:none;stroke:var(--text);stroke-width:1.5"
            yield f'<polyline points="{path}" style="{style}"/>'
        run = []
