"""`rocmforge bench ci`: measures two commits interleaved, gates the second, publishes the pages."""

from __future__ import annotations

import argparse
from pathlib import Path

from rocmforge.bench.arguments import add_max_load, add_profile, whole

WORK = Path(".asv") / "gate"
PAGES_BRANCH = "gh-pages"
EPILOG = """\
Both commits are built once (a minute or two each, kept in .asv/confirm/builds) and measured in
turns, A B B A, by the benchmarks of the working tree: check the pull request's commit out. What may
be slower is then measured again, interleaved, before it is called a regression. --out, from which
an older report is removed first, gets
  comment.md      for the pull request, below GitHub's limit of a comment
  gate.md, gate.json, gate.junit.xml      the comparison
  dashboard/      the pages, with the committed history of this kind of machine and both commits
Where publishing fails, what was judged lies in --out all the same.

examples:
  rocmforge bench ci origin/main HEAD --dry-run --bench 'rows.*rmsnorm'
  rocmforge bench ci origin/main HEAD --profile standard --pull-request 17
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench ci`."""
    parser.epilog = EPILOG
    parser.set_defaults(kept=f"what was measured lies in {WORK}")
    parser.add_argument("before", metavar="BEFORE", help="as git names it")
    parser.add_argument("after", metavar="AFTER", help="as git names it; checked out")
    parser.add_argument(
        "--out", type=Path, default=WORK / "report", metavar="DIR", help="(default: %(default)s)"
    )
    add_profile(parser)
    add_max_load(parser)
    parser.add_argument(
        "--rounds",
        type=whole(1, 20),
        default=2,
        metavar="N",
        help="turns of both (default: %(default)s)",
    )
    parser.add_argument(
        "--pull-request", type=int, metavar="N", help="post the comment there, by gh"
    )
    parser.add_argument(
        "--deploy", action="store_true", help=f"push the pages to the branch {PAGES_BRANCH}"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="measure and judge, but print what would be posted and pushed, and how",
    )


def run(args: argparse.Namespace) -> int:
    """Measure, judge and publish; return the exit code."""
    from rocmforge.bench.pull_request import gate

    return gate(args)
