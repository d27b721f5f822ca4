"""`rocmforge bench ci` with the real asv on a tiny suite, and the CI recipe that calls it.

Builds are stood in for by interpreters that tell the suite how slow their commit is.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from fnmatch import fnmatch
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from rocmforge.bench import pull_request as gate
from rocmforge.bench.asv import toolchain
from rocmforge.bench.cli import main

pytest.importorskip("asv")

SUITE = '''\
"""Takes its figure from the interpreter that runs it."""

import os


def track_ms():
    return {"samples": [float(os.environ["FIGURE"]) + i / 1000 for i in range(9)], "number": 1}


track_ms.unit = "ms"
'''
SHARED = (
    "__init__",
    "asv_process",
    "checks",
    "devices",
    "models",
    "prepare",
    "recording",
    "reference",
)
COMMAND = (sys.executable, "-m", "rocmforge", "bench", "ci")
IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@example.org")


class Project:
    """A repository with a tiny suite, two commits and a bare origin."""

    def __init__(self, repo: Path, folder: Path) -> None:
        self.root, self.repo = folder / "project", repo
        (self.root / "benchmarks").mkdir(parents=True)
        for name in ("asv.conf.json", ".gitignore"):
            shutil.copy(repo / name, self.root)
        for name in SHARED:
            shutil.copy(repo / "benchmarks" / f"{name}.py", self.root / "benchmarks")
        (self.root / "benchmarks" / "tiny.py").write_text(SUITE, encoding="utf-8")
        keep = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        self.environment = {
            **keep,
            "HOME": str(folder),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "PYTHONPATH": f"{self.root}:{repo}",
            "PATH": f"{folder / 'bin'}:{keep['PATH']}",
        }
        (folder / "bin").mkdir()
        self.git("init", "-q", "-b", "main")
        self.origin = folder / "origin.git"
        self.git("init", "-q", "--bare", str(self.origin))
        self.git("remote", "add", "origin", str(self.origin))
        self.commits = [self._commit("one", "2.0"), self._commit("two", "2.4")]

    def git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", *IDENTITY, *words],
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def _commit(self, name: str, figure: str) -> str:
        (self.root / "named.txt").write_text(name, encoding="utf-8")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", name)
        commit = self.git("rev-parse", "HEAD")
        built = self.root / ".asv" / "confirm" / "builds" / f"{commit}-{toolchain()}"
        (built / "bin").mkdir(parents=True)
        (built / "built").touch()
        python = built / "bin" / "python"
        python.write_text(f'#!/bin/sh\nFIGURE={figure} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        return commit

    def gate(self, *words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *map(str, words)],
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def program(self, name: str, script: str) -> None:
        path = self.origin.parent / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)


@pytest.fixture
def project(repo: Path, tmp_path: Path) -> Project:
    return Project(repo, tmp_path)


@pytest.mark.slow
def test_a_regression_is_confirmed_and_a_dry_run_posts_nothing(
    project: Project, tmp_path: Path
) -> None:
    project.program("gh", f"echo called >> {tmp_path}/gh.log")
    out = tmp_path / "out"
    arguments = ("HEAD~1", "HEAD", "--bench", "tiny", "--out", out, "--pull-request", 7)
    done = project.gate(*arguments, "--deploy", "--dry-run")
    assert done.returncode == 1, done.stdout + done.stderr
    before, after = (commit[:8] for commit in project.commits)
    turns = re.findall(r"^round (\d) of 2: (\w+)", done.stdout, re.M)
    assert turns == [("1", before), ("1", after), ("2", after), ("2", before)]
    assert "not posted; it would be by: gh pr comment 7 --body-file" in done.stdout
    assert "not pushed; --deploy would:" in done.stdout
    assert not (tmp_path / "gh.log").exists()
    assert project.git("ls-remote", "origin") == ""
    comment = (out / "comment.md").read_text(encoding="utf-8")
    assert comment.startswith(f"### Benchmarks of {after} against {before} on ")
    assert "| regression (confirmed by" in comment
    assert str(tmp_path) not in comment
    document = json.loads((out / "gate.json").read_text(encoding="utf-8"))
    assert document["exit_code"] == 1
    suite = ElementTree.parse(out / "gate.junit.xml").getroot()
    assert suite.attrib["failures"] == "1"
    assert (out / "dashboard" / "index.html").is_file()
    results = list((project.root / ".asv" / "gate" / "results").glob("*/*-existing-py*.json"))
    assert len(results) == 2
    samples = json.loads(results[0].read_text(encoding="utf-8"))["results"]["tiny.track_ms"]
    assert len(samples[11][0]) == 18  # of two rounds


@pytest.mark.slow
def test_what_is_no_worse_passes_is_posted_and_pushed(project: Project, tmp_path: Path) -> None:
    project.program("gh", f'echo "$@" >> {tmp_path}/gh.log')
    out = tmp_path / "out"
    (project.root / "changed.txt").touch()
    status = project.git("status", "--porcelain")
    project.git("checkout", "-q", "HEAD~1")
    arguments = ("main", "HEAD", "--bench", "tiny", "--out", out, "--rounds", 1)
    done = project.gate(*arguments, "--pull-request", 7, "--deploy")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "note      the working tree has changes" in done.stdout
    title = (out / "comment.md").read_text(encoding="utf-8").splitlines()[0]
    assert title.endswith(", the working tree with changes")
    said = (tmp_path / "gh.log").read_text(encoding="utf-8")
    assert said == f"pr comment 7 --body-file {out}/comment.md\n"
    pushed = project.git("ls-tree", "-r", "--name-only", project.git("ls-remote", "origin")[:40])
    assert {"index.html", ".nojekyll"} <= set(pushed.splitlines())
    assert "named.txt" not in pushed
    assert project.git("status", "--porcelain") == status

    project.program("gh", "echo no such pull request >&2; exit 1")
    done = project.gate(*arguments, "--pull-request", 8)
    assert done.returncode == 2
    assert "publishing: gh: pr comment 8: got exit 1: no such pull request" in done.stderr
    assert (out / "gate.md").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("HEAD", "HEAD"), "BEFORE and AFTER: got"),
        (("HEAD", "HEAD~1"), "is checked out: wanted it checked out"),
        (("none", "HEAD"), "commit: got 'none', wanted one that git knows"),
        (("HEAD~1", "HEAD", "--all"), "unrecognized arguments"),
        (("HEAD~1", "HEAD", "--rounds", "0"), "got '0', wanted 1 to 20"),
        (("HEAD~1", "HEAD", "--bench", "("), "got '(', wanted an expression"),
        (("HEAD~1", "HEAD", "--out", "."), "wanted no folder or one of an older report"),
        (("HEAD~1", "HEAD", "--out", "asv.conf.json"), "wanted no folder or one of an"),
        (("HEAD~1", "HEAD", "--bench", "no such"), "found in no name of a benchmark"),
        (("HEAD~1",), "the following arguments are required: AFTER"),
    ],
)
def test_usage_is_2(project: Project, arguments: tuple[str, ...], message: str) -> None:
    done = project.gate(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (project.root / ".asv" / "gate").exists()
    assert (project.root / ".git" / "HEAD").is_file()


def test_an_older_report_is_gone_before_anything_can_fail(tmp_path: Path) -> None:
    out = tmp_path / "report"
    (out / "dashboard").mkdir(parents=True)
    for name in ("comment.md", "gate.md", "gate.json", "gate.junit.xml", "dashboard.log"):
        (out / name).touch()
    (out / "dashboard" / "mine.txt").touch()
    with pytest.raises(ValueError, match="dashboard, wanted no folder or one of an older report"):
        gate._clear(out)
    assert (out / "gate.json").is_file()
    (out / "dashboard" / "asv.js").touch()
    gate._clear(out)
    assert list(out.iterdir()) == []
    (out / "comment.md").symlink_to(tmp_path / "mine.txt")
    with pytest.raises(ValueError, match=r"comment\.md, wanted no folder"):
        gate._clear(out)


def test_a_build_that_fails_leaves_no_older_report(project: Project, tmp_path: Path) -> None:
    shutil.rmtree(project.root / ".asv" / "confirm" / "builds")
    out = tmp_path / "out"
    out.mkdir()
    (out / "comment.md").touch()
    done = project.gate("HEAD~1", "HEAD", "--bench", "tiny", "--out", out)
    assert done.returncode == 2
    assert list(out.iterdir()) == []


SLEEPER = """
import os, time
from pathlib import Path


def track_ms():
    Path(__file__).with_name("slow.pid").write_text(str(os.getpid()))
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_cancelled_job_leaves_nothing_running(project: Project) -> None:
    (project.root / "benchmarks" / "slow.py").write_text(SLEEPER, encoding="utf-8")
    words = [*COMMAND, "HEAD~1", "HEAD", "--bench", "^slow"]
    marker = project.root / "benchmarks" / "slow.pid"
    restore = "import signal, sys, os; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    words = [sys.executable, "-c", restore + "os.execv(sys.argv[1], sys.argv[1:])", *words]
    with subprocess.Popen(
        words, cwd=project.root, env=project.environment, stderr=subprocess.PIPE, text=True
    ) as process:
        for _ in range(600):
            if process.poll() is not None or (marker.exists() and marker.read_text()):
                break
            time.sleep(0.1)
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said == "rocmforge bench ci: interrupted; what was measured lies in .asv/gate\n"
    measuring = int(marker.read_text())
    for _ in range(100):  # asv's server ends it when asv has gone
        if not running(measuring):
            break
        time.sleep(0.1)
    assert not running(measuring)


def running(process: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2]
    except FileNotFoundError:
        return False
    return state.split()[0] != "Z"


WORKFLOW = "docs/gpu-regression.yml"


def commands(repo: Path) -> list[list[str]]:
    """Words of every command of the workflow's `run:` steps."""
    workflow = yaml.safe_load((repo / WORKFLOW).read_text(encoding="utf-8"))
    found = []
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            lines = step.get("run", "").replace("\\\n", " ").splitlines()
            found += [line.split() for line in lines]
    return [words for words in found if words]


def test_the_workflow_calls_what_is_there_with_options_that_it_has(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = re.findall(r"^([\w./%-]+):", (repo / "Makefile").read_text(encoding="utf-8"), re.M)
    called = 0
    for words in commands(repo):
        for word in words:
            if word.startswith("tools/"):
                assert (repo / word).is_file(), word
        if words[0] == "make":
            assert any(fnmatch(words[1], target.replace("%", "*")) for target in targets), words
        if "rocmforge" in words[0]:
            assert words[:3] == [".venv/bin/rocmforge", "bench", "ci"]
            with pytest.raises(SystemExit):
                main(["ci", "--help"])
            known = capsys.readouterr().out
            for option in (word for word in words if word.startswith("--")):
                assert option in known, option
            called += 1
    assert called


def test_the_workflow_keeps_what_forks_send_off_the_machine(repo: Path) -> None:
    workflow = yaml.safe_load((repo / WORKFLOW).read_text(encoding="utf-8"))
    built = [
        step["run"]
        for job in workflow["jobs"].values()
        for step in job["steps"]
        if step.get("name") == "Build"
    ]
    assert built == ["make .venv/ready-bench"] * len(built) != []  # asv and scipy too
    assert set(workflow[True]) == {"pull_request", "push"}  # YAML 1.1 reads `on` as true
    assert workflow["permissions"] == {}
    assert "concurrency" not in workflow  # it would drop jobs that wait
    jobs = workflow["jobs"]
    own = {name: job for name, job in jobs.items() if job["runs-on"] != "ubuntu-latest"}
    assert set(own) == {"measure", "measure-main"}
    for name, job in own.items():
        assert "timeout-minutes" in job
        assert job["permissions"] == {"contents": "read"}
        checkout = next(s["with"] for s in job["steps"] if "checkout" in s.get("uses", ""))
        assert checkout["persist-credentials"] is False
        assert job["steps"][0]["run"] == "rm -rf report"  # the last job's, whatever fails now
        if name == "measure-main":
            assert job["if"] == "github.event_name == 'push'"
        else:
            conditions = [part.strip() for part in job["if"].split("&&")]
            assert (
                "github.event.pull_request.head.repo.full_name == github.repository" in conditions
            )
            assert "||" not in job["if"]


def test_the_workflow_gives_tokens_that_write_only_to_jobs_that_run_nothing_of_ours(
    repo: Path,
) -> None:
    workflow = yaml.safe_load((repo / WORKFLOW).read_text(encoding="utf-8"))
    writing = [job for job in workflow["jobs"].values() if "write" in job["permissions"].values()]
    assert len(writing) == 2
    for job in writing:
        assert job["runs-on"] == "ubuntu-latest"
        assert not any("checkout" in step.get("uses", "") for step in job["steps"])
        assert not any(
            word in step.get("run", "") for step in job["steps"] for word in ("tools/", "bench")
        )


def test_the_document_names_every_exit_code_and_the_workflow(repo: Path) -> None:
    text = (repo / "docs" / "CI.md").read_text(encoding="utf-8")
    assert "(gpu-regression.yml)" in text
    for code in (0, 1, 2, 3, 4, 130):
        assert re.search(rf"^\| {code} \|", text, re.M), code
    for name in re.findall(r"`(tools/[\w./]+)", text):
        assert (repo / name).is_file(), name
