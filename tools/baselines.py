"""Stored baselines: lists them, makes one of asv's results, refreshes, compares and imports them.

Parses, calls `rocmforge.bench`, prints. Measures nothing; `compare` is check_regressions.py's.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import check_regressions
from check_regressions import CONFIG
from rich.table import Table
from rich.text import Text

from rocmforge.bench import exits
from rocmforge.bench.asv import known_thresholds
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
from rocmforge.bench.compare import Outcome, compare, differences
from rocmforge.bench.files import read_json
from rocmforge.bench.llama_bench import ENVIRONMENT as LLAMA_CPP
from rocmforge.bench.llama_bench import read_llama_bench
from rocmforge.bench.noise import known_noise
from rocmforge.bench.results import ResultSet
from rocmforge.bench.run_environment import refuse_loaded, with_stored_environments
from rocmforge.bench.tables import plain_table, print_comparison, wide_console
from rocmforge.errors import MeasurementError, ResultFileError
from rocmforge.hardware import Hardware, detect, hardware_tag

BASELINES = Path("baselines")
OWN_RESULTS = Path(".asv") / "baselines"
KINDS = {LLAMA_CPP: "imported from llama-bench"}
EPILOG = """\
exit codes:
  0  done; compare: nothing worse
  1  compare: at least one regression
  2  usage error, a file that is missing or broken, or hardware that the results do not name
     (tools/register_machine.py makes this machine known to asv)
  3  nothing measured, or most of it under load; no baseline to refresh or to list; compare: nothing
     to judge, or benchmarks are missing
  4  other hardware than the baseline's; the fields are named

examples:
  baselines.py list
  baselines.py save --commit HEAD
  baselines.py refresh --dry-run
  baselines.py compare rocm-6.json rocm-7.json --upgrade
  llama-bench -m model.gguf -r 10 -o json > before.json; baselines.py import before.json
"""
SAVE = """\
Makes the baseline of the machine that a commit's results in asv's directory were measured on: for
every benchmark mean, min, max, p50, p95, p99, the 99 % interval of the median, the samples (ms for
times, else the benchmark's own unit), direction and hardware. Run asv with --record-samples, else
only the median and its interval are known. An older baseline at the same place is replaced, unless
that would lose benchmarks that it holds: then only with --replace. A run of which most was measured
under load is refused.
"""
REFRESH = """\
Takes what was measured last, by asv or by make bench (with --results or --commit: by asv), and puts
it in place of the same benchmarks in the stored baseline of that hardware. All others stay, with
the commit they were measured at; so does what is marked now (load, throttling) and was not when it
was stored. What make bench measured with uncommitted changes is refused: no commit is its own.
Shows first what moved; --dry-run does no more.
"""
COMPARE = """\
Judges baseline B by baseline A, as check_regressions.py --baseline A --against B does, whose
options may follow. With --upgrade ROCm and the driver may differ: what it moved, and by how much.
"""
IMPORT = """\
Makes a baseline of the JSON of llama-bench, of the machine that this runs on: run it where
llama-bench ran. Two of them compare builds of llama.cpp, of ROCm or of the driver. An older one at
the same place is replaced, unless it holds tests that the file has not: then only with --replace.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.command == "compare":
        sides = ["--baseline", str(args.before), "--against", str(args.after)]
        return check_regressions.main([*sides, *args.options])
    commands = {"list": _list, "save": _save, "refresh": _refresh, "import": _import}
    return exits.run(f"{parser.prog} {args.command}", lambda: commands[args.command](args))


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        description="List, save, refresh, compare and import baselines.",
        epilog=EPILOG,
        formatter_class=raw,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, line: str, text: str = "") -> argparse.ArgumentParser:
        return commands.add_parser(
            name, help=line, description=text or line, formatter_class=raw, allow_abbrev=False
        )

    listing = command("list", "show every stored baseline: of what, when, how many benchmarks")
    listing.add_argument("folder", nargs="?", type=Path, default=BASELINES, help="(%(default)s)")
    save = command("save", "make a baseline of a commit's results in asv's directory", SAVE)
    refresh = command("refresh", "replace in a baseline what was measured anew", REFRESH)
    for chosen in (save, refresh):
        chosen.add_argument("--results", type=Path, metavar="DIR", help="asv's (results)")
        chosen.add_argument(
            "--commit", metavar="COMMIT", help="a measured one (default: the newest measured one)"
        )
        chosen.add_argument("--machine", metavar="NAME", help="folder in DIR (the only one)")
        chosen.add_argument("--environment", metavar="NAME", help="asv's (the only one)")
        chosen.add_argument(
            "--out", type=Path, metavar="FILE", help="(baselines/<hardware tag>/baseline.json)"
        )
    refresh.add_argument(
        "--dry-run", action="store_true", help="show what would move; write nothing"
    )
    comparing = command("compare", "what moved from one baseline to another", COMPARE)
    comparing.add_argument("before", type=Path, metavar="A")
    comparing.add_argument("after", type=Path, metavar="B")
    comparing.add_argument("options", nargs=argparse.REMAINDER, help="of check_regressions.py")
    importing = command("import", "make a baseline of llama-bench's JSON", IMPORT)
    importing.add_argument("file", type=Path, help="of llama-bench -o json or -o jsonl")
    importing.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="(default: baselines/<hardware tag>/llama-bench/<name>.json)",
    )
    for chosen in (save, importing):
        chosen.add_argument(
            "--replace", action="store_true", help="replace a baseline that holds more benchmarks"
        )
    return parser


def _list(args: argparse.Namespace) -> int:
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
            KINDS.get(one.environment, "measured"),
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


def _save(args: argparse.Namespace) -> int:
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
    folder = args.results or Path("results")
    directory = ResultsDirectory(folder, args.machine)
    commit = directory.resolve(args.commit) if args.commit else directory.newest()
    found = with_stored_environments(directory.load(commit, args.environment), folder)
    existing = found.environment.startswith("existing")  # and behind it a path of this machine
    return dataclasses.replace(found, environment="existing" if existing else found.environment)


def _refresh(args: argparse.Namespace) -> int:
    fresh = _trusted(args)
    path = args.out or baseline_path(BASELINES, fresh.hardware)
    if not path.exists():
        raise MeasurementError(f"{path}: no baseline to refresh: baselines.py save makes one")
    stored = load_baseline(path)
    labels = {result.label for result in fresh.results}
    same = tuple(result for result in stored.results if result.label in labels)
    noise = known_noise(BASELINES, fresh.hardware)
    was = dataclasses.replace(stored, results=same)
    found = compare(was, fresh, noise=noise, thresholds=known_thresholds(CONFIG))
    print_comparison(found, everything=True, suites=True)
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
    """What was measured last: what asv keeps, or what make bench left, unless one is named."""
    own = baseline_path(OWN_RESULTS, detect())
    named = (args.results, args.commit, args.machine, args.environment)
    if any(named) or not own.exists():
        return _measured_by_asv(args)
    benched = load_baseline(own)
    args.machine = own.parent.name
    if not (Path("results") / args.machine).is_dir():
        return benched
    return max(benched, _measured_by_asv(args), key=_latest)


def _latest(found: ResultSet) -> int:
    """When the last benchmark of a run began, in milliseconds since 1970."""
    return max((result.started_at or 0 for result in found.results), default=0)


def _import(args: argparse.Namespace) -> int:
    hardware = detect()
    results = read_llama_bench(args.file, hardware)
    folder = BASELINES / hardware_tag(hardware) / "llama-bench"
    path = args.out or folder / f"{args.file.stem}.json"
    count = _replace(path, results, args.replace)
    print(f"{os.path.relpath(path)}: {count} tests of llama.cpp {results.commit}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
