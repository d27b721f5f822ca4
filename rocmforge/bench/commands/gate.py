"""`rocmforge bench gate`: measures HEAD and judges it by this machine's stored baseline."""

from __future__ import annotations

import argparse

from rocmforge.bench.arguments import add_json, add_max_load, add_profile
from rocmforge.bench.commands.run import KEPT

EPILOG = """\
Measures, shows and publishes as `rocmforge bench run` does, whose help says where everything lies.
A run of which most was measured under load is refused. A regression is called by one run alone:
`rocmforge bench confirm` builds both commits and measures them again.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench gate`."""
    parser.epilog = EPILOG
    parser.set_defaults(kept=KEPT)
    add_profile(parser)
    add_max_load(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measure and judge; return the exit code."""
    from rocmforge.bench.head import gate_head

    return gate_head(args)
