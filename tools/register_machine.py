"""Makes this machine known to asv under its hardware tag, and prints the tag.

Then `asv run --machine "$(python tools/register_machine.py)"` writes results that say what CPU and
GPU they were measured on. Parses, calls `rocmforge.bench`, prints.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rocmforge.bench.machine import register_machine
from rocmforge.errors import RocmforgeError
from rocmforge.hardware import detect

BROKEN = 2


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        description="Enter this machine in asv's machine file and print its name.",
        allow_abbrev=False,
    )
    parser.add_argument("--name", metavar="NAME", help="(default: the hardware tag)")
    parser.add_argument(
        "--file",
        type=Path,
        default=Path.home() / ".asv-machine.json",
        metavar="FILE",
        help="asv's machine file (~/.asv-machine.json)",
    )
    args = parser.parse_args(argv)
    try:
        print(register_machine(args.file, detect(), args.name))
    except (RocmforgeError, OSError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return BROKEN
    return 0


if __name__ == "__main__":
    sys.exit(main())
