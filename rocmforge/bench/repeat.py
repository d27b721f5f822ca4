"""Measures one commit again and again, keeps every run, and shows how much they differ."""

from __future__ import annotations

import argparse
import hashlib
import re
import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rocmforge.bench import project
from rocmforge.bench.baseline import load_baseline
from rocmforge.bench.defaults import BASELINES
from rocmforge.bench.files import refuse_loss, write_bytes
from rocmforge.bench.formatting import digits, scale_for
from rocmforge.bench.head import plain_console
from rocmforge.bench.measure import WORK, measure_head
from rocmforge.bench.noise import (
    Noise,
    learn,
    load_noise,
    noise_path,
    process_floors,
    save_noise,
)
from rocmforge.bench.results import ResultSet
from rocmforge.bench.statistics import percentile
from rocmforge.bench.tables import plain_table
from rocmforge.errors import MeasurementError, ResultFileError

COLUMNS = ("benchmark", "median", "spread", "largest", "processes", "marked")


def measure_noise(args: argparse.Namespace) -> int:
    """Measure what is not there yet, show what all runs say, save it."""
    console = plain_console()
    runs = _measure(args, console)
    noise = learn(runs)
    console.print(_table(noise, process_floors(runs)))
    console.print(f"\n{_summary(noise, len(runs))}")
    console.print(f"runs are kept in {runs[0].source.parent}")
    if args.save:
        path = noise_path(BASELINES, runs[0].hardware)
        if path.exists() and not args.replace:
            refuse_loss(path, load_noise(path), noise)
        save_noise(path, noise, runs[0])
        console.print(f"saved {path}")
    return 0


def _measure(args: argparse.Namespace, console: Console) -> list[ResultSet]:
    commit, changed = project.head(project.root())
    if changed:
        raise ValueError("the working tree has changes: commit them, for runs are kept by commit")
    folder = WORK / "repeatability" / commit / (_hash(args.bench) or args.profile)
    for number in range(1, args.runs + 1):
        kept = folder / f"{number:02}.json"
        if kept.exists():
            continue
        begin = time.monotonic()
        try:
            found = measure_head(args.bench, args.profile, args.max_load, Console(quiet=True))
        except MeasurementError as error:
            raise MeasurementError(f"{error}, in run {number}") from error
        if found.failed:
            failed = "; ".join(found.failed)
            raise MeasurementError(f"failed in run {number}: {failed}: see {found.log}")
        write_bytes(kept, found.stored.read_bytes())
        console.print(f"run {number} of {args.runs}: {time.monotonic() - begin:.0f} s")
    files = sorted(folder.glob("*.json"))[: args.runs]
    runs = [load_baseline(path) for path in files]
    for path, one in zip(files, runs, strict=True):
        if one.commit != commit:
            raise ResultFileError(path, "metadata.commit", got=one.commit, wanted=commit)
    return runs


def _hash(bench: Sequence[re.Pattern[str]]) -> str:
    """Return a folder's name for what --bench chose; empty: nothing was."""
    chosen = "\n".join(one.pattern for one in bench)
    return hashlib.sha256(chosen.encode()).hexdigest()[:8] if bench else ""


def _table(noise: dict[str, Noise], floors: Mapping[str, float]) -> Table:
    """Lay out the noise, the largest spread first, beside the floor of the processes."""
    shown = plain_table(COLUMNS, COLUMNS[1:])
    for label, one in sorted(noise.items(), key=lambda item: -item[1].spread):
        middle = percentile(sorted(one.medians), 0.5)
        scale, unit = scale_for((middle,), one.unit)
        shown.add_row(
            Text(label),
            f"{digits(middle / scale)} {unit}",
            f"{100 * one.spread:.1f} %",
            f"{100 * one.floor:.1f} %",
            f"{100 * floors[label]:.1f} %" if label in floors else "",
            f"{one.marked} of {len(one.medians)}",
        )
    return shown


def _summary(noise: dict[str, Noise], runs: int) -> str:
    """One line: the median spread, and how many benchmarks lie above 5 %."""
    spreads = sorted(one.spread for one in noise.values())
    above = sum(spread > 0.05 for spread in spreads)
    return (
        f"{len(noise)} benchmarks in {runs} runs: median spread "
        f"{100 * percentile(spreads, 0.5):.1f} %, {above} above 5 %"
    )
