"""What each benchmark process leaves behind: its median, worst error and environment.

`install` is called once, by the package's `__init__`, since asv offers no hook: it imports the
suites in each process that measures, or in one that it forks them from. A process of a run that asv
stores appends one line of JSON to a file beside asv's result file, and nothing else changes.
`rocmforge.bench.reports` reads it.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rocmforge.profiling.run_environment import Watch

from .asv_process import AsvRun, asv_run
from .reference import Reference

REPORT_VERSION = 2  # that of rocmforge.bench.reports
SHORTEST_WATCH_S = 0.25  # the kernel counts CPU time in ticks of 10 ms
STALE_S = 1.0  # a reading of the reference kernels is repeated after so long
DIGITS = 6


@dataclass(frozen=True, slots=True)
class Measured:
    """What a process of asv measures: the benchmark, the index of its parameters, None without."""

    benchmark: str
    index: int | None
    result_file: Path

    @property
    def counts_memory(self) -> bool:
        """Whether arrays of ours would raise the figure: the most memory that the process had."""
        return self.benchmark.rpartition(".")[2].startswith("peakmem_")


class Recorder:
    """What this process leaves about itself, in the reports of its run.

    The environment is measured from the last check on, which comes before the timing: making inputs
    and references does not belong to it. If that time is too short, it is measured from the start
    of the process; if that is too short as well, `write` waits, so that one tick of the kernel's
    clock does not count as load.
    """

    def __init__(self, run: AsvRun, measured: Measured) -> None:
        self._run, self._measured = run, measured
        self._error: float | None = None
        self._kernels: Reference | None = None
        self._before: dict[str, float] = {}
        self._read_at = 0.0
        self._whole, self._timed = Watch(), Watch()

    def add_gpu(self, device: str) -> None:
        """Watch a GPU from now on; call it before its first use."""
        self._timed.add_gpu(device)

    def note(self, error: float) -> None:
        """Keep the error if it is the worst, and measure the environment from here on."""
        self._error = error if self._error is None else max(self._error, error)
        if not self._measured.counts_memory and time.monotonic() - self._read_at > STALE_S:
            self._before = self._read()
        self._timed.restart()

    def write(self) -> None:
        """Append the report, unless the benchmark was n/a here; say so where that is impossible."""
        value = process_median(self._measured.result_file)
        if value is None and self._error is None:
            return
        short = self._timed.seconds < SHORTEST_WATCH_S
        environment = self._timed.end()
        if short:
            time.sleep(max(0.0, SHORTEST_WATCH_S - self._whole.seconds))
            environment = dataclasses.replace(self._whole.end(), gpus=environment.gpus)
        readings = [found for found in (self._before, self._read()) if found]
        report = {
            "version": REPORT_VERSION,
            "run": self._run.name,
            "appends": self._run.appends,
            "benchmark": self._measured.benchmark,
            "index": self._measured.index,
            "error": self._error,
            "median": value,
            "reference": {name: [found[name] for found in readings] for name in readings[0]},
            "conditions": dataclasses.asdict(environment),
        }
        try:
            append(self._run.reports, report)
        except OSError as error:
            print(f"{self._run.reports}: no report of this process: {error}", file=sys.stderr)

    def _read(self) -> dict[str, float]:
        """Measure the reference kernels now."""
        if self._kernels is None:
            self._kernels = Reference()
        found = self._kernels.read()
        self._read_at = time.monotonic()
        return found


def process_median(result_file: Path) -> float | None:
    """Return the median of what a process wrote for asv: a number, or samples; None: neither."""
    try:
        found = json.loads(result_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # empty where the benchmark failed
        return None
    samples = found.get("samples") if isinstance(found, dict) else [found]
    if not samples or not all(isinstance(one, int | float) and one == one for one in samples):
        return None
    return float(median(samples))


def append(path: Path, report: dict[str, Any]) -> None:
    """Append a report as one line, whole or not at all; a last line that was cut off goes."""
    rounded = json.loads(
        json.dumps(report), parse_float=lambda text: float(f"{float(text):.{DIGITS}g}")
    )
    line = json.dumps(rounded, separators=(",", ":"), allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as file:
        held = file.seek(0, os.SEEK_END)
        file.seek(0)
        size = file.read(held).rfind(b"\n") + 1
        if size < held:
            file.truncate(size)
        try:
            written = file.write(line.encode())
            if written != len(line.encode()):
                raise OSError("the disk is full")
        except OSError:
            file.truncate(size)
            raise


def measured_benchmark(argv: Sequence[str]) -> Measured | None:
    """Read what a process of asv measures from its arguments.

    asv 0.6.6 runs ``benchmark.py run FOLDER NAME-INDEX PARAMETERS PROFILE RESULT_FILE``, without
    the index where there are no parameters; other processes of asv, and other programs, measure
    nothing: None.
    """
    if len(argv) != 7 or Path(argv[0]).name != "benchmark.py" or argv[1] != "run":
        return None
    found = re.fullmatch(r"([\w.]+?)(?:-(\d+))?", argv[3])
    if found is None:
        return None
    return Measured(found[1], int(found[2]) if found[2] else None, Path(argv[6]))


_recorder: Recorder | None = None  # of this process, where it records


def install(argv: Sequence[str]) -> None:
    """Record this process if it is one of asv's that measures, or those that it forks.

    Parameters
    ----------
    argv
        The process's arguments.
    """
    forks = argv[1:2] == ["run_server"]
    if not forks and measured_benchmark(argv) is None:
        return
    run = asv_run()
    if run is not None and forks:
        _record_forks(run)
    elif run is not None and (recorder := _begin(argv, run)) is not None:
        atexit.register(recorder.write)


def watch_gpu(device: str) -> None:
    """Watch a GPU from now on, where this process records; call it before the GPU's first use."""
    if _recorder is not None:
        _recorder.add_gpu(device)


def note(error: float) -> None:
    """Note the error of a check, where this process records."""
    if _recorder is not None:
        _recorder.note(error)


def _begin(argv: Sequence[str], run: AsvRun) -> Recorder | None:
    global _recorder
    measured = measured_benchmark(argv)
    if measured is not None:
        _recorder = Recorder(run, measured)
    return _recorder


def _record_forks(asv: AsvRun) -> None:
    """Record in each process that asv's fork server makes: they end without `atexit`.

    asv_runner 0.3.2 has no hook there: `_run` of its server is what a fork does.
    """
    from asv_runner import server

    run = server._run

    def recorded(arguments: Sequence[str]) -> None:
        recorder = _begin(("benchmark.py", "run", *arguments), asv)
        try:
            run(arguments)
        finally:
            if recorder is not None:
                recorder.write()

    server._run = recorded
