"""Lays out one run as a table: each benchmark's median, spread, and change since a baseline.

Knows records and comparisons; measures nothing, decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from rocmforge.regress.compare import Comparison, Row
from rocmforge.regress.decision import Verdict
from rocmforge.regress.records import Record, Status
from rocmforge.regress.report import digits, scale_for

COLUMNS = ("benchmark", "parameters", "median", "99 % interval", "n", "baseline", "change")
ERROR_COLUMN = "error"
NARROW_COLUMNS = ("benchmark", "median", "change")
NARROW = 140  # columns of a terminal below which each benchmark takes two lines
MARK = "!"
LEGEND = (
    "median of n samples and its 99 % interval; change since the baseline; error: relative RMS "
    "against the reference"
)
NARROW_LEGEND = (
    "median of all samples; change since the baseline\n"
    f"{NARROW} columns show intervals, samples, baseline and errors too"
)
MARK_LEGEND = f"{MARK} measured under other load or throttling: likely slower than this machine is"
_STYLES = {Verdict.REGRESSION: "bold red", Verdict.FAILED: "bold red", Verdict.IMPROVED: "green"}


def results_table(
    records: Sequence[Record], comparison: Comparison | None, narrow: bool = False
) -> Table:
    """Lay out what was measured, and beside it a baseline's value and the change.

    Parameters
    ----------
    records
        Of one run, in the order to show.
    comparison
        Of a baseline with that run; None where there is no baseline.
    narrow
        Only median and change, parameters on a line of their own: fits into 80 columns.

    Returns
    -------
    Table
        One row a record. The change is (now − baseline) / baseline, followed by the verdict where
        it is not ok; the interval is that of the median, empty where there are too few samples.
        A median with MARK was measured under other load. Where errors against the reference are
        known, the worst stands in the last column: relative RMS.
    """
    errors = any(record.error is not None for record in records)
    rows = {row.label: row for row in comparison.rows} if comparison else {}
    shown = Table(box=None, pad_edge=False, header_style="bold")
    columns = NARROW_COLUMNS if narrow else (*COLUMNS, *([ERROR_COLUMN] if errors else []))
    for column in columns:
        left = column in COLUMNS[:2]
        shown.add_column(column, justify="left" if left else "right", overflow="fold")
    for record in records:
        name, params, median, interval, n, baseline, change = _cells(record, rows.get(record.label))
        if narrow:
            cells = [
                f"{name}\n  {params}" if params else name,
                median,
                change.replace(" % ", " %\n"),
            ]
        else:
            cells = [name, params, median, interval, n, baseline, change]
            cells += [_error(record.error)] if errors else []
        shown.add_row(*(Text(cell) for cell in cells), style=_style(record, rows))
    return shown


def _cells(record: Record, row: Row | None) -> tuple[str, str, str, str, str, str, str]:
    params = " ".join(value.strip("'") for value in record.params)
    if record.value is None or record.summary is None:
        return record.name, params, record.status.value, "", "", "", ""
    scale, unit = scale_for((record.value,), record.unit or "")
    low, high = record.summary.ci_low, record.summary.ci_high
    known = math.isfinite(low) and math.isfinite(high)
    return (
        record.name,
        params,
        f"{MARK} " * (record.marked is not None) + f"{digits(record.value / scale)} {unit}",
        f"{digits(low / scale)} … {digits(high / scale)}" if known and low < high else "",
        str(record.summary.iterations),
        "" if row is None or row.before is None else f"{digits(row.before / scale)} {unit}",
        "" if row is None or row.before is None else _change(row),
    )


def _error(error: float | None) -> str:
    return "" if error is None else f"{error:.1e}" if error else "0"


def _change(row: Row) -> str:
    word = "" if row.verdict is Verdict.OK else f" {row.verdict.value}"
    return word.strip() if row.ratio is None else f"{100 * (row.ratio - 1):+.1f} %{word}"


def _style(record: Record, rows: dict[str, Row]) -> str | None:
    if record.status is Status.FAILED:
        return "bold red"
    row = rows.get(record.label)
    return _STYLES.get(row.verdict) if row else None
