"""Markdown, JSON and JUnit XML of a comparison; Markdown and JSON of a history.

Every number stands with its unit and its direction.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rocmforge.bench.comparison import Comparison, Outcome, Row, suite_slowdowns
from rocmforge.bench.decision import Verdict
from rocmforge.bench.findings import Finding, Level, bisect_command, exit_code
from rocmforge.bench.history import History
from rocmforge.bench.history_tables import (
    HISTORY_COLUMNS,
    HISTORY_NUMERIC,
    finding_cells,
    findings_line,
)
from rocmforge.bench.tables import (
    COMPARISON_COLUMNS,
    COMPARISON_NUMERIC,
    FINE,
    closing_lines,
    comparison_cells,
    row_params,
    suite_lines,
    summary_line,
    worst_first,
)
from rocmforge.errors import one_line

_MARKDOWN_LIMIT = 60_000  # characters; a comment on GitHub has 65,536 at most
_ACTIVE = re.compile(r"[\\`*\[\]|~]|(?<!\w)_|_(?!\w)")
_LINKING = re.compile(r"@|#(?=\d)|:(?=//)|www(?=\.)", re.IGNORECASE)


def to_markdown(comparison: Comparison) -> str:
    """Return the comparison as Markdown for a comment on a change. Rows that are fine are folded.

    It is never longer than a comment may be: where rows are left out it says how many.
    """
    head = [f"**{summary_line(comparison)}**", ""]
    said = [*closing_lines(comparison)[:-1], *suite_lines(comparison)]
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
    """Lay out as many rows as `room` characters hold; empty where there are no rows."""
    if not rows:
        return []
    lines = _markdown_head(COMPARISON_COLUMNS, COMPARISON_NUMERIC)
    left = room - sum(len(line) + 1 for line in lines) - 200  # for what stands around them
    for number, row in enumerate(rows):
        line = _markdown_row(comparison_cells(row, comparison.threshold))
        left -= len(line) + 1
        if left < 0:
            return [*lines, "", f"… and {len(rows) - number} more; --format json has all"]
        lines.append(line)
    return lines


def _markdown_head(columns: Sequence[str], numeric: Collection[str]) -> list[str]:
    """Return the first two lines of a Markdown table; `numeric` columns are right-aligned."""
    rule = "".join("---:|" if column in numeric else "---|" for column in columns)
    return [_markdown_row(columns), f"|{rule}"]


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(escaped(cell) for cell in cells) + " |"


def escaped(text: str) -> str:
    """Return a text so that Markdown shows it as it stands: no markup, link, mention or image.

    GitHub finds mentions and links in spite of Markdown's escapes. A space without width breaks
    them.
    """
    plain = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _LINKING.sub(r"\g<0>&#8203;", _ACTIVE.sub(r"\\\g<0>", plain))


def to_json(comparison: Comparison) -> str:
    """Return the comparison as strict JSON; values keep the benchmarks' own units."""
    outcome = comparison.outcome
    return _json(
        {
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
    )


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_junit(comparison: Comparison) -> str:
    """Return the comparison as JUnit XML for CI systems: a test case for each benchmark.

    A regression is a failure; a benchmark that fails is an error; what could not be judged is
    skipped. A comparison that is red for another reason (hardware, nothing measured, missing
    benchmarks) has one more test case.
    """
    rows = worst_first(comparison)
    failures = [row for row in rows if row.verdict is Verdict.REGRESSION]
    errors = [row for row in rows if row.verdict is Verdict.FAILED and row.gates]
    judged = (Verdict.OK, Verdict.IMPROVED, Verdict.NEW)
    whole = comparison.outcome not in (Outcome.PASS, Outcome.SHOWN, Outcome.REGRESSION)
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
        name = one_line(row.name)
        case = ElementTree.SubElement(
            suite, "testcase", classname=name, name=row_params(row) or name
        )
        sentence = _sentence(row, comparison.threshold)
        if row in failures or row in errors:
            tag = "failure" if row in failures else "error"
            ElementTree.SubElement(case, tag, message=sentence, type=row.verdict.value)
        elif row in skipped:
            ElementTree.SubElement(case, "skipped", message=sentence)
        else:
            ElementTree.SubElement(case, "system-out").text = sentence
    if whole:
        case = ElementTree.SubElement(suite, "testcase", classname="gate", name="comparison")
        message = "; ".join(closing_lines(comparison)[2:])
        ElementTree.SubElement(case, "error", message=message, type=comparison.outcome.value)
    ElementTree.indent(suite)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        + ElementTree.tostring(suite, encoding="unicode")
        + "\n"
    )


def _sentence(row: Row, threshold: float) -> str:
    """All cells of a row with the names of their columns."""
    shown = comparison_cells(row, threshold)
    pairs = zip(COMPARISON_COLUMNS, shown, strict=True)
    named = [
        f"{name} {cell}" for name, cell in pairs if cell and name not in COMPARISON_COLUMNS[:3]
    ]
    return f"{shown[0]}: {', '.join(named)}"


def history_to_markdown(
    findings: Sequence[Finding], history: History, config: Path | None = None
) -> str:
    """Return the findings as a Markdown table with the commands that bisect them."""
    lines = [f"**{findings_line(findings, history)}**", ""]
    if findings:
        lines += _markdown_head(HISTORY_COLUMNS, HISTORY_NUMERIC)
        for number, finding in enumerate(findings, 1):
            lines.append(_markdown_row(finding_cells(number, finding, history)))
        lines += ["", "Which commit it was, in their order:", "", "```"]
        lines += [one_line(bisect_command(one, history, config)) for one in findings]
        lines += ["```", ""]
    lines += [f"- {escaped(one_line(note))}" for note in history.notes]
    return "\n".join(lines).rstrip("\n") + "\n"


def history_to_json(
    findings: Sequence[Finding], history: History, config: Path | None = None
) -> str:
    """Return the findings as strict JSON; values keep the benchmarks' own units."""
    return _json(
        {
            "exit_code": exit_code(findings),
            "machine": history.machine,
            "environment": history.asv_environment,
            "commits": len(history.commits),
            "measured": len(history.measured),
            "newest": history.commits[history.measured[-1]],
            "benchmarks": len({one.label for one in history.series}),
            "notes": list(history.notes),
            "findings": [_finding(finding, history, config) for finding in findings],
        }
    )


def _finding(finding: Finding, history: History, config: Path | None) -> dict[str, Any]:
    series = finding.series
    mended = finding.mended
    return {
        "benchmark": series.label,
        "kind": finding.kind.value,
        "state": finding.state.value,
        "note": finding.note,
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
