"""What a terminal shows of a history: what got worse, between which commits, how to bisect it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rocmforge.bench.findings import Finding, Level, State, bisect_command, exit_code
from rocmforge.bench.formatting import digits, scale_for
from rocmforge.bench.history import History
from rocmforge.bench.tables import plain_table, wide_console
from rocmforge.errors import one_line

HISTORY_COLUMNS = (
    *("#", "what", "benchmark", "last good … first bad", "before", "after", "unit", "better"),
    *("times worse", "99 % interval"),
)
HISTORY_NUMERIC = ("#", "before", "after", "times worse", "99 % interval")


def print_findings(
    findings: Sequence[Finding],
    history: History,
    config: Path | None = None,
    console: Console | None = None,
) -> None:
    """Print what was found, the commands that bisect it, notes and the summary."""
    out = console or wide_console()
    table = plain_table(HISTORY_COLUMNS, HISTORY_NUMERIC)
    for number, finding in enumerate(findings, 1):
        style = "bold red" if finding.state is State.STANDS else None
        table.add_row(
            *(Text(cell) for cell in finding_cells(number, finding, history)), style=style
        )
    if findings:
        out.print(table)
        out.print(Text("which commit it was, in their order:"))
    for number, finding in enumerate(findings, 1):
        command = bisect_command(finding, history, config)
        out.print(Text(f"  {number}. {command}"), soft_wrap=True)
    for line in (*history.notes, findings_line(findings, history)):
        out.print(Text(line), soft_wrap=True)


def findings_line(findings: Sequence[Finding], history: History) -> str:
    """One line: the outcome with its exit code, what was found, and over how many commits."""
    code = exit_code(findings)
    kinds = [f"{one.kind.value}, {one.state.value}" for one in findings]
    counts = "; ".join(f"{kinds.count(kind)} × {kind}" for kind in dict.fromkeys(kinds))
    outcome = "FAIL: got worse" if code else "PASS: nothing worse at the newest commit"
    labels = len({one.label for one in history.series})
    return (
        f"{outcome} (exit {code}): {counts or 'no change point, no drift'}; {labels} benchmarks, "
        f"{len(history.measured)} of {len(history.commits)} commits measured"
    )


def finding_cells(number: int, finding: Finding, history: History) -> tuple[str, ...]:
    """Return the texts of a finding, one for each of HISTORY_COLUMNS."""
    series = finding.series
    levels = finding.before, finding.after
    divisor, unit = scale_for([level.value for level in levels], series.unit)
    known = finding.low > 0 and math.isfinite(finding.high)
    what = f"{finding.kind.value}, {finding.state.value}"
    if finding.mended is not None:
        what += f" by {history.commits[finding.mended][:8]}"
    if finding.note:
        what += f" ({finding.note})"
    return (
        str(number),
        what,
        one_line(series.label),
        f"{history.commits[finding.good][:8]} … {history.commits[finding.bad][:8]}",
        *(_level(level, divisor) for level in levels),
        one_line(unit),
        series.direction.value,
        f"{finding.factor:.3f}",
        f"{finding.low:.3f} … {finding.high:.3f}" if known else "",
    )


def _level(level: Level, divisor: float) -> str:
    """Median, with its interval where that is known."""
    middle = digits(level.value / divisor)
    if not (math.isfinite(level.low) and math.isfinite(level.high)):
        return f"{middle} ({level.points})"
    return f"{middle} [{digits(level.low / divisor)}, {digits(level.high / divisor)}]"
