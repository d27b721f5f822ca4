"""The engines of Slurm and Ray before programs and a package that answer as a test says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocmforge.bench.fleet import slurm as slurm_module
from rocmforge.bench.fleet.engine import Ended
from rocmforge.bench.fleet.ray_cluster import RayEngine
from rocmforge.bench.fleet.slurm import SlurmEngine, keep_diagnoses


def node(name: str) -> dict[str, Any]:
    own = {"NodeID": name * 28, "NodeName": name, "NodeManagerHostname": "host"}
    more = {"NodeManagerAddress": "10.0.0.1", "Alive": True, "Resources": {"cpu": 1.0}}
    return own | more


def test_a_node_that_joins_ray_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: list[dict[str, Any]] = []

    def nodes() -> list[dict[str, Any]]:
        here.append(node(f"n{len(here)}"))
        return [*here]

    fake = SimpleNamespace(nodes=nodes, is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "ray", fake)
    engine = RayEngine(tmp_path, "auto")
    assert engine.boxes() == {"cpu": {"n0"}}
    assert engine.boxes() == {"cpu": {"n0", "n1"}}


class Slurm:
    """What the programs of Slurm print, by their names."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prints: dict[str, str] = {}
        self.folder = folder / "slurm"
        executor = SimpleNamespace(SlurmExecutor=lambda *words, **options: None)
        errors = SimpleNamespace(FailedJobError=RuntimeError, FailedSubmissionError=RuntimeError)
        monkeypatch.setitem(sys.modules, "submitit", executor)
        monkeypatch.setitem(sys.modules, "submitit.core", SimpleNamespace())
        monkeypatch.setitem(sys.modules, "submitit.core.utils", errors)
        fake = SimpleNamespace(run=self._run)
        monkeypatch.setattr(slurm_module, "subprocess", fake)

    def _run(self, words: Any, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(words, 0, self.prints.get(words[0], ""), "")

    def engine(self, options: Mapping[str, Mapping[str, str]]) -> SlurmEngine:
        return SlurmEngine(self.folder.parent / "inbox", self.folder, 5, options)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    return Slurm(tmp_path, monkeypatch)


def test_what_a_job_that_died_said_is_quoted_and_kept(slurm: Slurm) -> None:
    slurm.folder.mkdir()
    for name in ("7_0_0_log.err", "7_1_0_log.err"):
        (slurm.folder / name).write_text("Traceback\nOSError: no room\n")
    for name in ("7_0_0_result.pkl", "7_submission.sh", "8_0_log.err"):
        (slurm.folder / name).write_text("" if name.endswith("err") else "x")
    engine = slurm.engine({})
    slurm.prints["scontrol"] = "JobId=8 JobState=FAILED Reason=NonZeroExitCode NodeList=n0"
    failed = "ended as FAILED (NonZeroExitCode), and no bundle came"
    assert engine.poll(["7_0"]) == {"7_0": Ended("n0", f"job 7_0 {failed}: OSError: no room")}
    assert engine.poll(["9"]) == {"9": Ended("n0", f"job 9 {failed}: it said nothing")}
    slurm.prints["scontrol"] = "JobId=9 JobState=COMPLETED Reason=None NodeList=n0"
    engine.poll(["7_1"])
    keep_diagnoses(slurm.folder)
    assert [path.name for path in slurm.folder.iterdir()] == ["7_0_0_log.err"]
    (slurm.folder / "7_0_0_log.err").unlink()
    for _ in range(2):
        keep_diagnoses(slurm.folder)
        assert not slurm.folder.exists()


@pytest.mark.parametrize(
    ("options", "boxes"),
    [
        ({"partition": "a"}, {"n0"}),
        ({"partition": "a,b"}, {"n0", "n1"}),
        ({"constraint": "big"}, {"n1"}),
        ({"constraint": "small|big"}, {"n0", "n1", "n2"}),
        ({"partition": "b,c", "constraint": "[x*2&y]"}, {"n1", "n2"}),
        ({"partition": "none", "constraint": "big&x"}, set()),
    ],
)
def test_nodes_of_partitions_and_of_a_constraint(
    options: dict[str, str], boxes: set[str], slurm: Slurm
) -> None:
    slurm.prints["sinfo"] = "n0|x|idle|a*\nn1|big,x|mixed|b\nn2|y|idle|c\nn3|y|down|c\n"
    assert slurm.engine({"mine": options}).boxes().get("mine", set()) == boxes


def test_why_jobs_wait_is_what_squeue_says_of_these(slurm: Slurm) -> None:
    engine = slurm.engine({})
    slurm.prints["squeue"] = "\n".join(
        [
            "7_0|PENDING|ReqNodeNotAvail, UnavailableNodes:n1",
            "7_1|RUNNING|None",
            "7_2|PENDING|Priority",
            "9|PENDING|Dependency",  # of somebody else's command
        ]
    )
    assert [*engine.poll(["7_0", "7_1", "7_2", "7_3"])] == ["7_3"]
    assert engine.reason == "Priority, ReqNodeNotAvail, UnavailableNodes:n1"
    slurm.prints["squeue"] = "7_1|RUNNING|None\n"
    assert engine.poll(["7_1"]) == {}
    assert engine.reason == ""
