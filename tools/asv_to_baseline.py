"""Turns asv's results of one commit into the baseline of the machine they were measured on.

Parses, calls `rocmforge.regress`, prints where the file lies.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rocmforge.hardware import hardware_tag
from rocmforge.regress import exits
from rocmforge.regress.baseline import baseline_path, refuse_smaller, save_baseline
from rocmforge.regress.results import ResultsDirectory

EPILOG = """\
The baseline holds, for every benchmark that was measured, mean, min, max, p50, p95, p99, the 99 %
interval of the median and the number of samples (ms for times, else in the benchmark's own unit),
the hardware, and the metric's direction. Run asv with --record-samples, else only the median and
its interval are known and the rest is null. An older baseline at the same place is replaced,
unless that would lose benchmarks that it holds: then only with --replace.

exit codes:
  0  written
  2  usage error, a result file that is missing or broken, or hardware that the results do not name
     (tools/register_machine.py makes this machine known to asv)
  3  nothing measured: no benchmark has a value; an older baseline stays
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)

    def work() -> int:
        directory = ResultsDirectory(args.results, args.machine)
        commit = directory.resolve(args.commit) if args.commit else directory.newest()
        results = directory.load(commit, args.environment)
        path = args.out or baseline_path(Path("baselines"), results.hardware)
        if path.exists() and not args.replace:
            refuse_smaller(path, results)
        count = save_baseline(path, results)
        print(f"{path}: {count} benchmarks of {commit[:8]} on {hardware_tag(results.hardware)}")
        return 0

    return exits.run(parser.prog, work)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Write a baseline from asv's results.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="DIR", help="asv's (%(default)s)"
    )
    parser.add_argument(
        "--commit",
        metavar="COMMIT",
        help="as git names it or a prefix of a measured one (default: the newest measured one)",
    )
    parser.add_argument("--machine", metavar="NAME", help="folder in DIR (default: the only one)")
    parser.add_argument("--environment", metavar="NAME", help="asv's (default: the only one)")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="(baselines/<hardware tag>/baseline.json)"
    )
    parser.add_argument(
        "--replace", action="store_true", help="replace a baseline that holds more benchmarks"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
