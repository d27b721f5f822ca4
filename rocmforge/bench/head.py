"""Shows and publishes what was measured of HEAD, beside the stored baseline, or judged by it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from rocmforge import env
from rocmforge.bench import asv, exits, project
from rocmforge.bench.asv_log import absent_lines, failed_lines
from rocmforge.bench.baseline import (
    STORE,
    baseline_path,
    load_baseline,
    no_baseline,
    refuse_smaller,
    save_baseline,
)
from rocmforge.bench.comparison import Comparison, Row
from rocmforge.bench.confirm import suspects
from rocmforge.bench.dashboard.publish import publish
from rocmforge.bench.decision import Verdict
from rocmforge.bench.defaults import BASELINES
from rocmforge.bench.documents import to_json
from rocmforge.bench.files import write_bytes
from rocmforge.bench.judging import judge, save, saved_line
from rocmforge.bench.measure import PLAIN_WIDTH, RESULTS, UNCOMMITTED, WORK, Run, measure_head
from rocmforge.bench.remeasure import confirmed_by_stored, unconfirmed
from rocmforge.bench.results import Result
from rocmforge.bench.run_environment import marked_share, refusal
from rocmforge.bench.tables import (
    LEGEND,
    MARK_LEGEND,
    NARROW_LEGEND,
    WIDE,
    changed_code_line,
    counts_line,
    headline,
    missing_line,
    noise_line,
    results_table,
    summary_line,
)
from rocmforge.errors import MeasurementError


def run_head(args: argparse.Namespace) -> int:
    """Measure and show, and save what is to be saved; return the exit code."""
    begin, console = time.monotonic(), plain_console()
    saving = args.save_baseline or args.save_results
    if saving and project.head(project.root())[1]:
        raise ValueError(
            "the working tree has changes: commit them before --save-baseline or --save-results"
        )
    found, comparison = measure_and_show(args, console, judging=False, refusing=saving)
    if comparison is not None and not comparison.mismatches:
        console.print(
            "          shown only: other work on the machine moves times; bench gate judges it"
        )
    if saving:
        refuse_marked(found, console)
    if args.save_baseline and not refusal(found.results.results):
        stored = baseline_path(BASELINES, found.results.hardware)
        if stored.exists() and not args.replace:
            refuse_smaller(stored, found.results)
        save_baseline(stored, found.results)
        console.print(f"saved     {stored}")
    if args.save_results and not refusal(found.results.results):
        commit = found.results.commit
        kept = asv.keep_results(RESULTS, Path("results"), found.machine, commit, sys.executable)
        console.print(f"saved     {kept}")
    console.print(f"total     {time.monotonic() - begin:.0f} s")
    return exits.FAILED if found.failed else 0


def gate_head(args: argparse.Namespace) -> int:
    """Measure, judge, and measure suspects again; return the exit code."""
    console = plain_console()
    found, comparison = measure_and_show(args, console, judging=True, refusing=True)
    refused = refuse_marked(found, console)
    none = no_baseline(found.results.hardware)
    if comparison is None and found.failed:
        console.print(f"gate      FAIL: {len(found.failed)} failed (exit 1); {none}")
        return exits.FAILED
    if comparison is None:
        raise MeasurementError(none)
    why_not = "most of this run was disturbed" if refused else None
    why_not = why_not if args.confirm else "--no-confirm"
    comparison = _settled(comparison, found, why_not, console)
    if args.json:
        write_bytes(args.json, to_json(comparison).encode())
    for remark in (missing_line(comparison), changed_code_line(comparison)):
        if remark is not None:
            console.print(f"note      {remark}")
    console.print(f"gate      {summary_line(comparison)}")
    return comparison.outcome.exit_code


def _settled(
    comparison: Comparison, found: Run, why_not: str | None, console: Console
) -> Comparison:
    """Measure suspects again, interleaved with the baseline's commit; save and say what they are.

    Where a reason forbids that, what one run alone says of them is no ok.
    """
    if why_not is None:
        stored = load_baseline(baseline_path(BASELINES, found.results.hardware))
        settled = confirmed_by_stored(comparison, stored, found.results)
    else:
        rows = () if comparison.mismatches else suspects(comparison.rows)
        settled = unconfirmed(comparison, rows, f"not measured again: {why_not}")
    changed = [
        _again_line(was, row)
        for was, row in zip(comparison.rows, settled.rows, strict=True)
        if row != was
    ]
    for line in changed:
        console.print(line)
    if changed:
        console.print(f"          {saved_line(save(settled, 'confirmed'))}")
    return settled


def _again_line(was: Row, row: Row) -> str:
    """Say what became of a suspect, with the ratio after / before that the last word stands on."""
    ratio = "" if row.ratio is None else f" at ratio {row.ratio:.3f}"
    if ratio and row.low is not None and row.high is not None:
        ratio += f" ({row.low:.3f} … {row.high:.3f})"
    first = "was a suspect" if was.verdict is Verdict.OK else was.verdict.value
    return f"again     {row.label}: {first} → {row.verdict.value}{ratio}: {row.note}"


def plain_console() -> Console:
    """Return standard output, as wide as tables need where it is no terminal."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = PLAIN_WIDTH
    return console


def measure_and_show(
    args: argparse.Namespace, console: Console, *, judging: bool, refusing: bool
) -> tuple[Run, Comparison | None]:
    """Measure HEAD, compare it with the stored baseline, print and publish all of it.

    Without `judging`, the comparison is one that nobody fails by. `refusing` is as of
    `measure_head`.

    Returns
    -------
    What was measured, and how it compares; None: there is no baseline of this hardware.
    """
    found = measure_head(args.bench, args.profile, args.max_load, console, refusing)
    results = found.results.results
    stored = baseline_path(BASELINES, found.results.hardware)
    comparison = _compared(stored, found)
    if comparison is not None and not comparison.mismatches:
        comparison = replace(comparison, any_failure=judging, shown_only=not judging)
    mismatches = comparison.mismatches if comparison else ()
    _print_results(results, None if mismatches else comparison, console)
    config = WORK / "asv.conf.json"
    publish(config, RESULTS, WORK / "html", BASELINES, found.log, console.print)
    _print_absent(found, console)
    _print_notes(found, console)
    if comparison is None:
        console.print(f"baseline  {no_baseline(found.results.hardware)}")
    elif mismatches:
        console.print(f"baseline  {stored}: not compared: {'; '.join(map(str, mismatches))}")
        console.print(f"          it is of another machine: {STORE} stores this one's")
    else:
        console.print(f"baseline  {stored}: {counts_line(comparison)}")
        console.print(f"          {saved_line(save(comparison))}")
        if not judging and (remark := changed_code_line(comparison)):
            console.print(f"          {remark}")
    console.print(f"results   {found.results.source.parent}")
    console.print(f"          environment of each process: {found.reports}")
    if found.has_values:
        console.print(f"as JSON   {found.stored}")
        if not judging:
            console.print("          this run alone; later runs are not compared with it")
    preview = f"{os.path.relpath(sys.executable)} -m asv --config {config}"
    console.print(f"dashboard {WORK / 'html'}; to see it: {preview} preview")
    return found, comparison


def _print_absent(found: Run, console: Console) -> None:
    """Print why benchmarks failed or are n/a."""
    results = found.results.results
    for line in absent_lines(results, found.reasons):
        console.print(f"n/a       {line}")
    for line in failed_lines(results, found.reasons):
        console.print(f"failed    {line}", style="bold red")
    if found.failed:
        console.print(f"          all that they printed: {found.log}")


def _print_notes(found: Run, console: Console) -> None:
    """Print what else there is to know of a run before its numbers are used."""
    override = found.results.hardware.gfx_override
    if override:
        console.print(f"note      {env.GFX_OVERRIDE}={override}: compared with its like alone")
    if found.results.uncommitted_changes:
        where = f"its results are kept apart in {UNCOMMITTED}, and no page shows them"
        console.print(f"note      the tree has changes on top of the commit: {where}")
    marked, timed = marked_share(found.results.results)
    if marked:
        reasons = [f"{r.label}: {r.marked}" for r in found.results.results if r.marked]
        console.print(f"note      {marked} of {timed} timed benchmarks are marked: {reasons[0]}")


def refuse_marked(found: Run, console: Console) -> bool:
    """Refuse a run of which most is marked; where something failed, only say so.

    Returns
    -------
    Whether most of it is marked.

    Raises
    ------
    MeasurementError
        Most of its timed benchmarks are marked, and none failed.
    """
    refused = refusal(found.results.results)
    if refused and not found.failed:
        raise MeasurementError(refused)
    if refused:
        console.print(f"refused   {refused}")
    return refused is not None


def _compared(stored: Path, found: Run) -> Comparison | None:
    """Compare with a baseline, without what the selection does not name; None: there is none."""
    if not stored.exists():
        return None
    return judge(load_baseline(stored), found.results, found.selection)


def _print_results(
    results: Sequence[Result], comparison: Comparison | None, console: Console
) -> None:
    """Print the headline, the noise of the run, and every benchmark."""
    narrow = console.width < WIDE
    first, noise = headline(results), noise_line(results)
    if first is not None:
        console.print()
        console.print(first)
    if noise is not None:
        console.print(f"noise     {noise}")
    console.print()
    console.print(results_table(results, comparison, narrow))
    console.print(f"\n{NARROW_LEGEND if narrow else LEGEND}")
    if marked_share(results)[0]:
        console.print(MARK_LEGEND)
