"""What a worker does on a box: a checkout of its own, a log, a bundle whatever comes of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from fleet_runs import git, repository

from rocmforge.bench.asv import Builds
from rocmforge.bench.fleet import worker
from rocmforge.bench.fleet.bundle import Provenance, extract, read_results
from rocmforge.bench.fleet.parts import Part
from rocmforge.bench.fleet.worker import Task, deliver, task_json, task_of

STANDIN = Path(__file__).with_name("fleet_standin.py")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCMFORGE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def commits(tmp_path: Path) -> list[str]:
    return repository(tmp_path / "project")


def task(tmp_path: Path, commit: str, command: str, minutes: int = 1, kind: str = "any") -> Task:
    part = Part(commit, kind, "quick", command=command)
    return Task(part, "0000000a", str(tmp_path / "project"), 0.2, minutes)


def delivered(tmp_path: Path, one: Task, box: str = "n0") -> tuple[Provenance, str]:
    """What the bundle of a task says, and its log."""
    deliver(box, str(tmp_path / "inbox"), task_json(one))
    (tmp_path / "out").mkdir()
    made = extract(tmp_path / "inbox" / one.file_name, tmp_path / "out")
    return made, (tmp_path / "out" / "log.txt").read_text("utf-8")


def test_a_task_there_and_back(tmp_path: Path) -> None:
    one = Task(Part("a" * 40, "cpu", "quick", ("x", "y"), copy=1), "0" * 8, "url", 0.5, 7)
    assert task_of(task_json(one)) == one


def test_the_commit_is_checked_out_and_nothing_is_left(
    tmp_path: Path, commits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "3")
    words = f"{sys.executable} {STANDIN} {tmp_path}/journal 0"
    command = f'cat code.txt; git rev-parse HEAD; echo "home $HOME"; {words} "$1" "$2"'
    made, log = delivered(tmp_path, task(tmp_path, commits[0], command), "a b/../c")
    assert (made.why, made.exit_code, made.box) == (None, 0, "a-b-..-c")
    assert made.devices["ROCR_VISIBLE_DEVICES"] == "3"
    assert made.versions["python"]
    lines = log.splitlines()
    assert lines[:2] == ["0", commits[0]]
    assert lines[2] != f"home {os.environ['HOME']}"  # asv's file of machines is the box's own
    assert len(read_results(tmp_path / "out").results) == 3
    (box,) = (tmp_path / "cache" / "fleet").iterdir()
    assert {path.name for path in box.iterdir()} == {"devices-3.lock", "home"}


@pytest.mark.parametrize("box", ["..", ".", ".hidden"])
def test_a_box_of_any_name_has_a_folder_of_its_own(
    box: str, tmp_path: Path, commits: list[str]
) -> None:
    made, _ = delivered(tmp_path, task(tmp_path, commits[0], "true"), box)
    assert made.box == f"-{box[1:]}"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["fleet"]
    assert [path.name for path in (tmp_path / "cache" / "fleet").iterdir()] == [made.box]


@pytest.mark.parametrize("variable", ["SLURM_JOB_GPUS", "SLURM_STEP_GPUS"])
def test_a_job_of_slurm_waits_for_those_on_its_own_gpus_alone(
    variable: str, tmp_path: Path, commits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "0")
    monkeypatch.setenv(variable, "5,6")
    delivered(tmp_path, task(tmp_path, commits[0], "true"))
    names = {path.name for path in (tmp_path / "cache" / "fleet" / "n0").iterdir()}
    assert names == {"devices-5-6.lock", "home"}


def test_two_workers_on_one_device_measure_one_after_the_other(
    tmp_path: Path, commits: list[str]
) -> None:
    """As where a launcher was killed, and the same command came again."""
    words = f"{sys.executable} {STANDIN} {tmp_path}/journal 0.5"
    one = task_json(task(tmp_path, commits[0], f'{words} "$1" "$2"'))
    start = [sys.executable, "-m", "rocmforge.bench.fleet.worker", "n0", str(tmp_path), one]
    both = [subprocess.Popen(start) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    lines = (tmp_path / "journal").read_text("utf-8").splitlines()
    assert [line.split()[0] for line in lines] == ["began", "ended", "began", "ended"]


@pytest.mark.parametrize(
    ("command", "why", "code"),
    [
        ("echo it fell; exit 7", "exit 7: it fell", 7),
        ("true", "exit 0, and no results/ in the checkout: it said nothing", 0),
        ("kill -9 $$", "exit -9: it said nothing", -9),
    ],
)
def test_a_command_that_measures_nothing(
    command: str, why: str, code: int, tmp_path: Path, commits: list[str]
) -> None:
    made, _ = delivered(tmp_path, task(tmp_path, commits[0], command))
    assert (made.why, made.exit_code) == (why, code)


def test_one_that_takes_too_long_is_ended_with_its_children(
    tmp_path: Path, commits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "MINUTE_S", 0.5)
    pid = tmp_path / "pid"
    command = f"sh -c 'echo $$ > {pid}; echo it waits; exec sleep 60' & wait"
    made, _ = delivered(tmp_path, task(tmp_path, commits[0], command))
    assert (made.why, made.exit_code) == ("not done after 1 minutes: it waits", None)
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(int(pid.read_text()))
        assert process.status() == psutil.STATUS_ZOMBIE  # nobody has asked how it ended


def test_a_commit_that_is_not_there_is_named(tmp_path: Path, commits: list[str]) -> None:
    made, log = delivered(tmp_path, task(tmp_path, "0" * 40, "true"))
    assert made.exit_code is None
    assert made.why is not None
    assert made.why.startswith("git -C ")
    assert "0" * 40 in made.why + log


def test_the_package_is_built_and_its_own_command_measures(
    tmp_path: Path, commits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build is in place of pip's, which takes minutes."""
    built = tmp_path / "built" / "bin" / "python"
    built.parent.mkdir(parents=True)
    built.write_text('#!/bin/sh\nprintf "%s\\n" "$@"; exit 3\n')
    built.chmod(0o755)
    monkeypatch.setattr(Builds, "prepare", lambda self, commit: built)
    (tmp_path / "project" / "asv.conf.json").write_text('{"version": 1}')
    git(tmp_path / "project", "add", "-A")
    git(tmp_path / "project", "commit", "-q", "-m", "settings")
    commit = git(tmp_path / "project", "rev-parse", "HEAD").strip()
    part = Part(commit, "cpu", "standard", ("rope", "a b"))
    made, log = delivered(tmp_path, Task(part, "0000000a", str(tmp_path / "project"), 0.25, 1))
    assert made.why == "exit 3: --save-results"
    said = log.splitlines()
    assert said[said.index("bench") :] == [
        *("bench", "run", "--profile", "standard", "--bench", "rope", "--bench", "a b"),
        *("--max-load", "25", "--save-results"),
    ]
