"""Shows what a history's judgement found: terminal table, Markdown, JSON, the commands that bisect.

Every number stands with its unit and its direction. Knows findings only; decides nothing but the
exit code.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from rocmforge.bench.findings import Finding, Level, State
from rocmforge.bench.history import History
from rocmforge.bench.report import (
    digits,
    escaped,
    markdown_head,
    markdown_row,
    plain_table,
    scale_for,
    wide_console,
)
from rocmforge.bench.results import Direction
from rocmforge.errors import one_line

COLUMNS = (
    *("#", "what", "benchmark", "last good … first bad", "before", "after", "unit", "better"),
    *("times worse", "99 % interval"),
)
_NUMERIC = ("#", "before", "after", "times worse", "99 % interval")


def exit_code(findings: Sequence[Finding]) -> int:
    """1 where something stands at the newest commit, else 0."""
    return int(any(one.state is State.STANDS for one in findings))


def bisect_command(finding: Finding, history: History, config: Path | None = None) -> str:
    """Return the command that searches the commits of a finding for the one that did it.

    asv measures the first commit of the range and never names it, hence the range begins at the
    last good one. Where only one commit can have done it, both are measured again in turns.

    Parameters
    ----------
    finding, history
        What was found, and where.
    config
        asv's configuration; default: the one in the current directory.
    """
    good, bad = (history.commits[at][:12] for at in (finding.good, finding.bad))
    if finding.bad == finding.good + 1:
        label = _expression(finding.series.label)
        words = ["tools/check_regressions.py", good, bad, "--confirm", "--benchmark", label]
        return shlex.join(["python", *words])
    words = ["asv", *(["--config", str(config)] if config else []), "find"]
    words += ["--machine", history.machine]
    if finding.series.direction is Direction.HIGHER:
        words.append("--invert")
    span = f"{good}~1..{bad}" if finding.good else f"{bad} --not {good}^@"  # may have no parent
    return shlex.join([*words, span, _expression(finding.series.label)])


def summary_line(findings: Sequence[Finding], history: History) -> str:
    """One line: the outcome with its exit code, what was found, over how much."""
    code = exit_code(findings)
    standing = [one for one in findings if one.state is State.STANDS]
    kinds = [f"{one.kind.value}, {one.state.value}" for one in findings]
    counts = "; ".join(f"{kinds.count(kind)} × {kind}" for kind in dict.fromkeys(kinds))
    outcome = "FAIL: got worse" if standing else "PASS: nothing worse at the newest commit"
    labels = len({one.label for one in history.series})
    return (
        f"{outcome} (exit {code}): {counts or 'no step, no drift'}; {labels} benchmarks, "
        f"{len(history.measured)} of {len(history.commits)} commits measured"
    )


def print_findings(
    findings: Sequence[Finding],
    history: History,
    config: Path | None = None,
    console: Console | None = None,
) -> None:
    """Print what was found, the commands, notes and the summary."""
    out = console or wide_console()
    table = plain_table(COLUMNS, _NUMERIC)
    for number, finding in enumerate(findings, 1):
        style = "bold red" if finding.state is State.STANDS else None
        table.add_row(*(Text(cell) for cell in _cells(number, finding, history)), style=style)
    if findings:
        out.print(table)
        out.print(Text("which commit it was, in their order:"))
    for number, finding in enumerate(findings, 1):
        command = bisect_command(finding, history, config)
        out.print(Text(f"  {number}. {command}"), soft_wrap=True)
    for line in (*history.notes, summary_line(findings, history)):
        out.print(Text(line), soft_wrap=True)


def to_markdown(findings: Sequence[Finding], history: History, config: Path | None = None) -> str:
    """Return the findings as a Markdown table with the commands below."""
    lines = [f"**{summary_line(findings, history)}**", ""]
    if findings:
        lines += markdown_head(COLUMNS, _NUMERIC)
        for number, finding in enumerate(findings, 1):
            cells = _cells(number, finding, history)
            lines.append(markdown_row(escaped(cell) for cell in cells))
        lines += ["", "Which commit it was, in their order:", "", "```"]
        lines += [one_line(bisect_command(one, history, config)) for one in findings]
        lines += ["```", ""]
    lines += [f"- {escaped(one_line(note))}" for note in history.notes]
    return "\n".join(lines).rstrip("\n") + "\n"


def to_json(findings: Sequence[Finding], history: History, config: Path | None = None) -> str:
    """Return the findings as strict JSON; values keep the benchmarks' own units."""
    document = {
        "exit_code": exit_code(findings),
        "machine": history.machine,
        "environment": history.environment,
        "commits": len(history.commits),
        "measured": len(history.measured),
        "newest": history.commits[history.measured[-1]],
        "benchmarks": len({one.label for one in history.series}),
        "notes": list(history.notes),
        "findings": [_entry(finding, history, config) for finding in findings],
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _entry(finding: Finding, history: History, config: Path | None) -> dict[str, Any]:
    series = finding.series
    mended = finding.mended
    return {
        "benchmark": series.label,
        "kind": finding.kind.value,
        "state": finding.state.value,
        "last_good": history.commits[finding.good],
        "first_bad": history.commits[finding.bad],
        "mended": None if mended is None else history.commits[mended],
        "unit": series.unit,
        "direction": series.direction.value,
        "before": _level(finding.before),
        "after": _level(finding.after),
        "factor": _finite(finding.factor),
        "factor_low": _finite(finding.low) if finding.low else None,
        "factor_high": _finite(finding.high),
        "threshold": finding.threshold,
        "command": bisect_command(finding, history, config),
    }


def _level(level: Level) -> dict[str, Any]:
    ends = {"low": _finite(level.low), "high": _finite(level.high)}
    return {"median": level.value, **ends, "commits": level.points}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _cells(number: int, finding: Finding, history: History) -> tuple[str, ...]:
    series = finding.series
    levels = finding.before, finding.after
    divisor, unit = scale_for([level.value for level in levels], series.unit)
    known = finding.low > 0 and math.isfinite(finding.high)
    what = f"{finding.kind.value}, {finding.state.value}"
    if finding.mended is not None:
        what += f" by {history.commits[finding.mended][:8]}"
    return (
        str(number),
        what,
        one_line(series.label),
        f"{history.commits[finding.good][:8]} … {history.commits[finding.bad][:8]}",
        *(_shown(level, divisor) for level in levels),
        one_line(unit),
        series.direction.value,
        f"{finding.factor:.3f}",
        f"{finding.low:.3f} … {finding.high:.3f}" if known else "",
    )


def _shown(level: Level, divisor: float) -> str:
    """Median, with its interval where that is known."""
    middle = digits(level.value / divisor)
    if not (math.isfinite(level.low) and math.isfinite(level.high)):
        return f"{middle} ({level.points})"
    return f"{middle} [{digits(level.low / divisor)}, {digits(level.high / divisor)}]"


def _expression(label: str) -> str:
    """Return an expression that finds this benchmark alone; a dot for quotes, which shells read."""
    return f"^{re.escape(label)}$".replace("\\ ", " ").replace("'", ".").replace('"', ".")
