"""Measures one benchmark in turns with a second process, in which another commit's build does it.

A script: `rocmforge.bench.interleaved` starts it with the interpreter of a build, which may be of
any commit, so that beside asv_runner and that build's `rocmforge.timing` it imports nothing. The
two pass a token through pipes: who has it calls the benchmark for a twentieth of a second, or once.
What comes out is what was timed in each turn, and the benchmark's own value. Where nothing is timed
call by call (a peak of memory, a count), that value is all.

Usage: interleaved_worker.py BENCHMARKS LABEL SECONDS READ_FD WRITE_FD RESULT [leads]
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

TURN_S = 0.05
WARMUP_S = 0.15  # of the first turn, which does not count
FEWEST = 3  # turns of the leader that count, besides the last
TIMEOUT_S = 300  # of a benchmark that has none of its own; twice that is for both
CALLS = 1 << 30  # of a benchmark that may be called without end
SHORTEST_S = 2e-3  # of a sample, where calls may be repeated without a setup between them
READY, GO, END = b"r", b"g", b"e"
LEFT_ALONE = 3  # exit code where the other process ended before the time


class Turns:
    """When this process may measure, and what it has timed in each of its turns.

    Parameters
    ----------
    read, write
        Open descriptors: the token comes and goes by them.
    leads
        The one that leads waits until the other is ready, begins, and says when it is over: its
        turns lie before and after each one of the other.
    seconds
        After which no further turn is begun, once there are `FEWEST`.
    """

    def __init__(self, read: int, write: int, leads: bool, seconds: float) -> None:
        self._in, self._out = read, write
        self._leads, self._seconds = leads, seconds
        self._mine, self._began, self._first = False, 0.0, 0.0
        self.times: list[list[float]] = []
        self.over = False

    def begin(self) -> bool:
        """Wait for the turn; return whether there is one. The first time, say to be ready."""
        if not self._leads and not self._first:
            os.write(self._out, READY)
        if not self.over and not self._mine:
            left, _ = signal.setitimer(signal.ITIMER_REAL, 0)  # it is the other that may hang
            token = os.read(self._in, 1)
            signal.setitimer(signal.ITIMER_REAL, left)
            if not token:
                raise EOFError("the other process has ended")
            self.over = token == END
            self._mine = not self.over
            self._began = time.perf_counter()
            self._first = self._first or self._began
            if self._mine:
                self.times.append([])
        return not self.over

    def keep(self, sample: float, last: bool) -> None:
        """Keep a sample; where the turn has lasted long enough, pass it on.

        Not with the last one before the benchmark does what is not timed: none is to hear of that.
        """
        self.times[-1].append(sample)
        now = time.perf_counter()
        if last or now - self._began < (TURN_S if len(self.times) > 1 else WARMUP_S):
            return
        enough = len(self.times) > 1 + FEWEST and now - self._first >= self._seconds
        self.over = self._leads and enough
        self._mine = False
        os.write(self._out, END if self.over else GO)

    def collect(self, measure: Callable[[], float], *, most: int = CALLS, **_: Any) -> list[float]:
        """Stand in for `rocmforge.timing.collect`: samples until all turns are over."""
        samples: list[float] = []
        while len(samples) < most and self.begin():
            samples.append(measure())
            self.keep(samples[-1], last=1 < most == len(samples))
        return samples


def main(argv: list[str]) -> int:
    """Measure, and write what came out as JSON; null where the benchmark is n/a here.

    ``value`` is in the benchmark's unit; ``turns`` has the times of each turn, all in one unit, and
    nothing where none were taken.
    """
    root, label, seconds, read, write, result, *leads = argv
    turns = Turns(int(read), int(write), bool(leads), float(seconds))
    try:
        import rocmforge.timing
    except ImportError:
        pass  # a suite of another package
    else:
        rocmforge.timing.collect = turns.collect
    signal.setitimer(signal.ITIMER_REAL, 2 * TIMEOUT_S)
    benchmark = find(root, label)
    signal.setitimer(signal.ITIMER_REAL, 2 * float(benchmark.timeout or TIMEOUT_S))
    try:
        found = run(benchmark, turns)
    except (EOFError, BrokenPipeError):
        return LEFT_ALONE
    Path(result).write_text(json.dumps(found), encoding="utf-8")
    return 0


def find(root: str, label: str) -> Any:
    """Return asv_runner's benchmark of a label, its parameters set."""
    from asv_runner.discovery import get_benchmark_from_name

    name = label.partition("(")[0]
    benchmark = get_benchmark_from_name(root, name)
    for index, params in enumerate(itertools.product(*benchmark.params)):
        if label == (f"{name}({', '.join(params)})" if params else name):
            benchmark.set_param_idx(index)
            return benchmark
    raise ValueError(f"{name}: got no parameters like {label}")


def run(benchmark: Any, turns: Turns) -> dict[str, Any] | None:
    """Set up, measure until all turns are over, tear down."""
    samples: list[float] = []
    try:
        if benchmark.do_setup():
            return None
        if benchmark.type == "time":
            samples += turns.collect(timed(benchmark))
        while benchmark.type != "time" and not turns.over:
            said = benchmark.do_run()
            samples += said["samples"] if isinstance(said, dict) else [said]
            if not turns.times:
                break
        benchmark.do_teardown()
    except NotImplementedError:
        return None
    return {"value": median(samples), "turns": turns.times}


def timed(benchmark: Any) -> Callable[[], float]:
    """Return one sample of a `time_` benchmark as a function, as asv takes it: seconds a call."""
    params, timer = benchmark._current_params, benchmark.timer
    number = max(1, int(benchmark.number))

    def sample() -> float:
        benchmark.redo_setup()
        begin = timer()
        for _ in range(number):
            benchmark.func(*params)
        return float(timer() - begin) / number

    while not (benchmark.number or benchmark._setups) and sample() * number < SHORTEST_S:
        number *= 2
    return sample


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
