"""Turns the JSON of llama-bench into a baseline of this kind of machine.

Parses, calls `rocmforge.regress`, prints where the file lies. Measures nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rocmforge.hardware import detect, hardware_tag
from rocmforge.regress import exits
from rocmforge.regress.baseline import save_baseline
from rocmforge.regress.llama_bench import read_llama_bench

EPILOG = """\
The baseline is of the machine that this runs on: run it where llama-bench ran. To compare two of
them, of an older and a newer build of llama.cpp, of ROCm or of the driver:
  llama-bench -m model.gguf -r 10 -o json > before.json
  import_llama_bench.py before.json --out before.baseline.json
  ...
  check_regressions.py --baseline before.baseline.json --against after.baseline.json

exit codes: 0 written; 2 usage error or a broken file; 3 no test in it
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        description="Make a baseline of what llama-bench -o json printed.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, help="of llama-bench -o json or -o jsonl")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="(default: baselines/<hardware tag>/llama-bench/<name>.json)",
    )
    args = parser.parse_args(argv)

    def work() -> int:
        hardware = detect()
        results = read_llama_bench(args.file, hardware)
        folder = Path("baselines") / hardware_tag(hardware) / "llama-bench"
        path = args.out or folder / f"{args.file.stem}.json"
        count = save_baseline(path, results)
        print(f"{os.path.relpath(path)}: {count} tests of llama.cpp {results.commit}")
        return 0

    return exits.run(parser.prog, work)


if __name__ == "__main__":
    sys.exit(main())
