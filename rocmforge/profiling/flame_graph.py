"""A flame graph as one SVG file: who called whom, and how much of the samples each took.

A frame is as wide as its share of all samples, and stands on its caller. Its title, which a browser
shows under the pointer, has the whole name and the numbers. Nothing is loaded from elsewhere.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

WIDTH = 1200
ROW = 17
MARGIN = 10
LEAST_WIDTH = 0.4
"""In pixels: what is narrower is left out, as nobody could see it."""

MOST_DEPTH = 300

_HEAD = 44
_LETTER = 6.6  # width of a letter of the font below, in pixels
_STYLE = (
    "text{font:11px monospace;fill:#111}.h{font:bold 15px sans-serif}"
    ".s{font:12px sans-serif;fill:#444}rect{stroke:#fff;stroke-width:.5}g:hover rect{stroke:#000}"
)


@dataclass
class _Frame:
    name: str
    count: int = 0
    callees: dict[str, _Frame] = field(default_factory=dict)


def flame_graph(samples: Mapping[tuple[str, ...], int], title: str, unit: str = "samples") -> str:
    """Return the SVG of a flame graph.

    Parameters
    ----------
    samples
        Count of each stack, whose frames go from the outermost to the innermost.
    title
        Stands above it.
    unit
        What is counted.

    Raises
    ------
    ValueError
        There is no sample.
    """
    root = _tree(samples)
    if not root.count:
        raise ValueError("flame graph: got no sample, wanted at least one")
    scale = (WIDTH - 2 * MARGIN) / root.count
    boxes: list[tuple[_Frame, float, int]] = []
    deepest = 0
    waiting = [(root, float(MARGIN), 0)]
    while waiting:
        frame, left, depth = waiting.pop()
        if frame.count * scale < LEAST_WIDTH:
            continue
        boxes.append((frame, left, depth))
        deepest = max(deepest, depth)
        for name in sorted(frame.callees):
            callee = frame.callees[name]
            waiting.append((callee, left, depth + 1))
            left += callee.count * scale
    height = _HEAD + (deepest + 1) * ROW + MARGIN
    bottom = height - MARGIN - ROW
    drawn = "\n".join(
        _box(frame, left, bottom - depth * ROW, scale, root.count, unit)
        for frame, left, depth in boxes
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="100%" role="img" aria-label="{escape(_clean(title))}">\n'
        f"<style>{_STYLE}</style>\n"
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>\n'
        f'<text class="h" x="{MARGIN}" y="20">{escape(_clean(title))}</text>\n'
        f'<text class="s" x="{MARGIN}" y="37">{root.count} {escape(_clean(unit))}; callers below, '
        f"callees above; the pointer shows a frame's name and share</text>\n{drawn}\n</svg>\n"
    )


def _tree(samples: Mapping[tuple[str, ...], int]) -> _Frame:
    root = _Frame("all")
    for stack, count in samples.items():
        frame = root
        frame.count += count
        for name in stack[:MOST_DEPTH]:
            frame = frame.callees.setdefault(name, _Frame(name))
            frame.count += count
    return root


def _box(frame: _Frame, left: float, top: int, scale: float, total: int, unit: str) -> str:
    width = frame.count * scale
    letters = math.floor((width - 6) / _LETTER)
    name = _clean(frame.name)
    label = name if len(name) <= letters else f"{name[: letters - 1]}…" if letters >= 4 else ""
    text = f'<text x="{left + 3:.1f}" y="{top + 12}">{escape(label)}</text>' if label else ""
    said = f"{name}: {frame.count} {_clean(unit)}, {100 * frame.count / total:.1f} %"
    return (
        f"<g><title>{escape(said)}</title>"
        f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{ROW - 1}" '
        f'fill="{_color(frame.name)}"/>{text}</g>'
    )


def _color(name: str) -> str:
    """Return a light color, the same for the same name; the kernel's functions are blue."""
    number = zlib.crc32(name.encode("utf-8", "replace"))
    if name.endswith("[kernel]"):
        return f"hsl({205 + number % 20},70%,{74 + number // 20 % 10}%)"
    return f"hsl({15 + number % 40},85%,{66 + number // 40 % 12}%)"


def _clean(text: str) -> str:
    """Return a text without the characters that XML does not allow."""
    return "".join(c if c.isprintable() and c not in "\ufffe\uffff" else " " for c in text)
