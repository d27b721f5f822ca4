"""What comparing two runs gives: a row for each benchmark, and what all rows add up to.

`compare` makes it; tables, documents, plots and pages show it.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from rocmforge.bench.decision import Verdict, slowdown
from rocmforge.bench.results import Direction

THRESHOLD = 0.10
NOT_SELECTED = "not selected now"
CODE_CHANGED = "the benchmark's code changed"


class Outcome(enum.Enum):
    """What comparing says as a whole."""

    PASS = "pass"
    SHOWN = "shown"
    REGRESSION = "regression"
    NOTHING_MEASURED = "nothing_measured"
    MISSING = "missing"
    HARDWARE_MISMATCH = "hardware_mismatch"
    CUT_SHORT = "cut_short"
    INTERRUPTED = "interrupted"

    @property
    def exit_code(self) -> int:
        """Exit code of a command that compared; 2 is that of usage and broken input as well."""
        codes = {"pass": 0, "shown": 0, "regression": 1, "cut_short": 2, "hardware_mismatch": 4}
        return {**codes, "interrupted": 130}.get(self.value, 3)


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
    is after / before with the interval ``low`` to ``high``, None where there is no such number.
    ``threshold`` is the one that this benchmark was judged by, ``quiet_slowdown`` the slowdown of
    the better quartiles, None without samples, ``floor`` the largest change between runs of one
    commit, or what processes of one run differ by, None where neither is known. ``marked`` says
    that other work or throttling disturbed a side.
    """

    name: str
    params: dict[str, str]
    before: float | None
    after: float | None
    ratio: float | None
    low: float | None
    high: float | None
    unit: str | None
    direction: Direction | None
    verdict: Verdict
    note: str = ""
    threshold: float = THRESHOLD
    quiet_slowdown: float | None = None
    floor: float | None = None
    marked: bool = False

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

    @property
    def code_changed(self) -> bool:
        """Whether it is not comparable because the benchmark's own code is another now."""
        return self.verdict is Verdict.NOT_COMPARABLE and self.note.startswith(CODE_CHANGED)


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
        In the order of the results.
    mismatches
        Differences of the hardware that forbid comparing; empty in the good case.
    notes
        What a reader should know besides: differences that do not forbid comparing.
    commits
        Full hashes of both.
    may_miss
        Whether it passes though benchmarks that had a value before have none now.
    cut_short
        CUT_SHORT by an error or INTERRUPTED: what was to be measured again was not, whatever the
        rows say; None: nothing was left out.
    any_failure
        Whether a benchmark that fails and had no value before counts, too: a gate by a baseline,
        where nothing is stored of what failed.
    shown_only
        Whether it is shown beside a run that nobody judges: it never fails.
    """

    before: str
    after: str
    threshold: float
    rows: tuple[Row, ...]
    mismatches: tuple[Difference, ...]
    notes: tuple[str, ...]
    commits: tuple[str, str] = ("", "")
    may_miss: bool = False
    cut_short: Outcome | None = None
    any_failure: bool = False
    shown_only: bool = False

    def with_verdict(self, verdict: Verdict) -> list[Row]:
        """Rows of one verdict."""
        return [row for row in self.rows if row.verdict is verdict]

    @property
    def missing(self) -> list[Row]:
        """Rows that had a value before and none that it can be compared with, but did not fail.

        Not those of benchmarks whose code changed: they have a value, and a new baseline
        settles it.
        """
        lost = (Verdict.MISSING, Verdict.NOT_COMPARABLE)
        return [
            row
            for row in self.rows
            if row.verdict in lost and row.before is not None and not row.code_changed
        ]

    @property
    def not_selected(self) -> list[Row]:
        """Rows that had a value before, of benchmarks that the later run did not select."""
        return [row for row in self.rows if row.note == NOT_SELECTED and row.before is not None]

    @property
    def of_changed_code(self) -> list[Row]:
        """Rows of benchmarks whose own code is another now."""
        return [row for row in self.rows if row.code_changed]

    @property
    def outcome(self) -> Outcome:
        """Shown, else cut short, hardware mismatch, regression, nothing measured, missing, pass."""
        if self.shown_only:
            return Outcome.SHOWN
        if self.cut_short is not None:
            return self.cut_short
        if self.mismatches:
            return Outcome.HARDWARE_MISMATCH
        failed = self.any_failure and self.with_verdict(Verdict.FAILED)
        if failed or any(row.gates for row in self.rows):
            return Outcome.REGRESSION
        compared = {Verdict.OK, Verdict.IMPROVED, Verdict.REGRESSION}
        if not any(row.verdict in compared and row.before is not None for row in self.rows):
            return Outcome.NOTHING_MEASURED
        return Outcome.MISSING if self.missing and not self.may_miss else Outcome.PASS


def suite_slowdowns(comparison: Comparison) -> dict[str, tuple[int, float]]:
    """Return for each suite how many rows have a slowdown, and the geometric mean of these.

    Above 1 is worse, for times and throughputs alike. Only values above 0 count, and none that
    other work or throttling disturbed.
    """
    logs: dict[str, list[float]] = {}
    for row in comparison.rows:
        if row.before is None or row.after is None or row.direction is None or row.marked:
            continue
        if row.ratio and min(row.before, row.after) > 0:
            factor = slowdown(row.before, row.after, row.direction)
            logs.setdefault(row.name.partition(".")[0], []).append(math.log(factor))
    return {
        suite: (len(found), math.exp(math.fsum(found) / len(found)))
        for suite, found in sorted(logs.items())
    }


def _or_unknown(value: str | int | None) -> str:
    return "unknown" if value is None else str(value)
