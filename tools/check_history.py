"""Says which benchmarks got slower over a branch, by steps and drifts, between which commits.

Parses, calls `rocmforge.bench`, prints. Knows no rule of its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rocmforge.bench import exits
from rocmforge.bench.arguments import add_judging, figures
from rocmforge.bench.asv import known_thresholds
from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.compare import THRESHOLD
from rocmforge.bench.documents import history_to_json, history_to_markdown
from rocmforge.bench.findings import exit_code, judge
from rocmforge.bench.history import first_parents, read_history
from rocmforge.bench.noise import known_noise, load_noise
from rocmforge.bench.plots import history_plots
from rocmforge.bench.tables import print_findings

BASELINES = Path("baselines")
CONFIG = Path("asv.conf.json")
FORMATS = {"json": history_to_json, "markdown": history_to_markdown}
EPILOG = """\
what is shown, that which stands at the newest measured commit first:
  step   the level of the values changed at once, by more than the threshold
  drift  it changed little by little, or in several steps below the threshold, by more than that
  mended by COMMIT          back within the threshold of the old level since
  benchmark changed since   its code is another now; what it would say today is unknown
Throughputs are judged as 1 / x: a step is always one to the worse. The range goes from the last
commit that surely had the old level to the first that surely has the new one: the noisier, the
wider. The printed command names the commit: asv find builds and measures some of the range (of a
drift it names the largest part); a range of one commit is measured again beside the one before.

exit codes:
  0  nothing worse at the newest measured commit
  1  a step or a drift stands
  2  usage error, or a result file that is missing or broken
  3  nothing to judge: no benchmark was measured at enough commits of the branch

examples:
  check_history.py
  check_history.py --results .asv/results --benchmark 'matmul.*Q4_K' --figure history.svg
  check_history.py --since HEAD~50 --format json
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    return exits.run(parser.prog, lambda: _judge(args))


def _judge(args: argparse.Namespace) -> int:
    """Read, judge, show; return the exit code."""
    results = ResultsDirectory(args.results, args.machine)
    commits = first_parents(args.branch, args.since)
    history = read_history(results, commits, args.environment, args.benchmark)
    hardware = history.latest.hardware
    noise = load_noise(args.noise) if args.noise else known_noise(BASELINES, hardware)
    own = {} if args.threshold else known_thresholds(CONFIG)
    findings = judge(history, args.threshold or THRESHOLD, own, noise)
    config = args.results.parent / CONFIG.name
    used = config if config != CONFIG and config.exists() else None
    if args.format == "table":
        print_findings(findings, history, used)
    else:
        sys.stdout.write(FORMATS[args.format](findings, history, used))
    if args.figure:
        history_plots(history, findings, args.figure)
    return exit_code(findings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Find steps and drifts to the worse over the commits of a branch.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_judging(parser)
    parser.add_argument("--environment", metavar="NAME", help="asv's (default: the only one)")
    parser.add_argument("--branch", default="HEAD", metavar="NAME", help="(%(default)s)")
    parser.add_argument("--since", metavar="COMMIT", help="the oldest commit that counts")
    parser.add_argument(
        "--format", choices=("table", *FORMATS), default="table", help="(%(default)s)"
    )
    parser.add_argument(
        "--figure",
        type=figures,
        metavar="DIR_OR_FILE",
        help="also draw it: one file in .svg, .png or .pdf, or a folder for one of each benchmark",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
