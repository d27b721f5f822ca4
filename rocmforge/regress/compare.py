"""Compares two sets of records by a threshold, knowing which way each metric is better.

Knows no file: sets come from `results` (asv) or from `baseline`. Knows no statistics either: a
verdict here is the ratio of two medians against the threshold, nothing more.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from rocmforge.hardware import Hardware
from rocmforge.regress.records import Direction, Record, ResultSet, Status

THRESHOLD = 0.10
_ROUNDING = 1e-9  # relative; a ratio of exactly 1 + threshold is no regression


class Verdict(str, enum.Enum):
    """What comparing says of one benchmark with one set of parameters, worst first."""

    REGRESSION = "regression"
    FAILED = "failed"
    HARDWARE_MISMATCH = "hardware mismatch"
    NOT_COMPARABLE = "not comparable"
    MISSING = "missing"
    IMPROVED = "improved"
    NEW = "new"
    OK = "ok"
    SKIPPED = "skipped"


class Outcome(enum.IntEnum):
    """What comparing says as a whole; the values are exit codes (2: usage or broken input)."""

    PASS = 0
    REGRESSION = 1
    NOTHING_MEASURED = 3
    HARDWARE_MISMATCH = 4


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of the hardware that is not the same before and after."""

    field: str
    before: str | int | None
    after: str | int | None

    def __str__(self) -> str:
        """``cpu_count: 2 → 4``."""
        return f"{self.field}: {_or_unknown(self.before)} → {_or_unknown(self.after)}"


@dataclass(frozen=True, slots=True)
class Row:
    """One benchmark with one set of parameters, before and after.

    ``before`` and ``after`` are medians in ``unit``, None where nothing was measured; ``ratio``
    is after / before, None where there is no such number.
    """

    name: str
    params: dict[str, str]
    before: float | None
    after: float | None
    ratio: float | None
    unit: str | None
    direction: Direction | None
    verdict: Verdict
    note: str = ""

    @property
    def label(self) -> str:
        """Name with parameters as asv prints it."""
        return f"{self.name}({', '.join(self.params.values())})" if self.params else self.name

    @property
    def gates(self) -> bool:
        """Whether this row alone makes the comparison a regression."""
        return self.verdict is Verdict.REGRESSION or (
            self.verdict is Verdict.FAILED and self.before is not None
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rows, and what they add up to.

    Parameters
    ----------
    before, after
        What was compared, in words.
    threshold
        0.10 for 10 %.
    rows
        In the order of the records.
    mismatches
        Differences of the hardware that forbid comparing; empty in the good case.
    notes
        What a reader should know besides: differences that do not forbid comparing.
    """

    before: str
    after: str
    threshold: float
    rows: tuple[Row, ...]
    mismatches: tuple[Difference, ...]
    notes: tuple[str, ...]

    def with_verdict(self, verdict: Verdict) -> list[Row]:
        """Rows of one verdict."""
        return [row for row in self.rows if row.verdict is verdict]

    @property
    def outcome(self) -> Outcome:
        """Whole result: hardware mismatch before regression before nothing measured before pass."""
        if self.mismatches:
            return Outcome.HARDWARE_MISMATCH
        if any(row.gates for row in self.rows):
            return Outcome.REGRESSION
        compared = {Verdict.OK, Verdict.IMPROVED, Verdict.REGRESSION}
        if not any(row.verdict in compared and row.before is not None for row in self.rows):
            return Outcome.NOTHING_MEASURED
        return Outcome.PASS


def slowdown(before: float, after: float, direction: Direction) -> float:
    """Factor by which a metric got worse: after / before, or before / after where higher is better.

    So ms/token and tokens/s of the same run give the same factor, and swapping before and after
    inverts it. 1 is unchanged, above 1 is worse.

    Parameters
    ----------
    before, after
        Same unit, at least 0.
    direction
        Which way the metric is better.

    Raises
    ------
    ValueError
        A negative value.
    """
    if before < 0 or after < 0:
        raise ValueError(f"before, after: got {before}, {after}, wanted values of at least 0")
    if before == after:
        return 1.0
    good, bad = (before, after) if direction is Direction.LOWER else (after, before)
    return bad / good if good > 0 else math.inf


def compare(
    before: ResultSet,
    after: ResultSet,
    threshold: float = THRESHOLD,
    select: re.Pattern[str] | None = None,
) -> Comparison:
    """Compare two runs benchmark by benchmark.

    A benchmark is a regression where its `slowdown` exceeds ``1 + threshold``, and improved where
    it is below ``1 / (1 + threshold)``. One that was measured before and fails now weighs like a
    regression. On different hardware nothing is compared.

    Parameters
    ----------
    before, after
        The two runs.
    threshold
        Above 0; 0.10 for 10 %.
    select
        Only benchmarks whose ``name(parameters)`` this expression finds; default: all.

    Raises
    ------
    ValueError
        A threshold that is not a number above 0.
    """
    if not (math.isfinite(threshold) and threshold > 0):
        raise ValueError(f"threshold: got {threshold}, wanted a fraction above 0, e.g. 0.10")
    mismatches = _differences(before.hardware, after.hardware)
    old, new = _by_label(before.records, select), _by_label(after.records, select)
    rows = []
    for label, known in {**old, **new}.items():
        row = _judge(known, old.get(label), new.get(label), threshold)
        rows.append(_unjudged(row) if mismatches else row)
    return Comparison(
        before=_describe(before),
        after=_describe(after),
        threshold=threshold,
        rows=tuple(rows),
        mismatches=mismatches,
        notes=_notes(before, after, mismatches),
    )


def _judge(known: Record, before: Record | None, after: Record | None, threshold: float) -> Row:
    old = before.value if before else None
    new = after.value if after else None
    verdict, note = _verdict(before, after, threshold)
    ratio = new / old if old and new is not None else math.inf
    return Row(
        name=known.name,
        params=dict(zip(known.param_names, known.params, strict=True)),
        before=old,
        after=new,
        ratio=ratio if math.isfinite(ratio) else None,
        unit=known.unit,
        direction=known.direction,
        verdict=verdict,
        note=note,
    )


def _verdict(before: Record | None, after: Record | None, threshold: float) -> tuple[Verdict, str]:
    was = before.status if before else None
    now = after.status if after else None
    if now is Status.FAILED:
        then = {Status.OK: "ok", Status.FAILED: "failed too", Status.SKIPPED: "skipped"}
        return Verdict.FAILED, f"before: {then[was] if was else 'not measured'}"
    if before and after and was is Status.OK and now is Status.OK:
        return _ratio_verdict(before, after, threshold)
    if now is Status.OK:
        if was is Status.FAILED:
            return Verdict.IMPROVED, "failed before"
        return Verdict.NEW, "skipped before" if was is Status.SKIPPED else ""
    if was is Status.OK:
        return Verdict.MISSING, "skipped now" if now is Status.SKIPPED else ""
    if was is Status.FAILED:
        return Verdict.MISSING, "failed before, not measured now"
    return Verdict.SKIPPED, ""


def _ratio_verdict(before: Record, after: Record, threshold: float) -> tuple[Verdict, str]:
    old, new, direction = before.value, after.value, after.direction
    if before.version and after.version and before.version != after.version:
        return Verdict.NOT_COMPARABLE, "the benchmark's code changed"
    if before.unit is None or after.unit is None or direction is None:
        return Verdict.NOT_COMPARABLE, "not in benchmarks.json: unit and direction unknown"
    if (before.unit, before.direction) != (after.unit, direction):
        return Verdict.NOT_COMPARABLE, "unit or direction changed"
    if old is None or new is None or old < 0 or new < 0:
        return Verdict.NOT_COMPARABLE, "a negative value has no ratio"
    factor = slowdown(old, new, direction)
    if factor > (1 + threshold) * (1 + _ROUNDING):
        return Verdict.REGRESSION, ""
    if factor * (1 + threshold) * (1 + _ROUNDING) < 1:
        return Verdict.IMPROVED, ""
    return Verdict.OK, ""


def _unjudged(row: Row) -> Row:
    return Row(
        name=row.name,
        params=row.params,
        before=row.before,
        after=row.after,
        ratio=None,
        unit=row.unit,
        direction=row.direction,
        verdict=Verdict.HARDWARE_MISMATCH,
    )


def _by_label(records: Iterable[Record], select: re.Pattern[str] | None) -> dict[str, Record]:
    return {r.label: r for r in records if select is None or select.search(r.label)}


def _differences(before: Hardware, after: Hardware) -> tuple[Difference, ...]:
    old, new = before.identity(), after.identity()
    return tuple(Difference(key, old[key], new[key]) for key in old if old[key] != new[key])


def _notes(
    before: ResultSet, after: ResultSet, mismatches: tuple[Difference, ...]
) -> tuple[str, ...]:
    named = {difference.field for difference in mismatches}
    notes = []
    for field in ("rocm_version", "os", "python_version"):
        old, new = getattr(before.hardware, field), getattr(after.hardware, field)
        if old != new and field not in named:
            notes.append(f"differs, compared all the same: {Difference(field, old, new)}")
    if not before.hardware.is_known() and not after.hardware.is_known():
        notes.append("hardware unknown: run tools/register_machine.py before asv run")
    if before.commit == after.commit:
        notes.append(f"before and after are runs of the same commit, {after.commit[:8]}")
    return tuple(notes)


def _describe(results: ResultSet) -> str:
    return f"{results.source} ({results.commit[:8]} on {results.machine})"


def _or_unknown(value: str | int | None) -> str:
    return "unknown" if value is None else str(value)
