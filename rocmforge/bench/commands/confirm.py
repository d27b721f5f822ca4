"""`rocmforge bench confirm`: builds two commits and measures them interleaved, pair by pair."""

from __future__ import annotations

import argparse
from pathlib import Path

from rocmforge.bench.arguments import add_judging, add_max_load, add_results, whole
from rocmforge.bench.commands.compare import VERDICTS, add_showing

PAIRS = 8  # the fewest that have an interval of 99 %
STORED = (
    *("results", "machine", "environment", "threshold", "noise", "max_load"),
    *("allow_missing", "all", "format", "out", "figure", "baseline"),
)
"""Options of stored results, which --bench does without."""
EPILOG = f"""\
Without --bench, both commits must have been measured before (by asv run): what may be slower or
faster by these results is measured again, interleaved, and the verdict is that of the second
measurement. Results and options are those of `bench compare`. With --baseline the earlier commit is
that of the stored results.

With --bench no results are needed: each of these benchmarks is measured in --pairs pairs of
processes, one of each commit, and its ratio is shown with its 99 % interval. A slowdown of 1.25 is
a quarter more time, whichever way its value is better. Nothing is judged: exit code 1 says that a
benchmark gives no value at one of the commits. The JSON also has `first_of_turn`: how much longer
the first call of a turn took than others, as on a GPU that has idled.

Builds lie in .asv/confirm/builds and are kept, a minute or two each; the working tree is not
measured: commit first. Benchmarks are those of the working tree; a commit that cannot import them
brings its own. What came of it is saved in .asv/comparisons.

{VERDICTS}
examples:
  rocmforge bench confirm main HEAD
  rocmforge bench confirm --baseline baselines/cpu-amd-epyc-zen4-2c/baseline.json HEAD
  rocmforge bench confirm main HEAD --bench "Cold.*'Q4_K', 'cpu'" --bench 'Prompt.track_ttft.*cpu'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench confirm`."""
    parser.epilog = EPILOG
    parser.set_defaults(upgrade=False)
    parser.add_argument("before", metavar="BEFORE", nargs="?", help="a commit, as git names it")
    parser.add_argument("after", metavar="AFTER", nargs="?", help="(default: HEAD)")
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="FILE",
        help="of `bench baseline`, in place of BEFORE: its commit is measured",
    )
    parser.add_argument(
        "--pairs",
        type=whole(1),
        metavar="N",
        help=f"with --bench: of processes, for each benchmark (default: {PAIRS})",
    )
    add_results(parser)
    add_judging(parser)
    add_max_load(parser)
    add_showing(parser)
    unset = {name: parser.get_default(name) for name in STORED}
    parser.set_defaults(unset=unset, usage=parser.error)


def run(args: argparse.Namespace) -> int:
    """Measure what is chosen or suspected; return the exit code."""
    from rocmforge.bench.remeasure import measure_ratios, remeasure_suspects

    given = [name for name in STORED if getattr(args, name) != args.unset[name]]
    others = [f"--{name.replace('_', '-')}" for name in given]
    if args.bench and others:
        args.usage(f"--bench measures anew, and takes no {', '.join(others)}")
    if not args.bench and args.pairs is not None:
        args.usage("--pairs goes with --bench: suspects take as many pairs as they need")
    if args.baseline:
        if args.after:
            args.usage("--baseline stands for BEFORE: give at most one commit")
        args.before, args.after = None, args.before
    elif not args.before:
        args.usage("give BEFORE: a commit, or --baseline FILE")
    args.after = args.after or "HEAD"
    args.pairs = args.pairs or PAIRS
    return measure_ratios(args) if args.bench else remeasure_suspects(args)
