"""Runs parts on an engine until each is gathered or given up: tried elsewhere, and kept once."""

from __future__ import annotations

import math
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rocmforge.bench.fleet.engine import Ended, Engine
from rocmforge.bench.fleet.parts import Part, missing, ready
from rocmforge.bench.fleet.store import Store
from rocmforge.bench.fleet.worker import Task
from rocmforge.errors import DeviceError, ResultFileError, one_line

_SAY_S = 30.0
_BOX_PATIENCE_S = 300.0
"""For so long the last boxes that a part may run on may be gone, as for a restart."""


@dataclass(slots=True)
class Failures:
    """What went wrong with a part: a line for each attempt, and the boxes of these."""

    said: list[str] = field(default_factory=list)
    boxes: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Job:
    """A task that was submitted, the boxes that it avoids, and when another one was last there."""

    task: Task
    avoid: frozenset[str]
    seen: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run: what is missing, each with the reason, and all attempts that failed."""

    missing: Mapping[Part, str]
    failures: Mapping[Part, Sequence[str]]


class Runner:
    """Submits, watches, gathers.

    Parameters
    ----------
    engine
        What has the boxes.
    store
        What gathers.
    task
        Makes a task of a part and a token.
    tries
        How often a part is tried in all.
    say
        Called with a line of progress.
    interval_s
        Between two looks at the engine.
    """

    def __init__(
        self,
        engine: Engine,
        store: Store,
        task: Callable[[Part, str], Task],
        tries: int,
        say: Callable[[str], object],
        interval_s: float,
    ) -> None:
        self._engine, self._store, self._task, self._tries = engine, store, task, tries
        self._say, self._interval_s = say, interval_s
        self._jobs: dict[str, _Job] = {}
        self._failures: dict[Part, Failures] = defaultdict(Failures)
        self._why: dict[str, str] = {}  # by token
        self._gathered: dict[Part, str] = {}  # its box
        self._seen: dict[str, float] = {}  # kinds, and when they last had a box

    def run(self, wanted: Sequence[Part]) -> Outcome:
        """Measure what is wanted and not gathered.

        However it ends, on an interrupt too, jobs are ended and what has arrived is gathered.
        """
        self._gathered = {part: made.box for part, made in self._store.known().items()}
        said_at = time.monotonic()
        try:
            self._collect()
            while True:
                boxes = self._engine.boxes()
                self._free(boxes)
                waiting = self._waiting(wanted, boxes)
                self._submit([part for part in waiting if boxes.get(part.kind)], boxes)
                if not self._jobs and not waiting:
                    break
                if time.monotonic() - said_at > _SAY_S:
                    said_at = time.monotonic()
                    left = len(missing(wanted, self._gathered))
                    done = f"{len(wanted) - left} of {len(wanted)} gathered"
                    why = f" ({one_line(self._engine.reason)})" if self._engine.reason else ""
                    self._say(f"waiting   {len(self._jobs)} submitted{why}, {done}")
                time.sleep(self._interval_s)
                ended = self._engine.poll(self._jobs.keys())
                self._collect()
                for job, how in ended.items():
                    self._settle(job, how)
        finally:
            self._engine.cancel(self._jobs.keys())
            self._collect()
        failures = {part: one.said for part, one in self._failures.items() if one.said}
        has = f"the engine has {', '.join(sorted(boxes)) or 'none at all'}"
        return Outcome(
            {
                part: "; ".join(failures.get(part, [f"no box of kind {part.kind}, {has}"]))
                for part in missing(wanted, self._gathered)
            },
            failures,
        )

    def _waiting(self, wanted: Sequence[Part], boxes: Mapping[str, set[str]]) -> list[Part]:
        """Return what is not gathered, not submitted and not given up."""
        submitted = {job.task.part for job in self._jobs.values()}
        return [
            part
            for part in missing(wanted, self._gathered)
            if part not in submitted
            and len(self._failures[part].said) < self._tries
            and (boxes.get(part.kind) or self._may_return(part.kind))
        ]

    def _may_return(self, kind: str) -> bool:
        """Whether a kind had boxes a little while ago."""
        return time.monotonic() - self._seen.get(kind, -math.inf) < _BOX_PATIENCE_S

    def _free(self, boxes: Mapping[str, set[str]]) -> None:
        """Take back jobs that cannot run any more: the boxes left are those that they avoid."""
        now = time.monotonic()
        self._seen |= dict.fromkeys((kind for kind in boxes if boxes[kind]), now)
        for name, job in list(self._jobs.items()):
            part = job.task.part
            if boxes.get(part.kind, set()) - job.avoid:
                job.seen = now
            elif now - job.seen >= _BOX_PATIENCE_S:
                self._engine.cancel([name])
                del self._jobs[name]
                self._say(f"back      {part.name}: the boxes that it may run on are gone")

    def _submit(self, parts: Sequence[Part], boxes: Mapping[str, set[str]]) -> None:
        """Submit what may be, those of a kind that avoid the same boxes together."""
        groups: dict[tuple[str, frozenset[str]], list[Task]] = defaultdict(list)
        for part in ready(parts, [job.task.part for job in self._jobs.values()]):
            used = {box for other, box in self._gathered.items() if part.is_copy_of(other)}
            avoid = frozenset(boxes[part.kind] & (used | self._failures[part].boxes))
            if avoid == boxes[part.kind]:
                avoid = frozenset()  # none is left: any of them
            task = self._task(part, secrets.token_hex(4))
            groups[part.kind, avoid].append(task)
        for (kind, avoid), tasks in groups.items():
            try:
                jobs = self._engine.submit(tasks, avoid)
            except DeviceError as error:  # of this kind alone: the others go on
                for task in tasks:
                    self._fail(task.part, None, str(error))
                continue
            now = time.monotonic()
            self._jobs |= {
                job: _Job(task, avoid, now) for job, task in zip(jobs, tasks, strict=True)
            }
            without = f", not to {', '.join(sorted(avoid))}" if avoid else ""
            self._say(f"submitted {len(tasks)} of kind {kind}{without}")

    def _collect(self) -> None:
        for found in self._store.collect(self._refused):
            if found.why is not None:
                self._why[found.token] = found.why
            elif found.part not in self._gathered:
                self._gathered[found.part] = found.box
                self._say(f"gathered  {found.part.name} from {found.box}")

    def _refused(self, error: ResultFileError) -> None:
        self._why[error.path.stem.rpartition(".")[2]] = str(error)
        self._say(f"refused   {error}")

    def _settle(self, job: str, how: Ended) -> None:
        """Count an attempt that ended without results."""
        task = self._jobs.pop(job).task
        why = self._why.pop(task.token, how.why)
        if task.part in self._gathered:
            return
        self._fail(task.part, how.box, why)

    def _fail(self, part: Part, box: str | None, why: str) -> None:
        failures = self._failures[part]
        failures.said.append(f"{box or 'no box'}: {why}")
        if box:
            failures.boxes.add(box)
        again = len(failures.said) < self._tries
        what = "tried again" if again else f"given up after {self._tries} tries"
        self._say(f"failed    {part.name} on {failures.said[-1]}: {what}")
