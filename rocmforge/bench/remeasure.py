"""Builds two commits and measures them interleaved: what is suspected, or what is chosen.

The earlier commit may be that of a stored baseline. Where that cannot be built here, or the working
tree is not the later commit, suspects stay what one run alone can say of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from rocmforge.bench import exits, project
from rocmforge.bench.asv import Builds
from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.baseline import load_baseline
from rocmforge.bench.compare import differences
from rocmforge.bench.comparison import Comparison, Outcome, Row
from rocmforge.bench.confirm import confirm, looks, suspects
from rocmforge.bench.decision import Verdict
from rocmforge.bench.files import write_bytes, write_json
from rocmforge.bench.git import commit_hash, find_commit, provenance
from rocmforge.bench.interleaved import NO_RATIO, NOT_AVAILABLE, OTHER_CODE, Pair, measure_pair
from rocmforge.bench.judging import (
    comparison_path,
    judged,
    read_one,
    read_pair,
    saved_line,
    show,
)
from rocmforge.bench.machine import register_here
from rocmforge.bench.ranks import middle_interval
from rocmforge.bench.results import Direction, ResultSet
from rocmforge.bench.statistics import CONFIDENCE
from rocmforge.errors import MeasurementError, ResultFileError, RocmforgeError
from rocmforge.hardware import detect

VERSION = 1
WORK = Path(".asv") / "confirm"
CUT_SHORT = "measuring again was cut short"


def remeasure_suspects(args: argparse.Namespace) -> int:
    """Judge a measured commit, measure suspects again, show it; return the exit code."""
    results = ResultsDirectory(args.results, args.machine)
    later = results.resolve(args.after)
    if args.baseline:
        before = load_baseline(args.baseline)
        after = read_one(results, later, args.max_load, args.environment)
        found = confirmed_by_stored(judged(before, after, args), before, after)
    else:
        earlier = results.resolve(args.before)
        before, after = read_pair(results, earlier, later, args.max_load, args.environment)
        found = confirmed(judged(before, after, args), after)
    return show(found, args, kind="confirmed")


def confirmed(comparison: Comparison, after: ResultSet) -> Comparison:
    """Measure what may have changed again; the verdicts of these measurements replace its own.

    Where measuring is cut short, what was settled stands, and what was not cannot be told.
    """
    found = suspects(comparison.rows)
    if not found or comparison.mismatches:
        return comparison
    differing = [difference.field for difference in differences(after.hardware, detect())]
    if differing:
        raise ValueError(
            f"these results are of {after.machine}, and this machine differs in "
            f"{', '.join(differing)}: run it there"
        )
    return _measured_again(comparison, found, comparison.commits)


def confirmed_by_stored(comparison: Comparison, before: ResultSet, after: ResultSet) -> Comparison:
    """Do as `confirmed` where the earlier side is a baseline, measured on this hardware.

    Each suspect is measured at the commit that its stored result is of. Where that is out of reach,
    it is as `unconfirmed` leaves it.
    """
    if comparison.mismatches:
        return comparison
    stored = {result.label: result.commit or before.commit for result in before.results}
    found = suspects(comparison.rows)
    for commit in dict.fromkeys(stored[row.label] for row in found):
        rows = [row for row in found if stored[row.label] == commit]
        commits = commit, after.commit
        why = CUT_SHORT if comparison.cut_short else _out_of_reach(commits, before, after)
        if why:
            comparison = unconfirmed(comparison, rows, f"not measured again: {why}")
            continue
        other = [row for row in rows if row.code_changed and not _share_benchmarks(commits)]
        said = f"today's benchmarks do not run at the baseline's commit {commit[:8]}"
        comparison = unconfirmed(comparison, other, said)
        rest = [row for row in rows if row not in other]
        comparison = _measured_again(comparison, rest, commits) if rest else comparison
    return comparison


def _share_benchmarks(commits: tuple[str, str]) -> bool:
    """Whether one version of the benchmarks measures the builds of both commits."""
    builds = Builds(project.root(), WORK, register_here())
    return builds.benchmarks(commits[0]) == builds.benchmarks(commits[1])


def unconfirmed(comparison: Comparison, rows: Sequence[Row], why: str) -> Comparison:
    """Say of suspects that they were not measured again: none of them is ok or improved.

    A regression by the rule of one run stays one, and what changed its code not comparable.
    """
    unsure = {}
    for row in rows:
        note = f"{row.note}; {why}" if row.note else why
        sure = row.verdict is Verdict.REGRESSION or row.code_changed
        verdict = row.verdict if sure else Verdict.CANNOT_TELL
        unsure[row.label] = dataclasses.replace(row, verdict=verdict, note=note)
    kept = tuple(unsure.get(row.label, row) for row in comparison.rows)
    return dataclasses.replace(comparison, rows=kept)


def _out_of_reach(commits: tuple[str, str], before: ResultSet, after: ResultSet) -> str | None:
    """Return why two commits cannot be measured interleaved here; None: both are built."""
    if after.uncommitted_changes:
        return "the working tree has changes, and only commits are built"
    if before.uncommitted_changes:
        return "the baseline was measured with changes on top of its commit"
    root = project.root()
    builds = Builds(root, WORK, register_here())
    for commit, whose in zip(commits, ("the baseline's commit", "commit"), strict=True):
        if find_commit(root, commit) is None:
            return f"{whose} {commit[:8]} is not in this repository"
        try:
            builds.benchmarks(commit)
        except ResultFileError as error:
            print(error, file=sys.stderr)
            return f"{whose} {commit[:8]} cannot be built here"
    return None


def _measured_again(
    comparison: Comparison, found: Sequence[Row], commits: tuple[str, str]
) -> Comparison:
    """Build both commits, and replace the verdicts of suspects by those of interleaved pairs."""
    settled: dict[str, Row] = {}
    cut_short: Outcome | None = None
    try:
        measure = functools.partial(measure_pair, *_build(commits))
        most = looks(len(found))[-1]
        print(f"{len(found)} suspects, up to {most} pairs of processes each", file=sys.stderr)
        confirm(found, commits, measure, settled, _say_round)
    except (KeyboardInterrupt, RocmforgeError, OSError) as error:
        print(f"{CUT_SHORT}: {str(error) or 'interrupted'}", file=sys.stderr)
        interrupted = isinstance(error, KeyboardInterrupt)
        cut_short = Outcome.INTERRUPTED if interrupted else Outcome.CUT_SHORT
    for row in found:
        unsure = dataclasses.replace(row, verdict=Verdict.CANNOT_TELL, note=CUT_SHORT)
        settled.setdefault(row.label, row if row.verdict is Verdict.OK else unsure)
    rows = tuple(settled.get(row.label, row) for row in comparison.rows)
    return dataclasses.replace(comparison, rows=rows, cut_short=cut_short)


def _build(commits: tuple[str, str]) -> tuple[tuple[Path, Path], tuple[Path, Path]]:
    """Build both commits; return their interpreters, and the benchmarks that each can import."""
    builds = Builds(Path.cwd(), WORK, register_here())
    for commit in commits:
        print(f"building {commit[:8]}", file=sys.stderr)
        builds.prepare(commit)
    before, after = commits
    pythons = builds.prepare(before), builds.prepare(after)
    return pythons, (builds.benchmarks(before), builds.benchmarks(after))


def _say_round(number: int, left: int) -> None:
    print(
        f"after pair {number} of processes: {left} suspect{'s' * (left != 1)} not settled yet",
        file=sys.stderr,
    )


def measure_ratios(args: argparse.Namespace) -> int:
    """Build, measure, print each line as it is known; save and return the exit code."""
    console = Console(width=120, highlight=False, soft_wrap=True)
    root = project.root()
    commits = commit_hash(root, args.before), commit_hash(root, args.after)
    chosen = project.choose(root, args.bench, "quick")[1]
    pythons, folders = _build(commits)
    title = f"{commits[1][:8]} against {commits[0][:8]}, {args.pairs} pairs of processes each"
    console.print(title)
    found: list[dict[str, Any]] = []
    lines: list[str] = []
    failed = False
    for label in chosen:
        with console.status(label):
            pairs = _pairs(label, pythons, args.pairs, folders)
        if pairs[-1].slowdown is not None:
            found.append(_ratio(label, pairs))
            lines.append(f"{label}: {_words(found[-1])}")
        else:
            side, why = pairs[-1].without
            known = why.startswith(NOT_AVAILABLE) or why in (NO_RATIO, OTHER_CODE)
            failed = failed or not known
            where = "" if why == NO_RATIO else f" at {commits[side][:8]}"
            lines.append(f"{label}: no value{where}: {why}")
        console.print(lines[-1])
    if not found:
        raise MeasurementError("no benchmark gave a value")
    if len(found) > 1:
        middle = median(one["slowdown"] for one in found)
        all_of_them = {"slowdown": middle, "low": None, "high": None}
        lines.append(f"median of {len(found)}: {_words(all_of_them)}")
        console.print(lines[-1])
    said = {"version": VERSION, **provenance(root), "before": commits[0], "after": commits[1]}
    path = comparison_path(commits, "ratios")
    for file in (path.with_suffix(".json"), *([args.json] if args.json else [])):
        write_json(file, {**said, "benchmarks": found})
    markdown = "\n".join([title, "", *(f"- `{line}`" for line in lines), ""])
    write_bytes(path.with_suffix(".md"), markdown.encode())
    console.print(saved_line(path))
    return exits.FAILED if failed else 0


def _pairs(
    label: str, pythons: tuple[Path, Path], pairs: int, folders: tuple[Path, Path]
) -> list[Pair]:
    """Return so many pairs, the commits leading alternately; one without a slowdown is the last.

    What is not timed is taken for better where it is lower: no such value is the other way round.
    """
    found: list[Pair] = []
    for number in range(pairs):
        found.append(measure_pair(pythons, folders, label, Direction.LOWER, number % 2 == 1))
        if found[-1].slowdown is None:
            break
    return found


def _ratio(label: str, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return the typical slowdown of a benchmark with its 99 % interval, None where it has none."""
    slowdowns = [pair.slowdown for pair in pairs if pair.slowdown is not None]
    low, middle, high = middle_interval([math.log(x) for x in slowdowns], CONFIDENCE)
    known = math.isfinite(high)
    firsts = [pair.first_of_turn for pair in pairs if pair.first_of_turn is not None]
    return {
        "benchmark": label,
        "slowdown": math.exp(middle),
        "low": math.exp(low) if known else None,
        "high": math.exp(high) if known else None,
        "pairs": slowdowns,
        "first_of_turn": median(firsts) if firsts else None,
    }


def _words(found: dict[str, Any]) -> str:
    """Say it in a line: ``1.25 times faster (1.20 … 1.31)``."""
    slower = found["slowdown"] > 1
    factors = [found["slowdown"], found["low"], found["high"]]
    factor, *ends = [x if slower or not x else 1 / x for x in factors]
    interval = "" if None in ends else " ({:.3f} … {:.3f})".format(*sorted(ends))
    return f"{factor:.3f} times {'slower' if slower else 'faster'}{interval}"
