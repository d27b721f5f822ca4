"""Lists stored baselines, makes them of asv's results or of llama-bench's, and refreshes them."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.baseline import (
    baseline_path,
    load_baseline,
    measured,
    refuse_smaller,
    replacements,
    save_baseline,
    save_refreshed,
)
from rocmforge.bench.compare import differences
from rocmforge.bench.comparison import Outcome
from rocmforge.bench.defaults import BASELINES, RESULTS
from rocmforge.bench.files import read_json
from rocmforge.bench.judging import judge
from rocmforge.bench.llama_bench import ASV_ENVIRONMENT as LLAMA_CPP
from rocmforge.bench.llama_bench import read_llama_bench
from rocmforge.bench.measure import WORK
from rocmforge.bench.results import ResultSet
from rocmforge.bench.run_environment import refuse_loaded, with_stored_environments
from rocmforge.bench.tables import plain_table, print_comparison, wide_console
from rocmforge.errors import MeasurementError, ResultFileError
from rocmforge.hardware import Hardware, detect, hardware_tag


def list_all(args: argparse.Namespace) -> int:
    """Show every baseline of a folder; a broken one is named behind the others."""
    if not args.folder.is_dir():
        raise ResultFileError(args.folder, "folder", got="none", wanted="stored baselines")
    found: list[ResultSet] = []
    broken: list[str] = []
    for path in sorted(args.folder.rglob("*.json")):
        one = _stored(path)
        if isinstance(one, str):
            broken.append(one)
        elif one is not None:
            found.append(one)
    if found:
        wide_console().print(_table(found, args.folder))
    if broken:
        raise ValueError("; ".join(broken))
    if not found:
        raise MeasurementError(f"{args.folder}: no baseline")
    return 0


def _stored(path: Path) -> ResultSet | str | None:
    """Baseline in a file; what is wrong with it; None where it is something else."""
    try:
        if "baselines" in read_json(path) or path.name == "baseline.json":
            return load_baseline(path)
    except (ResultFileError, MeasurementError) as error:
        return str(error)
    return None


def _table(found: Sequence[ResultSet], folder: Path) -> Table:
    columns = ("hardware tag", "file", "kind", "commit", "date", "benchmarks", "hardware")
    shown = plain_table(columns, ("benchmarks",))
    for one in found:
        cells = (
            hardware_tag(one.hardware),
            str(one.source.relative_to(folder)),
            "imported from llama-bench" if one.asv_environment == LLAMA_CPP else "measured",
            one.commit[:8],
            _date(one),
            str(len(one.results)),
            _fields(one.hardware),
        )
        shown.add_row(*(Text(cell) for cell in cells))
    return shown


def _date(found: ResultSet) -> str:
    """Day of the latest measurement, else of the commit."""
    moments = [result.started_at for result in found.results if result.started_at is not None]
    latest = max(moments, default=found.commit_date)
    if latest is None:
        return "unknown"
    return str(datetime.datetime.fromtimestamp(latest / 1000, datetime.timezone.utc).date())


def _fields(hardware: Hardware) -> str:
    known = {key: value for key, value in hardware.identity().items() if value is not None}
    return ", ".join(f"{key} {value}" for key, value in known.items())


def save(args: argparse.Namespace) -> int:
    """Make a baseline of a commit's results; return the exit code."""
    results = _measured_by_asv(args)
    refuse_loaded(results)
    path = args.out or baseline_path(BASELINES, results.hardware)
    count = _replace(path, results, args.replace)
    tag = hardware_tag(results.hardware)
    print(f"{path}: {count} benchmarks of {results.commit[:8]} on {tag}")
    return 0


def _replace(path: Path, results: ResultSet, though_smaller: bool) -> int:
    """Save a baseline, in place of an older one that has no more benchmarks; return its number."""
    if path.exists() and not though_smaller:
        refuse_smaller(path, results)
    return save_baseline(path, results)


def _measured_by_asv(args: argparse.Namespace) -> ResultSet:
    directory = ResultsDirectory(args.results, args.machine)
    commit = directory.resolve(args.commit) if args.commit else directory.newest()
    loaded = directory.load(commit, args.environment)
    found = with_stored_environments(loaded, args.max_load)
    existing = found.asv_environment.startswith("existing")  # and behind it a path of this machine
    return dataclasses.replace(
        found, asv_environment="existing" if existing else found.asv_environment
    )


def refresh(args: argparse.Namespace) -> int:
    """Show what moved, and replace what was measured anew; return the exit code."""
    fresh = _trusted(args)
    path = args.out or baseline_path(BASELINES, fresh.hardware)
    if not path.exists():
        raise MeasurementError(f"{path}: no baseline to refresh: bench baseline save makes one")
    stored = load_baseline(path)
    labels = {result.label for result in fresh.results}
    same = tuple(result for result in stored.results if result.label in labels)
    was = dataclasses.replace(stored, results=same)
    shown = dataclasses.replace(judge(was, fresh), shown_only=True)
    print_comparison(shown, everything=True, suites=True)
    fields = [str(difference) for difference in differences(stored.hardware, fresh.hardware)]
    if fields:
        print(f"{path}: is of other hardware: {', '.join(fields)}", file=sys.stderr)
        return Outcome.HARDWARE_MISMATCH.exit_code
    new = replacements(stored, fresh).keys()
    replaced = len(new & {result.label for result in same})
    moved = f"{replaced} replaced, {len(new) - replaced} added, "
    moved += f"{len(stored.results) - replaced} kept"
    spoilt = len(measured(fresh)) - len(new)
    if spoilt:
        moved += f" ({spoilt} for being marked now)"
    if args.dry_run:
        print(f"{path}: {moved}: not written")
        return 0
    count = save_refreshed(path, fresh)
    print(f"{path}: {moved}: {count} benchmarks, now of {fresh.commit[:8]}")
    return 0


def _trusted(args: argparse.Namespace) -> ResultSet:
    """What was measured last, if it may stand in a baseline."""
    fresh = _newest(args)
    if not measured(fresh):
        raise MeasurementError(f"{fresh.source}: no benchmark with a value: nothing measured")
    if fresh.uncommitted_changes:
        raise ValueError(
            f"{fresh.source}: got what was measured with changes on top of {fresh.commit[:8]}, "
            "wanted the commit alone: commit them and measure again, or name results by --commit"
        )
    refuse_loaded(fresh)
    return fresh


def _newest(args: argparse.Namespace) -> ResultSet:
    """What was measured last: what asv keeps, or what `bench run` left, unless one is named."""
    own = baseline_path(WORK / "baselines", detect())
    named = (args.results != RESULTS, args.commit, args.machine, args.environment)
    if any(named) or not own.exists():
        return _measured_by_asv(args)
    benched = load_baseline(own)
    args.machine = own.parent.name
    if not (RESULTS / args.machine).is_dir():
        return benched
    return max(benched, _measured_by_asv(args), key=_latest)


def _latest(found: ResultSet) -> int:
    """When the last benchmark of a run began, in milliseconds since 1970."""
    return max((result.started_at or 0 for result in found.results), default=0)


def import_llama_bench(args: argparse.Namespace) -> int:
    """Make a baseline of the JSON of llama-bench; return the exit code."""
    hardware = detect()
    results = read_llama_bench(args.file, hardware)
    folder = BASELINES / hardware_tag(hardware) / "llama-bench"
    path = args.out or folder / f"{args.file.stem}.json"
    count = _replace(path, results, args.replace)
    print(f"{os.path.relpath(path)}: {count} tests of llama.cpp {results.commit}")
    return 0
