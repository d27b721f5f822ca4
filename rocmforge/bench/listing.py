"""Lays out one run for a terminal: the headline first, then every benchmark by its suite.

The headline is what a person asks first of the whole model: prefill, decode, TTFT, how close
decoding is to the roofline, and how noisy this run was.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.table import Table
from rich.text import Text

from rocmforge.bench.compare import Comparison, Row
from rocmforge.bench.decision import Verdict
from rocmforge.bench.report import digits, scale_for
from rocmforge.bench.results import Result, Status

WIDE = 140  # columns of a terminal from which intervals, samples, baseline and errors fit too
WIDE_COLUMNS = ("99 % interval", "n", "baseline")
ERROR_COLUMN = "error"
LABEL = 46  # characters of a narrow table's first column; longer parameters take their own line
MARK = "!"
LEGEND = (
    "median of n samples and its 99 % interval; change since the baseline; error: relative RMS "
    "against the reference"
)
NARROW_LEGEND = (
    "median of all samples; ±: half of its 99 % interval; change since the baseline\n"
    f"{WIDE} columns show intervals, samples, baseline and errors too"
)
MARK_LEGEND = f"{MARK} measured under other load or throttling: likely slower than this machine is"
_STYLES = {Verdict.REGRESSION: "bold red", Verdict.FAILED: "bold red", Verdict.IMPROVED: "green"}
ROOFLINE = "of its roofline"
_HEADLINES = {
    "prefill 512": ("inference.Prompt.track_prefill_tokens_per_second", "tokens", "512"),
    "TTFT 512": ("inference.Prompt.track_ttft_ms", "tokens", "512"),
    "decode": ("inference.Decode.track_decode_tokens_per_second", "batch", "1"),
    ROOFLINE: ("roofline.Decode.track_inverse_roofline_fraction", "", ""),
}
"""Column to the benchmark that fills it, and the parameter that it must have."""


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
        params = _params(result)
        cells = found.setdefault((params.get("model", ""), params.get("device", "")), {})
        if result.value is not None:
            inverse = column == ROOFLINE
            cells[column] = f"{100 / result.value:.0f} %" if inverse else _value(result)
    if not any(found.values()):
        return None
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("model", "device", *_HEADLINES):
        table.add_column(column, justify="left" if column in ("model", "device") else "right")
    for names, cells in found.items():
        table.add_row(*map(Text, names), *(cells.get(column, "n/a") for column in _HEADLINES))
    return table


def _headlined(results: Iterable[Result]) -> Iterator[tuple[str, Result]]:
    for result in results:
        for column, (name, param, value) in _HEADLINES.items():
            if result.name == name and _params(result).get(param, "") == value:
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
    summary = result.summary
    if summary is None or not result.value or not math.isfinite(summary.ci_high - summary.ci_low):
        return None
    return (summary.ci_high - summary.ci_low) / 2 / abs(result.value)


def results_table(
    results: Sequence[Result], comparison: Comparison | None, narrow: bool = False
) -> Table:
    """Lay out what was measured, and beside it a baseline's value and the change.

    Parameters
    ----------
    records
        Of one run, in the order to show.
    comparison
        Of a baseline with that run; None where there is none that it may be compared with.
    narrow
        Median, spread and change only: fits into 80 columns.

    Returns
    -------
    Table
        A line for each suite, and below it one row a record. The change is
        (now − baseline) / baseline, followed by the verdict where it is not ok; interval and ±
        (half of it, over the median) are empty where there are too few samples. A median with MARK
        was measured under other load. Where errors against the reference are known, the worst
        stands in the last column: relative RMS.
    """
    rows = {row.label: row for row in comparison.rows} if comparison else {}
    errors = any(result.error is not None for result in results)
    more = ("±",) if narrow else WIDE_COLUMNS
    last = () if narrow or not errors else (ERROR_COLUMN,)
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("benchmark", "median", *more, "change", *last):
        left = column == "benchmark"
        shown.add_column(column, justify="left" if left else "right", overflow="fold")
    for suite, group in groupby(sorted(results, key=_suite), key=_suite):
        shown.add_row(Text(suite), style="bold")
        for result in group:
            row = None if result.value is None else rows.get(result.label)
            middle = [_percent(result)] if narrow else [*_interval(result), _baseline(result, row)]
            change = _change(row).replace(" % ", " %\n" if narrow else " % ")
            cells = [_label(result, narrow), _median(result), *middle, change]
            cells += [_error(result.error)] if last else []
            shown.add_row(*map(Text, cells), style=_style(result, rows))
    return shown


def _suite(result: Result) -> str:
    return result.name.partition(".")[0]


def _label(result: Result, narrow: bool) -> str:
    name = result.name.partition(".")[2] or result.name
    params = " ".join(_params(result).values())
    apart = "\n    " if narrow and len(f"  {name} {params}") > LABEL else " "
    return f"  {name}{apart}{params}".rstrip()


def _params(result: Result) -> dict[str, str]:
    pairs = zip(result.param_names, result.params, strict=True)
    return {name: value.strip("'") for name, value in pairs}


def _scale(result: Result) -> tuple[float, str]:
    return scale_for((result.value,), result.unit or "")


def _value(result: Result) -> str:
    scale, unit = _scale(result)
    return f"{digits((result.value or 0.0) / scale)} {unit}"


def _median(result: Result) -> str:
    if result.value is None:
        return result.status.value
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
        return "bold red"
    row = rows.get(result.label)
    return _STYLES.get(row.verdict) if row else None
