"""Measures suspects again before calling them regressions: both commits in turns, A B B A.

What a busy or warm machine does to one commit it then does to the other, and a drift over a block
of four processes cancels. The sample here is the median of a process, for processes differ by more
than the calls within one. Knows no asv (`measure` is given) and no file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from rocmforge.regress.compare import Row
from rocmforge.regress.decision import ALPHA, CONFIDENCE, Verdict
from rocmforge.regress.ranks import larger_p_value, ratio_interval
from rocmforge.regress.records import Direction

FEWEST_BLOCKS = 3
MOST_BLOCKS = 8
SETTLED = 0.95  # interval that ends the measuring
SUSPICIOUS = (Verdict.REGRESSION, Verdict.CANNOT_TELL)

Measure = Callable[[str, Sequence[str]], Mapping[str, Sequence[float]]]
"""Run benchmarks of a commit once, in new processes: samples by label, without what fails."""


@dataclass(slots=True)
class _Suspect:
    """Medians of processes, a pair of each side in every block."""

    row: Row
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    broken: str = ""


def suspects(rows: Sequence[Row]) -> list[Row]:
    """Rows that are, or may be, slower by more than their threshold and can be measured again."""
    return [
        row
        for row in rows
        if row.verdict in SUSPICIOUS
        and row.before is not None
        and row.after is not None
        and min(row.before, row.after) > 0
        and row.direction is not None
        and _slowdown(row.before, row.after, row.direction) > 1 + row.threshold
    ]


def confirm(
    rows: Sequence[Row],
    commits: tuple[str, str],
    measure: Measure,
    on_block: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Measure suspects again, and return each with the verdict of these measurements alone.

    A suspect is a regression where it is slower by more than its threshold and Mann-Whitney's test
    over the medians of the processes says that it is slower, at 1 % for all suspects and looks
    together. It is settled, either way, after three blocks or later once the 95 % interval of the
    slowdown lies on one side of the threshold, and in any case after eight blocks, by the slowdown
    itself: "cannot tell" where it is above the threshold and the test does not say so.

    Parameters
    ----------
    rows
        Of `suspects`.
    commits
        Before and after.
    measure
        Called four times a block, with what is not settled yet.
    on_block
        Called after each block with its number and that of suspects still open.
    """
    open_ones = {row.label: _Suspect(row) for row in rows}
    looks = MOST_BLOCKS - FEWEST_BLOCKS + 1
    alpha = ALPHA / max(1, len(rows) * looks)
    done: dict[str, Row] = {}
    for block in range(1, MOST_BLOCKS + 1):
        if not open_ones:
            break
        _measure_block(open_ones, commits, measure)
        for label, suspect in list(open_ones.items()):
            settled = _settled(suspect, block, alpha)
            if settled is not None:
                done[label] = settled
                del open_ones[label]
        if on_block is not None:
            on_block(block, len(open_ones))
    return [done[row.label] for row in rows]


def _measure_block(
    open_ones: Mapping[str, _Suspect], commits: tuple[str, str], measure: Measure
) -> None:
    before, after = commits
    for commit in (before, after, after, before):
        samples = measure(commit, list(open_ones))
        for label, suspect in open_ones.items():
            middle = median(samples[label]) if samples.get(label) else 0.0
            if middle > 0:
                side = suspect.before if commit == before else suspect.after
                side.append(middle)
            else:
                suspect.broken = commit


def _settled(suspect: _Suspect, block: int, alpha: float) -> Row | None:
    """Return the row with its verdict, or None where more blocks are wanted."""
    row, threshold = suspect.row, suspect.row.threshold
    if suspect.broken:
        note = f"failed when measured again at {suspect.broken[:8]}"
        return replace(row, verdict=Verdict.FAILED, note=note)
    if block < FEWEST_BLOCKS:
        return None
    before, after = _aligned(suspect.before, suspect.after)
    good, bad = (before, after) if row.direction is Direction.LOWER else (after, before)
    slowdown = median(bad) / median(good)
    low, high = ratio_interval(good, bad, SETTLED)
    if low <= 1 + threshold <= high and block < MOST_BLOCKS:
        return None
    if slowdown <= 1 + threshold:
        verdict, word = Verdict.OK, "not confirmed"
    elif larger_p_value(good, bad) <= alpha:
        verdict, word = Verdict.REGRESSION, "confirmed"
    elif block < MOST_BLOCKS:
        return None
    else:
        verdict, word = Verdict.CANNOT_TELL, "not settled"
    low, high = ratio_interval(good, bad, CONFIDENCE)
    turned = row.direction is Direction.HIGHER
    known = low > 0 and math.isfinite(high)
    ends = (1 / high, 1 / low) if turned and known else (low, high)
    return replace(
        row,
        before=median(before),
        after=median(after),
        ratio=median(after) / median(before),
        low=ends[0] if known else None,
        high=ends[1] if known else None,
        verdict=verdict,
        note=f"{word} by {len(after)} processes of either commit in turns",
    )


def _aligned(before: Sequence[float], after: Sequence[float]) -> tuple[list[float], list[float]]:
    """Take out what moved all four processes of a block: each block gets the mean of all."""
    logs = [[math.log(value) for value in side] for side in (before, after)]
    everything = math.fsum(x for side in logs for x in side) / (len(before) + len(after))
    aligned: tuple[list[float], list[float]] = ([], [])
    for start in range(0, len(before), 2):
        block = [side[start : start + 2] for side in logs]
        shift = everything - math.fsum(x for side in block for x in side) / 4
        for side, values in zip(aligned, block, strict=True):
            side.extend(math.exp(value + shift) for value in values)
    return aligned


def _slowdown(before: float, after: float, direction: Direction) -> float:
    return after / before if direction is Direction.LOWER else before / after
