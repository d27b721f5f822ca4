"""What a terminal shows: the headline and the results of one run, and a comparison.

The headline answers what a person asks first: prefill, decode, TTFT, how close decode comes to the
roofline, and how noisy this run was. Every number stands with its unit and its direction.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rocmforge.bench.comparison import Comparison, Outcome, Row, suite_slowdowns
from rocmforge.bench.decision import Verdict
from rocmforge.bench.formatting import NA, digits, ends, plain_params, scale_for, value_and_unit
from rocmforge.bench.results import Direction, Result, Status
from rocmforge.errors import one_line

PLAIN_WIDTH = 240
"""Columns where the output is no terminal: wide enough for every name."""
WIDE = 140
"""Columns of a terminal from which intervals, samples, baseline and errors fit too."""
WIDE_COLUMNS = ("99 % interval", "n", "baseline")
ERROR_COLUMN = "error"
LABEL = 46  # characters of a narrow table's first column; longer parameters get a line of their own
MARK = "!"
LEGEND = (
    "median of n samples and its 99 % interval; change since the baseline; error: relative RMS "
    "against the reference"
)
NARROW_LEGEND = (
    "median of all samples; ±: half of its 99 % interval; change since the baseline\n"
    f"{WIDE} columns show intervals, samples, baseline and errors too"
)
MARK_LEGEND = (
    f"{MARK} other work or throttling disturbed it: this machine is probably faster than shown"
)
ROOFLINE = "of its roofline"
_HEADLINES = {
    "prefill 512": ("inference.Prompt.track_prefill_tokens_per_second", "tokens", "512"),
    "TTFT 512": ("inference.Prompt.track_ttft_ms", "tokens", "512"),
    "decode": ("inference.Decode.track_decode_tokens_per_second", "batch", "1"),
    ROOFLINE: ("roofline.Decode.track_inverse_roofline_fraction", "", ""),
}
"""Column → the benchmark that fills it, and the parameter that it must have."""

COMPARISON_COLUMNS = (
    *("verdict", "benchmark", "parameters", "before", "after", "ratio", "99 % interval"),
    *("unit", "better"),
)
COMPARISON_NUMERIC = ("before", "after", "ratio", "99 % interval")
FINE = (Verdict.NEW, Verdict.OK, Verdict.SKIPPED, Verdict.HARDWARE_MISMATCH)
"""Verdicts on which nobody has to act: they are counted, and listed only where all rows are."""
OTHER_HARDWARE = "nothing was compared: the two are of different machines"
_STYLES = {
    Verdict.REGRESSION: "bold red",
    Verdict.FAILED: "bold red",
    Verdict.CANNOT_TELL: "yellow",
    Verdict.HARDWARE_MISMATCH: "yellow",
    Verdict.NOT_COMPARABLE: "yellow",
    Verdict.MISSING: "yellow",
    Verdict.IMPROVED: "green",
}
_RESULT_STYLES = (Verdict.REGRESSION, Verdict.FAILED, Verdict.IMPROVED)
_OUTCOMES = {
    Outcome.PASS: "PASS",
    Outcome.SHOWN: "shown, not judged",
    Outcome.REGRESSION: "FAIL: regression",
    Outcome.MISSING: "FAIL: benchmarks that were measured before are missing or not comparable",
    Outcome.NOTHING_MEASURED: "FAIL: nothing measured on both sides that can be judged",
    Outcome.HARDWARE_MISMATCH: "FAIL: hardware mismatch, nothing was compared",
    Outcome.CUT_SHORT: "FAIL: measuring again was cut short",
    Outcome.INTERRUPTED: "FAIL: measuring again was interrupted",
}
_NAMED = 10
REFRESH = "rocmforge bench baseline refresh"


def wide_console() -> Console:
    """Return standard output; where it is no terminal, wide enough for every name."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=PLAIN_WIDTH, highlight=False)


def plain_table(columns: Sequence[str], numeric: Collection[str]) -> Table:
    """Return an empty table without lines. It cuts no text; `numeric` columns are right-aligned."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        justify = "right" if column in numeric else "left"
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    return table


# one run


def headline(results: Sequence[Result]) -> Table | None:
    """Lay out the whole models of a run: a row for each model and device.

    Returns
    -------
    Table
        Prefill of 512 tokens in tokens/s, TTFT of 512 tokens in ms, decode of one sequence in
        tokens/s, and the fraction of the roofline that decode reaches in %. What was not measured
        is n/a. None where no model was measured.
    """
    found: dict[tuple[str, str], dict[str, str]] = {}
    for column, result in _headlined(results):
        params = plain_params(result)
        cells = found.setdefault((params.get("model", ""), params.get("device", "")), {})
        if result.value is not None:
            inverse = column == ROOFLINE
            cells[column] = f"{100 / result.value:.0f} %" if inverse else _value(result)
    if not any(found.values()):
        return None
    table = plain_table(("model", "device", *_HEADLINES), _HEADLINES)
    for names, cells in found.items():
        table.add_row(*map(Text, names), *(cells.get(column, "n/a") for column in _HEADLINES))
    return table


def _headlined(results: Iterable[Result]) -> Iterator[tuple[str, Result]]:
    for result in results:
        for column, (name, param, value) in _HEADLINES.items():
            if result.name == name and plain_params(result).get(param, "") == value:
                yield column, result


def noise_line(results: Iterable[Result]) -> str | None:
    """One line: how widely the samples of this run spread; None where nothing has an interval.

    The spread of a benchmark is half of the 99 % interval of its median over that median.
    """
    spreads = {r.label: spread for r in results if (spread := _spread(r)) is not None}
    if not spreads:
        return None
    worst = max(spreads, key=lambda label: spreads[label])
    return (
        f"±{100 * statistics.median(spreads.values()):.1f} % "
        f"(median of {len(spreads)} benchmarks); at most ±{100 * spreads[worst]:.0f} %: {worst}"
    )


def _spread(result: Result) -> float | None:
    """Half of the 99 % interval of the median over the median; None without an interval."""
    low, high = ends(result.summary)
    if low is None or high is None or not result.value:
        return None
    return (high - low) / 2 / abs(result.value)


def results_table(
    results: Sequence[Result], comparison: Comparison | None, narrow: bool = False
) -> Table:
    """Lay out what was measured, and beside it the baseline's value and the change.

    Parameters
    ----------
    results
        Of one run, in the order to show.
    comparison
        Of a baseline with that run; None where there is no baseline to compare with.
    narrow
        Median, spread and change only: fits into 80 columns.

    Returns
    -------
    Table
        A line for each suite, and below it one row a result. The change is
        (now − baseline) / baseline, followed by the verdict where it is not ok. Interval and ±
        (half of it, over the median) are empty where there are too few samples. MARK stands before
        a median that other work or throttling disturbed. The last column is the worst error against
        the reference, relative RMS, where errors are known.
    """
    rows = {row.label: row for row in comparison.rows} if comparison else {}
    errors = any(result.error is not None for result in results)
    more = ("±",) if narrow else WIDE_COLUMNS
    last = () if narrow or not errors else (ERROR_COLUMN,)
    columns = ("benchmark", "median", *more, "change", *last)
    shown = plain_table(columns, columns[1:])
    for suite, group in groupby(sorted(results, key=_suite), key=_suite):
        shown.add_row(Text(suite), style="bold")
        for result in group:
            row = None if result.value is None else rows.get(result.label)
            middle = [_percent(result)] if narrow else [*_interval(result), _baseline(result, row)]
            change = _change(row).replace(" % ", " %\n" if narrow else " % ")
            texts = [_label(result, narrow), _median(result), *middle, change]
            texts += [_error(result.error)] if last else []
            shown.add_row(*map(Text, texts), style=_style(result, rows))
    return shown


def _suite(result: Result) -> str:
    return result.name.partition(".")[0]


def _label(result: Result, narrow: bool) -> str:
    name = result.name.partition(".")[2] or result.name
    params = " ".join(plain_params(result).values())
    apart = "\n    " if narrow and len(f"  {name} {params}") > LABEL else " "
    return f"  {name}{apart}{params}".rstrip()


def _scale(result: Result) -> tuple[float, str]:
    return scale_for((result.value,), result.unit or "")


def _value(result: Result) -> str:
    return value_and_unit(result.value or 0.0, result.unit or "")


def _median(result: Result) -> str:
    if result.value is None:
        return NA if result.status is Status.SKIPPED else result.status.value
    return f"{MARK} " * (result.marked is not None) + _value(result)


def _percent(result: Result) -> str:
    spread = _spread(result)
    return "" if spread is None else f"{100 * spread:.1f} %"


def _interval(result: Result) -> tuple[str, str]:
    """99 % interval in the unit of the median, and the number of samples."""
    summary = result.summary
    if result.value is None or summary is None:
        return "", ""
    scale, _ = _scale(result)
    low, high = summary.ci_low, summary.ci_high
    known = math.isfinite(high - low) and low < high
    shown = f"{digits(low / scale)} … {digits(high / scale)}" if known else ""
    return shown, str(summary.iterations)


def _baseline(result: Result, row: Row | None) -> str:
    if row is None or row.before is None:
        return ""
    scale, unit = _scale(result)
    return f"{digits(row.before / scale)} {unit}"


def _error(error: float | None) -> str:
    return "" if error is None else f"{error:.1e}" if error else "0"


def _change(row: Row | None) -> str:
    if row is None or row.before is None:
        return ""
    word = "" if row.verdict is Verdict.OK else f" {row.verdict.value}"
    return word.strip() if row.ratio is None else f"{100 * (row.ratio - 1):+.1f} %{word}"


def _style(result: Result, rows: dict[str, Row]) -> str | None:
    if result.status is Status.FAILED:
        return _STYLES[Verdict.FAILED]
    row = rows.get(result.label)
    return _STYLES[row.verdict] if row and row.verdict in _RESULT_STYLES else None


# a comparison


def print_comparison(
    comparison: Comparison,
    console: Console | None = None,
    everything: bool = False,
    suites: bool = False,
) -> None:
    """Print the rows that are not ok, worst first, then hardware differences, notes, the summary.

    Parameters
    ----------
    comparison
        What to show.
    console
        Where to; default: `wide_console`.
    everything
        Print every row: also what is ok, new, n/a or of other hardware, and what is missing where
        that is more than the closing line names.
    suites
        Also print `suite_lines`.
    """
    out = console or wide_console()
    table = plain_table(COMPARISON_COLUMNS, COMPARISON_NUMERIC)
    few = len(comparison.missing) <= _NAMED
    shown = [
        row
        for row in worst_first(comparison)
        if everything
        or (row.verdict not in FINE and (few or row.note or row.verdict is not Verdict.MISSING))
    ]
    for row in shown:
        table.add_row(
            *(Text(cell) for cell in comparison_cells(row, comparison.threshold)),
            style=_STYLES.get(row.verdict),
        )
    if shown:
        out.print(table)
    for line in [*(suite_lines(comparison) if suites else ()), *closing_lines(comparison)]:
        out.print(Text(line), soft_wrap=True)


def summary_line(comparison: Comparison) -> str:
    """One line: the outcome with its exit code, and `counts_line`."""
    outcome = comparison.outcome
    said = _OUTCOMES[outcome]
    if outcome is Outcome.REGRESSION and not comparison.with_verdict(Verdict.REGRESSION):
        said = "FAIL: failed benchmarks"
    return f"{said} (exit {outcome.exit_code}): {counts_line(comparison)}"


def counts_line(comparison: Comparison) -> str:
    """One line: how many rows have each verdict, and the threshold."""
    counts = [
        f"{len(rows)} {verdict.value}"
        for verdict in Verdict
        if (rows := comparison.with_verdict(verdict))
    ]
    listed = ", ".join(counts) or "no benchmark"
    return f"{listed}; threshold {100 * comparison.threshold:g} %"


def missing_line(comparison: Comparison) -> str | None:
    """One line: which benchmarks had a value before and have none to compare it with now.

    The first ten are named. None where no benchmark is missing.
    """
    labels = [row.label for row in comparison.missing]
    if not labels:
        return None
    count = f"{len(labels)} benchmark{'s' * (len(labels) > 1)}"
    return f"missing: {count} had a value before, none to compare it with now: {_named(labels)}"


def not_selected_line(comparison: Comparison) -> str | None:
    """One line: how many benchmarks the later run was not told to measure."""
    count = len(comparison.not_selected)
    if not count:
        return None
    return (
        f"not selected: {count} benchmark{'s' * (count > 1)} had a value before; the later run was "
        "of others"
    )


def changed_code_line(comparison: Comparison) -> str | None:
    """One line: which benchmarks cannot be compared for their own code, and what mends it."""
    rows = comparison.of_changed_code
    if not rows:
        return None
    what = f"benchmark{'s' * (len(rows) > 1)}"
    return (
        f"not comparable: the code of {len(rows)} {what} changed since: "
        f"{_named([row.label for row in rows])}: once HEAD is measured, "
        f"{REFRESH} stores today's values"
    )


def _named(labels: Iterable[str]) -> str:
    """Return the first labels, and how many more there are."""
    names = [one_line(label) for label in sorted(labels)]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def suite_lines(comparison: Comparison) -> list[str]:
    """One line for each suite: by how much it changed on the whole."""
    lines = []
    for suite, (count, factor) in suite_slowdowns(comparison).items():
        change = 100 * abs(factor - 1)
        word = "worse" if factor > 1 else "better"
        moved = f"{change:.1f} % {word}" if change >= 0.05 else "unchanged"
        lines.append(
            f"suite {one_line(suite)}: {moved} (geometric mean of {count} slowdowns {factor:.3f}, "
            "above 1 is worse)"
        )
    disturbed = sum(row.marked and row.ratio is not None for row in comparison.rows)
    if disturbed:
        what = f"{disturbed} benchmark{'s' * (disturbed > 1)}"
        lines.append(f"suites without {what} that other work or throttling disturbed")
    return lines


def closing_lines(comparison: Comparison) -> list[str]:
    """Lines below the rows: both sides, what differs, notes, what is missing, the summary."""
    said = (missing_line, not_selected_line, changed_code_line)
    remarks = [line(comparison) for line in said]
    return [
        f"before: {one_line(comparison.before)}",
        f"after:  {one_line(comparison.after)}",
        *(f"hardware differs: {one_line(difference)}" for difference in comparison.mismatches),
        *([OTHER_HARDWARE] if comparison.mismatches else []),
        *(one_line(note) for note in comparison.notes),
        *(line for line in remarks if line is not None),
        summary_line(comparison),
    ]


def worst_first(comparison: Comparison) -> list[Row]:
    """Rows by their verdict, worst first, then by name."""
    order = list(Verdict)
    return sorted(comparison.rows, key=lambda row: (order.index(row.verdict), row.label))


def comparison_cells(row: Row, threshold: float) -> tuple[str, ...]:
    """Return the texts of a row, one for each of COMPARISON_COLUMNS, values scaled to read well.

    Names and notes come from files: a character that neither a terminal nor XML can show becomes a
    space.

    Parameters
    ----------
    row
        What to show.
    threshold
        That of the comparison. The row's own threshold is named where it differs.
    """
    divisor, unit = scale_for((row.before, row.after), row.unit or "unknown")
    before, after = (
        "n/a" if value is None else digits(value / divisor) for value in (row.before, row.after)
    )
    return (
        one_line(_verdict(row, threshold)),
        one_line(row.name),
        row_params(row),
        before,
        after,
        "n/a" if row.ratio is None else f"{row.ratio:.3f}",
        "" if row.low is None or row.high is None else f"{row.low:.3f} … {row.high:.3f}",
        one_line(unit),
        "unknown" if row.direction is None else _better(row.direction),
    )


def row_params(row: Row) -> str:
    """Parameters of a row in one line: ``format='Q4_K', tokens=1``."""
    return one_line(", ".join(f"{name}={value}" for name, value in row.params.items()))


def _verdict(row: Row, threshold: float) -> str:
    """Verdict, its note, and the threshold where the benchmark has one of its own."""
    notes = [row.note] if row.note else []
    if row.threshold != threshold:
        notes.append(f"threshold {100 * row.threshold:g} %")
    return row.verdict.value + (f" ({'; '.join(notes)})" if notes else "")


def _better(direction: Direction) -> str:
    return "lower" if direction is Direction.LOWER else "higher"
