"""Compares two runs as every command does, and saves what came of it.

It uses the noise floors known of the hardware and the thresholds of asv.conf.json, unless options
name others.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rocmforge.bench.asv import known_thresholds
from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.baseline import baseline_path, load_baseline, no_baseline
from rocmforge.bench.compare import compare
from rocmforge.bench.comparison import THRESHOLD, Comparison
from rocmforge.bench.defaults import BASELINES, CONFIG, FILES
from rocmforge.bench.documents import to_json, to_junit, to_markdown
from rocmforge.bench.files import write_bytes
from rocmforge.bench.noise import Noise, known_noise, load_noise
from rocmforge.bench.plots import forest_plot
from rocmforge.bench.project import naming
from rocmforge.bench.results import ResultSet
from rocmforge.bench.run_environment import refuse_loaded, with_stored_environments
from rocmforge.bench.tables import print_comparison
from rocmforge.hardware import Hardware

COMPARISONS = Path(".asv") / "comparisons"
FORMATS: Mapping[str, Callable[[Comparison], str]] = {
    "json": to_json,
    "markdown": to_markdown,
    "junit": to_junit,
}
UPGRADED = ("rocm_version", "driver_version")


def judge(
    before: ResultSet,
    after: ResultSet,
    bench: Sequence[str | re.Pattern[str]] = (),
    threshold: float | None = None,
    noise: Path | None = None,
    upgraded: Collection[str] = (),
    may_miss: bool = False,
) -> Comparison:
    """Compare two runs.

    Parameters
    ----------
    before, after, upgraded, may_miss
        As of `compare`.
    bench
        Expressions of which one is found in the benchmarks that count; none: all count.
    threshold
        For all benchmarks; default: those of asv.conf.json, else 0.10.
    noise
        File of what runs of one commit differ by; default: that of this hardware in baselines/.
    """
    limit, own, known = limits(threshold, noise, after.hardware)
    return compare(before, after, limit, naming(bench), known, own, upgraded, may_miss)


def limits(
    threshold: float | None, noise: Path | None, hardware: Hardware
) -> tuple[float, dict[str, float], dict[str, Noise]]:
    """Return the threshold, those of single benchmarks, and what is known of their noise."""
    own = {} if threshold else known_thresholds(CONFIG)
    known = load_noise(noise) if noise else known_noise(BASELINES, hardware)
    return threshold or THRESHOLD, own, known


def save(comparison: Comparison, kind: str = "") -> Path:
    """Write a comparison as JSON and as Markdown; return the name of both, up to the suffix."""
    path = comparison_path(comparison.commits, kind)
    write_bytes(path.with_suffix(".json"), to_json(comparison).encode())
    write_bytes(path.with_suffix(".md"), to_markdown(comparison).encode())
    return path


def comparison_path(commits: tuple[str, str], kind: str = "") -> Path:
    """Return where a comparison of two commits is saved, without a suffix."""
    names = [re.sub(r"\W", "_", commit[:8]) for commit in commits]  # a baseline's may be any text
    return COMPARISONS / "-".join([*names, *([kind] if kind else [])])


def saved_line(path: Path) -> str:
    """Say where `save` wrote."""
    return f"saved {path}.json and .md"


def judge_stored(args: argparse.Namespace) -> int:
    """Compare two measured commits, or one with a baseline, and show it; return the exit code."""
    results = ResultsDirectory(args.results, args.machine)
    commits = [results.resolve(name) for name in args.commits]
    if not args.baseline:
        before, after = read_pair(results, commits[0], commits[1], args.max_load, args.environment)
        return show(judged(before, after, args), args)
    newest = commits[0] if commits else results.newest()
    after = read_one(results, newest, args.max_load, args.environment)
    found = judged(load_baseline(args.baseline), after, args)
    return show(_pointed_home(found, after.hardware), args)


def _pointed_home(found: Comparison, hardware: Hardware) -> Comparison:
    """Where the baseline is of another machine, name this one's, or the command that stores it."""
    if not found.mismatches:
        return found
    own = baseline_path(BASELINES, hardware)
    hint = f"this machine's baseline: {own}" if own.exists() else no_baseline(hardware)
    return replace(found, notes=(*found.notes, hint))


def judge_baselines(args: argparse.Namespace) -> int:
    """Compare two baselines and show it, suite by suite too; return the exit code."""
    before, after = load_baseline(args.baseline), load_baseline(args.against)
    return show(judged(before, after, args), args, suites=True)


def read_one(
    results: ResultsDirectory, commit: str, max_load: float, asv_environment: str | None = None
) -> ResultSet:
    """Read what asv measured of a commit; refuse what was measured under load."""
    return _quiet(results.load(commit, asv_environment), results, max_load)


def read_pair(
    results: ResultsDirectory,
    before: str,
    after: str,
    max_load: float,
    asv_environment: str | None = None,
) -> tuple[ResultSet, ResultSet]:
    """Read what asv measured of two commits; refuse what was measured under load."""
    one, other = results.load_pair(before, after, asv_environment)
    return _quiet(one, results, max_load), _quiet(other, results, max_load)


def _quiet(found: ResultSet, results: ResultsDirectory, max_load: float) -> ResultSet:
    """Add the environment of each process; refuse a run most of which other work disturbed."""
    known = with_stored_environments(found, max_load)
    refuse_loaded(known)
    return known


def judged(before: ResultSet, after: ResultSet, args: argparse.Namespace) -> Comparison:
    """Compare as the options say."""
    upgraded = UPGRADED if args.upgrade else ()
    return judge(
        before, after, args.bench, args.threshold, args.noise, upgraded, args.allow_missing
    )


def show(
    comparison: Comparison, args: argparse.Namespace, suites: bool = False, kind: str = ""
) -> int:
    """Save, print and write a comparison as the options say; return its exit code."""
    said = saved_line(save(comparison, kind))
    if args.format == "table":
        print_comparison(comparison, everything=args.all, suites=suites)
        print(said)
    else:
        sys.stdout.write(FORMATS[args.format](comparison))
        print(said, file=sys.stderr)
    if args.out:
        write_reports(comparison, args.out)
    if args.json:
        write_bytes(args.json, FORMATS["json"](comparison).encode())
    if args.figure:
        forest_plot(comparison, args.figure)
    return comparison.outcome.exit_code


def write_reports(comparison: Comparison, out: Path) -> None:
    """Write a comparison into a folder, in every format."""
    for name, form in FORMATS.items():
        write_bytes(out / FILES[name], form(comparison).encode())
