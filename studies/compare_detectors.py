"""Compares detectors of steps and drifts on histories made of the noise of one machine.

A history draws its values from the medians that runs of one commit gave (noise.json); steps and
drifts are planted in it. asv's detector and E-divisive with permutations stand here as opponents of
the detector that `rocmforge bench history` uses. It measures no benchmark.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from rocmforge.bench import exits
from rocmforge.bench.change_points import FEWEST, Values, change_points, energy, levels
from rocmforge.bench.comparison import THRESHOLD
from rocmforge.bench.decision import ALPHA
from rocmforge.bench.files import read_json, write_json
from rocmforge.bench.noise import load_noise
from rocmforge.bench.worsening import Kind, worsenings

LENGTHS = (60, 200)
SIZES = (0.05, 0.08, 0.10, 0.12, 0.15, 0.25)
MARGIN = 5  # commits on either side of a planted step
QUIET = 5  # histories with nothing planted, for each of the others
LIMIT = math.log1p(THRESHOLD)
Detector = Callable[[Values], list[int]]
Random = np.random.Generator


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        description="Compare detectors of steps on planted histories.", allow_abbrev=False
    )
    parser.add_argument("noise", type=Path, help="a noise.json of `rocmforge bench noise --save`")
    parser.add_argument("--repeats", type=int, default=10, metavar="N", help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write it there")
    args = parser.parse_args(argv)

    def work() -> int:
        report = compare(args.noise, args.repeats, args.seed)
        for table in tables(report):
            Console(width=140, highlight=False).print(table)
        if args.json:
            write_json(args.json, report)
            print(f"written {os.path.relpath(args.json)}")
        return 0

    return exits.run(parser.prog, work)


def compare(path: Path, repeats: int, seed: int) -> dict[str, Any]:
    """Measure every detector on the same histories.

    Parameters
    ----------
    path
        A noise.json.
    repeats
        Histories of each benchmark, length and planted thing, at least 1.
    seed
        Of the histories.

    Raises
    ------
    ResultFileError
        The file is broken.
    ValueError
        Fewer than one repeat, or no benchmark with noise.
    """
    document, noise = read_json(path), load_noise(path)
    pools = [
        np.log(one.medians) * (-1 if one.unit.endswith("/s") else 1)
        for one in noise.values()
        if min(one.medians) > 0 and max(one.medians) > min(one.medians)
    ]
    if repeats < 1 or not pools:
        raise ValueError(
            f"{path}: got {repeats} repeats of {len(pools)} noisy benchmarks, wanted one of each"
        )
    alpha = ALPHA / len(pools)
    detectors: dict[str, Detector] = {
        "asv": _asv,
        "E-divisive, permutations": _permutations,
        "E-divisive, t-test": functools.partial(change_points, alpha=alpha),
    }
    return {
        "hardware_tag": document.get("hardware_tag"),
        "commit": document.get("commit"),
        "benchmarks": len(pools),
        "repeats": repeats,
        "seed": seed,
        "threshold": THRESHOLD,
        "alpha": alpha,
        "detectors": {
            name: {str(count): _measure(detector, pools, count, repeats, seed) for count in LENGTHS}
            for name, detector in detectors.items()
        },
        "drifts": {str(count): _kinds(pools, count, repeats, seed, alpha) for count in LENGTHS},
    }


def tables(report: dict[str, Any]) -> list[Table]:
    """Lay the figures out: detectors, then what drifts and steps are taken for."""
    found = []
    for count in map(str, LENGTHS):
        rows = {name: row[count] for name, row in report["detectors"].items()}
        shown = Table(title=f"{count} commits", box=None, pad_edge=False, header_style="bold")
        for column in ("what", *rows):
            shown.add_column(column, justify="left" if column == "what" else "right")
        for what in next(iter(rows.values())):
            shown.add_row(what, *(f"{row[what]:g}" for row in rows.values()))
        found.append(shown)
    for count, planted in report["drifts"].items():
        names = list(dict.fromkeys(name for row in planted.values() for name in row))
        shown = Table(title=f"{count} commits", box=None, pad_edge=False, header_style="bold")
        for column in ("planted", *names):
            shown.add_column(column, justify="left" if column == "planted" else "right")
        for what, row in planted.items():
            shown.add_row(what, *(f"{row[name]:g}" if name in row else "" for name in names))
        found.append(shown)
    return found


def _measure(
    detector: Detector, pools: Sequence[Values], count: int, repeats: int, seed: int
) -> dict[str, float]:
    """Shares in percent, false steps for 1000 commits, milliseconds for a history."""
    found: dict[str, float] = {}
    for name, block in (("", 1), (", runs in threes", 3)):
        steps = 0
        series = list(_histories(pools, count, QUIET * repeats, seed, block))
        start = time.perf_counter()
        for values in series:
            steps += len(_ups(detector, values))
        spent = time.perf_counter() - start
        found[f"false steps per 1000 commits{name}"] = round(1000 * steps / count / len(series), 3)
        found.setdefault("ms per history", round(1000 * spent / len(series), 2))
    for size in SIZES:
        hits = Counter[int]()
        for values, random in _planted(pools, count, repeats, seed):
            at = int(random.integers(MARGIN, count - MARGIN))
            values[at:] += math.log1p(size)
            off = min((abs(up - at) for up in _ups(detector, values)), default=count)
            hits.update({1: off <= 1, 2: off <= 2})
        for within in (1, 2):
            share = 100 * hits[within] / (len(pools) * repeats)
            found[f"step of {100 * size:.0f} %, within ±{within}, %"] = round(share, 1)
    for name, plant in SHAPES.items():
        hit = false = 0
        for values, random in _planted(pools, count, repeats, seed):
            wanted = plant(values, random)
            ups = _ups(detector, values)
            near = [any(abs(up - at) <= 1 for up in ups) for at in wanted]
            hit += all(near)
            false += sum(all(abs(up - at) > 2 for at in wanted) for up in ups)
        total = len(pools) * repeats
        if wanted:
            found[f"{name}, %"] = round(100 * hit / total, 1)
        else:
            found[f"{name}, false steps per 1000 commits"] = round(1000 * false / count / total, 3)
    return found


def _histories(
    pools: Sequence[Values], count: int, repeats: int, seed: int, block: int = 1
) -> list[Values]:
    """Draw from each benchmark's runs, single ones or so many in the order of their measurement."""
    random = np.random.default_rng([seed, count, block])
    found = []
    for _ in range(repeats):
        for pool in pools:
            starts = random.integers(len(pool), size=-(-count // block))
            places = (starts[:, None] + np.arange(block)).ravel()[:count]
            found.append(pool[places % len(pool)].copy())
    return found


def _planted(
    pools: Sequence[Values], count: int, repeats: int, seed: int
) -> list[tuple[Values, Random]]:
    random = np.random.default_rng([seed, count])
    return [(values, random) for values in _histories(pools, count, repeats, seed)]


def _ups(detector: Detector, values: Values) -> list[int]:
    """Steps to the worse beyond the threshold."""
    points = detector(values)
    heights = levels(values, points)
    rises = np.diff(heights)
    return [at for at, rise in zip(points, rises, strict=True) if rise > LIMIT]


def _asv(values: Values) -> list[int]:
    from asv.step_detect import detect_steps

    return [step[0] for step in detect_steps(np.exp(values).tolist())[1:]]


def _permutations(values: Values, alpha: float = 0.01, most: int = 999) -> list[int]:
    """E-divisive as published: a split stands where few of the permutations give as good a one."""
    random = np.random.default_rng(0)

    def split(low: int, high: int) -> list[int]:
        part = values[low:high]
        if len(part) < 2 * FEWEST:
            return []
        gains = energy(part)[FEWEST - 1 : len(part) - FEWEST]
        allowed = math.floor(alpha * (most + 1)) - 1
        for _ in range(most):
            other = energy(random.permutation(part))[FEWEST - 1 : len(part) - FEWEST]
            allowed -= bool(other.max() >= gains.max() - 1e-12)
            if allowed < 0:
                return []
        at = low + FEWEST + int(np.argmax(gains))
        return [*split(low, at), at, *split(at, high)]

    return split(0, len(values))


def _outliers(values: Values, random: Random) -> list[int]:
    values[random.choice(len(values), 3, replace=False)] += math.log(1.6)
    return []


def _two_steps(values: Values, random: Random) -> list[int]:
    at = int(random.integers(MARGIN, len(values) - 2 * MARGIN - 1))
    values[at:] += math.log(1.25)
    values[at + 6 :] += math.log(1.25)
    return [at, at + 6]


def _at_the_end(points: int, values: Values, random: Random) -> list[int]:
    values[-points:] += math.log(1.25)
    return [len(values) - points]


def _mended(points: int, values: Values, random: Random) -> list[int]:
    at = int(random.integers(MARGIN, len(values) - points - MARGIN))
    values[at : at + points] += math.log(1.25)
    return [at]


SHAPES: dict[str, Callable[[Values, Random], list[int]]] = {
    "three outliers of 60 %": _outliers,
    "two steps of 25 %, 6 commits apart": _two_steps,
    "step of 25 % at the last 2": functools.partial(_at_the_end, 2),
    "step of 25 % at the last 4": functools.partial(_at_the_end, 4),
    "step of 25 %, mended 6 later": functools.partial(_mended, 6),
    "step of 25 %, mended 12 later": functools.partial(_mended, 12),
}


def _step(size: float, values: Values, random: Random) -> int:
    at = int(random.integers(MARGIN, len(values) - MARGIN))
    values[at:] += math.log1p(size)
    return at


def _drift(each: float, values: Values, random: Random) -> int:
    start = int(random.integers(MARGIN, len(values) - 15 - MARGIN))
    values += np.clip(np.arange(len(values)) - start, 0, 15) * math.log1p(each)
    return start


def _drift_at_the_end(values: Values, random: Random) -> int:
    start = len(values) - 16
    values += np.clip(np.arange(len(values)) - start, 0, 15) * math.log(1.01)
    return start


def _all_along(total: float, values: Values, random: Random) -> int:
    values += np.linspace(0, math.log1p(total), len(values))
    return 0


DRIFTS: dict[str, Callable[[Values, Random], int]] = {
    "nothing": functools.partial(_all_along, 0.0),
    "step of 12 %": functools.partial(_step, 0.12),
    "step of 25 %": functools.partial(_step, 0.25),
    "15 commits of 1 %": functools.partial(_drift, 0.01),
    "15 commits of 2 %": functools.partial(_drift, 0.02),
    "15 commits of 1 %, the last": _drift_at_the_end,
    "16 % over all commits": functools.partial(_all_along, 0.16),
    "30 % over all commits": functools.partial(_all_along, 0.30),
}


def _kinds(
    pools: Sequence[Values], count: int, repeats: int, seed: int, alpha: float
) -> dict[str, dict[str, float]]:
    """What `bench history` takes each for, in percent, and what a trend test alone would call."""
    from scipy.stats import kendalltau, theilslopes

    found = {}
    for name, plant in DRIFTS.items():
        seen = Counter[str]()
        for values, random in _planted(pools, count, repeats, seed):
            at = plant(values, random)
            worse = worsenings(values, LIMIT, 0.0, alpha, False)
            drifts = sum(one.kind is Kind.DRIFT for one in worse)
            kinds = ("none", "one step") if len(worse) < 2 else ("", "several steps")
            both = drifts and (len(worse) > drifts or drifts > 1)
            seen["several of both" if both else "drift" if drifts else kinds[bool(worse)]] += 1
            seen["range holds it"] += any(one.good < at <= one.bad for one in worse)
            trend = kendalltau(np.arange(count), values)
            slope = theilslopes(values, np.arange(count))[0]
            seen["trend alone"] += trend.pvalue <= alpha and slope * (count - 1) > LIMIT
        columns = ("none", "one step", "several steps", "drift", "several of both", "trend alone")
        total = len(pools) * repeats
        found[name] = {column: round(100 * seen[column] / total, 1) for column in columns}
        if name.startswith("step"):
            some = max(1, total - seen["none"])
            found[name]["of them: range holds it"] = round(100 * seen["range holds it"] / some, 1)
    return found


if __name__ == "__main__":
    sys.exit(main())
