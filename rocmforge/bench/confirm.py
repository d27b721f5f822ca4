"""Measures suspects again, interleaved at both commits, before any is called a regression.

A `Pair` of processes, one of each commit, gives one slowdown: it is one sample. One or two pairs
clear a benchmark that is clearly not slower. A benchmark that looks slower needs many pairs and a
signed-rank test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from rocmforge.bench.compare import Row
from rocmforge.bench.decision import ALPHA, Verdict, of_ratio, slowdown
from rocmforge.bench.interleaved import NOT_AVAILABLE, Pair
from rocmforge.bench.ranks import above_zero_p_value, middle_interval
from rocmforge.bench.results import Direction
from rocmforge.bench.statistics import CONFIDENCE

FEWEST_PAIRS = 12  # after which a regression may be called
CLEARED = (-math.inf, 0.0, 0.5)  # of the threshold: below it after so many pairs is ok
SETTLED = 0.95  # interval that ends the measuring
SUSPICIOUS = (Verdict.REGRESSION, Verdict.CANNOT_TELL, Verdict.OK, Verdict.IMPROVED)
SUSPICION = 0.5  # of the threshold: one run alone may hide as much of a change as it invents
UNKNOWN_NOISE_FLOOR = 0.10  # largest change between runs of one commit, where nobody measured any

Measure = Callable[[str, Direction, bool], Pair]
"""Run one process of each commit interleaved: label, direction, whether the later one leads."""


@dataclass(slots=True)
class _Suspect:
    """The pairs of a benchmark so far."""

    row: Row
    pairs: list[Pair] = field(default_factory=list)


def suspects(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that may be slower by their threshold, in spite of what one run shows.

    A row is a suspect where its medians or its better quartiles are slower by half the threshold,
    or by the threshold less the noise floor. It is one, too, where it is faster by more than the
    threshold: other work may have slowed down the earlier run. A single burst of other work hides a
    slowdown as often as it feigns one. A benchmark without a known noise floor gets the median of
    the known ones.
    """
    floors = [row.floor for row in rows if row.floor is not None]
    usual = median(floors) if floors else UNKNOWN_NOISE_FLOOR
    return [row for row in rows if row.verdict in SUSPICIOUS and _may_be_slower(row, usual)]


def _may_be_slower(row: Row, usual: float) -> bool:
    if row.before is None or row.after is None or row.direction is None:
        return False
    if min(row.before, row.after) <= 0 or row.before == row.after:  # equal: counted, not timed
        return False
    limit, floor = 1 + row.threshold, usual if row.floor is None else row.floor
    factor = slowdown(row.before, row.after, row.direction)
    least = min(1 + SUSPICION * row.threshold, limit / (1 + floor))
    return max(factor, row.quiet_slowdown or 0.0) > least or factor < 1 / limit


def confirm(
    rows: Sequence[Row],
    commits: tuple[str, str],
    measure: Measure,
    settled: dict[str, Row],
    on_round: Callable[[int, int], None] | None = None,
) -> None:
    """Measure suspects again, and give each the verdict of these measurements alone.

    A suspect is ok after one pair that is not slower, after two that are slower by less than half
    the threshold, or once the 95 % interval of the slowdown lies below the threshold. It is a
    regression where after 12 pairs this interval lies above the threshold, or after 16 its middle
    does, and the signed-rank test says that it is slower, at 1 % for all suspects and looks
    together. For many suspects, `looks` asks for more pairs. Otherwise it cannot be told. Two equal
    pairs settle it at once: the benchmark counts, and times nothing. A row that looked improved and
    is ok stays improved.
    A suspect without a value at the later commit has failed, unless it is n/a there. Without a
    value at the earlier commit it cannot be told.

    Parameters
    ----------
    rows
        Of `suspects`.
    commits
        Before and after.
    measure
        Called once a round for each suspect that is still open. The commits lead alternately.
    settled
        Gets each row by label as soon as it is settled: nothing is lost where `measure` raises.
    on_round
        Called after each round with its number and the number of suspects still open.
    """
    open_ones = {row.label: _Suspect(row) for row in rows}
    when = looks(len(rows))
    alpha = ALPHA / max(1, len(rows) * len(when))
    for number in range(1, when[-1] + 1):
        if not open_ones:
            return
        for label, suspect in list(open_ones.items()):
            direction = suspect.row.direction or Direction.LOWER
            suspect.pairs.append(measure(label, direction, number % 2 == 0))
            row = _settle(suspect, commits, when, alpha)
            if row is not None:
                settled[label] = row
                del open_ones[label]
        if on_round is not None:
            on_round(number, len(open_ones))


def looks(suspected: int) -> tuple[int, int]:
    """After how many pairs a regression may be called, and when the measuring ends.

    From 12 pairs on where the signed-rank test can show it of so many suspects, one pair aside: the
    least p-value of n pairs is 1 / 2ⁿ.
    """
    fewest = math.ceil(math.log2(2 * max(1, suspected) / ALPHA)) + 1
    first = max(FEWEST_PAIRS, fewest)
    return first, first + 4


def _settle(
    suspect: _Suspect, commits: tuple[str, str], when: tuple[int, int], alpha: float
) -> Row | None:
    """Return the row with its verdict, or None where more pairs are wanted."""
    row, pairs = suspect.row, suspect.pairs
    known = [pair.slowdown for pair in pairs if pair.slowdown is not None]
    if len(known) < len(pairs):
        side, why = pairs[-1].without
        failed = side == 1 and why != NOT_AVAILABLE
        verdict = Verdict.FAILED if failed else Verdict.CANNOT_TELL
        note = f"gives no value when measured again at {commits[side][:8]}: {why}"
        return replace(row, verdict=verdict, note=note)
    n, limit = len(known), 1 + row.threshold
    logs = [math.log(factor) for factor in known]
    low, factor, high = (math.exp(x) for x in middle_interval(logs, SETTLED))
    counted = n > 1 and len(set(known)) == 1
    slower = n in when and factor > limit and above_zero_p_value(logs) <= alpha
    if (counted and factor > limit) or (slower and (low > limit or n == when[-1])):
        verdict, word = Verdict.REGRESSION, "confirmed by"
    elif (
        counted
        or high < limit
        or (n < len(CLEARED) and max(known) < 1 + CLEARED[n] * row.threshold)
    ):
        verdict, word = Verdict.OK, "not confirmed by"
    elif n == when[-1]:
        verdict, word = Verdict.CANNOT_TELL, "not settled by"
    else:
        return None
    pairs_said = f"{n} pair{'s' if n > 1 else ''} of interleaved processes"
    if verdict is Verdict.OK and row.verdict is Verdict.IMPROVED:
        return replace(row, note=f"not slower in {pairs_said}")
    note = f"{word} {pairs_said}"
    low, factor, high = (math.exp(x) for x in middle_interval(logs, CONFIDENCE))
    ends = of_ratio(low, high, row.direction) if math.isfinite(high) else (None, None)
    return replace(
        row,
        before=median(pair.before for pair in pairs),
        after=median(pair.after for pair in pairs),
        ratio=1 / factor if row.direction is Direction.HIGHER else factor,
        low=ends[0],
        high=ends[1],
        verdict=verdict,
        note=note,
    )
