"""`rocmforge bench fleet`: measures commits on many machines, gathers it all into one dashboard."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from rocmforge.bench.arguments import add_max_load, add_profile, whole

ENGINES = ("local", "slurm", "ray")
EPILOG = """\
Every commit is measured on every kind of machine: gfx942, sm_90, cpu. Each box clones the
repository, builds the commit and runs `bench run --save-results` there. What it hands back is
checked and merged into one tree of results, which the dashboard shows. A part whose box fails, is
lost or preempted is tried on another box of its kind. The same command again measures only what is
missing.

Boxes of a kind are compared by the reference kernels that every benchmark process measures, and
with --boxes 2 by the benchmarks too: one that differs is named.

In DIR:
  results/      asv's results of all machines (or --results)   html/         the dashboard
  parts/        what was gathered: results, log, provenance    report.json   the report
  failures/     log and provenance of attempts that failed     refused/      broken bundles

examples:
  rocmforge bench fleet                                     HEAD on each device of this machine
  rocmforge bench fleet HEAD~2..HEAD --engine slurm --slurm partition=mi300x
  rocmforge bench fleet --engine slurm --kind gfx942 --kind gfx1100 --boxes 2 --profile standard
  rocmforge bench fleet --engine ray --address auto --dry-run
docs/FLEET.md leads from nothing to a nightly dashboard.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench fleet`."""
    parser.epilog = EPILOG
    parser.set_defaults(
        kept="what was gathered stays, and the same command measures the rest", usage=parser.error
    )
    parser.add_argument(
        "commits", nargs="*", metavar="COMMIT", help="as git names it, or A..B (default: HEAD)"
    )
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default=ENGINES[0],
        help="what starts the parts: this machine, Slurm or Ray (default: %(default)s)",
    )
    parser.add_argument(
        "--kind",
        action="append",
        default=[],
        type=_kind,
        help="measure on this kind of machine; may be repeated (default: every kind of the engine)",
    )
    parser.add_argument(
        "--boxes",
        type=whole(1, 9),
        default=1,
        metavar="N",
        help="measure each commit on N boxes of a kind, to compare them (default: %(default)s)",
    )
    add_profile(parser)
    parser.add_argument(
        "--command",
        default="",
        metavar="WORDS",
        help="for a shell in the checkout, in place of bench run: it leaves asv's results in "
        "results/; $1 is the commit, $2 the kind",
    )
    add_max_load(parser)
    parser.add_argument(
        "--minutes",
        type=whole(1, 100_000),
        default=120,
        metavar="N",
        help="stop the measuring of a commit after N minutes (default: %(default)s)",
    )
    parser.add_argument(
        "--tries",
        type=whole(1, 99),
        default=3,
        metavar="N",
        help="attempts at a part in all (default: %(default)s)",
    )
    parser.add_argument(
        "--keep",
        type=whole(1),
        metavar="N",
        help="newest commits of each kind; older ones are dropped (default: all)",
    )
    parser.add_argument(
        "--repository",
        metavar="URL",
        help="what boxes clone (default: this folder, which they must see)",
    )
    parser.add_argument(
        "--slurm",
        action=_Options,
        default={},
        metavar="[KIND:]NAME=VALUE",
        help="a long option of sbatch, of one kind or of all; may be repeated",
    )
    parser.add_argument(
        "--address", default="auto", help="address of the Ray cluster (default: %(default)s)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(".asv/fleet"),
        metavar="DIR",
        help="folder of the fleet: see below (default: %(default)s)",
    )
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="tree to merge into (default: DIR/results)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show boxes and what would be measured"
    )


def run(args: argparse.Namespace) -> int:
    """Measure what is missing, gather, publish, report; return the exit code."""
    if args.command and (args.bench or args.profile != "quick"):
        args.usage("--command says by itself what is measured: leave out --bench and --profile")
    if args.slurm and args.engine != "slurm":
        args.usage(f"--slurm goes with --engine slurm: got --engine {args.engine}")
    from rocmforge.bench.fleet.launch import run_fleet

    return run_fleet(args)


def _kind(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,39}", text):
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted a name such as gfx942")
    return text


class _Options(argparse.Action):
    """Collects options of sbatch by kind."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        found = re.fullmatch(r"(?:([a-z0-9][a-z0-9_-]{0,39}):)?([a-z][a-z-]*)=(.*)", str(values))
        if found is None:
            parser.error(f"{option_string}: got {values!r}, wanted NAME=VALUE or KIND:NAME=VALUE")
        options = dict(getattr(namespace, self.dest))
        kind = found[1] or ""
        options[kind] = {**options.get(kind, {}), found[2]: found[3]}
        setattr(namespace, self.dest, options)
