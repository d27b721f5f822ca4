"""Says whether a run got slower: two commits of asv's results, or one against a baseline.

Parses, calls `rocmforge.bench`, prints. Knows no rule of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from pathlib import Path

from rocmforge.bench import exits
from rocmforge.bench.arguments import add_judging, figure
from rocmforge.bench.asv import Builds, benchmarks_folder, known_thresholds
from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.baseline import load_baseline
from rocmforge.bench.compare import THRESHOLD, Comparison, Outcome, Row, compare, differences
from rocmforge.bench.confirm import confirm, looks, suspects
from rocmforge.bench.decision import Verdict
from rocmforge.bench.documents import to_json, to_junit, to_markdown
from rocmforge.bench.files import write_bytes
from rocmforge.bench.interleaved import measure_pair
from rocmforge.bench.machine import register_machine
from rocmforge.bench.noise import known_noise, load_noise
from rocmforge.bench.plots import forest_plot
from rocmforge.bench.results import ResultSet
from rocmforge.bench.run_environment import refuse_loaded, with_stored_environments
from rocmforge.bench.tables import print_comparison
from rocmforge.errors import RocmforgeError
from rocmforge.hardware import detect

BASELINES = Path("baselines")
FORMATS = {"json": to_json, "markdown": to_markdown, "junit": to_junit}
FILES = {"json": "gate.json", "markdown": "gate.md", "junit": "gate.junit.xml"}
CONFIG = Path("asv.conf.json")
UPGRADED = ("rocm_version", "driver_version")
CONFIRM = Path(".asv") / "confirm"
EPILOG = """\
verdicts:
  regression      worse by more than the threshold (after/before above 1.10, or, where higher is
                  better, before/after above 1.10), AND the samples differ (Mann-Whitney, 1 % for
                  all benchmarks together), AND by more than runs of one commit do (--noise)
  improved        better by the same rule
  cannot tell     beyond the threshold, but not surely: it says why, and what would settle it; or
                  measured under other load or throttling, whatever the value
  failed          an error or time-out now; weighs like a regression where it had a value before
  missing / new   only before / only after there is a value (it may have failed before); of what is
                  missing it says what looks like it under a new name or with other parameters
  not comparable  the benchmark's code, unit or direction changed, or benchmarks.json lacks it:
                  weighs like a missing one
  ok, skipped     within the threshold; n/a on both sides

exit codes:
  0  compared, and nothing is surely worse; what cannot be told does not count
  1  at least one regression, or a benchmark that worked before and fails now
  2  usage error, or a result or baseline file that is missing or broken; or --confirm was cut short
     by an error: what was settled until then is shown
  3  nothing measured: not one benchmark has values on both sides that can be judged; or some that
     were measured before are missing or not comparable now, whatever the others say (a regression
     is still 1): --allow-missing lets them pass, --benchmark leaves them out; or most of a run was
     measured under other load or throttling, whichever of it --benchmark chooses: measure it again
  4  hardware mismatch: before and after come from different machines; the fields are named
  130  interrupted; what was settled until then is shown

examples:
  check_regressions.py main HEAD --confirm      (both measured before, by asv run)
  check_regressions.py HEAD~5 HEAD --benchmark 'matmul.*Q4_K' --format markdown
  check_regressions.py --baseline baselines/cpu-amd-epyc-zen4-2c/baseline.json HEAD
  check_regressions.py --baseline rocm-6.json --against rocm-7.json --upgrade
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = _parser()
    args = parser.parse_intermixed_args(argv)
    if args.baseline and args.confirm:
        parser.error("--confirm measures two commits: a baseline cannot be measured again")
    if args.upgrade and args.confirm:
        parser.error("--confirm measures both commits on the driver of today: leave --upgrade out")
    if args.against and not args.baseline:
        parser.error("--against names what to judge: name what to compare with by --baseline")
    wanted = (0,) if args.against else (0, 1) if args.baseline else (2,)
    if len(args.commits) not in wanted:
        parser.error(
            "give two commits, or --baseline FILE and at most one commit, "
            "or --baseline FILE --against FILE"
        )
    return exits.run(parser.prog, lambda: _judge(args))


def _judge(args: argparse.Namespace) -> int:
    """Compare, measure again where that is wanted, show; return the exit code."""
    comparison, after = _compare(args)
    if args.confirm:
        comparison = _confirmed(comparison, after)
    if args.format == "table":
        print_comparison(comparison, everything=args.all, suites=bool(args.against))
    else:
        sys.stdout.write(FORMATS[args.format](comparison))
    if args.out:
        for name, form in FORMATS.items():
            write_bytes(args.out / FILES[name], form(comparison).encode())
    if args.figure:
        forest_plot(comparison, args.figure)
    return comparison.outcome.exit_code


def _compare(args: argparse.Namespace) -> tuple[Comparison, ResultSet]:
    """Compare what was measured; also return the later side."""
    before, after = _sides(args)
    noise = load_noise(args.noise) if args.noise else known_noise(BASELINES, after.hardware)
    own = {} if args.threshold else known_thresholds(CONFIG)
    threshold = args.threshold or THRESHOLD
    found = compare(
        before,
        after,
        threshold,
        args.benchmark,
        noise,
        own,
        UPGRADED if args.upgrade else (),
        args.allow_missing,
    )
    return found, after


def _sides(args: argparse.Namespace) -> tuple[ResultSet, ResultSet]:
    """Read what is compared."""
    if args.against:
        return load_baseline(args.baseline), load_baseline(args.against)
    results = ResultsDirectory(args.results, args.machine)
    commits = [results.resolve(name) for name in args.commits]
    if args.baseline:
        after = results.load(commits[0] if commits else results.newest(), args.environment)
        return load_baseline(args.baseline), _quiet(after, args.results)
    before, after = results.load_pair(commits[0], commits[1], args.environment)
    return _quiet(before, args.results), _quiet(after, args.results)


def _quiet(found: ResultSet, results: Path) -> ResultSet:
    """Add what surrounded the processes; refuse a run most of which was measured under load."""
    known = with_stored_environments(found, results)
    refuse_loaded(known)
    return known


def _confirmed(comparison: Comparison, after: ResultSet) -> Comparison:
    """Measure what may be slower again; the verdicts of these measurements replace its own.

    Where measuring is cut short, what was settled stands, and what was not cannot be told.
    """
    found = suspects(comparison.rows)
    if not found or comparison.mismatches:
        return comparison
    here = detect()
    differing = [difference.field for difference in differences(after.hardware, here)]
    if differing:
        raise ValueError(
            f"--confirm: these results are of {after.machine}, and this machine differs in "
            f"{', '.join(differing)}: run it there"
        )
    machine = register_machine(Path.home() / ".asv-machine.json", here)
    builds = Builds(Path.cwd(), CONFIRM, machine)
    commits = comparison.commits
    settled: dict[str, Row] = {}
    cut_short: Outcome | None = None
    try:
        for commit in commits:
            print(f"building {commit[:8]}", file=sys.stderr)
            builds.prepare(commit)
        pythons = builds.prepare(commits[0]), builds.prepare(commits[1])
        measure = functools.partial(measure_pair, pythons, benchmarks_folder(CONFIG))
        most = looks(len(found))[-1]
        print(f"{len(found)} suspects, up to {most} pairs of processes each", file=sys.stderr)
        confirm(found, commits, measure, settled, _say_round)
    except (KeyboardInterrupt, RocmforgeError, OSError) as error:
        print(f"measuring again was cut short: {str(error) or 'interrupted'}", file=sys.stderr)
        interrupted = isinstance(error, KeyboardInterrupt)
        cut_short = Outcome.INTERRUPTED if interrupted else Outcome.CUT_SHORT
    for row in found:
        note = "measuring again was cut short"
        unsure = dataclasses.replace(row, verdict=Verdict.CANNOT_TELL, note=note)
        settled.setdefault(row.label, row if row.verdict is Verdict.OK else unsure)
    rows = tuple(settled.get(row.label, row) for row in comparison.rows)
    return dataclasses.replace(comparison, rows=rows, cut_short=cut_short)


def _say_round(number: int, left: int) -> None:
    print(f"round {number}: {left} open", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Flag benchmarks that got worse by more than a threshold.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "commits",
        nargs="*",
        metavar="COMMIT",
        help="before and after, as git names them or as a prefix of a measured commit; with "
        "--baseline the commit to judge (default: the newest measured one)",
    )
    add_judging(parser)
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE", help="compare with a file of baselines.py"
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="with --baseline: judge this baseline, not asv's results (another driver, say)",
    )
    parser.add_argument(
        "--upgrade",
        action="store_true",
        help="compare though ROCm or the driver is of another major version: what an upgrade moved",
    )
    parser.add_argument(
        "--allow-missing",
        action="store_true",
        help="pass though benchmarks that were measured before are missing or not comparable now",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="print also what is ok, new, n/a or of other hardware (json and junit always "
        "have all, markdown folds it)",
    )
    parser.add_argument(
        "--confirm",
        action="store_true",
        help="measure what may be slower again, both commits built and in turns, before judging it "
        "(minutes; below .asv/confirm)",
    )
    parser.add_argument("--environment", metavar="NAME", help="asv's (default: the common one)")
    parser.add_argument(
        "--format", choices=("table", *FORMATS), default="table", help="(%(default)s)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"also write it there in the other formats: {', '.join(FILES.values())}",
    )
    parser.add_argument(
        "--figure", type=figure, metavar="FILE", help="also draw it: a name in .svg, .png or .pdf"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
