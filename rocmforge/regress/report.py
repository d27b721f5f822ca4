"""Shows a comparison: terminal table, Markdown, JSON, JUnit XML.

Every number stands with its unit and its direction. Knows comparisons only; decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rocmforge.regress.compare import Comparison, Outcome, Row
from rocmforge.regress.decision import Verdict
from rocmforge.regress.records import Direction

COLUMNS = (
    "verdict",
    "benchmark",
    "parameters",
    "before",
    "after",
    "ratio",
    "99 % interval",
    "unit",
    "better",
)
_NUMERIC = ("before", "after", "ratio", "99 % interval")
_STYLES = {
    Verdict.REGRESSION: "bold red",
    Verdict.FAILED: "bold red",
    Verdict.CANNOT_TELL: "yellow",
    Verdict.HARDWARE_MISMATCH: "yellow",
    Verdict.NOT_COMPARABLE: "yellow",
    Verdict.MISSING: "yellow",
    Verdict.IMPROVED: "green",
}
_WORDS = {
    Outcome.PASS: "PASS",
    Outcome.REGRESSION: "FAIL: regression",
    Outcome.NOTHING_MEASURED: "FAIL: nothing measured on both sides that can be judged",
    Outcome.HARDWARE_MISMATCH: "FAIL: hardware mismatch, nothing was compared",
}
_SCALES = {
    "seconds": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "elements/s": ((1e9, "G elements/s"), (1e6, "M elements/s"), (1.0, "elements/s")),
    "bytes": ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
}
_PLAIN_WIDTH = 240


def summary_line(comparison: Comparison) -> str:
    """One line: the outcome with its exit code, and `counts_line`."""
    outcome = comparison.outcome
    return f"{_WORDS[outcome]} (exit {outcome.value}): {counts_line(comparison)}"


def counts_line(comparison: Comparison) -> str:
    """One line: how many rows of each verdict, the threshold."""
    counts = [
        f"{len(rows)} {verdict.value}"
        for verdict in Verdict
        if (rows := comparison.with_verdict(verdict))
    ]
    listed = ", ".join(counts) or "no benchmark"
    return f"{listed}; threshold {100 * comparison.threshold:g} %"


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
        justify = "right" if column in _NUMERIC else "left"
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    shown = _shown(comparison)
    for row in shown:
        table.add_row(
            *(Text(cell) for cell in _cells(row, comparison.threshold)),
            style=_STYLES.get(row.verdict),
        )
    if shown:
        out.print(table)
    for line in _footer(comparison):
        out.print(Text(line), soft_wrap=True)


def to_markdown(comparison: Comparison) -> str:
    """Return the comparison as a Markdown table, e.g. for a comment on a change."""
    lines = [f"**{summary_line(comparison)}**", ""]
    lines.append("| " + " | ".join(COLUMNS) + " |")
    lines.append("|" + "".join("---:|" if c in _NUMERIC else "---|" for c in COLUMNS))
    for row in _shown(comparison):
        cells = [
            cell.replace("|", "\\|").replace("\n", " ")
            for cell in _cells(row, comparison.threshold)
        ]
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


def to_junit(comparison: Comparison) -> str:
    """Return the comparison as JUnit XML, a test case for each benchmark, for CI systems.

    A regression is a failure, a benchmark that fails an error, what could not be judged is skipped;
    a comparison that is red for another reason (hardware, nothing measured) has one more test case.
    """
    rows = _worst_first(comparison)
    failures = [row for row in rows if row.verdict is Verdict.REGRESSION]
    errors = [row for row in rows if row.verdict is Verdict.FAILED and row.gates]
    judged = (Verdict.OK, Verdict.IMPROVED, Verdict.NEW)
    whole = comparison.outcome not in (Outcome.PASS, Outcome.REGRESSION)
    skipped = [row for row in rows if row not in failures + errors and row.verdict not in judged]
    suite = ElementTree.Element(
        "testsuite",
        name="rocmforge benchmarks",
        tests=str(len(rows) + whole),
        failures=str(len(failures)),
        errors=str(len(errors) + whole),
        skipped=str(len(skipped)),
    )
    for row in rows:
        case = ElementTree.SubElement(
            suite, "testcase", classname=row.name, name=_parameters(row) or row.name
        )
        if row in failures or row in errors:
            tag = "failure" if row in failures else "error"
            ElementTree.SubElement(
                case, tag, message=_sentence(row, comparison.threshold), type=row.verdict.value
            )
        elif row in skipped:
            ElementTree.SubElement(case, "skipped", message=_sentence(row, comparison.threshold))
        else:
            ElementTree.SubElement(case, "system-out").text = _sentence(row, comparison.threshold)
    if whole:
        case = ElementTree.SubElement(suite, "testcase", classname="gate", name="comparison")
        message = "; ".join(_footer(comparison)[2:])
        ElementTree.SubElement(case, "error", message=message, type=comparison.outcome.name.lower())
    ElementTree.indent(suite)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        + ElementTree.tostring(suite, encoding="unicode")
        + "\n"
    )


def _sentence(row: Row, threshold: float) -> str:
    """All cells of a row with the names of their columns."""
    cells = _cells(row, threshold)
    pairs = zip(COLUMNS, cells, strict=True)
    named = [f"{name} {cell}" for name, cell in pairs if cell and name not in COLUMNS[:3]]
    return f"{cells[0]}: {', '.join(named)}"


def _worst_first(comparison: Comparison) -> list[Row]:
    order = list(Verdict)
    return sorted(comparison.rows, key=lambda row: (order.index(row.verdict), row.label))


def _words(row: Row, threshold: float) -> str:
    """Verdict, its note, and the threshold where the benchmark has one of its own."""
    notes = [row.note] if row.note else []
    if row.threshold != threshold:
        notes.append(f"threshold {100 * row.threshold:g} %")
    return row.verdict.value + (f" ({'; '.join(notes)})" if notes else "")


def _shown(comparison: Comparison) -> list[Row]:
    """Leave out what only the later side has and what neither has: the summary counts them."""
    hidden = (Verdict.NEW, Verdict.SKIPPED)
    return [row for row in _worst_first(comparison) if row.verdict not in hidden]


def _footer(comparison: Comparison) -> list[str]:
    return [
        f"before: {comparison.before}",
        f"after:  {comparison.after}",
        *(f"hardware differs: {difference}" for difference in comparison.mismatches),
        *comparison.notes,
        summary_line(comparison),
    ]


def _cells(row: Row, threshold: float) -> tuple[str, ...]:
    divisor, unit = scale_for((row.before, row.after), row.unit or "unknown")
    before, after = (
        "n/a" if value is None else digits(value / divisor) for value in (row.before, row.after)
    )
    return (
        _words(row, threshold),
        row.name,
        _parameters(row),
        before,
        after,
        "n/a" if row.ratio is None else f"{row.ratio:.3f}",
        "" if row.low is None or row.high is None else f"{row.low:.3f} … {row.high:.3f}",
        unit,
        "unknown" if row.direction is None else _better(row.direction),
    )


def _parameters(row: Row) -> str:
    return ", ".join(f"{name}={value}" for name, value in row.params.items())


def _better(direction: Direction) -> str:
    return "lower" if direction is Direction.LOWER else "higher"


def scale_for(values: Sequence[float | None], unit: str) -> tuple[float, str]:
    """Return divisor and unit in which values of `unit` read well together.

    Parameters
    ----------
    values
        What will stand in one row; the largest decides. None and 0 do not count.
    unit
        ``"seconds"``, ``"elements/s"`` and ``"bytes"`` scale, any other is returned with divisor 1.
    """
    scales = _SCALES.get(unit)
    if scales is None:
        return 1.0, unit
    largest = max((abs(value) for value in values if value), default=0.0)
    return next((s for s in scales if largest >= s[0]), scales[-1])


def digits(value: float) -> str:
    """Return a number with four digits, or all of those in front of the point."""
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
