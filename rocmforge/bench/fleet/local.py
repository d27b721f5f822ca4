"""The engine of one machine: a process for each of its GPUs of a kind, or one for its CPU."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rocmforge.bench.fleet.bundle import kind_of_hardware
from rocmforge.bench.fleet.engine import Ended
from rocmforge.bench.fleet.worker import Task, last_line, task_json
from rocmforge.hardware import amd_architectures, detect


@dataclass(frozen=True, slots=True)
class LocalBox:
    """A device of this machine: its kind, and the variables that show a process it alone."""

    kind: str
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Job:
    task: Task
    avoid: frozenset[str]
    box: str | None = None
    process: subprocess.Popen[bytes] | None = None


def boxes_here() -> dict[str, LocalBox]:
    """Return the devices of this machine by name.

    Every AMD GPU of the kind that names the machine is one. Beside an NVIDIA GPU, of which asv's
    machine has the first, and without a GPU, the machine is one.
    """
    kind, host = kind_of_hardware(detect()), platform.node() or "here"
    numbers = [n for n, gfx in enumerate(amd_architectures()) if gfx == kind]
    if not numbers:
        return {host: LocalBox(kind)}
    return {
        f"{host}-gpu{number}": LocalBox(kind, {"ROCR_VISIBLE_DEVICES": str(number)})
        for number in numbers
    }


class LocalEngine:
    """Starts a process for each task, on a device that is free.

    Parameters
    ----------
    boxes
        By name.
    inbox
        Gets the bundles.
    """

    name = "local"
    reason = ""

    def __init__(self, boxes: Mapping[str, LocalBox], inbox: Path) -> None:
        self._boxes, self._inbox = boxes, inbox
        self._jobs: dict[str, _Job] = {}

    def boxes(self) -> dict[str, set[str]]:
        """Return the devices by kind."""
        found: dict[str, set[str]] = {}
        for name, box in self._boxes.items():
            found.setdefault(box.kind, set()).add(name)
        return found

    def submit(self, tasks: Sequence[Task], avoid: Collection[str]) -> list[str]:
        """Queue tasks, and start what a device is free for."""
        for task in tasks:
            self._jobs[task.token] = _Job(task, frozenset(avoid))
        self._start()
        return [task.token for task in tasks]

    def poll(self, jobs: Collection[str]) -> dict[str, Ended]:
        """Return the jobs whose process has ended, and start others in their place."""
        found = {}
        for name in jobs:
            job = self._jobs[name]
            if job.process and (code := job.process.poll()) is not None:
                found[name] = Ended(job.box, _how(code, self._said(job)))
                self._forget(name)
        self._start()
        return found

    def cancel(self, jobs: Collection[str]) -> None:
        """Kill the processes of jobs with their children, and forget those that wait."""
        for name in self._jobs.keys() & jobs:
            process = self._jobs[name].process
            if process:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            self._forget(name)

    def _said(self, job: _Job) -> Path:
        return self._inbox / f".{job.task.token}.log"  # no bundle: its name begins with a dot

    def _forget(self, name: str) -> None:
        self._said(self._jobs.pop(name)).unlink(missing_ok=True)

    def _start(self) -> None:
        for job in self._jobs.values():
            busy = {other.box for other in self._jobs.values() if other.process}
            kind = job.task.part.kind
            free = [n for n, box in self._boxes.items() if box.kind == kind and n not in busy]
            box = next((name for name in free if name not in job.avoid), None)
            if job.process is None and box is not None:
                self._run(job, box)

    def _run(self, job: _Job, box: str) -> None:
        words = [sys.executable, "-m", "rocmforge.bench.fleet.worker", box, str(self._inbox)]
        with self._said(job).open("wb") as said:
            process = subprocess.Popen(
                [*words, task_json(job.task)],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={**os.environ, **self._boxes[box].environment},
                start_new_session=True,  # a group of its own: it ends with its children
            )
        job.box, job.process = box, process


def _how(code: int, said: Path) -> str:
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with exit {code}: {last_line(said)}"
