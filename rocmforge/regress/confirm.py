"""Measures suspects again before calling them regressions: both commits in turns, A B B A.

What a busy or warm machine does to one commit it then does to the other, and a drift over a block
of four processes cancels. The sample here is one number of a process, for processes differ by more
than the calls within one: its better quartile. Knows no asv (`measure` is given) and no file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from rocmforge.regress.compare import Row
from rocmforge.regress.decision import ALPHA, Verdict, of_ratio, quiet, slowdown
from rocmforge.regress.ranks import blocked_p_value, ratio_interval
from rocmforge.regress.records import Direction
from rocmforge.regress.statistics import CONFIDENCE

FEWEST_BLOCKS = 3
MOST_BLOCKS = 10
SETTLED = 0.95  # interval that ends the measuring
SUSPICIOUS = (Verdict.REGRESSION, Verdict.CANNOT_TELL, Verdict.OK)
TOGETHER = 3  # benchmarks that one run measures: its twin of the other commit follows in seconds
SUSPICION = 0.5  # of the threshold: one run alone may hide as much of a change as it invents

Measure = Callable[[str, Sequence[str]], Mapping[str, Sequence[float]]]
"""Run benchmarks of a commit once, in new processes: samples by label, without what fails."""


@dataclass(slots=True)
class _Suspect:
    """Better quartiles of processes, in every block two of each side."""

    row: Row
    before: list[list[float]] = field(default_factory=list)
    after: list[list[float]] = field(default_factory=list)
    broken: str = ""  # the commit that it cannot be measured at


def suspects(rows: Sequence[Row]) -> list[Row]:
    """Rows that look slower by half their threshold or more, and can be measured again.

    By their medians or by their better quartiles: a burst of other work hides a change in one run
    as often as it makes one up.
    """
    return [
        row
        for row in rows
        if row.verdict in SUSPICIOUS
        and row.before is not None
        and row.after is not None
        and min(row.before, row.after) > 0
        and row.direction is not None
        and max(slowdown(row.before, row.after, row.direction), row.quiet_slowdown or 0.0)
        > 1 + SUSPICION * row.threshold
    ]


def confirm(
    rows: Sequence[Row],
    commits: tuple[str, str],
    measure: Measure,
    settled: dict[str, Row],
    on_block: Callable[[int, int], None] | None = None,
) -> None:
    """Measure suspects again, and give each the verdict of these measurements alone.

    A suspect is a regression where it is slower by more than its threshold and a rank test within
    blocks says that it is slower, at 1 % for all suspects and looks together. It is settled, either
    way, after three blocks or later once the 95 % interval of the slowdown lies on one side of the
    threshold. What ten blocks do not settle is a regression only where both hold, else "cannot
    tell". One that fails at the later commit has failed; at the earlier, it cannot be told.

    Parameters
    ----------
    rows
        Of `suspects`.
    commits
        Before and after.
    measure
        Called four times a block with what is not settled yet, three benchmarks at once.
    settled
        Gets the rows by label as they are settled, so that nothing is lost where `measure` raises.
    on_block
        Called after each block with its number and that of suspects still open.
    """
    open_ones = {row.label: _Suspect(row) for row in rows}
    looks = MOST_BLOCKS - FEWEST_BLOCKS + 1
    alpha = ALPHA / max(1, len(rows) * looks)
    for block in range(1, MOST_BLOCKS + 1):
        if not open_ones:
            return
        _measure_block(open_ones, commits, measure)
        for label, suspect in list(open_ones.items()):
            row = _settle(suspect, commits, block, alpha)
            if row is not None:
                settled[label] = row
                del open_ones[label]
        if on_block is not None:
            on_block(block, len(open_ones))


def _measure_block(
    open_ones: Mapping[str, _Suspect], commits: tuple[str, str], measure: Measure
) -> None:
    before, after = commits
    for suspect in open_ones.values():
        suspect.before.append([])
        suspect.after.append([])
    labels = list(open_ones)
    for at in range(0, len(labels), TOGETHER):
        few = labels[at : at + TOGETHER]
        for commit in (before, after, after, before):
            samples = measure(commit, few)
            for label in few:
                _add(open_ones[label], commit, commit == before, samples.get(label, ()))


def _add(suspect: _Suspect, commit: str, earlier: bool, samples: Sequence[float]) -> None:
    """Add a process of a commit."""
    direction = suspect.row.direction
    value = quiet(samples, direction) if samples and direction is not None else 0.0
    if value > 0:
        (suspect.before if earlier else suspect.after)[-1].append(value)
    else:
        suspect.broken = commit


def _settle(suspect: _Suspect, commits: tuple[str, str], block: int, alpha: float) -> Row | None:
    """Return the row with its verdict, or None where more blocks are wanted."""
    row = suspect.row
    if suspect.broken:
        failed = suspect.broken == commits[1]
        return replace(
            row,
            verdict=Verdict.FAILED if failed else Verdict.CANNOT_TELL,
            note=f"gives no value when measured again at {suspect.broken[:8]}",
        )
    if block < FEWEST_BLOCKS:
        return None
    limit = 1 + row.threshold
    lower = row.direction is Direction.LOWER
    good, bad = (suspect.before, suspect.after) if lower else (suspect.after, suspect.before)
    one, other = _aligned(good, bad)
    factor = median(other) / median(one)
    low, high = ratio_interval(one, other, SETTLED)
    sure = blocked_p_value(good, bad) <= alpha
    if (low <= limit <= high or (factor > limit and not sure)) and block < MOST_BLOCKS:
        return None
    if factor > limit and sure:
        verdict, word = Verdict.REGRESSION, "confirmed by"
    elif high < limit:
        verdict, word = Verdict.OK, "not confirmed by"
    else:
        verdict, word = Verdict.CANNOT_TELL, "not settled by"
    note = f"{word} {len(one)} processes of either commit in turns"
    if verdict is Verdict.CANNOT_TELL:
        note += _what_would_settle(factor, low, high, limit, len(one))
    before, after = (one, other) if lower else (other, one)
    low, high = ratio_interval(one, other, CONFIDENCE)
    known = low > 0 and math.isfinite(high)
    ends = of_ratio(low, high, row.direction) if known else (None, None)
    return replace(
        row,
        before=median(before),
        after=median(after),
        ratio=median(after) / median(before),
        low=ends[0],
        high=ends[1],
        verdict=verdict,
        note=note,
    )


def _what_would_settle(factor: float, low: float, high: float, limit: float, n: int) -> str:
    """How many processes an interval that does not reach the threshold takes: its width is 1/√n."""
    distance = abs(math.log(factor / limit))
    width = math.log(high / low) / 2 if low > 0 and math.isfinite(high) else math.inf
    if distance == 0 or math.isinf(width):
        return ""
    wanted = math.ceil(n * (width / distance) ** 2)
    return f"; about {wanted} would" if n < wanted < 1000 else ""


def _aligned(
    one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]
) -> tuple[list[float], list[float]]:
    """Take out what moved a whole block: each gets the mean of all."""
    logs = [[[math.log(value) for value in block] for block in side] for side in (one, other)]
    means = [math.fsum([*a, *b]) / (len(a) + len(b)) for a, b in zip(*logs, strict=True)]
    mean = math.fsum(means) / len(means)
    first, second = (
        [
            math.exp(value + mean - shift)
            for block, shift in zip(side, means, strict=True)
            for value in block
        ]
        for side in logs
    )
    return first, second
