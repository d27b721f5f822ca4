"""tools/bench.py: arguments, refusals, and the whole way with the real asv on a tiny suite."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rocmforge.hardware import hardware_tag
from rocmforge.regress.baseline import load_baseline
from rocmforge.regress.results import ResultsDirectory

pytest.importorskip("asv")

SUITE = '''\
"""Reads its figures from a file, so that a test can change them."""

from pathlib import Path

FIGURE = Path(__file__).with_name("figure.txt")


def track_ms(device):
    if device == "gpu":
        return float("nan")
    return {"samples": [float(FIGURE.read_text()) + i / 1000 for i in range(9)], "number": 1}


track_ms.params = [["cpu", "gpu"]]
track_ms.param_names = ["device"]
track_ms.unit = "ms"


def track_broken():
    raise ValueError("wrong result on purpose")
'''


@pytest.fixture
def tool(repo: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("bench_tool", repo / "tools" / "bench.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def project(repo: Path, tmp_path: Path, tool: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with our asv.conf.json, a tiny suite and one commit; a home of its own."""
    root = tmp_path / "project"
    (root / "benchmarks").mkdir(parents=True)
    shutil.copy(repo / "asv.conf.json", root)
    shutil.copy(repo / ".gitignore", root)
    (root / "benchmarks" / "__init__.py").touch()
    (root / "benchmarks" / "tiny.py").write_text(SUITE, encoding="utf-8")
    (root / "benchmarks" / "figure.txt").write_text("2.0", encoding="utf-8")
    monkeypatch.setenv("HOME", str(tmp_path))
    for key in [key for key in os.environ if key.startswith("GIT_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "-m", "first")
    monkeypatch.chdir(root)
    monkeypatch.setattr(tool, "ROOT", root)
    return root


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True)


def test_help_names_exit_codes_and_variables(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        tool.main(["--help"])
    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    for word in ("--full", "--gate", "--save-baseline", "exit codes", "ROCFORGE_TEST_MODEL"):
        assert word in shown


@pytest.mark.parametrize("arguments", [["--bench", "("], ["--fool"], ["HEAD"]])
def test_wrong_arguments_are_usage_errors(
    tool: Any, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        tool.main(arguments)
    assert exit_.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_without_git_it_says_so(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool.shutil, "which", lambda name: None)
    assert tool.main([]) == 2
    assert "git is not installed" in capsys.readouterr().err


@pytest.mark.parametrize("initialized", [False, True])
def test_without_a_commit_it_says_what_to_do(
    tool: Any,
    tmp_path: Path,
    initialized: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    if initialized:
        git(tmp_path, "init", "-q")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    assert tool.main([]) == 2
    message = capsys.readouterr().err
    assert "no git repository with a commit" in message
    assert "git init and git commit" in message


def test_head_knows_a_changed_tree(tool: Any, project: Path) -> None:
    commit, dirty = tool.head(project)
    assert (len(commit), dirty) == (40, False)
    (project / "new.py").touch()
    assert tool.head(project) == (commit, True)


def test_a_changed_tree_makes_no_baseline(
    tool: Any, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "new.py").touch()
    assert tool.main(["--save-baseline", "--bench", r"^tiny\."]) == 2
    assert "commit them before --save-baseline" in capsys.readouterr().err
    assert not (project / ".asv").exists()


def test_selections(tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import benchmarks.common as common

    monkeypatch.setattr(common, "has_device", lambda device: False)
    assert tool.select(["a", "b"], full=False) == ["a", "b"]
    assert tool.select(None, full=True) == [tool.NO_GPU]
    quick = tool.select(None, full=False)
    assert r"attention.Prefill.time_attention\('512x8x64', 'cpu'\)" in quick
    assert not any("<" in pattern or pattern.startswith("#") for pattern in quick)
    monkeypatch.setattr(common, "USER_MODEL", Path("my model (1).gguf"))
    mine = tool.select(None, full=False)
    assert any(r"my\ model\ \(1\)" in pattern for pattern in mine)
    monkeypatch.setattr(common, "has_device", lambda device: True)
    assert tool.select(None, full=True) == [".*"]
    assert any("'(cpu|gpu)'" in pattern for pattern in tool.select(None, full=False))


def test_labels_are_what_asv_searches(tool: Any) -> None:
    assert "matmul.Quantized.time_matmul('Q4_K', 128, 'cpu')" in tool.labels()
    assert "memory.KVPerToken.track_kv_bytes_per_token('70B')" in tool.labels()


def test_committed_results_join_and_own_ones_stay(tool: Any, project: Path) -> None:
    committed = project / "results" / "box"
    committed.mkdir(parents=True)
    (committed / "machine.json").write_text("committed", encoding="utf-8")
    (committed / "0a0a0a0a-env.json").write_text("committed", encoding="utf-8")
    own = project / ".asv" / "results" / "box" / "machine.json"
    own.parent.mkdir(parents=True)
    own.write_text("own", encoding="utf-8")
    path = tool.write_config(project / ".asv")
    assert own.read_text(encoding="utf-8") == "own"
    assert own.with_name("0a0a0a0a-env.json").read_text(encoding="utf-8") == "committed"
    config = json.loads(path.read_text(encoding="utf-8"))
    for key in ("repo", "benchmark_dir"):
        assert (path.parent / config[key]).is_dir()
    assert config["results_dir"] == "results"
    assert config["regressions_first_commits"]


def test_the_whole_way(tool: Any, project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    figure = project / "benchmarks" / "figure.txt"
    baseline = project / "baselines" / hardware_tag() / "baseline.json"

    assert tool.main(["--bench", r"^tiny\.track_ms", "--save-baseline"]) == 0
    shown = capfd.readouterr().out
    assert f"none of {hardware_tag()} is committed" in shown
    assert "tiny.track_ms" in shown
    assert "2.004 ms" in shown
    stored = load_baseline(baseline)
    assert [r.label for r in stored.records] == ["tiny.track_ms('cpu')"]
    assert str(project) not in baseline.read_text(encoding="utf-8")
    assert sys.executable not in baseline.read_text(encoding="utf-8")
    assert stored.records[0].summary is not None
    assert stored.records[0].summary.iterations == 9
    assert stored.hardware.python_version is not None
    assert (project / ".asv" / "html" / "index.json").is_file()
    assert not (project / "results").exists()

    figure.write_text("2.4", encoding="utf-8")
    assert tool.main(["--bench", r"^tiny\."]) == 1
    shown = capfd.readouterr().out
    assert "+20.0 % regression" in shown
    assert "failed    tiny.track_broken" in shown
    assert "wrong result on purpose" in shown
    assert "has changes on top" in shown
    measured = ResultsDirectory(project / ".asv" / "results", hardware_tag())
    assert len(measured.files()) == 1

    assert tool.main(["--bench", r"^tiny\.track_ms", "--gate"]) == 1
    assert "FAIL: regression" in capfd.readouterr().out


def test_nothing_measured_is_no_success(
    tool: Any, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert tool.main(["--bench", r"^tiny\.track_broken"]) == 3
    assert "nothing measured" in capfd.readouterr().err


def test_no_benchmark_selected_is_an_error(
    tool: Any, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert tool.main(["--bench", "no such name"]) == 2
    said = capfd.readouterr()
    assert "bench.log" in said.err
    assert "No benchmarks selected" in said.out
