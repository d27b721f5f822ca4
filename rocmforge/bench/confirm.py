"""Measures suspects again, interleaved at both commits, before any is called slower or faster.

A `Pair` of processes, one of each commit, gives one slowdown: it is one sample. One or two pairs
clear a benchmark that has clearly not changed. A benchmark that looks slower, or faster, needs many
pairs and a signed-rank test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from rocmforge.bench.comparison import Row
from rocmforge.bench.decision import ALPHA, Verdict, of_ratio, slowdown
from rocmforge.bench.interleaved import NOT_AVAILABLE, Pair
from rocmforge.bench.ranks import above_zero_p_value, middle_interval
from rocmforge.bench.results import Direction
from rocmforge.bench.statistics import CONFIDENCE

FEWEST_PAIRS = 12  # after which a regression or an improvement may be called
CLEARED = (-math.inf, 0.0, 0.5)  # of the threshold: below it after so many pairs is ok
MOST_FASTER = 24  # improvements that are proved: each takes a minute of pairs
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
    """Return the rows that may have changed by their threshold, in spite of what one run shows.

    A row is a suspect where its medians or its better quartiles are slower by half the threshold,
    or by the threshold less the noise floor. It is one, too, where it is faster by more than the
    threshold: that is to be proved, and other work may have slowed down the earlier run. A single
    burst of other work hides a slowdown as often as it feigns one. A benchmark without a known
    noise floor gets the median of the known ones. A benchmark whose own code changed is one, too:
    measured again, today's code measures both commits.
    """
    floors = [row.floor for row in rows if row.floor is not None]
    usual = median(floors) if floors else UNKNOWN_NOISE_FLOOR
    return [
        row
        for row in rows
        if row.code_changed or (row.verdict in SUSPICIOUS and _may_have_changed(row, usual))
    ]


def _may_have_changed(row: Row, usual: float) -> bool:
    if row.before is None or row.after is None or row.direction is None:
        return False
    if min(row.before, row.after) <= 0 or row.before == row.after:  # equal: counted, not timed
        return False
    limit, floor = 1 + row.threshold, usual if row.floor is None else row.floor
    factor = slowdown(row.before, row.after, row.direction)
    least = min(1 + SUSPICION * row.threshold, limit / (1 + floor))
    return max(factor, row.quiet_slowdown or 0.0) > least or factor < 1 / limit


def _looks_faster(row: Row) -> bool:
    """Whether a suspect is one for being faster."""
    if not row.before or not row.after or row.direction is None or row.code_changed:
        return False
    return slowdown(row.before, row.after, row.direction) < 1 / (1 + row.threshold)


def confirm(
    rows: Sequence[Row],
    commits: tuple[str, str],
    measure: Measure,
    settled: dict[str, Row],
    on_round: Callable[[int, int], None] | None = None,
) -> None:
    """Measure suspects again, and give each the verdict of these measurements alone.

    A suspect is a regression where after 12 pairs the 95 % interval of its slowdown lies above the
    threshold, or after 16 its middle does, and the signed-rank test says that it is slower, at 1 %
    for all suspects and looks together. It is improved where the whole interval lies beyond the
    threshold and the same test says that it is faster. For many suspects, `looks` asks for more
    pairs.
    It is ok after two pairs that differ by less than half the threshold, or once the interval lies
    within the threshold. One that looked slower is ok after one pair that is not slower, too, or
    once the interval lies below the threshold, unless it is then faster by more than it.
    Otherwise it cannot be told. Two equal pairs settle it at once: the benchmark counts, and times
    nothing. Of suspects that are faster in two pairs the first 24 are measured on; the others
    cannot be told.
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
        if number == len(CLEARED) - 1:
            for label, row in _too_many_faster(open_ones).items():
                settled[label] = row
                del open_ones[label]
        if on_round is not None:
            on_round(number, len(open_ones))


def _too_many_faster(open_ones: Mapping[str, _Suspect]) -> dict[str, Row]:
    """Return what is faster in all pairs so far, but for the first `MOST_FASTER`: nobody waits."""
    faster = [
        suspect
        for suspect in open_ones.values()
        if all(pair.slowdown is not None and pair.slowdown < 1 for pair in suspect.pairs)
    ]
    note = (
        f"faster in {len(CLEARED) - 1} pairs of interleaved processes, one of {len(faster)}: "
        f"{MOST_FASTER} of them are proved; bench confirm --bench measures this one"
    )
    return {
        one.row.label: replace(one.row, verdict=Verdict.CANNOT_TELL, note=note)
        for one in faster[MOST_FASTER:]
    }


def looks(suspected: int) -> tuple[int, int]:
    """After how many pairs a change may be called, and when the measuring ends.

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
        return _without_value(row, pairs[-1], commits)
    n = len(known)
    verdict = _verdict(row, known, n in when, n == when[-1], alpha)
    if verdict is None:
        return None
    changed = verdict in (Verdict.REGRESSION, Verdict.IMPROVED)
    word = "confirmed by" if changed else "no such change in"
    word = "not settled by" if verdict is Verdict.CANNOT_TELL else word
    logs = [math.log(factor) for factor in known]
    low, factor, high = (math.exp(x) for x in middle_interval(logs, CONFIDENCE))
    ends = of_ratio(low, high, row.direction) if math.isfinite(high) else (None, None)
    return replace(
        row,
        before=median(pair.before for pair in pairs),
        after=median(pair.after for pair in pairs),
        ratio=1 / factor if row.direction is Direction.HIGHER else factor,
        low=ends[0],
        high=ends[1],
        marked=False,
        verdict=verdict,
        note=f"{word} {n} pair{'s' if n > 1 else ''} of interleaved processes",
    )


def _without_value(row: Row, pair: Pair, commits: tuple[str, str]) -> Row:
    """Return the row of a suspect of which one process gave no value."""
    side, why = pair.without
    failed = side == 1 and not why.startswith(NOT_AVAILABLE)
    if row.code_changed and not failed:
        return replace(row, note=f"{row.note}; no value at {commits[side][:8]}: {why}")
    verdict = Verdict.FAILED if failed else Verdict.CANNOT_TELL
    note = f"gives no value when measured again at {commits[side][:8]}: {why}"
    return replace(row, verdict=verdict, note=note)


def _verdict(
    row: Row, known: Sequence[float], look: bool, last: bool, alpha: float
) -> Verdict | None:
    """Return what the slowdowns of some pairs say, or None where more pairs are wanted.

    Parameters
    ----------
    row
        The suspect.
    known
        The slowdown of each pair.
    look, last
        Whether a change may be called after so many pairs, and whether these are the last.
    alpha
        Largest p-value of a change.
    """
    n, limit = len(known), 1 + row.threshold
    logs = [math.log(factor) for factor in known]
    low, factor, high = (math.exp(x) for x in middle_interval(logs, SETTLED))
    counted = n > 1 and len(set(known)) == 1
    slower = look and (low > limit or last) and above_zero_p_value(logs) <= alpha
    faster = look and high < 1 / limit and above_zero_p_value([-x for x in logs]) <= alpha
    if factor > limit and (counted or slower):
        return Verdict.REGRESSION
    if factor < 1 / limit and (counted or faster):
        return Verdict.IMPROVED
    within = 1 + CLEARED[min(n, len(CLEARED) - 1)] * row.threshold
    if _looks_faster(row):
        cleared, lowest = 1 / within, low
    else:
        cleared, lowest = 1 / limit, factor
    few = n < len(CLEARED) and cleared < min(known) and max(known) < within
    if counted or few or (1 / limit < lowest and high < limit):
        return Verdict.OK
    return Verdict.CANNOT_TELL if last else None
