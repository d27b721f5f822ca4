"""What each benchmark process leaves behind: its worst error and the environment of its run.

`install` is called once, by the package's `__init__`, since asv offers no hook: it imports the
suites in each process that measures, or in one that it forks them from. A process records where
ROCMFORGE_CONDITIONS names a folder, and nothing else changes.
"""

from __future__ import annotations

import atexit
import dataclasses
import re
import time
from collections.abc import Sequence
from pathlib import Path

from rocmforge import env
from rocmforge.bench.run_environment import write_report
from rocmforge.profiling.run_environment import Watch

SHORTEST_WATCH_S = 0.25  # the kernel counts CPU time in ticks of 10 ms


class Recorder:
    """What this process leaves about itself: its worst error and the environment of its run.

    The environment is measured from the last check on, which comes before the timing: making inputs
    and references does not belong to it. If that time is too short, it is measured from the start
    of the process; if that is too short as well, `write` waits, so that one tick of the kernel's
    clock does not count as load.
    """

    def __init__(self, folder: Path, benchmark: str, index: int | None) -> None:
        self.folder, self.benchmark, self.index = folder, benchmark, index
        self.error: float | None = None
        self._whole, self._timed = Watch(), Watch()

    def add_gpu(self, device: str) -> None:
        """Watch a GPU from now on; call it before its first use."""
        self._timed.add_gpu(device)

    def note(self, error: float) -> None:
        """Keep the error if it is the worst, and measure the environment from here on."""
        self.error = error if self.error is None else max(self.error, error)
        self._timed.restart()

    def write(self) -> None:
        """Write the report into the folder."""
        short = self._timed.seconds < SHORTEST_WATCH_S
        environment = self._timed.end()
        if short:
            time.sleep(max(0.0, SHORTEST_WATCH_S - self._whole.seconds))
            environment = dataclasses.replace(self._whole.end(), gpus=environment.gpus)
        report = dataclasses.asdict(environment)
        write_report(self.folder, self.benchmark, self.index, self.error, report)


def measured_benchmark(argv: Sequence[str]) -> tuple[str, int | None] | None:
    """Read the benchmark and the index of its parameters from the arguments of asv's process.

    asv 0.6.6 runs ``benchmark.py run FOLDER NAME-INDEX …``, without the index where there are no
    parameters; other processes of asv, and other programs, measure nothing: None.
    """
    if len(argv) < 4 or Path(argv[0]).name != "benchmark.py" or argv[1] != "run":
        return None
    found = re.fullmatch(r"([\w.]+?)(?:-(\d+))?", argv[3])
    return (found[1], int(found[2]) if found[2] else None) if found else None


_recorder: Recorder | None = None  # of this process, where it records


def install(argv: Sequence[str]) -> None:
    """Record this process if it is one of asv's that measures, or those that it forks.

    Parameters
    ----------
    argv
        The process's arguments.
    """
    if argv[1:2] == ["run_server"]:
        _record_forks()
    elif (recorder := _begin(argv)) is not None:
        atexit.register(recorder.write)


def watch_gpu(device: str) -> None:
    """Watch a GPU from now on, where this process records; call it before the GPU's first use."""
    if _recorder is not None:
        _recorder.add_gpu(device)


def note(error: float) -> None:
    """Note the error of a check, where this process records."""
    if _recorder is not None:
        _recorder.note(error)


def _begin(argv: Sequence[str]) -> Recorder | None:
    global _recorder
    folder, measured = env.conditions_dir(), measured_benchmark(argv)
    if folder is not None and measured is not None:
        _recorder = Recorder(folder, *measured)
    return _recorder


def _record_forks() -> None:
    """Record in each process that asv's fork server makes: they end without `atexit`.

    asv_runner 0.3.2 has no hook there: `_run` of its server is what a fork does.
    """
    from asv_runner import server

    run = server._run

    def recorded(arguments: Sequence[str]) -> None:
        recorder = _begin(("benchmark.py", "run", *arguments))
        try:
            run(arguments)
        finally:
            if recorder is not None:
                recorder.write()

    server._run = recorded
