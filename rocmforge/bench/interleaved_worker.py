"""Runs one benchmark in turns with a second process, which runs it in another commit's build.

`rocmforge.bench.interleaved` starts this script with the interpreter of a build. The build may be
of any commit: the script imports only asv_runner and that build's `rocmforge.timing`. Two such
processes pass a token through pipes. The one that has it calls the benchmark for a twentieth of a
second, or once. The result holds what was timed in each turn, and the benchmark's own value. A
benchmark that times no single calls (a peak of memory, a count) has only that value.

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
TIMEOUT_S = 300  # where a benchmark has no timeout of its own; doubled, as two processes share it
CALLS = 1 << 30  # where a benchmark may be called without end
SHORTEST_S = 2e-3  # of a sample, where calls may be repeated without a setup between them
READY, GO, END = b"r", b"g", b"e"
LEFT_ALONE = 3  # exit code where the other process ended before the time


class Turns:
    """Says when this process may measure, and keeps what it timed in each of its turns.

    Parameters
    ----------
    read, write
        Open descriptors by which the token comes and goes.
    leads
        The leader waits until the other process is ready, begins, and says when it is over. Its
        turns lie before and after each turn of the other.
    seconds
        After this time no further turn begins, once there are `FEWEST`.
    """

    def __init__(self, read: int, write: int, leads: bool, seconds: float) -> None:
        self._in, self._out = read, write
        self._leads, self._seconds = leads, seconds
        self._mine, self._began, self._first = False, 0.0, 0.0
        self.times: list[list[float]] = []
        self.over = False

    def begin(self) -> bool:
        """Wait for the turn; return whether there is one. The first call says "ready"."""
        if not self._leads and not self._first:
            os.write(self._out, READY)
        if not self.over and not self._mine:
            left, _ = signal.setitimer(signal.ITIMER_REAL, 0)  # the other process may hang
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
        """Keep a sample; where the turn has lasted long enough, pass the token on.

        The last sample before untimed work keeps the token: that work must not disturb the other.
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
        """Replace `rocmforge.timing.collect`: take samples until all turns are over."""
        samples: list[float] = []
        while len(samples) < most and self.begin():
            samples.append(measure())
            self.keep(samples[-1], last=1 < most == len(samples))
        return samples


def main(argv: list[str]) -> int:
    """Measure, and write the result as JSON; null where the benchmark is n/a here, as asv prints.

    ``value`` is in the benchmark's unit. ``turns`` has the times of each turn, all in one unit; it
    is empty where no single calls were timed. ``version`` is asv's hash of the benchmark's code.
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
    except NotImplementedError as error:
        print(f"asv: skipped: {error!r}")
        return None
    return {"value": median(samples), "turns": turns.times, "version": benchmark.version}


def timed(benchmark: Any) -> Callable[[], float]:
    """Return a function that samples a `time_` benchmark as asv does, in seconds a call.

    Short calls are repeated until the wall saw them, too: a GPU's timer has one call's share of a
    replay that takes milliseconds.
    """
    params, timer = benchmark._current_params, benchmark.timer
    number = max(1, int(benchmark.number))

    def sample() -> float:
        benchmark.redo_setup()
        begin = timer()
        for _ in range(number):
            benchmark.func(*params)
        return float(timer() - begin) / number

    def long_enough() -> bool:
        begin = time.perf_counter()
        return max(sample() * number, time.perf_counter() - begin) >= SHORTEST_S

    while not (benchmark.number or benchmark._setups or long_enough()):
        number *= 2
    return sample


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
