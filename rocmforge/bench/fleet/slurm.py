"""The engine of a Slurm cluster: array jobs through submitit, boxes by the features of the nodes.

squeue, sinfo and scontrol say what became of a job: unlike sacct they need no accounting database.
"""

from __future__ import annotations

import contextlib
import getpass
import math
import os
import re
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocmforge.bench.fleet.engine import Ended
from rocmforge.bench.fleet.parts import KNOWN_KIND
from rocmforge.bench.fleet.worker import Task, deliver, last_line, task_json
from rocmforge.errors import DeviceError, one_line

_BUILD_MINUTES = 30  # beside those of measuring
_SILENCE_S = 600.0
_OPERATOR = re.compile(r"[&|()\[\]*,]")
"""Of a constraint that is more than one feature."""
_STDERR = "_0_log.err"  # after the id of a job: the name that submitit gives the file
_WORKING = re.compile(r"(idle|mixed|allocated|completing|planned|draining|reserved)[~+#$@^!%-]?")
"""States of nodes that run jobs, or will; one that drains still has its last one."""


class SlurmEngine:
    """Submits array jobs, one for the tasks of a kind that avoid the same nodes.

    Parameters
    ----------
    inbox
        Gets the bundles; nodes see it, and this interpreter, under the same path.
    folder
        Where submitit keeps jobs and what they print; nodes see it too.
    minutes
        Most time of measuring.
    options
        Long options of sbatch for the jobs of a kind, by kind; those of ``""`` are for all. A kind
        without options of its own is a feature of nodes. It takes a GPU; ``cpu`` a node alone.

    Raises
    ------
    ValueError
        There is no submitit.
    DeviceError
        There is no Slurm.
    """

    name = "slurm"
    reason = ""

    def __init__(
        self, inbox: Path, folder: Path, minutes: int, options: Mapping[str, Mapping[str, str]]
    ) -> None:
        try:
            import submitit
            from submitit.core.utils import FailedJobError, FailedSubmissionError
        except ImportError as error:
            raise ValueError(
                f"--engine slurm: got {error}, wanted it: pip install -e '.[fleet-slurm]'"
            ) from error
        try:
            self._executor: Any = submitit.SlurmExecutor(folder.absolute(), max_num_timeout=0)
        except RuntimeError as error:
            raise DeviceError(f"--engine slurm: {error}") from error
        self._failed = FailedJobError, FailedSubmissionError
        self._inbox, self._folder = str(inbox.absolute()), folder
        self._minutes, self._options = minutes, options
        self._heard = -math.inf
        self._nodes: dict[str, set[str]] = {}

    def boxes(self) -> dict[str, set[str]]:
        """Return the nodes that work, by the features that name a kind and by kinds with options.

        Where Slurm does not answer, as while its controller restarts, those of before.

        Raises
        ------
        DeviceError
            Slurm has not answered for ten minutes.
        """
        said = self._ask("sinfo", "-h", "-N", "-o", "%N|%f|%T|%P")
        if said is None:
            return self._nodes
        nodes = [line.split("|") for line in said]
        self._nodes = found = dict[str, set[str]]()
        for name, features, state, partition in nodes:
            if not _WORKING.fullmatch(state):
                continue
            kinds = {one for one in features.split(",") if KNOWN_KIND.fullmatch(one)}
            for kind in kinds | (self._options.keys() - {""}):
                chosen = self._chosen(kind)
                partitions, wanted = chosen.get("partition"), chosen.get("constraint", "")
                if partitions and partition.rstrip("*") not in partitions.split(","):
                    continue
                # what an expression asks for Slurm alone knows: any node of the partition counts
                if wanted in ("", *features.split(",")) or _OPERATOR.search(wanted):
                    found.setdefault(kind, set()).add(name)
        return found

    def submit(self, tasks: Sequence[Task], avoid: Collection[str]) -> list[str]:
        """Submit the tasks as an array job; DeviceError where sbatch refuses it."""
        kind = tasks[0].part.kind
        options = self._chosen(kind)
        if avoid:
            others = [options["exclude"]] if "exclude" in options else []
            options["exclude"] = ",".join([*others, *sorted(avoid)])
        minutes = self._minutes + _BUILD_MINUTES
        self._executor.update_parameters(
            job_name=f"fleet-{kind}", time=minutes, additional_parameters=options
        )
        texts = [task_json(task) for task in tasks]
        try:
            jobs = self._executor.map_array(_deliver, texts, [self._inbox] * len(texts))
        except self._failed as error:
            raise DeviceError(f"sbatch for {kind}: got {one_line(error)}, wanted a job") from error
        return [str(job.job_id) for job in jobs]

    def poll(self, jobs: Collection[str]) -> dict[str, Ended]:
        """Return the jobs that squeue lists no more; errors as of `boxes`."""
        if not jobs:
            return {}
        said = self._ask("squeue", "-h", "-r", "-u", getpass.getuser(), "-o", "%i|%T|%r")
        if said is None:
            return {}
        listed = {job: (state, why) for job, state, why in (one.split("|", 2) for one in said)}
        waiting = {
            why for job, (state, why) in listed.items() if job in jobs and state == "PENDING"
        }
        self.reason = ", ".join(sorted(waiting))
        return {job: self._end(job) for job in jobs if job not in listed}

    def cancel(self, jobs: Collection[str]) -> None:
        """Cancel jobs, whether they run or wait."""
        if jobs:
            subprocess.run(["scancel", *jobs], capture_output=True, check=False)

    def _end(self, job: str) -> Ended:
        """Ask what became of a job that has ended; Slurm remembers some minutes."""
        words = ["scontrol", "show", "job", "-o", job]
        said = subprocess.run(words, capture_output=True, text=True, check=False).stdout
        fields = dict(re.findall(r"(\S+?)=(\S*)", said))
        node, state = fields.get("NodeList", "(null)"), fields.get("JobState", "gone")
        reason = fields.get("Reason", "None")
        why = f"job {job} ended as {state}" + (f" ({reason})" if reason != "None" else "")
        log = self._folder / f"{job}{_STDERR}"
        last = last_line(log) if log.exists() else "it said nothing"
        if state == "COMPLETED":
            log.unlink(missing_ok=True)
        return Ended(None if node in ("(null)", "") else node, f"{why}, and no bundle came: {last}")

    def _chosen(self, kind: str) -> dict[str, Any]:
        own = self._options.get(kind)
        resource = {"exclusive": True} if kind == "cpu" else {"gres": "gpu:1"}
        default = {"constraint": kind, **resource} if own is None else {}
        return {**default, **self._options.get("", {}), **(own or {})}

    def _ask(self, *words: str) -> list[str] | None:
        """Return the lines that a program of Slurm prints; None: it does not answer now."""
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            self._heard = time.monotonic()
            return done.stdout.splitlines()
        if time.monotonic() - self._heard > _SILENCE_S:
            raise DeviceError(f"{words[0]}: got {done.stderr.strip()}, wanted Slurm's answer")
        return None


def _deliver(text: str, inbox: str) -> None:
    """Measure on the node where this job runs."""
    deliver(os.environ["SLURMD_NODENAME"], inbox, text)


def keep_diagnoses(folder: Path) -> None:
    """Remove what submitit keeps of jobs, but for what those that failed wrote to stderr."""
    for path in folder.glob("*"):
        with contextlib.suppress(OSError):  # gone by itself
            if not (path.name.endswith(_STDERR) and path.stat().st_size):
                path.unlink()
    with contextlib.suppress(OSError):  # there is none, or something is kept in it
        folder.rmdir()
