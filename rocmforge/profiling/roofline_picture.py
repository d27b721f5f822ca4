"""The roofline of a profile as one SVG: GFLOP/s over operations per byte, both logarithmic.

Lines are the ceilings that this run measured. Each op of a phase is a mark: its area is the op's
share of the phase, a square in prefill and a circle in decode. The colors follow the reader's light
or dark mode. Nothing is loaded from elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from rocmforge.atomic import whole_file
from rocmforge.profiling.profile import Ceiling, Op, Profile
from rocmforge.quantities import rate_text

WIDTH, HEIGHT = 640, 470
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 64, 48
NAMED_SHARE = 0.02  # of its phase, from which on a mark gets its name
LEAST_RADIUS, WHOLE_RADIUS = 3.0, 26.0  # in pixels: of the smallest mark, of one of all the time
DASHES = ("", "9 4", "2 4", "9 4 2 4")  # of the ceilings, in order
ROOM = 2.5  # how far the axes go beyond the largest value
LETTER, LINE = 6.3, 12  # width and height of a letter of a name, in pixels
GAP, FARTHEST = 4, 120  # between a mark and its name, in pixels

Box = tuple[float, float, float, float]
"""Left, top, right and bottom of what is drawn, in pixels."""

STYLE = (
    ".rl{--b:#fff;--t:#1b1f24;--f:#59636e;--l:#d5dae0;--p:#1f6fb5;--d:#c2500c}"
    "@media(prefers-color-scheme:dark){.rl{--b:#14171b;--t:#e4e7eb;--f:#a3adb8;--l:#3a414a;"
    "--p:#6db3f2;--d:#f59a5c}}"
    "@media print{.rl{--b:#fff;--t:#000;--f:#444;--l:#ccc;--p:#1f6fb5;--d:#c2500c}}"
    ".rl text{font:12px system-ui,sans-serif;fill:var(--t);"
    "paint-order:stroke;stroke:var(--b);stroke-width:3px}.rl .rl-n{font-size:11px}"
    ".rl .rl-f{fill:var(--f)}.rl .rl-h{font-size:14px;font-weight:600}"
    ".rl-g{stroke:var(--l)}.rl-a{stroke:var(--f);stroke-width:.8}.rl-c{stroke:var(--t);stroke-width:1.5;fill:none}"
    ".rl-prefill{fill:var(--p);stroke:var(--p)}.rl-decode{fill:var(--d);stroke:var(--d)}"
    ".rl-m{fill-opacity:.45;stroke-width:1.5}"
)


@dataclass(frozen=True, slots=True)
class Point:
    """An op of a phase on the picture: operations per byte, operations per second."""

    phase: str
    op: Op
    intensity: float
    rate: float

    @property
    def radius(self) -> float:
        """Of the circle whose area is the op's share of its phase."""
        return max(LEAST_RADIUS, WHOLE_RADIUS * math.sqrt(min(max(self.op.share, 0.0), 1.0)))

    @property
    def title(self) -> str:
        """The whole name and the numbers."""
        fraction = self.op.roofline_fraction
        of_roof = "" if fraction is None else f", {fraction:.0%} of the roofline"
        return (
            f"{self.op.label} in {self.phase}: {self.op.share:.1%} of its time, "
            f"{self.intensity:.3g} operations per byte, {rate_text(self.rate)} GFLOP/s{of_roof}"
        )


@dataclass(frozen=True, slots=True)
class Scale:
    """One logarithmic axis: powers of ten from `low` to `high`, from pixel `first` to `last`."""

    low: float
    high: float
    first: float
    last: float

    def powers(self) -> range:
        """Return the whole powers of ten on the axis."""
        return range(math.ceil(self.low), math.floor(self.high) + 1)

    def __call__(self, value: float) -> float:
        """Return the pixel of a value above 0."""
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.first + share * (self.last - self.first)


def write_roofline(profile: Profile, path: Path) -> None:
    """Write the picture; see `roofline_svg`.

    Parameters
    ----------
    profile
        Measured.
    path
        Its folder exists. The file takes its place whole or not at all.

    Raises
    ------
    OSError
        It cannot be written.
    """
    with whole_file(path) as file:
        file.write(roofline_svg(profile).encode("utf-8"))


def roofline_svg(profile: Profile) -> str:
    """Return the picture of a profile.

    An op without operations, as one that only copies, has no place on it. Where neither an op nor
    a ceiling has one, the picture says so.
    """
    points = points_of(profile)
    ceilings = [c for c in profile.ceilings if _drawable(c)]
    named = ", ".join(dict.fromkeys(phase.name for phase in profile.phases))
    label = f"Roofline of {profile.device.description}: {len(points)} ops of {named}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="rl" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{_text(label)}">\n<style>{STYLE}</style>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" style="fill:var(--b)"/>\n'
    )
    if not points and not ceilings:
        words = "Neither an op nor a ceiling was measured."
        return f'{head}<text x="{LEFT}" y="{TOP}">{words}</text>\n</svg>\n'
    across, up = _scales(points, ceilings)
    marks = sorted(points, key=lambda point: -point.op.share)
    rates = list(_rates(ceilings, across, up))
    parts = [
        *_head(profile, {point.phase for point in points}),
        *_grid(across, up),
        *_roofs(ceilings, across, up),
        *(_mark(point, across(point.intensity), up(point.rate)) for point in marks),
        *(shown for shown, _ in rates),
        *_names(marks, across, up, [box for _, box in rates]),
    ]
    return head + "\n".join(parts) + "\n</svg>\n"


def points_of(profile: Profile) -> list[Point]:
    """Return the ops that have a place on the picture: operations, bytes and a time above 0."""
    return [
        Point(phase.name, op, op.flops / op.nbytes, rate)
        for phase in profile.phases
        for op in phase.ops
        if op.nbytes > 0 and op.flops > 0 and (rate := op.flops_per_second) and math.isfinite(rate)
    ]


def _drawable(ceiling: Ceiling) -> bool:
    rates = (ceiling.read_bytes_per_second, ceiling.operations_per_second)
    return all(math.isfinite(rate) and rate > 0 for rate in rates)


def _scales(points: Sequence[Point], ceilings: Sequence[Ceiling]) -> tuple[Scale, Scale]:
    xs = [point.intensity for point in points] + [_ridge(c) for c in ceilings]
    ys = [point.rate for point in points] + [c.operations_per_second for c in ceilings]
    left, low = (math.floor(math.log10(min(values) / 1.2)) for values in (xs, ys))
    right, high = (math.log10(max(values) * ROOM) for values in (xs, ys))
    return Scale(left, right, LEFT, WIDTH - RIGHT), Scale(low, high, HEIGHT - BOTTOM, TOP)


def _ridge(ceiling: Ceiling) -> float:
    """Operations per byte at which both ceilings meet."""
    return ceiling.operations_per_second / ceiling.read_bytes_per_second


def _head(profile: Profile, phases: set[str]) -> Iterator[str]:
    yield f'<text class="rl-h" x="10" y="20">{_text(_short(profile.device.description, 60))}</text>'
    left = 10.0
    for name, what in (("prefill", "square"), ("decode", "circle")):
        if name in phases:
            yield _shape(name, left + 7, 38, 6)
            yield f'<text x="{left + 19}" y="42">{name} ({what})</text>'
            left += 120
    yield f'<text class="rl-f" x="{left + 6}" y="42">area: share of its phase</text>'


def _grid(across: Scale, up: Scale) -> Iterator[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for power in across.powers():
        x = across(10.0**power)
        yield f'<line class="rl-g" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}"/>'
        yield (
            f'<text class="rl-f" x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">'
            f"{10.0**power:g}</text>"
        )
    for power in up.powers():
        y = up(10.0**power)
        yield f'<line class="rl-g" x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>'
        yield (
            f'<text class="rl-f" x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">'
            f"{10.0 ** (power - 9):g}</text>"
        )
    yield (
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 9}" text-anchor="middle">'
        "operations per byte</text>"
    )
    middle = (TOP + bottom) / 2
    yield (
        f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">'
        "GFLOP/s</text>"
    )


def _roofs(ceilings: Sequence[Ceiling], across: Scale, up: Scale) -> Iterator[str]:
    """The ceilings, each bent where reads and products meet."""
    for ceiling, dash in zip(ceilings, DASHES, strict=False):
        reads, products = ceiling.read_bytes_per_second, ceiling.operations_per_second
        start = max(10.0**across.low, 10.0**up.low / reads)
        corner = max(start, _ridge(ceiling))
        places = [(start, start * reads), (corner, products), (10.0**across.high, products)]
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in places)
        yield f'<polyline class="rl-c" stroke-dasharray="{dash}" points="{path}"/>'


def _rates(ceilings: Sequence[Ceiling], across: Scale, up: Scale) -> Iterator[tuple[str, Box]]:
    """What the ceilings are, each with its place: products at the right, reads on the slope."""
    taken: list[Box] = []
    for ceiling in ceilings[: len(DASHES)]:
        words = f"{ceiling.precision}: {rate_text(ceiling.operations_per_second)} GFLOP/s"
        x, line = float(WIDTH - RIGHT - 4), up(ceiling.operations_per_second)
        # Ceilings may be as good as equal: above the line, else below it, or farther away.
        for y in (line - 5, line + LINE + 2, line - 5 - LINE - 4, line + 2 * LINE + 6):
            box = (x - len(words) * (LETTER + 0.6), y - LINE, x, y + 3)
            if not any(_overlap(box, other) for other in taken):
                break
        taken.append(box)
        yield f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="end">{_text(words)}</text>', box
    if ceilings:
        reads = max(ceiling.read_bytes_per_second for ceiling in ceilings)
        first = max(10.0**across.low, 10.0**up.low / reads) * 1.3
        x, y = across(first), up(first * reads)
        turn = math.degrees(math.atan2(up(first * reads * 10) - y, across(first * 10) - x))
        shown = (
            f'<text x="{x:.1f}" y="{y - 6:.1f}" transform="rotate({turn:.1f} {x:.1f} {y:.1f})">'
            f"reads: {rate_text(reads)} GB/s</text>"
        )
        yield shown, (x, y - 70, x + 110, y)


def _mark(point: Point, x: float, y: float) -> str:
    shape = _shape(point.phase, x, y, point.radius)
    return f"<g><title>{_text(point.title)}</title>{shape}</g>"


def _shape(phase: str, x: float, y: float, radius: float) -> str:
    if phase == "prefill":
        side = radius * math.sqrt(math.pi)  # the circle's area
        corner = f'x="{x - side / 2:.1f}" y="{y - side / 2:.1f}"'
        return f'<rect class="rl-m rl-prefill" {corner} width="{side:.1f}" height="{side:.1f}"/>'
    return f'<circle class="rl-m rl-decode" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>'


def _names(points: Sequence[Point], across: Scale, up: Scale, taken: list[Box]) -> Iterator[str]:
    """Names of the longest ops, each near its mark where nothing stands, with a line to it."""
    for point in points:
        x, y = across(point.intensity), up(point.rate)
        taken.append((x - point.radius, y - point.radius, x + point.radius, y + point.radius))
    for point in points:
        if point.op.share < NAMED_SHARE:
            continue
        name = _short(point.op.label, 28)
        x, y = across(point.intensity), up(point.rate)
        for base_x, base_y, box in _places(x, y, point.radius, len(name) * LETTER):
            if _inside(box) and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                end_x, end_y = min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3])
                if math.hypot(end_x - x, end_y - y) > point.radius + 2 * GAP:
                    line = f'x1="{x:.1f}" y1="{y:.1f}" x2="{end_x:.1f}" y2="{end_y:.1f}"'
                    yield f'<line class="rl-a" {line}/>'
                yield f'<text class="rl-n" x="{base_x:.1f}" y="{base_y:.1f}">{_text(name)}</text>'
                break


def _places(x: float, y: float, radius: float, width: float) -> Iterator[tuple[float, float, Box]]:
    """Places for a name around a mark, near ones first: where its text begins, and its box."""
    for away in range(int(radius) + GAP, int(radius) + FARTHEST, LINE):
        for turn in range(0, 360, 30):
            dx, dy = math.cos(math.radians(turn)), math.sin(math.radians(turn))
            left = x + away * dx - width * (1 - dx) / 2
            base = y + away * dy + LINE * (1 + dy) / 2 - 2
            yield left, base, (left, base - LINE + 2, left + width, base + 2)


def _inside(box: Box) -> bool:
    return (
        box[0] >= LEFT and box[1] >= TOP and box[2] <= WIDTH - RIGHT and box[3] <= HEIGHT - BOTTOM
    )


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _text(text: str) -> str:
    """Return a text for XML: escaped, without characters that XML does not allow."""
    allowed = (c if c.isprintable() and c not in "\ufffe\uffff" else " " for c in text)
    return escape("".join(allowed))
