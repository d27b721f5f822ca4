"""`rocmforge bench gate`: measures HEAD and judges it by this machine's stored baseline."""

from __future__ import annotations

import argparse

from rocmforge.bench.arguments import add_json, add_max_load, add_profile
from rocmforge.bench.commands.run import KEPT

EPILOG = """\
Measures, shows and publishes as `rocmforge bench run` does, whose help says where everything lies.
A run of which most was measured under load is refused.

What may have changed by that run is measured again: the baseline's commit and HEAD are built, and
their runs interleaved, a minute for each suspect that has changed and seconds for others. The
verdict is that of the second measurement. Builds are kept in .asv/confirm/builds.

A suspect is "cannot tell", with the reason, where it cannot be measured again: the working tree has
changes, or the baseline's commit is not in this repository or cannot be built. A regression by the
rule of one run stays one all the same. "Cannot tell" alone is exit code 0, as everywhere.

A benchmark whose own code changed since the baseline is measured again, too, by today's code at
both commits. Where that is impossible it is "not comparable", which is no failure: a note names it
and `rocmforge bench baseline refresh`, which stores today's values. If nothing else could be
compared either, nothing was judged: exit code 3.

A benchmark that fails makes the exit code 1. The others are settled all the same.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench gate`."""
    parser.epilog = EPILOG
    parser.set_defaults(kept=KEPT)
    add_profile(parser)
    add_max_load(parser)
    parser.add_argument(
        "--no-confirm",
        dest="confirm",
        action="store_false",
        help='do not measure again: what may have changed is then "cannot tell", never ok',
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measure and judge; return the exit code."""
    from rocmforge.bench.head import gate_head

    return gate_head(args)
