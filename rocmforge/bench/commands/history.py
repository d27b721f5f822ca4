"""`rocmforge bench history`: which benchmarks got worse over a branch, between which commits."""

from __future__ import annotations

import argparse
import sys

from rocmforge.bench.arguments import add_json, add_judging, add_results, figures
from rocmforge.bench.defaults import CONFIG

FORMATS = ("table", "json", "markdown")
EPILOG = """\
what is shown, that which stands at the newest measured commit first:
  change point  the values got worse at once, by more than the threshold
  drift         they got worse little by little, by more than the threshold in all
  mended by COMMIT          back within the threshold of the old level since
  benchmark changed since   its code differs today, so that its old values say nothing about now
  cannot tell               the machine itself may have become slower: it says why
Throughputs are judged as 1 / x: every change shown is one to the worse. The range goes from the
last commit that surely had the old level to the first that surely has the new one. It is wider
where the values are noisier. The printed command finds the commit: asv find builds and measures
some commits of the range. In a drift it names the largest part. A range of one commit is measured
again, interleaved with the commit before.
A change point or drift that stands is exit code 1; a branch with too few measured commits is 3.

examples:
  rocmforge bench history
  rocmforge bench history --results .asv/results --bench 'matmul.*Q4_K' --figure history.svg
  rocmforge bench history --since HEAD~50 --format json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench history`."""
    parser.epilog = EPILOG
    add_results(parser)
    add_judging(parser)
    parser.add_argument("--branch", default="HEAD", metavar="NAME", help="(%(default)s)")
    parser.add_argument("--since", metavar="COMMIT", help="the oldest commit that counts")
    parser.add_argument("--format", choices=FORMATS, default="table", help="(%(default)s)")
    parser.add_argument(
        "--figure",
        type=figures,
        metavar="DIR_OR_FILE",
        help="also draw it: one file in .svg, .png or .pdf, or a folder for one of each benchmark",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Read, judge, show; return the exit code."""
    from rocmforge.bench.asv_results import ResultsDirectory
    from rocmforge.bench.documents import history_to_json, history_to_markdown
    from rocmforge.bench.files import write_bytes
    from rocmforge.bench.findings import exit_code, judge
    from rocmforge.bench.history import first_parents, read_history
    from rocmforge.bench.history_tables import print_findings
    from rocmforge.bench.judging import limits
    from rocmforge.bench.plots import history_plots
    from rocmforge.bench.project import naming

    results = ResultsDirectory(args.results, args.machine)
    commits = first_parents(args.branch, args.since)
    history = read_history(results, commits, args.environment, naming(args.bench))
    findings = judge(history, *limits(args.threshold, args.noise, history.latest.hardware))
    config = args.results.parent / CONFIG.name
    used = config if config != CONFIG and config.exists() else None
    if args.format == "table":
        print_findings(findings, history, used)
    else:
        form = history_to_json if args.format == "json" else history_to_markdown
        sys.stdout.write(form(findings, history, used))
    if args.json:
        write_bytes(args.json, history_to_json(findings, history, used).encode())
    if args.figure:
        history_plots(history, findings, args.figure)
    return exit_code(findings)
