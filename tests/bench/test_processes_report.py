"""Each process of asv reports beside the result file, however asv was started, and as one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from asv_tree import A

from benchmarks import recording
from benchmarks.asv_process import AsvRun, asv_run
from rocmforge.bench.asv import asv_environment_name, result_file
from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.reports import read_reports, reports_path
from rocmforge.bench.run_environment import with_stored_environments
from rocmforge.errors import ResultFileError

pytest.importorskip("asv")

CONFIG = """\
{"version": 1, "project": "tiny", "repo": ".", "branches": ["HEAD"],
 // "results_dir": "not this one",
 "environment_type": "virtualenv", "benchmark_dir": "benchmarks", "results_dir": "kept/here"}
"""
SUITE = """\
from . import recording
from .recording import install  # which __init__ calls


def track_ms(n):
    recording.note(n / 1e6)
    return {"samples": [n + i / 10 for i in range(9)], "number": 1}


track_ms.params = [[1, 2]]
track_ms.unit = "ms"
track_ms.rounds = 2


def track_nothing():
    return float("nan")
"""
WHO = {
    f"GIT_{who}_{what}": "t@example.org"
    for who in ("AUTHOR", "COMMITTER")
    for what in ("NAME", "EMAIL")
}


@pytest.fixture
def project(tmp_path: Path, repo: Path) -> Path:
    """A repository of one commit with a suite that records itself, and a home of its own."""
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    for name in ("recording", "asv_process", "reference"):
        text = (repo / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    begin = "import sys\n\nfrom .recording import install\n\ninstall(sys.argv)\n"
    (folder / "__init__.py").write_text(begin, encoding="utf-8")
    (folder / "suite.py").write_text(SUITE, encoding="utf-8")
    (tmp_path / "asv.conf.json").write_text(CONFIG, encoding="utf-8")
    call(tmp_path, "git", "init", "-q", ".")
    call(tmp_path, "git", "add", ".")
    call(tmp_path, "git", "commit", "-q", "-m", "all")
    call(tmp_path, sys.executable, "-m", "asv", "machine", "--yes", "--machine", "box")
    return tmp_path


def call(folder: Path, *words: str) -> str:
    home = {"HOME": str(folder), "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    environment = {"PATH": os.environ["PATH"], **WHO, **home}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def measure(project: Path, *more: str) -> None:
    environment = ("-E", f"existing:{sys.executable}", "--set-commit-hash", "HEAD")
    call(project, sys.executable, "-m", "asv", "run", *environment, "--record-samples", *more)


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_asv_run_leaves_reports_beside_its_results(project: Path, method: str) -> None:
    measure(project, "--launch-method", method)
    commit = call(project, "git", "rev-parse", "HEAD").strip()
    found = ResultsDirectory(project / "kept" / "here", "box").load(commit)
    assert found.source.with_suffix(".jsonl").is_file()
    one, two, nothing = with_stored_environments(found).results
    assert (one.error, two.error, nothing.error) == (1e-6, 2e-6, None)
    assert one.process_medians == (1.4, 1.4)
    assert two.process_medians == (2.4, 2.4)
    assert nothing.process_medians == ()
    assert one.environment is not None
    assert one.environment["processes"] == 2
    assert set(one.reference or ()) == {"read_gb_per_second", "square_roots_per_ns"}
    reports = read_reports(reports_path(found.source))["suite.track_ms", 0]
    assert [len(report.reference["read_gb_per_second"]) for report in reports] == [2, 2]
    assert "Skipping" not in call(project, sys.executable, "-m", "asv", "publish")

    measure(project, "--launch-method", method)  # again: in place of the first
    assert with_stored_environments(found).results[0].process_medians == (1.4, 1.4)
    measure(project, "--launch-method", method, "--append-samples", "--attribute", "rounds=1")
    assert with_stored_environments(found).results[0].process_medians == (1.4,) * 3


def test_what_asv_does_not_store_leaves_nothing(project: Path) -> None:
    environment = ("-E", f"existing:{sys.executable}")
    call(project, sys.executable, "-m", "asv", "run", *environment)
    measure(project, "--dry-run")
    assert not list(project.rglob("*.jsonl"))


def process(root: Path, *words: str, cwd: Path) -> Path:
    """Make what the kernel shows of our parent and of ourselves."""
    parent = root / "proc" / str(os.getppid())
    parent.mkdir(parents=True)
    (parent / "cmdline").write_text("\0".join(words) + "\0", encoding="utf-8")
    (parent / "stat").write_text(f"7 (a b) S {' '.join(map(str, range(4, 40)))}", encoding="utf-8")
    (parent / "cwd").symlink_to(cwd)
    (root / "proc" / "self").mkdir()
    (root / "proc" / "self" / "cmdline").write_text("/env/bin/python\0x\0", encoding="utf-8")
    return root


BUILT = {"ASV_COMMIT": A, "ASV_ENV_NAME": "virtualenv-py3.11"}
ASV = ("python", "-m", "asv")


@pytest.mark.parametrize(
    ("words", "environment", "wanted"),
    [
        ((*ASV, "run", "HEAD~2..HEAD"), BUILT, "here/only/aaaaaaaa-virtualenv-py3.11.jsonl"),
        (("py", "/b/asv", "continuous", "-m", "box", "a", "b"), BUILT, "here/box/aaaaaaaa-vir"),
        ((*ASV, "find", "--machine=box", "a..b", "x"), BUILT, "here/box/aaaaaaaa-vir"),
        ((*ASV, "--config", "x/other.json", "run"), BUILT, "results/only/aaaaaaaa-vir"),
        ((*ASV, "run", "--set-commit-hash", A), {}, "here/only/aaaaaaaa-existing-py_env_bin_py"),
        ((*ASV, "run"), {**BUILT, "ASV_ENV_NAME": "x" * 130}, "here/only/aaaaaaaa-env-"),
        ((*ASV, "run"), {}, None),  # no commit
        ((*ASV, "run", "-n"), BUILT, None),
        ((*ASV, "find", "--skip-save", "a..b", "x"), BUILT, None),
        ((*ASV, "profile", "x"), BUILT, None),
        (("bash",), BUILT, None),
    ],
)
def test_where_a_process_reports(
    tmp_path: Path, words: tuple[str, ...], environment: dict[str, str], wanted: str | None
) -> None:
    (tmp_path / "asv.conf.json").write_text('{\n  "results_dir": "here"\n}', encoding="utf-8")
    (tmp_path / "other.json").write_text("{}", encoding="utf-8")
    (tmp_path / ".asv-machine.json").write_text('{"only": {}, "version": 1}', encoding="utf-8")
    root = process(tmp_path / "root", *words, cwd=tmp_path)
    found = asv_run(environment, root, tmp_path)
    got = found and str(found.reports.relative_to(tmp_path))
    assert got is None if wanted is None else (got or "").startswith(wanted)


def test_names_of_environments_are_asvs(tmp_path: Path) -> None:
    for python in ("/env/bin/python", f"/{'long' * 40}/bin/python", "/a:b/c*d"):
        root = process(tmp_path / python.replace("/", "_")[:9], *ASV, "run", cwd=tmp_path)
        (root / "proc/self/cmdline").write_text(f"{python}\0", encoding="utf-8")
        (tmp_path / "asv.conf.json").write_text("{}", encoding="utf-8")
        found = asv_run({"ASV_COMMIT": A}, root, tmp_path)
        assert found is not None
        wanted = result_file(found.reports.parent.name, A, asv_environment_name(python))
        assert found.reports == tmp_path / "results" / reports_path(wanted)


def test_a_report_is_appended_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "box" / "r.jsonl"
    recording.append(path, {"a": 1 / 3})
    recording.append(path, {"b": None})
    assert path.read_text(encoding="utf-8") == '{"a":0.333333}\n{"b":null}\n'
    with pytest.raises(ValueError, match="JSON"):
        recording.append(path, {"c": float("nan")})
    assert path.read_text(encoding="utf-8").count("\n") == 2


def test_the_next_report_takes_the_place_of_a_line_that_a_crash_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    run = AsvRun(path, "1", False)
    result = tmp_path / "result"
    result.write_text(json.dumps(3.0), encoding="utf-8")
    recording.Recorder(run, recording.Measured("m.track_x", None, result)).write()
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    with pytest.raises(ResultFileError, match="line 2"):
        read_reports(path)
    recording.append(path, json.loads(whole) | {"benchmark": "m.track_y"})
    assert path.read_bytes().startswith(whole)
    assert set(read_reports(path)) == {("m.track_x", None), ("m.track_y", None)}


def test_a_full_disk_is_said_and_fails_no_benchmark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "result"
    result.write_text(json.dumps(3.0), encoding="utf-8")
    recorder = recording.Recorder(
        AsvRun(Path("/dev/full"), "1", False), recording.Measured("m.track_x", None, result)
    )
    recorder.note(0.0)
    recorder.write()
    assert "/dev/full: no report of this process" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "median"),
    [
        (3.5, 3.5),
        ({"samples": [1.0, 9.0, 2.0], "number": 1}, 2.0),
        (float("nan"), None),
        (None, None),
    ],
)
def test_the_median_of_a_process(tmp_path: Path, written: Any, median: float | None) -> None:
    path = tmp_path / "result"
    path.write_text("" if written is None else json.dumps(written), encoding="utf-8")
    assert recording.process_median(path) == median


def test_our_own_arrays_do_not_count_as_the_memory_of_a_benchmark(tmp_path: Path) -> None:
    run = AsvRun(tmp_path / "r.jsonl", "1", False)
    for name, readings in (("m.C.peakmem_load", 1), ("m.C.track_ms", 2)):
        result = tmp_path / name
        result.write_text("1", encoding="utf-8")
        recorder = recording.Recorder(run, recording.Measured(name, None, result))
        recorder.note(0.0)
        recorder.write()
        (report,) = read_reports(run.reports)[name, None]
        assert len(report.reference["read_gb_per_second"]) == readings


def test_a_file_that_a_full_disk_left_empty_has_no_reports(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    assert read_reports(tmp_path / "empty.jsonl") == {}
