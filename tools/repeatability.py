"""Measures one commit again and again: how much does each benchmark differ from run to run?

Runs `tools/bench.py`, keeps the JSON of every run, calls `rocmforge.bench.noise`, prints a table.
Knows no benchmark and no rule of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rocmforge.bench import exits, provenance
from rocmforge.bench.baseline import baseline_path, load_baseline
from rocmforge.bench.files import refuse_loss, write_bytes
from rocmforge.bench.formatting import digits, scale_for
from rocmforge.bench.noise import (
    FEWEST_RUNS,
    Noise,
    learn,
    load_noise,
    noise_path,
    save_noise,
)
from rocmforge.bench.results import ResultSet
from rocmforge.bench.statistics import percentile
from rocmforge.errors import MeasurementError, ResultFileError
from rocmforge.hardware import detect

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = ("benchmark", "median", "spread", "largest", "marked")
PLAIN_WIDTH = 200
EPILOG = """\
spread   of the medians of the runs: half of them lie within this share, (q75 - q25) / median
largest  change that any two runs showed though the code is the same, max / min - 1
marked   runs in which it was measured under other load or throttling

Every run is kept in .asv/repeatability/COMMIT/PROFILE/NN.json (a hash in place of PROFILE with
--bench); those of earlier calls with the same selection count too: an interrupted call is continued
by the next.

exit codes:
  0  measured
  2  usage error, or a file or git is broken
  3  tools/bench.py measured nothing or failed, as its output says
  130  interrupted; finished runs are kept
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH

    def work() -> int:
        runs = _measure(args, console)
        noise = learn(runs)
        console.print(table(noise))
        console.print(f"\n{summary(noise, len(runs))}")
        console.print(f"runs are kept in {os.path.relpath(runs[0].source.parent)}")
        if args.save:
            path = noise_path(ROOT / "baselines", runs[0].hardware)
            if path.exists() and not args.replace:
                refuse_loss(path, load_noise(path), noise)
            save_noise(path, noise, runs[0])
            console.print(f"saved {os.path.relpath(path)}")
        return 0

    return exits.run(parser.prog, work, "finished runs are kept")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Measure HEAD several times and show how much each benchmark differs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--runs", type=_runs, default=10, metavar="N", help="in all (default: %(default)s)"
    )
    parser.add_argument(
        "--profile",
        choices=("quick", "standard", "full"),
        default="quick",
        help="of tools/bench.py (default: %(default)s)",
    )
    parser.add_argument("--bench", action="append", metavar="REGEX", help="as of tools/bench.py")
    parser.add_argument(
        "--save",
        action="store_true",
        help="write baselines/<hardware tag>/noise.json, which the gate reads",
    )
    parser.add_argument(
        "--replace", action="store_true", help="with --save: though benchmarks are lost by it"
    )
    return parser


def _runs(text: str) -> int:
    if not text.isdecimal() or int(text) < FEWEST_RUNS:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted {FEWEST_RUNS} or more")
    return int(text)


def _measure(args: argparse.Namespace, console: Console) -> list[ResultSet]:
    """Run what is missing, and read all runs of the commit."""
    commit, changed = provenance.head(ROOT)
    if commit is None:
        raise ValueError(f"{ROOT} is no git repository with a commit")
    if changed:
        raise ValueError("the working tree has changes: commit them, for runs are kept by commit")
    chosen = hashlib.sha256("\n".join(args.bench or ()).encode()).hexdigest()[:8]
    folder = ROOT / ".asv" / "repeatability" / commit / (chosen if args.bench else args.profile)
    command = [sys.executable, str(ROOT / "tools" / "bench.py"), "--profile", args.profile]
    for expression in args.bench or ():
        command += ["--bench", expression]
    written = baseline_path(ROOT / ".asv" / "baselines", detect())
    for number in range(1, args.runs + 1):
        kept = folder / f"{number:02}.json"
        if kept.exists():
            continue
        begin = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.stderr.write(done.stdout[-2000:] + done.stderr)
            raise MeasurementError(f"tools/bench.py: exit {done.returncode}, in run {number}")
        write_bytes(kept, written.read_bytes())
        console.print(f"run {number} of {args.runs}: {time.monotonic() - begin:.0f} s")
    files = sorted(folder.glob("*.json"))[: args.runs]
    runs = [load_baseline(path) for path in files]
    for path, run in zip(files, runs, strict=True):
        if run.commit != commit:
            raise ResultFileError(path, "metadata.commit", got=run.commit, wanted=commit)
    return runs


def table(noise: dict[str, Noise]) -> Table:
    """Lay out the noise, the largest spread first."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        left = column == COLUMNS[0]
        shown.add_column(column, justify="left" if left else "right", overflow="fold")
    for label, one in sorted(noise.items(), key=lambda item: -item[1].spread):
        middle = percentile(sorted(one.medians), 0.5)
        scale, unit = scale_for((middle,), one.unit)
        shown.add_row(
            Text(label),
            f"{digits(middle / scale)} {unit}",
            f"{100 * one.spread:.1f} %",
            f"{100 * one.floor:.1f} %",
            f"{one.marked} of {len(one.medians)}",
        )
    return shown


def summary(noise: dict[str, Noise], runs: int) -> str:
    """One line: the median spread, and how many benchmarks lie above 5 %."""
    spreads = sorted(one.spread for one in noise.values())
    above = sum(spread > 0.05 for spread in spreads)
    return (
        f"{len(noise)} benchmarks in {runs} runs: median spread "
        f"{100 * percentile(spreads, 0.5):.1f} %, {above} above 5 %"
    )


if __name__ == "__main__":
    sys.exit(main())
