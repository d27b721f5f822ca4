"""`rocmforge bench gate` with the real asv: suspects by a stored baseline are measured again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from asv_tree import Bench
from test_confirm import BACKEND, PYPROJECT
from test_with_asv import CONFIG, Project

from rocmforge.bench.files import read_json, write_json

pytest.importorskip("asv")

SUITE = """\
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # behind a package that is installed
from tiny import STEPS

ALONE = "interleaved_worker" not in sys.argv[0]
LUCK = {"rope": 1.3, "softmax": 0.7} if ALONE and (HERE.parent / ".asv" / "luck").exists() else {}


def track_us(op):
    factor = LUCK.get(op, 1.0)
    return {"samples": [factor * STEPS[op] * (1 + i / 1000) for i in range(9)], "number": 1}


track_us.params = [["rope", "matmul", "softmax", "swiglu"]]
track_us.param_names = ["op"]
track_us.unit = "us"
"""
PREPARE = '''\
"""What `bench` asks of the benchmarks before it runs them."""


def check_environment():
    """Nothing to check."""


def prepare_models(labels, console):
    """There are none."""


def select(bench, profile):
    return bench or [".*"]
'''
PACKAGE = "STEPS = {{'rope': 1000, 'matmul': {matmul}, 'softmax': 1000, 'swiglu': {swiglu}}}\n"
BUSY = ("--max-load", "100")  # what else runs here decides no test
IS = {"rope": "ok", "matmul": "regression", "softmax": "ok", "swiglu": "improved"}
UNSURE = {"rope": "regression", "matmul": "regression"} | dict.fromkeys(
    ("softmax", "swiglu"), "cannot tell"
)


class Tiny(Project):
    """A package that is built in no time, its benchmarks, and a baseline of its first commit."""

    def __init__(self, root: Path, repo: Path) -> None:
        super().__init__(root)
        self.bench = Bench(repo, root, timeout=300)
        if (root / "baselines").exists():
            return
        for folder in ("tiny", "benchmarks"):
            (root / folder).mkdir()
        (root / "benchmarks" / "__init__.py").touch()
        (root / "benchmarks" / "suite.py").write_text(SUITE)
        (root / "benchmarks" / "prepare.py").write_text(PREPARE)
        (root / "asv.conf.json").write_text(CONFIG)
        (root / "backend.py").write_text(BACKEND)
        (root / "pyproject.toml").write_text(PYPROJECT)
        (root / ".gitignore").write_text(".asv/\n.asv-machine.json\n__pycache__/\n")
        self.call("git", "init", "-q", "-b", "main", ".")
        self.package(matmul=1000, swiglu=1000)
        done = self.bench("run", "--profile", "full", "--save-baseline", *BUSY)
        assert done.returncode == 0, done.stderr

    @property
    def baseline(self) -> Path:
        """The stored baseline."""
        (found,) = self.root.glob("baselines/*/baseline.json")
        return found

    def package(self, **steps: int) -> None:
        (self.root / "tiny" / "__init__.py").write_text(PACKAGE.format(**steps))
        self.call("git", "add", "-A")
        self.call("git", "commit", "-q", "--allow-empty", "-m", f"steps: {steps}")

    def unbuildable(self) -> str:
        """Make a commit of which no package can be built, and go on; return its hash."""
        (self.root / "backend.py").write_text("raise SystemExit('no compiler')\n")
        self.call("git", "commit", "-q", "-a", "-m", "does not build")
        found = self.call("git", "rev-parse", "HEAD").strip()
        (self.root / "backend.py").write_text(BACKEND)
        self.call("git", "commit", "-q", "-a", "-m", "builds again")
        return found

    def gate(self, *more: str) -> tuple[subprocess.CompletedProcess[str], Mapping[str, str]]:
        """Run the gate; also return the verdict of each op."""
        report = self.root / ".asv" / "gate.json"
        done = self.bench("gate", "--profile", "full", "--json", report, *BUSY, *more)
        rows = json.loads(report.read_text(encoding="utf-8"))["rows"]
        return done, {row["params"]["op"].strip("'"): row["verdict"] for row in rows}


@pytest.fixture(scope="module")
def measured(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one that was measured at its first commit alone."""
    root = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(root))
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        Tiny(root, repo)
    return root


@pytest.fixture
def tiny(repo: Path, measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """After its baseline, matmul got slower and swiglu faster. One run shows more than that."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    shutil.copytree(measured, tmp_path, symlinks=True, dirs_exist_ok=True)
    made = Tiny(tmp_path, repo)
    made.package(matmul=1300, swiglu=700)
    (tmp_path / ".asv" / "luck").touch()
    return made


def test_suspects_are_measured_again_beside_the_commit_of_the_baseline(tiny: Tiny) -> None:
    done, verdicts = tiny.gate()
    assert verdicts == IS, done.stderr
    assert done.returncode == 1
    label = "again     suite.track_us('{}'): {}: {} 2 pairs of interleaved processes"
    for op, change, word in (
        ("rope", "regression → ok at ratio 1.000", "no such change in"),
        ("matmul", "regression → regression at ratio 1.300", "confirmed by"),
        ("softmax", "improved → ok at ratio 1.000", "no such change in"),
        ("swiglu", "improved → improved at ratio 0.700", "confirmed by"),
    ):
        assert label.format(op, change, word) in done.stdout
    assert "gate      FAIL: regression (exit 1): 1 regression, 1 improved, 2 ok" in done.stdout
    tiny.package(matmul=1000, swiglu=1000)
    done, verdicts = tiny.gate()
    assert (done.returncode, set(verdicts.values())) == (0, {"ok"}), done.stderr


def test_what_is_not_measured_again_is_not_ok(tiny: Tiny) -> None:
    done, verdicts = tiny.gate("--no-confirm")
    assert (done.returncode, verdicts) == (1, UNSURE)
    assert "softmax'): improved → cannot tell at ratio 0.700" in done.stdout
    assert done.stdout.count("): not measured again: --no-confirm") == 4
    assert not (tiny.root / ".asv" / "confirm").exists()

    (tiny.root / "notes").touch()
    done, verdicts = tiny.gate()
    assert (done.returncode, verdicts) == (1, UNSURE)
    assert "again: the working tree has changes, and only commits are built" in done.stdout


def test_what_a_changed_tree_gives_is_stored_under_no_commit(tiny: Tiny) -> None:
    (tiny.root / ".asv" / "luck").unlink()
    tiny.gate("--no-confirm")
    head = tiny.call("git", "rev-parse", "HEAD")[:8]
    (clean,) = tiny.root.glob(f".asv/results/*/{head}-existing*.json")
    kept = clean.read_bytes()
    (tiny.root / "tiny" / "__init__.py").write_text(PACKAGE.format(matmul=9000, swiglu=1000))
    done, verdicts = tiny.gate("--no-confirm")
    assert (done.returncode, verdicts["matmul"]) == (1, "regression")
    assert "results are kept apart in .asv/uncommitted, and no page shows them" in done.stdout
    assert clean.read_bytes() == kept
    (apart,) = tiny.root.glob(f".asv/uncommitted/results/*/{head}-existing*.json")
    assert b"9036" in apart.read_bytes()


def test_a_commit_that_is_out_of_reach_is_the_reason(tiny: Tiny) -> None:
    document = read_json(tiny.baseline)
    for commit, said in (
        ("0" * 40, "the baseline's commit 00000000 is not in this repository"),
        (tiny.unbuildable(), "the baseline's commit {} cannot be built here"),
    ):
        document["metadata"]["commit"] = commit
        write_json(tiny.baseline, document)
        tiny.package(matmul=1300, swiglu=700)
        done, verdicts = tiny.gate()
        assert (done.returncode, verdicts) == (1, UNSURE), done.stderr
        assert f"not measured again: {said.format(commit[:8])}" in done.stdout


@pytest.mark.slow
def test_a_benchmark_whose_code_changed_is_measured_at_both_commits_by_todays_code(
    tiny: Tiny,
) -> None:
    (tiny.root / ".asv" / "luck").unlink()
    suite = tiny.root / "benchmarks" / "suite.py"
    suite.write_text(SUITE.replace("range(9)", "range(10)"))
    tiny.package(matmul=1300, swiglu=1000)
    done, verdicts = tiny.gate("--no-confirm")
    assert (done.returncode, set(verdicts.values())) == (3, {"not comparable"})
    assert "note      not comparable: the code of 4 benchmarks changed since: " in done.stdout
    assert "rocmforge bench baseline refresh stores today's values" in done.stdout
    done, verdicts = tiny.gate()
    wanted = {**dict.fromkeys(IS, "ok"), "matmul": "regression"}
    assert (done.returncode, verdicts) == (1, wanted), done.stderr

    suite.write_text(suite.read_text().replace("STEPS\n", "STEPS, NEW\n"))
    (tiny.root / "tiny" / "__init__.py").write_text(
        PACKAGE.format(matmul=1, swiglu=1) + "NEW = 1\n"
    )
    tiny.call("git", "add", "-A")
    tiny.call("git", "commit", "-q", "-m", "an API that the baseline's commit lacks")
    done, verdicts = tiny.gate()
    assert (done.returncode, set(verdicts.values())) == (3, {"not comparable"}), done.stderr
    assert "today's benchmarks do not run at the baseline's commit" in done.stdout


def test_a_run_that_nobody_judges_saves_no_failure(tiny: Tiny) -> None:
    assert tiny.bench("run", "--profile", "full").returncode == 0
    (saved,) = (tiny.root / ".asv" / "comparisons").glob("*.md")
    said = saved.read_text(encoding="utf-8")
    assert said.startswith("**shown, not judged (exit 0): 2 regression")
    assert "FAIL" not in said


def test_confirm_takes_a_baseline_in_place_of_a_commit(tiny: Tiny) -> None:
    tiny.gate("--no-confirm")
    words = ["confirm", "--baseline", tiny.baseline, "--results", ".asv/results"]
    done = tiny.bench(*words, "HEAD", "--format", "json")
    rows = json.loads(done.stdout)["rows"]
    assert {row["params"]["op"].strip("'"): row["verdict"] for row in rows} == IS, done.stderr
    assert done.returncode == 1
    for wrong in (["confirm"], [*words, "HEAD~1", "HEAD"], [*words, "--bench", "x"]):
        assert tiny.bench(*wrong).returncode == 2


@pytest.mark.slow
def test_each_suspect_is_measured_at_the_commit_of_its_stored_result(tiny: Tiny) -> None:
    document = read_json(tiny.baseline)
    head = tiny.call("git", "rev-parse", "HEAD").strip()
    document["baselines"]["suite.track_us('matmul')"]["metadata"]["commit"] = head
    write_json(tiny.baseline, document)
    tiny.package(matmul=1300, swiglu=700)
    done, verdicts = tiny.gate()
    assert (done.returncode, verdicts) == (0, {**IS, "matmul": "ok"}), done.stderr
