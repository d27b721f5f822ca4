"""Results of asv's for studies of the dashboard: as many machines and commits as are wanted.

Benchmarks, parameters and units are those that results/benchmarks.json declares, so that every page
has something to draw; the values are made up. Nothing of it is a measurement.
"""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

BEGIN = 1_700_000_000  # seconds since 1970
APART_S = 3600
SAMPLES = 9
SAMPLED = 2  # the newest commits, which are compared, have their samples; the others the interval
HARDWARE = {"os": "Linux 6.1.0", "arch": "x86_64", "cpu": "none", "num_cpu": "2"}
TIMED = re.compile(r"seconds|[mu]?s(/.+)?|times.*|.*/s|J")  # units of what differs at each commit
COLUMNS = (
    *("result", "params", "version", "started_at", "duration"),
    *("stats_ci_99_a", "stats_ci_99_b", "stats_q_25", "stats_q_75"),
    *("stats_number", "stats_repeat", "samples"),
)


def make_commits(folder: Path, count: int) -> list[str]:
    """Make a repository of empty commits an hour apart; return their hashes, oldest first."""
    stream = "".join(
        f"commit refs/heads/main\ncommitter t <t@example.org> {BEGIN + APART_S * at} +0000\n"
        f"data 10\ncommit {at:03}\n\n"
        for at in range(count)
    )
    git = ["git", "-C", str(folder)]
    subprocess.run([*git, "init", "-q", "-b", "main", "."], check=True)
    subprocess.run([*git, "fast-import", "--quiet"], input=stream.encode(), check=True)
    words = [*git, "rev-list", "--reverse", "main"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


def write_results(
    results: Path, declared: Mapping[str, Any], series: int, commits: Sequence[str]
) -> None:
    """Write benchmarks.json, and of each machine a result file for each commit.

    In the middle, the first and every seventh series after it of each benchmark get 30 % worse,
    and of the others every eleventh 30 % better.

    Parameters
    ----------
    results
        asv's ``results_dir``; made.
    declared
        Content of a benchmarks.json.
    series
        Benchmarks with one set of parameters, of all machines together. There are as many machines
        as that takes.
    commits
        Full hashes, oldest first.
    """
    results.mkdir(parents=True)
    (results / "benchmarks.json").write_text(json.dumps(declared))
    for number, names in enumerate(_shared_out(declared, series), 1):
        machine = {**HARDWARE, "machine": f"made-up-{number}"}
        machine |= {"gpu": f"Made Up {number}", "gfx": f"gfx110{number}", "rocm": "7.0"}
        folder = results / machine["machine"]
        folder.mkdir()
        (folder / "machine.json").write_text(json.dumps({**machine, "version": 1}))
        draw = random.Random(number)
        levels = {
            name: [draw.lognormvariate(0, 2) for _ in range(_count(declared[name]))]
            for name in names
        }
        for at, commit in enumerate(commits):
            sampled = at >= len(commits) - SAMPLED
            late = 2 * at >= len(commits)
            date = 1000 * (BEGIN + APART_S * at)
            rows = {
                name: _row(declared[name], level, late, sampled, date, draw)
                for name, level in levels.items()
            }
            content = {
                "commit_hash": commit,
                "env_name": "existing-py3.11",
                "date": date,
                "params": {**machine, "python": "3.11"},
                "python": "3.11",
                "requirements": {},
                "env_vars": {},
                "durations": {},
                "version": 2,
                "result_columns": COLUMNS,
                "results": rows,
            }
            (folder / f"{commit[:8]}-existing-py3.11.json").write_text(json.dumps(content))


def _count(benchmark: Mapping[str, Any]) -> int:
    return math.prod(len(values) for values in benchmark["params"])


def _shared_out(declared: Mapping[str, Any], series: int) -> Iterator[list[str]]:
    """Yield the benchmarks of each machine: all, of the last as many as are left."""
    left = series
    while left > 0:
        names = []
        for name in declared:
            if name != "version" and left > 0:
                names.append(name)
                left -= _count(declared[name])
        yield names


def _row(
    benchmark: Mapping[str, Any],
    levels: Sequence[float],
    late: bool,
    sampled: bool,
    date: int,
    draw: random.Random,
) -> list[Any]:
    """What asv stores of one benchmark, by columns. Counts are whole and do not vary."""
    values: list[float] = []
    timed = TIMED.fullmatch(benchmark["unit"])
    for at, level in enumerate(levels):
        factor = 1.3 if late and at % 7 == 0 else 0.7 if late and at % 11 == 0 else 1.0
        if timed:
            values.append(_short(level * factor * draw.uniform(0.98, 1.02)))
        else:
            values.append(round(100 * level * factor))
    low, high = ([_short(x * by) for x in values] for by in (0.985, 1.015))
    count = [SAMPLES] * len(values)
    row = [values, benchmark["params"], benchmark["version"], date, 0.1]
    row += [low, high, low, high, [1] * len(values), count]
    if sampled:
        row.append([[_short(x * (1 + at / 1000)) for at in range(-4, 5)] for x in values])
    return row


def _short(value: float) -> float:
    return float(f"{value:.5g}")
