"""Shows a comparison: terminal table, Markdown, JSON, JUnit XML.

Every number stands with its unit and its direction. Knows comparisons only; decides nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rocmforge.bench.compare import Comparison, Outcome, Row
from rocmforge.bench.decision import Verdict, slowdown
from rocmforge.bench.results import Direction
from rocmforge.errors import one_line

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
    Outcome.MISSING: "FAIL: benchmarks that were measured before are missing or not comparable",
    Outcome.NOTHING_MEASURED: "FAIL: nothing measured on both sides that can be judged",
    Outcome.HARDWARE_MISMATCH: "FAIL: hardware mismatch, nothing was compared",
    Outcome.CUT_SHORT: "FAIL: measuring again was cut short",
    Outcome.INTERRUPTED: "FAIL: measuring again was interrupted",
}
_SCALES = {
    "seconds": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "elements/s": ((1e9, "G elements/s"), (1e6, "M elements/s"), (1.0, "elements/s")),
    "bytes": ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
}
PLAIN_WIDTH = 240
"""Columns where the output is no terminal: wide enough not to cut names."""
FINE = (Verdict.NEW, Verdict.OK, Verdict.SKIPPED, Verdict.HARDWARE_MISMATCH)
"""Verdicts that ask nothing of a reader row by row: counted, and shown only where all is."""
OTHER_HARDWARE = "compare runs of one machine, or store a baseline of this one: --save-baseline"
_NAMED = 10
_MARKDOWN_LIMIT = 60_000  # characters; a comment on GitHub has 65,536 at most
_ACTIVE = re.compile(r"[\\`*\[\]|~]|(?<!\w)_|_(?!\w)")
_LINKING = re.compile(r"@|#(?=\d)|:(?=//)|www(?=\.)", re.IGNORECASE)


def summary_line(comparison: Comparison) -> str:
    """One line: the outcome with its exit code, and `counts_line`."""
    outcome = comparison.outcome
    return f"{_WORDS[outcome]} (exit {outcome.exit_code}): {counts_line(comparison)}"


def counts_line(comparison: Comparison) -> str:
    """One line: how many rows of each verdict, the threshold."""
    counts = [
        f"{len(rows)} {verdict.value}"
        for verdict in Verdict
        if (rows := comparison.with_verdict(verdict))
    ]
    listed = ", ".join(counts) or "no benchmark"
    return f"{listed}; threshold {100 * comparison.threshold:g} %"


def missing_line(comparison: Comparison) -> str | None:
    """One line: what had a value before that nothing can be compared with, the first ten by name.

    None where there is nothing such.
    """
    names = [one_line(name) for name in sorted(row.label for row in comparison.missing)]
    if not names:
        return None
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    count = f"{len(names)} benchmark{'s' * (len(names) > 1)}"
    named = ", ".join(names[:_NAMED])
    return f"missing: {count} had a value before, none to compare it with now: {named}{more}"


def suite_slowdowns(comparison: Comparison) -> dict[str, tuple[int, float]]:
    """Return of each suite how many rows have a slowdown, and its geometric mean.

    Above 1 is worse, for times and throughputs alike; 0 and infinity do not count.
    """
    logs: dict[str, list[float]] = {}
    for row in comparison.rows:
        if row.before and row.after and row.ratio and row.direction is not None:
            factor = slowdown(row.before, row.after, row.direction)
            logs.setdefault(row.name.partition(".")[0], []).append(math.log(factor))
    return {
        suite: (len(found), math.exp(math.fsum(found) / len(found)))
        for suite, found in sorted(logs.items())
    }


def suite_lines(comparison: Comparison) -> list[str]:
    """One line for each suite: by how much it moved on the whole."""
    lines = []
    for suite, (count, factor) in suite_slowdowns(comparison).items():
        change = 100 * (max(factor, 1 / factor) - 1)
        word = "worse" if factor > 1 else "better"
        moved = f"{change:.1f} % {word}" if change >= 0.05 else "unchanged"
        lines.append(
            f"suite {one_line(suite)}: {moved} (geometric mean of {count} slowdowns {factor:.3f}, "
            "above 1 is worse)"
        )
    return lines


def wide_console() -> Console:
    """Return standard output, wide enough not to cut names where it is no terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=PLAIN_WIDTH, highlight=False)


def plain_table(columns: Sequence[str], numeric: Collection[str]) -> Table:
    """Return an empty table without lines that cuts nothing, numbers to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        justify = "right" if column in numeric else "left"
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    return table


def markdown_head(columns: Sequence[str], numeric: Collection[str]) -> list[str]:
    """Return the first two lines of a Markdown table, numbers to the right."""
    rule = "".join("---:|" if column in numeric else "---|" for column in columns)
    return [markdown_row(columns), f"|{rule}"]


def markdown_row(cells: Iterable[str]) -> str:
    """Return a line of a Markdown table, of cells that need no escaping any more."""
    return "| " + " | ".join(cells) + " |"


def print_table(
    comparison: Comparison,
    console: Console | None = None,
    everything: bool = False,
    suites: bool = False,
) -> None:
    """Print rows that are not ok, worst first, then hardware differences, notes, the summary.

    Parameters
    ----------
    comparison
        What to show.
    console
        Where to; default: standard output, wide enough not to cut names where that is no terminal.
    everything
        Print every row, also what is ok, new, n/a or of other hardware.
    suites
        Also a line for each suite, of `suite_lines`.
    """
    out = console or wide_console()
    table = plain_table(COLUMNS, _NUMERIC)
    shown = [row for row in worst_first(comparison) if everything or row.verdict not in FINE]
    for row in shown:
        table.add_row(
            *(Text(cell) for cell in cells(row, comparison.threshold)),
            style=_STYLES.get(row.verdict),
        )
    if shown:
        out.print(table)
    for line in [*(suite_lines(comparison) if suites else ()), *_footer(comparison)]:
        out.print(Text(line), soft_wrap=True)


def to_markdown(comparison: Comparison) -> str:
    """Return the comparison as Markdown for a comment on a change: what is fine is folded.

    Never longer than a comment may be: where rows are left out it says how many.
    """
    head = [f"**{summary_line(comparison)}**", ""]
    said = [*_footer(comparison)[:-1], *suite_lines(comparison)]
    tail = ["", *(f"- {escaped(line)}" for line in said)]
    room = _MARKDOWN_LIMIT - sum(len(line) + 1 for line in head + tail)
    rows = worst_first(comparison)
    shown = _markdown_rows([r for r in rows if r.verdict not in FINE], comparison, room)
    room -= sum(len(line) + 1 for line in shown)
    fine = [row for row in rows if row.verdict in FINE]
    folded = _markdown_rows(fine, comparison, room)
    if folded:
        title = f"<summary>{len(fine)} ok, new, n/a or not compared</summary>"
        folded = ["", "<details>", title, "", *folded, "", "</details>"]
    return "\n".join([*head, *shown, *folded, *tail]) + "\n"


def _markdown_rows(rows: Sequence[Row], comparison: Comparison, room: int) -> list[str]:
    """Lay out as many rows as `room` characters hold; nothing where there are none."""
    if not rows:
        return []
    lines = markdown_head(COLUMNS, _NUMERIC)
    left = room - sum(len(line) + 1 for line in lines) - 200  # for what stands around them
    for number, row in enumerate(rows):
        line = markdown_row(escaped(cell) for cell in cells(row, comparison.threshold))
        left -= len(line) + 1
        if left < 0:
            return [*lines, "", f"… and {len(rows) - number} more; --format json has all"]
        lines.append(line)
    return lines


def escaped(text: str) -> str:
    """Return a text so that Markdown shows it as it stands: no markup, link, mention or image.

    GitHub looks for mentions and links behind Markdown's own escapes: a space without width parts
    these.
    """
    plain = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _LINKING.sub(r"\g<0>&#8203;", _ACTIVE.sub(r"\\\g<0>", plain))


def to_json(comparison: Comparison) -> str:
    """Return the comparison as strict JSON; values keep the benchmarks' own units."""
    outcome = comparison.outcome
    document = {
        "outcome": outcome.value,
        "exit_code": outcome.exit_code,
        "threshold": comparison.threshold,
        "before": comparison.before,
        "after": comparison.after,
        "hardware_mismatches": [asdict(difference) for difference in comparison.mismatches],
        "notes": list(comparison.notes),
        "missing": sorted(row.label for row in comparison.missing),
        "counts": {v.value: len(comparison.with_verdict(v)) for v in Verdict},
        "suites": {
            suite: {"benchmarks": count, "geometric_mean_slowdown": factor}
            for suite, (count, factor) in suite_slowdowns(comparison).items()
        },
        "rows": [asdict(row) | {"label": row.label} for row in worst_first(comparison)],
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_junit(comparison: Comparison) -> str:
    """Return the comparison as JUnit XML, a test case for each benchmark, for CI systems.

    A regression is a failure, a benchmark that fails an error, what could not be judged is skipped;
    a comparison that is red for another reason (hardware, nothing measured, missing benchmarks) has
    one more test case.
    """
    rows = worst_first(comparison)
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
            suite,
            "testcase",
            classname=one_line(row.name),
            name=_parameters(row) or one_line(row.name),
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
        ElementTree.SubElement(case, "error", message=message, type=comparison.outcome.value)
    ElementTree.indent(suite)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        + ElementTree.tostring(suite, encoding="unicode")
        + "\n"
    )


def _sentence(row: Row, threshold: float) -> str:
    """All cells of a row with the names of their columns."""
    shown = cells(row, threshold)
    pairs = zip(COLUMNS, shown, strict=True)
    named = [f"{name} {cell}" for name, cell in pairs if cell and name not in COLUMNS[:3]]
    return f"{shown[0]}: {', '.join(named)}"


def worst_first(comparison: Comparison) -> list[Row]:
    """Rows by their verdict, worst first, then by name."""
    order = list(Verdict)
    return sorted(comparison.rows, key=lambda row: (order.index(row.verdict), row.label))


def _words(row: Row, threshold: float) -> str:
    """Verdict, its note, and the threshold where the benchmark has one of its own."""
    notes = [row.note] if row.note else []
    if row.threshold != threshold:
        notes.append(f"threshold {100 * row.threshold:g} %")
    return row.verdict.value + (f" ({'; '.join(notes)})" if notes else "")


def _footer(comparison: Comparison) -> list[str]:
    missing = missing_line(comparison)
    return [
        f"before: {one_line(comparison.before)}",
        f"after:  {one_line(comparison.after)}",
        *(f"hardware differs: {one_line(difference)}" for difference in comparison.mismatches),
        *([OTHER_HARDWARE] if comparison.mismatches else []),
        *(one_line(note) for note in comparison.notes),
        *([missing] if missing else []),
        summary_line(comparison),
    ]


def cells(row: Row, threshold: float) -> tuple[str, ...]:
    """Return what stands in a row, a text for each of COLUMNS, values scaled to read well.

    Names and notes come from files: what neither a terminal nor XML can show becomes a space.

    Parameters
    ----------
    row
        What to show.
    threshold
        That of the comparison; the row's own is named where it is another.
    """
    divisor, unit = scale_for((row.before, row.after), row.unit or "unknown")
    before, after = (
        "n/a" if value is None else digits(value / divisor) for value in (row.before, row.after)
    )
    return (
        one_line(_words(row, threshold)),
        one_line(row.name),
        _parameters(row),
        before,
        after,
        "n/a" if row.ratio is None else f"{row.ratio:.3f}",
        "" if row.low is None or row.high is None else f"{row.low:.3f} … {row.high:.3f}",
        one_line(unit),
        "unknown" if row.direction is None else _better(row.direction),
    )


def _parameters(row: Row) -> str:
    return one_line(", ".join(f"{name}={value}" for name, value in row.params.items()))


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
