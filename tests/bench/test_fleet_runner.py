"""The runner with an engine whose boxes come and go as a test says: tries, boxes, giving up."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest
from asv_tree import A, B
from fleet_bundles import bundle, provenance

from rocmforge.bench.fleet import runner as runner_module
from rocmforge.bench.fleet.engine import Ended
from rocmforge.bench.fleet.parts import Part, wanted_parts
from rocmforge.bench.fleet.runner import Outcome, Runner
from rocmforge.bench.fleet.store import Store
from rocmforge.bench.fleet.worker import Task
from rocmforge.errors import DeviceError

Happens = Callable[[Task, str], str | None]
"""What comes of a task on a box: None, a bundle; else how the job ended without one."""


class Scripted:
    """An engine of boxes of one kind, on which a job ends at the next look."""

    name = "scripted"
    reason = ""

    def __init__(self, inbox: Path, boxes: Sequence[str], happens: Happens) -> None:
        self.inbox, self.here, self.happens = inbox, set(boxes), happens
        self.waiting: dict[str, tuple[Task, set[str]]] = {}
        self.submitted: list[tuple[Part, set[str]]] = []
        self.canceled: list[str] = []
        self._numbers = itertools.count()

    def boxes(self) -> dict[str, set[str]]:
        return {"cpu": {*self.here}} if self.here else {}

    def submit(self, tasks: Sequence[Task], avoid: Collection[str]) -> list[str]:
        jobs = [f"job {next(self._numbers)}" for _ in tasks]
        self.waiting |= {j: (task, {*avoid}) for j, task in zip(jobs, tasks, strict=True)}
        self.submitted += [(task.part, {*avoid}) for task in tasks]
        return jobs

    def poll(self, jobs: Collection[str]) -> dict[str, Ended]:
        found = {}
        for job in jobs:
            task, avoid = self.waiting[job]
            free = sorted(self.here - avoid)
            if not free:
                continue
            del self.waiting[job]
            why = self.happens(task, free[0])
            if why is None:
                bundle(self.inbox, provenance(task.part, task.token, free[0]))
            found[job] = Ended(free[0], why or "no bundle came")
        return found

    def cancel(self, jobs: Collection[str]) -> None:
        self.canceled += jobs
        for job in jobs:
            self.waiting.pop(job, None)


class Case:
    """A store, an engine, and what the runner said."""

    def __init__(self, root: Path, boxes: Sequence[str], happens: Happens) -> None:
        self.store = Store(root / "fleet", root / "fleet" / "results")
        self.engine = Scripted(self.store.inbox, boxes, happens)
        self.said: list[str] = []

    def run(self, wanted: Sequence[Part], tries: int = 3) -> Outcome:
        def task(part: Part, token: str) -> Task:
            return Task(part, token, "", 1.0, 5)

        runner = Runner(self.engine, self.store, task, tries, self.said.append, 0.01)
        return runner.run(wanted)


WANTED = wanted_parts([A, B], ["cpu"], 1, "quick")


def good(task: Task, box: str) -> None:
    return None


def test_a_box_that_fails_is_avoided_by_what_failed_there(tmp_path: Path) -> None:
    case = Case(tmp_path, ["n0", "n1"], lambda task, box: "out of memory" if box == "n0" else None)
    outcome = case.run(WANTED)
    assert outcome.missing == {}
    assert {*outcome.failures} == {*WANTED}
    assert outcome.failures[WANTED[0]] == ["n0: out of memory"]
    assert [avoid for _, avoid in case.engine.submitted] == [set(), set(), {"n0"}, {"n0"}]
    assert "failed    " + WANTED[0].name + " on n0: out of memory: tried again" in case.said


def test_what_fails_everywhere_is_given_up_with_every_reason_and_the_rest_stays(
    tmp_path: Path,
) -> None:
    case = Case(tmp_path, ["n0", "n1"], lambda task, box: "no" if task.part.commit == A else None)
    outcome = case.run(WANTED)
    assert outcome.missing == {WANTED[0]: "n0: no; n1: no; n0: no"}
    assert [*case.store.known()] == [WANTED[1]]
    again = case.run(WANTED, tries=1)
    assert [*again.missing] == [WANTED[0]]
    assert len(case.engine.submitted) == 5  # the other part was measured once


def test_the_reason_is_that_of_the_bundle_where_one_came(tmp_path: Path) -> None:
    def fail(task: Task, box: str) -> str:
        made = provenance(task.part, task.token, box, exit_code=3, why="the machine is busy")
        bundle(case.store.inbox, made)
        return "its process ended"

    case = Case(tmp_path, ["n0"], fail)
    outcome = case.run(WANTED[:1], tries=2)
    assert outcome.missing == {WANTED[0]: "n0: the machine is busy; n0: the machine is busy"}


def test_a_foreign_bundle_counts_as_a_failure_and_is_named(tmp_path: Path) -> None:
    def other(task: Task, box: str) -> str | None:
        bundle(case.store.inbox, provenance(task.part, task.token, box), commit=B)
        return "ended"

    case = Case(tmp_path, ["n0"], other)
    outcome = case.run(WANTED[:1], tries=1)
    assert f"commit of results: got {B}, wanted {A}" in outcome.missing[WANTED[0]]
    assert case.said[1].startswith("refused   ")
    assert case.store.known() == {}


def test_a_kind_that_the_engine_refuses_is_missing_and_the_others_go_on(tmp_path: Path) -> None:
    class Refusing(Scripted):
        def boxes(self) -> dict[str, set[str]]:
            return {"cpu": {"n0"}, "odd": {"n1"}}

        def submit(self, tasks: Sequence[Task], avoid: Collection[str]) -> list[str]:
            if tasks[0].part.kind == "odd":
                raise DeviceError("sbatch: got no such partition")
            return super().submit(tasks, avoid)

    case = Case(tmp_path, ["n0"], good)
    case.engine = Refusing(case.store.inbox, ["n0"], good)
    odd = Part(A, "odd", "quick")
    outcome = case.run([odd, *WANTED], tries=1)
    assert outcome.missing == {odd: "no box: sbatch: got no such partition"}
    assert sorted(case.store.known()) == sorted(WANTED)


def test_a_kind_without_a_box_is_missing_at_once(tmp_path: Path) -> None:
    case = Case(tmp_path, ["n0"], good)
    other = Part(A, "gfx942", "quick")
    outcome = case.run([*WANTED, other])
    assert outcome.missing == {other: "no box of kind gfx942, the engine has cpu"}


def test_a_kind_whose_last_box_goes_is_given_up_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def last(task: Task, box: str) -> str:
        case.engine.here.clear()
        return "the node is lost"

    monkeypatch.setattr(runner_module, "_BOX_PATIENCE_S", 0.1)
    case = Case(tmp_path, ["n0"], last)
    outcome = case.run(WANTED)
    assert outcome.missing == {
        WANTED[0]: "n0: the node is lost",
        WANTED[1]: "no box of kind cpu, the engine has none at all",
    }
    assert len(case.engine.canceled) == 1


def test_a_box_that_comes_back_is_waited_for(tmp_path: Path) -> None:
    looks = itertools.count()

    class Restarting(Scripted):
        def boxes(self) -> dict[str, set[str]]:
            self.here = set() if 2 <= next(looks) < 5 else {"n0"}
            return super().boxes()

    case = Case(tmp_path, ["n0"], lambda task, box: "lost" if next(looks) < 3 else None)
    case.engine = Restarting(case.store.inbox, ["n0"], case.engine.happens)
    assert case.run(WANTED[:1]).missing == {}


def test_a_job_keeps_running_while_its_only_box_is_not_listed_for_a_moment(tmp_path: Path) -> None:
    """The box that the part avoids is there all the time."""
    looks = itertools.count()

    class Restarting(Scripted):
        def boxes(self) -> dict[str, set[str]]:
            if len(self.submitted) == 2:
                self.here = {"n0"} if next(looks) < 3 else {"n0", "n1"}
            return super().boxes()

    case = Case(tmp_path, ["n0", "n1"], lambda task, box: "lost" if box == "n0" else None)
    case.engine = Restarting(case.store.inbox, ["n0", "n1"], case.engine.happens)
    assert case.run(WANTED[:1]).missing == {}
    assert case.engine.canceled == []
    assert [avoid for _, avoid in case.engine.submitted] == [set(), {"n0"}]


def test_what_waits_for_boxes_that_it_avoids_alone_is_submitted_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "_BOX_PATIENCE_S", 0.1)

    def happens(task: Task, box: str) -> str | None:
        if len(case.engine.submitted) > 1:
            return None
        return "lost"

    class Shrinking(Scripted):
        def submit(self, tasks: Sequence[Task], avoid: Collection[str]) -> list[str]:
            if avoid:
                self.here = {*avoid}  # the other boxes go while it waits for them
            return super().submit(tasks, avoid)

    case = Case(tmp_path, ["n0", "n1"], happens)
    case.engine = Shrinking(case.store.inbox, ["n0", "n1"], happens)
    outcome = case.run(WANTED[:1])
    assert outcome.missing == {}
    assert [avoid for _, avoid in case.engine.submitted] == [set(), {"n0"}, set()]
    assert case.engine.canceled == ["job 1"]


def test_a_line_of_waiting_says_why_jobs_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "_SAY_S", 0.0)
    case = Case(tmp_path, ["n0"], good)
    case.engine.reason = "Priority"
    case.run(WANTED)
    assert "waiting   2 submitted (Priority), 0 of 2 gathered" in case.said


def test_copies_go_to_other_boxes_and_to_any_where_there_is_one(tmp_path: Path) -> None:
    wanted = wanted_parts([A], ["cpu"], 3, "quick")
    case = Case(tmp_path, ["n0", "n1"], good)
    assert case.run(wanted).missing == {}
    assert case.engine.submitted == [
        (wanted[0], set()),
        (wanted[1], {"n0"}),
        (wanted[2], set()),
    ]


def test_an_interrupt_ends_jobs_and_keeps_what_came(tmp_path: Path) -> None:
    def stop(task: Task, box: str) -> None:
        if task.part == WANTED[1]:
            raise KeyboardInterrupt

    case = Case(tmp_path, ["n0"], stop)
    with pytest.raises(KeyboardInterrupt):
        case.run(WANTED)
    assert [*case.store.known()] == [WANTED[0]]
    case.engine.happens = good
    assert case.run(WANTED).missing == {}
    assert [part for part, _ in case.engine.submitted].count(WANTED[0]) == 1


def test_a_bundle_that_comes_late_is_kept_and_its_part_not_measured(tmp_path: Path) -> None:
    """That of a job of a command that was killed."""
    case = Case(tmp_path, ["n0"], good)
    bundle(case.store.inbox, provenance(WANTED[0]))
    assert case.run(WANTED).missing == {}
    assert [part for part, _ in case.engine.submitted] == [WANTED[1]]
