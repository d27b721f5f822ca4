"""How much faster or slower one commit is than another: both built here and measured in turns.

For whoever tries a change: needs no results, and other work on the machine hardly moves it. Each
line is one benchmark; a pair of processes, one of each commit, gives one sample of the ratio.
Judges nothing: that is check_regressions.py's.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench import labels, naming, select
from rich.console import Console

from rocmforge.bench import exits
from rocmforge.bench.arguments import expression
from rocmforge.bench.asv import Builds, benchmarks_folder
from rocmforge.bench.files import write_json
from rocmforge.bench.interleaved import NO_RATIO, NOT_AVAILABLE, Pair, measure_pair
from rocmforge.bench.machine import register_machine
from rocmforge.bench.provenance import commit_hash, provenance
from rocmforge.bench.ranks import middle_interval
from rocmforge.bench.results import Direction
from rocmforge.bench.statistics import CONFIDENCE
from rocmforge.errors import MeasurementError
from rocmforge.hardware import detect

VERSION = 1
PAIRS = 8  # the fewest that have an interval of 99 %
ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".asv" / "confirm"
EPILOG = """\
Builds lie in .asv/confirm/builds and are kept, a minute or two each; the working tree is not
measured: commit first. Benchmarks are those of the working tree for both commits. Times are what
each benchmark times; a slowdown of 1.25 is a quarter more time, whichever way its value is better.

example:
  compare_commits.py main HEAD --bench "Cold.*'Q4_K', 'cpu'" --bench 'Prompt.track_ttft.*cpu'

exit codes: 0 measured, 1 a benchmark gives no value at one of the commits, 2 usage error or a
commit that does not build, 3 nothing measured, 130 interrupted
"""


def measure(
    label: str, pythons: tuple[Path, Path], pairs: int, folder: Path
) -> tuple[list[float], Pair]:
    """Return the slowdown of each pair, the commits leading in turns, and the last pair.

    What is not timed is taken for better where it is lower: no such value is the other way round.
    """
    found: list[float] = []
    for number in range(pairs):
        pair = measure_pair(pythons, folder, label, Direction.LOWER, number % 2 == 1)
        if pair.slowdown is None:
            return [], pair
        found.append(pair.slowdown)
    return found, pair


def line(label: str, slowdowns: Sequence[float]) -> dict[str, Any]:
    """Return the typical slowdown of a benchmark with its 99 % interval, None where it has none."""
    low, middle, high = middle_interval([math.log(x) for x in slowdowns], CONFIDENCE)
    known = math.isfinite(high)
    return {
        "benchmark": label,
        "slowdown": math.exp(middle),
        "low": math.exp(low) if known else None,
        "high": math.exp(high) if known else None,
        "pairs": list(slowdowns),
    }


def words(found: dict[str, Any]) -> str:
    """Say it in a line: ``1.25 times faster (1.20 … 1.31)``."""
    slower = found["slowdown"] > 1
    factors = [found["slowdown"], found["low"], found["high"]]
    factor, *ends = [x if slower or not x else 1 / x for x in factors]
    interval = "" if None in ends else " ({:.3f} … {:.3f})".format(*sorted(ends))
    return f"{factor:.3f} times {'slower' if slower else 'faster'}{interval}"


def compare(args: argparse.Namespace, console: Console) -> int:
    """Build, measure, print each line as it is known."""
    commits = commit_hash(ROOT, args.before), commit_hash(ROOT, args.after)
    named = naming(select([one.pattern for one in args.bench or ()], "quick"))
    chosen = [label for label in labels() if named(label)]
    if not chosen:
        raise MeasurementError("no benchmark is named so")
    hardware = detect()
    builds = Builds(ROOT, WORK, register_machine(Path.home() / ".asv-machine.json", hardware))
    for commit in commits:
        with console.status(f"building {commit[:8]}"):
            builds.prepare(commit)
    pythons = builds.prepare(commits[0]), builds.prepare(commits[1])
    folder = benchmarks_folder(ROOT / "asv.conf.json")
    console.print(
        f"{commits[1][:8]} against {commits[0][:8]}, {args.pairs} pairs of processes each"
    )
    found: list[dict[str, Any]] = []
    failed = False
    for label in chosen:
        with console.status(label):
            slowdowns, last = measure(label, pythons, args.pairs, folder)
        if slowdowns:
            found.append(line(label, slowdowns))
            console.print(f"{label}: {words(found[-1])}")
            continue
        side, why = last.without
        failed = failed or why not in (NOT_AVAILABLE, NO_RATIO)
        where = "" if why == NO_RATIO else f" at {commits[side][:8]}"
        console.print(f"{label}: no value{where}: {why}")
    if not found:
        raise MeasurementError("no benchmark gave a value")
    middle = median(one["slowdown"] for one in found)
    if len(found) > 1:
        all_of_them = {"slowdown": middle, "low": None, "high": None}
        console.print(f"median of {len(found)}: {words(all_of_them)}")
    if args.json:
        said = {"version": VERSION, **provenance(ROOT), "before": commits[0], "after": commits[1]}
        write_json(args.json, {**said, "benchmarks": found})
    return 1 if failed else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        description="Measure two commits in turns, benchmark by benchmark.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("before", metavar="BEFORE", help="a commit, as git names it")
    parser.add_argument("after", metavar="AFTER", nargs="?", default="HEAD", help="(%(default)s)")
    parser.add_argument(
        "--bench",
        action="append",
        type=expression,
        metavar="REGEX",
        help="as of tools/bench.py, may be repeated (default: its quick profile)",
    )
    parser.add_argument("--pairs", type=int, default=PAIRS, metavar="N", help="(%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write it there")
    args = parser.parse_args(argv)
    if args.pairs < 1:
        parser.error(f"--pairs: got {args.pairs}, wanted 1 or more")
    console = Console(width=120, highlight=False, soft_wrap=True)
    return exits.run(parser.prog, lambda: compare(args, console))


if __name__ == "__main__":
    sys.exit(main())
