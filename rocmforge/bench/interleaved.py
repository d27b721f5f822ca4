"""Two builds measure one benchmark in turns: two processes at a time, a twentieth of a second each.

Other work on a machine comes in bursts of seconds. Of two runs after one another it disturbs one;
turns as short as these it disturbs alike, and their quotient does not know of it. What differs from
process to process, as memory happens to be laid out, is left: a `Pair` is one sample. Starts
`interleaved_worker.py`; knows no commit and no verdict.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rocmforge.bench.decision import quiet, slowdown
from rocmforge.bench.files import parse_json, read_text
from rocmforge.bench.interleaved_worker import LEFT_ALONE
from rocmforge.bench.results import Direction

PAIR_S = 1.0  # of turns, after which a pair ends
NOT_AVAILABLE = "n/a"
NO_RATIO = "a value of 0, or none, has no ratio"
SCRIPT = Path(__file__).with_name("interleaved_worker.py")


@dataclass(frozen=True, slots=True)
class Pair:
    """What one process of each build measured in turns.

    Parameters
    ----------
    slowdown
        Of the turns, each of one build against those of the other around it; None: there is none.
    before, after
        The benchmark's own value in each process, in its unit.
    without
        Index of the build that gave no value, 0 or 1, and why, where there is no slowdown.
    """

    slowdown: float | None
    before: float = math.nan
    after: float = math.nan
    without: tuple[int, str] = (0, "")


def measure_pair(
    pythons: tuple[Path, Path],
    benchmarks: Path,
    label: str,
    direction: Direction,
    later_leads: bool,
    seconds: float = PAIR_S,
) -> Pair:
    """Start a process of each build, let them take turns, and compare.

    Parameters
    ----------
    pythons
        Interpreters of the earlier and the later build.
    benchmarks
        The suite's folder.
    label
        The benchmark with its parameters, as asv prints it.
    direction
        Which way its value is better.
    later_leads
        Whether the later build has the first turn and the last one.
    seconds
        Of turns; there are three of either build in any case.
    """
    order = (1, 0) if later_leads else (0, 1)
    to_second, to_first = os.pipe(), os.pipe()
    ends = ((to_first[0], to_second[1]), (to_second[0], to_first[1]))
    processes = []
    with TemporaryDirectory() as folder:
        try:
            for place, side in enumerate(order):
                words = [str(pythons[side]), "-I", str(SCRIPT), str(benchmarks), label]
                words += [str(seconds), *map(str, ends[place]), f"{folder}/{side}"]
                with Path(folder, f"{side}.log").open("wb") as log:
                    process = subprocess.Popen(
                        [*words, "leads"] if place == 0 else words,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        pass_fds=ends[place],
                        start_new_session=True,
                    )
                processes.append(process)
        except BaseException:
            _stop(processes)
            raise
        finally:
            for end in (*to_first, *to_second):
                os.close(end)
        try:
            for process in processes:
                process.wait()
        finally:
            _stop(processes)
        codes = dict(zip(order, (process.returncode for process in processes), strict=True))
        return _read(Path(folder), [codes[0], codes[1]], direction, later_leads)


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End processes, and whatever they have started."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _read(folder: Path, codes: Sequence[int], direction: Direction, later_leads: bool) -> Pair:
    """Read what both processes wrote."""
    found: list[dict[str, Any]] = []
    for side, code in enumerate(codes):
        path = folder / str(side)
        said = parse_json(path, read_text(path, "what was measured")) if code == 0 else None
        if said is not None:
            found.append(said)
        elif code != LEFT_ALONE:
            return Pair(
                None, without=(side, NOT_AVAILABLE if code == 0 else _end(folder, side, code))
            )
    if len(found) < len(codes):  # one was left alone by another that takes no turns
        return Pair(None, without=(codes.index(LEFT_ALONE), "the other build takes no turns"))
    one, other = (said["turns"][1:] for said in found)  # the first warms up
    before, after = (said["value"] for said in found)
    positive = [
        x is not None and 0 < x < math.inf for x in (before, after, *itertools.chain(*one, *other))
    ]
    if not all(positive):
        return Pair(None, without=(0, NO_RATIO))
    if one and other:
        return Pair(interleaved_slowdown(one, other, later_leads), before, after)
    return Pair(slowdown(before, after, direction), before, after)


def _end(folder: Path, side: int, code: int) -> str:
    """Return the last line that a process wrote, or how it ended."""
    text = (folder / f"{side}.log").read_text(encoding="utf-8", errors="replace")
    return (
        "time-out" if code == -signal.SIGALRM else (text.strip() or f"exit {code}").splitlines()[-1]
    )


def interleaved_slowdown(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], later_leads: bool
) -> float:
    """Compare two processes that took turns.

    Every turn counts by its better quartile. Each turn of the process that follows is divided by
    the geometric mean of the leader's turns before and after it; the median of these quotients is
    the slowdown, or its inverse.

    Parameters
    ----------
    before, after
        Times of each turn; the leader has one turn more than the other.
    later_leads
        Which is the leader.
    """
    leads, follows = (after, before) if later_leads else (before, after)
    lead = [math.log(quiet(turn, Direction.LOWER)) for turn in leads]
    follow = [math.log(quiet(turn, Direction.LOWER)) for turn in follows]
    logs = [
        turn - (earlier + later) / 2
        for turn, earlier, later in zip(follow, lead, lead[1:], strict=False)
    ]
    middle = median(logs or [0.0])
    return math.exp(-middle if later_leads else middle)
