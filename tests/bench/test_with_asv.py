"""The whole way with the real asv: two commits, one op 15 % slower, compare, gate, baseline."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from asv_tree import Bench

from rocmforge.hardware import detect, hardware_tag

pytest.importorskip("asv")

CONFIG = """\
{"version": 1, "project": "tiny", "repo": ".", "branches": ["HEAD"],
 "environment_type": "virtualenv", "benchmark_dir": "benchmarks", "results_dir": "results"}
"""
PACKAGE = '''\
"""Counts the steps of its ops."""
STEPS = {{"rope": 1000, "matmul": {matmul}}}
'''
SUITE = """\
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tiny import STEPS


def track_us(op, device):
    if device == "gpu":
        return float("nan")
    return {"samples": [STEPS[op] * (1 + i / 1000) for i in range(9)], "number": 1}


track_us.params = [["rope", "matmul"], ["cpu", "gpu"]]
track_us.param_names = ["op", "device"]
track_us.unit = "us"


class Decode:
    def track_tokens(self):
        samples = [1e6 / STEPS["matmul"] * (1 + i / 1000) for i in range(-4, 5)]
        return {"samples": samples, "number": 1}

    track_tokens.unit = "tokens/s"
    track_tokens.direction = "higher"

    def track_broken(self):
        raise RuntimeError("on purpose")
"""


class Project:
    """A git repository with an asv suite, and a home of its own for asv."""

    def __init__(self, root: Path) -> None:
        self.root = root
        keep = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
        name = {
            f"GIT_{who}_{what}": "t@example.org"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        home = {"HOME": str(root), "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        self.environment = {**keep, **name, **home, "PYTHONDONTWRITEBYTECODE": "1"}

    def call(self, *command: str, codes: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(
            command,
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in codes, done.stdout + done.stderr
        return done.stdout

    def asv(self, *arguments: str, codes: tuple[int, ...] = (0,)) -> str:
        return self.call(sys.executable, "-m", "asv", *arguments, codes=codes)

    def commit(self, matmul: int) -> str:
        (self.root / "tiny" / "__init__.py").write_text(PACKAGE.format(matmul=matmul))
        self.call("git", "add", "-A", "tiny")
        self.call("git", "commit", "-q", "-m", f"matmul takes {matmul}")
        return self.call("git", "rev-parse", "HEAD").strip()

    def measure(self, commit: str, machine: str, codes: tuple[int, ...] = (2,)) -> None:
        """Run asv; 2 is its code for "a benchmark failed", which one of SUITE does on purpose."""
        self.asv(
            *("run", "-E", f"existing:{sys.executable}", "--set-commit-hash", commit),
            *("--machine", machine, "--record-samples"),
            codes=codes,
        )


@pytest.fixture
def bench(repo: Path, tmp_path: Path) -> Bench:
    """In a process of its own."""
    return Bench(repo, tmp_path)


def test_planted_slowdown(tmp_path: Path, bench: Bench) -> None:
    project = Project(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    (tmp_path / "benchmarks" / "suite.py").write_text(SUITE)
    (tmp_path / "asv.conf.json").write_text(CONFIG)
    project.call("git", "init", "-q", "-b", "main", ".")
    registered = bench("machine", "--file", tmp_path / ".asv-machine.json")
    machine = registered.stdout.strip()
    assert machine == hardware_tag()
    for steps in (1000, 1150):
        project.measure(project.commit(steps), machine)

    table = project.asv("compare", "HEAD~1", "HEAD")
    slower = [line for line in table.splitlines() if "track_us('matmul', 'cpu')" in line]
    assert slower[0].startswith("| +")
    assert "1.15" in slower[0]

    gate = bench("compare", "HEAD~1", "HEAD")
    assert gate.returncode == 1, gate.stderr
    flagged = [line.split()[1:3] for line in gate.stdout.splitlines() if "regression  " in line]
    assert flagged == [["suite.Decode.track_tokens", "1000"], ["suite.track_us", "op='matmul',"]]

    reverse = bench("compare", "HEAD", "HEAD~1")
    assert reverse.returncode == 0, reverse.stderr
    assert "2 improved" in reverse.stdout

    written = bench("baseline", "save", "--commit", "HEAD~1")
    assert written.returncode == 0, written.stderr
    baseline = tmp_path / "baselines" / machine / "baseline.json"
    assert str(detect().cpu_arch) in baseline.read_text()
    assert bench("compare", "--baseline", baseline, "HEAD~1").returncode == 0
    assert bench("compare", "--baseline", baseline).returncode == 1

    shutil.rmtree(tmp_path / "results" / machine)
    assert bench("compare", "HEAD~1", "HEAD").returncode == 3
