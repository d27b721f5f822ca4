"""Shows a comparison: terminal table, Markdown, JSON.

Every number stands with its unit and its direction. Knows comparisons only; decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rocmforge.regress.compare import Comparison, Outcome, Row, Verdict
from rocmforge.regress.records import Direction

COLUMNS = ("verdict", "benchmark", "parameters", "before", "after", "ratio", "unit", "better")
_STYLES = {
    Verdict.REGRESSION: "bold red",
    Verdict.FAILED: "bold red",
    Verdict.HARDWARE_MISMATCH: "yellow",
    Verdict.NOT_COMPARABLE: "yellow",
    Verdict.MISSING: "yellow",
    Verdict.IMPROVED: "green",
}
_WORDS = {
    Outcome.PASS: "PASS",
    Outcome.REGRESSION: "FAIL: regression",
    Outcome.NOTHING_MEASURED: "FAIL: nothing measured on both sides",
    Outcome.HARDWARE_MISMATCH: "FAIL: hardware mismatch, nothing was compared",
}
_SCALES = {
    "seconds": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "bytes": ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
}
_PLAIN_WIDTH = 240


def summary_line(comparison: Comparison) -> str:
    """One line: the outcome, how many rows of each verdict, the threshold."""
    counts = [
        f"{len(rows)} {verdict.value}"
        for verdict in Verdict
        if (rows := comparison.with_verdict(verdict))
    ]
    listed = ", ".join(counts) or "no benchmark"
    outcome = comparison.outcome
    return (
        f"{_WORDS[outcome]} (exit {outcome.value}): {listed}; "
        f"threshold {100 * comparison.threshold:g} %"
    )


def print_table(comparison: Comparison, console: Console | None = None) -> None:
    """Print rows, worst first, then hardware differences, notes and the summary.

    Parameters
    ----------
    comparison
        What to show.
    console
        Where to; default: standard output, wide enough not to cut names where that is no terminal.
    """
    out = console or Console()
    if console is None and not out.is_terminal:
        out = Console(width=_PLAIN_WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        numeric = column in ("before", "after", "ratio")
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    shown = _shown(comparison)
    for row in shown:
        table.add_row(*(Text(cell) for cell in _cells(row)), style=_STYLES.get(row.verdict))
    if shown:
        out.print(table)
    for line in _footer(comparison):
        out.print(Text(line), soft_wrap=True)


def to_markdown(comparison: Comparison) -> str:
    """Return the comparison as a Markdown table, e.g. for a comment on a change."""
    lines = [f"**{summary_line(comparison)}**", ""]
    lines.append("| " + " | ".join(COLUMNS) + " |")
    lines.append("|---|---|---|---:|---:|---:|---|---|")
    for row in _shown(comparison):
        cells = [cell.replace("|", "\\|").replace("\n", " ") for cell in _cells(row)]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    lines.extend(f"- {line}" for line in _footer(comparison)[:-1])
    return "\n".join(lines) + "\n"


def to_json(comparison: Comparison) -> str:
    """Return the comparison as strict JSON; values keep the benchmarks' own units."""
    outcome = comparison.outcome
    document = {
        "outcome": outcome.name.lower(),
        "exit_code": outcome.value,
        "threshold": comparison.threshold,
        "before": comparison.before,
        "after": comparison.after,
        "hardware_mismatches": [asdict(difference) for difference in comparison.mismatches],
        "notes": list(comparison.notes),
        "counts": {v.value: len(comparison.with_verdict(v)) for v in Verdict},
        "rows": [asdict(row) | {"label": row.label} for row in _worst_first(comparison)],
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _worst_first(comparison: Comparison) -> list[Row]:
    order = list(Verdict)
    return sorted(comparison.rows, key=lambda row: (order.index(row.verdict), row.label))


def _shown(comparison: Comparison) -> list[Row]:
    """Leave out what was skipped on both sides (n/a here): the summary counts it."""
    return [row for row in _worst_first(comparison) if row.verdict is not Verdict.SKIPPED]


def _footer(comparison: Comparison) -> list[str]:
    return [
        f"before: {comparison.before}",
        f"after:  {comparison.after}",
        *(f"hardware differs: {difference}" for difference in comparison.mismatches),
        *comparison.notes,
        summary_line(comparison),
    ]


def _cells(row: Row) -> tuple[str, ...]:
    divisor, unit = scale_for((row.before, row.after), row.unit or "unknown")
    before, after = (
        "n/a" if value is None else digits(value / divisor) for value in (row.before, row.after)
    )
    params = ", ".join(f"{name}={value}" for name, value in row.params.items())
    return (
        row.verdict.value + (f" ({row.note})" if row.note else ""),
        row.name,
        params,
        before,
        after,
        "n/a" if row.ratio is None else f"{row.ratio:.3f}",
        unit,
        "unknown" if row.direction is None else _better(row.direction),
    )


def _better(direction: Direction) -> str:
    return "lower" if direction is Direction.LOWER else "higher"


def scale_for(values: Sequence[float | None], unit: str) -> tuple[float, str]:
    """Return divisor and unit in which values of `unit` read well together.

    Parameters
    ----------
    values
        What will stand in one row; the largest decides. None and 0 do not count.
    unit
        ``"seconds"`` and ``"bytes"`` scale, any other is returned with divisor 1.
    """
    scales = _SCALES.get(unit)
    if scales is None:
        return 1.0, unit
    largest = max((abs(value) for value in values if value), default=0.0)
    return next((s for s in scales if largest >= s[0]), scales[-1])


def digits(value: float) -> str:
    """Return a number with four digits, or all of those in front of the point."""
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
