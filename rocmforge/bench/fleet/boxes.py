"""Boxes of one kind beside each other: is one of them slower, whatever commit it measures?

Two things tell. The reference kernels, which every process measures and no commit changes, say how
fast the host is. Copies of a part on several boxes (`--boxes 2`) say how fast the benchmarks are.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, median_low

from rocmforge.bench.comparison import THRESHOLD
from rocmforge.bench.fleet.store import Gathered
from rocmforge.bench.machine_speed import SCATTER
from rocmforge.bench.results import Direction
from rocmforge.bench.run_environment import is_timed

BENCHMARKS = "benchmarks"
RECENT = 5
"""Parts of a box that say how it does now."""
FEWEST = 5
"""Values of which fewer say nothing about a box."""
_READINGS = {
    "read_gb_per_second": " in reading memory",
    "square_roots_per_ns": " in calculating on one core",
    BENCHMARKS: "",
}


@dataclass(frozen=True, slots=True)
class Standing:
    """How a box does beside the middle one of its kind.

    Parameters
    ----------
    hardware_tag, box
        The kind of machine, and which of them.
    what
        A reference kernel of `SCATTER`, or ``benchmarks``.
    slowdown
        Above 1: slower than the middle box. Of benchmarks the geometric mean.
    count
        Benchmarks that it stands on, at least `FEWEST`.
    limit
        The slowdown above which, or below whose inverse, it is an outlier.
    """

    hardware_tag: str
    box: str
    what: str
    slowdown: float
    count: int
    limit: float

    @property
    def is_outlier(self) -> bool:
        """Whether it differs by more than equal boxes do."""
        return max(self.slowdown, 1 / self.slowdown) > self.limit

    def __str__(self) -> str:
        """``n3 (gfx942-…): 1.31 times slower in reading memory, over 24 benchmarks``."""
        way, factor = "slower", self.slowdown
        if factor < 1:
            way, factor = "faster", 1 / factor
        what = f"{_READINGS[self.what]}, over {self.count} benchmarks"
        return f"{self.box} ({self.hardware_tag}): {factor:.2f} times {way}{what}"


def standings(parts: Iterable[Gathered]) -> list[Standing]:
    """Compare the boxes of each hardware tag, where there are several; the slowest first.

    The middle of two boxes is the faster one, so of two that differ the slower one is named.
    Of each box its newest parts count, and no results that other work or throttling disturbed.
    """
    kinds: dict[str, list[Gathered]] = defaultdict(list)
    count: Counter[tuple[str, str]] = Counter()
    for one in sorted(parts, key=lambda one: one.provenance.ended, reverse=True):
        key = one.results.machine, one.provenance.box
        if count[key] < RECENT:
            kinds[one.results.machine].append(one)
        count[key] += 1
    found = []
    for tag, ones in kinds.items():
        for what, limit in SCATTER.items():
            rates = _rates(what, ones)
            costs = {box: 1 / median(one) for box, one in rates.items()}
            counts = {box: len(one) for box, one in rates.items()}
            found += _standings(tag, what, 1 + limit, [costs], counts)
        copies: dict[str, list[Gathered]] = defaultdict(list)
        for one in ones:
            copies[one.provenance.part.name.rpartition("-")[0]].append(one)
        rows = [row for one in copies.values() for row in _costs(one) if len(row) > 1]
        counts = Counter(box for row in rows for box in row)
        found += _standings(tag, BENCHMARKS, 1 + THRESHOLD, rows, counts)
    return sorted(found, key=lambda one: -one.slowdown)


def _standings(
    tag: str,
    what: str,
    limit: float,
    rows: Sequence[Mapping[str, float]],
    counts: Mapping[str, int],
) -> list[Standing]:
    """Compare boxes by rows of costs: a value above 0 of each box, lower being better."""
    logs: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        known = {box: cost for box, cost in row.items() if counts[box] >= FEWEST}
        if len(known) > 1:
            middle = median_low(known.values())
            for box, cost in known.items():
                logs[box].append(math.log(cost / middle))
    return [
        Standing(tag, box, what, math.exp(fmean(found)), counts[box], limit)
        for box, found in logs.items()
    ]


def _rates(what: str, parts: Sequence[Gathered]) -> dict[str, list[float]]:
    """Return the rates of a reference kernel on each box, one for each benchmark."""
    rates: dict[str, list[float]] = defaultdict(list)
    for one in parts:
        for result in one.results.results:
            if result.reference and what in result.reference and not result.marked:
                rates[one.provenance.box].append(result.reference[what])
    return rates


def _costs(copies: Sequence[Gathered]) -> list[dict[str, float]]:
    """Return a row for each timed benchmark of one commit: its cost by box."""
    rows: dict[str, dict[str, float]] = defaultdict(dict)
    for one in copies:
        for result in one.results.results:
            if is_timed(result) and not result.marked and result.value and result.value > 0:
                higher = result.direction is Direction.HIGHER
                cost = 1 / result.value if higher else result.value
                rows[result.label].setdefault(one.provenance.box, cost)
    return [*rows.values()]
