"""`rocmforge bench compare`: says whether a run got slower, by results measured before."""

from __future__ import annotations

import argparse
from pathlib import Path

from rocmforge.bench.arguments import add_json, add_judging, add_max_load, add_results, figure
from rocmforge.bench.defaults import FILES, FORMATS

VERDICTS = """\
verdicts:
  regression      worse by more than the threshold (after/before above 1.10, or, where higher is
                  better, before/after above 1.10), AND the samples differ (Mann-Whitney, 1 % for
                  all benchmarks together), AND by more than runs of one commit do (--noise)
  improved        better by the same rule
  cannot tell     beyond the threshold, but not surely: it says why, and what would settle it; or
                  disturbed by other work or throttling, whatever the value; or the machine itself
                  read memory or calculated faster or slower by as much
  failed          an error or time-out now; weighs like a regression where it had a value before
  missing / new   only before / only after there is a value (it may have failed before); of what is
                  missing it says what looks like it under a new name or with other parameters
  not comparable  the benchmark's code, unit or direction changed, or benchmarks.json lacks it:
                  weighs like a missing one
  ok, skipped     within the threshold; n/a on both sides

Benchmarks that are missing or not comparable now are exit code 3, whatever the others say (a
regression is still 1): --allow-missing lets them pass, --bench leaves them out. So is a run of
which most was measured under load, whichever of it --bench chooses. What cannot be told does not
count. The comparison is saved in .asv/comparisons.
"""
EPILOG = f"""\
{VERDICTS}
examples:
  rocmforge bench compare main HEAD      (both measured before, by asv run)
  rocmforge bench compare HEAD~5 HEAD --bench 'matmul.*Q4_K' --format markdown
  rocmforge bench compare --baseline baselines/cpu-amd-epyc-zen4-2c/baseline.json HEAD
  rocmforge bench compare --baseline rocm-6.json --against rocm-7.json --upgrade
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench compare`."""
    parser.epilog = EPILOG
    parser.add_argument(
        "commits",
        nargs="*",
        metavar="COMMIT",
        help="before and after, as git names them or as a prefix of a measured commit; with "
        "--baseline the commit to judge (default: the newest measured one)",
    )
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE", help="compare with a file of `bench baseline`"
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="with --baseline: judge this baseline, not asv's results (another driver, say)",
    )
    add_results(parser)
    add_options(parser)
    parser.set_defaults(usage=parser.error)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add how two runs are judged and shown."""
    add_judging(parser)
    add_max_load(parser)
    parser.add_argument(
        "--upgrade",
        action="store_true",
        help="compare though ROCm or the driver is of another major version: what an upgrade moved",
    )
    add_showing(parser)


def add_showing(parser: argparse.ArgumentParser) -> None:
    """Add what passes all the same, and how a comparison is shown."""
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
    parser.add_argument("--format", choices=FORMATS, default="table", help="(%(default)s)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"also write it there in the other formats: {', '.join(FILES.values())}",
    )
    parser.add_argument(
        "--figure", type=figure, metavar="FILE", help="also draw it: a name in .svg, .png or .pdf"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Compare and show; return the exit code."""
    if args.against and not args.baseline:
        args.usage("--against names what to judge: name what to compare with by --baseline")
    wanted = (0,) if args.against else (0, 1) if args.baseline else (2,)
    if len(args.commits) not in wanted:
        args.usage(
            "give two commits, or --baseline FILE and at most one commit, "
            "or --baseline FILE --against FILE"
        )
    from rocmforge.bench.judging import judge_baselines, judge_stored

    return judge_baselines(args) if args.against else judge_stored(args)
