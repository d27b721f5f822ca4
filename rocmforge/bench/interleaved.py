"""Measures one benchmark in two builds at once: two processes run it interleaved, in short turns.

Other work on a machine comes in bursts of seconds. It would slow down one of two runs that follow
each other. Turns of a twentieth of a second slow down both alike, so that their ratio stays the
same. Two processes of one build still differ, by where their memory happens to lie: a `Pair` is
therefore one sample. `interleaved_worker.py` is what each process runs.

On a GPU both processes have a context and their memory all the time, and only the one whose turn it
is gives the device work.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
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
NOT_AVAILABLE = "n/a"  # with its reason behind it, where there is one
NO_RATIO = "a value of 0, or none, has no ratio"
OTHER_CODE = "the benchmark's code differs from that of the other commit"
_SKIPPED = re.compile(r"asv: skipped: NotImplementedError\((['\"])(.*)\1\) *")
_SHARED = {  # what a second process on a device ends with
    "OutOfMemoryError": "the device's memory does not hold two processes at once",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "the device takes one process at a time",
}
SCRIPT = Path(__file__).with_name("interleaved_worker.py")


@dataclass(frozen=True, slots=True)
class Pair:
    """What one process of each build measured, interleaved.

    Parameters
    ----------
    slowdown
        Of the later build, from each turn and the turns around it; None: there is none.
    before, after
        The benchmark's own value in each process, in its unit.
    without
        Where there is no slowdown: the index of the build that gave no value, 0 or 1, and why.
    first_of_turn
        How much longer the first call of a turn takes than its others: a device that has idled may
        be slow at first. None: turns have one call, or times are of none.
    """

    slowdown: float | None
    before: float = math.nan
    after: float = math.nan
    without: tuple[int, str] = (0, "")
    first_of_turn: float | None = None


def measure_pair(
    pythons: tuple[Path, Path],
    benchmarks: tuple[Path, Path],
    label: str,
    direction: Direction,
    later_leads: bool,
    seconds: float = PAIR_S,
) -> Pair:
    """Start a process of each build, let them run the benchmark interleaved, and compare.

    Parameters
    ----------
    pythons
        Interpreters of the earlier and the later build.
    benchmarks
        Folders of the suites that they import, see `rocmforge.bench.asv.Builds.benchmarks`. The
        benchmark's code must be the same in both.
    label
        The benchmark with its parameters, as asv prints it.
    direction
        Which way its value is better.
    later_leads
        Whether the later build has the first and the last turn.
    seconds
        How long they take turns. Each build has at least three turns.
    """
    order = (1, 0) if later_leads else (0, 1)
    to_second, to_first = os.pipe(), os.pipe()
    ends = ((to_first[0], to_second[1]), (to_second[0], to_first[1]))
    processes = []
    with TemporaryDirectory() as folder:
        try:
            for place, side in enumerate(order):
                words = [str(pythons[side]), "-I", str(SCRIPT), str(benchmarks[side]), label]
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
            return Pair(None, without=(side, _end(folder, side, code)))
    if len(found) < len(codes):  # one was left alone by another that takes no turns
        return Pair(None, without=(codes.index(LEFT_ALONE), "the other build takes no turns"))
    if found[0]["version"] != found[1]["version"]:
        return Pair(None, without=(0, OTHER_CODE))
    one, other = (said["turns"][1:] for said in found)  # the first warms up
    before, after = (said["value"] for said in found)
    positive = [
        x is not None and 0 < x < math.inf for x in (before, after, *itertools.chain(*one, *other))
    ]
    if not all(positive):
        return Pair(None, without=(0, NO_RATIO))
    if one and other:
        factor = interleaved_slowdown(one, other, later_leads)
        return Pair(factor, before, after, first_of_turn=_first_of_turn([*one, *other]))
    return Pair(slowdown(before, after, direction), before, after)


def _end(folder: Path, side: int, code: int) -> str:
    """Return why a process gave no value: the last line that it wrote, or how it ended."""
    if code == -signal.SIGALRM:
        return "time-out"
    text = (folder / f"{side}.log").read_text(encoding="utf-8", errors="replace")
    last = (text.strip() or f"exit {code}").splitlines()[-1]
    if code == 0:
        skipped = _SKIPPED.fullmatch(last)
        return f"{NOT_AVAILABLE}: {skipped[2]}" if skipped else NOT_AVAILABLE
    shared = [f"{NOT_AVAILABLE}: {why}" for error, why in _SHARED.items() if error in last]
    return shared[0] if shared else last


def _first_of_turn(turns: Sequence[Sequence[float]]) -> float | None:
    """Return the typical quotient of a turn's first time and the median of its others."""
    found = [turn[0] / median(turn[1:]) for turn in turns if len(turn) > 1]
    return median(found) if found else None


def interleaved_slowdown(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], later_leads: bool
) -> float:
    """Return the slowdown of the later of two processes that took turns.

    The better quartile stands for a turn. Each turn of the process that follows is divided by the
    geometric mean of the leader's turns before and after it. The median of these quotients is the
    slowdown, or its inverse.

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
