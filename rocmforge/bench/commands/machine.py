"""`rocmforge bench machine`: makes this machine known to asv, and prints its name."""

from __future__ import annotations

import argparse
from pathlib import Path

from rocmforge.bench.machine import register_machine
from rocmforge.hardware import detect

EPILOG = """\
Results say what CPU and GPU they were measured on where asv is told this name:
  .venv/bin/asv run --machine "$(.venv/bin/rocmforge bench machine)" …
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench machine`."""
    parser.epilog = EPILOG
    parser.add_argument("--name", metavar="NAME", help="(default: the hardware tag)")
    parser.add_argument(
        "--file",
        type=Path,
        default=Path.home() / ".asv-machine.json",
        metavar="FILE",
        help="asv's machine file (~/.asv-machine.json)",
    )


def run(args: argparse.Namespace) -> int:
    """Enter the machine and print its name."""
    print(register_machine(args.file, detect(), args.name))
    return 0
