"""Running asv: its configuration, thresholds, results that are kept, builds that fail."""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from asv_tree import A, AsvTree

from rocmforge.bench import asv
from rocmforge.bench.asv import (
    Builds,
    asv_environment_name,
    failures,
    keep_results,
    known_thresholds,
    read_thresholds,
    result_file,
    write_config,
)
from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.git import find_commit
from rocmforge.bench.reports import reports_path
from rocmforge.errors import MeasurementError, ResultFileError

pytest.importorskip("asv")

PYTHON = "/home/somebody/.venv/bin/python"


def test_everything_that_asv_writes_lies_below_the_folder(tmp_path: Path) -> None:
    (tmp_path / "asv.conf.json").write_text('{"version": 1, "project": "x"} // without folders\n')
    path = write_config(tmp_path, tmp_path / ".asv" / "work")
    config = json.loads(path.read_text(encoding="utf-8"))
    assert config["project"] == "x"
    assert (path.parent / config["repo"]).resolve() == tmp_path
    assert (path.parent / config["benchmark_dir"]).resolve() == tmp_path / "benchmarks"
    assert [config[key] for key in ("results_dir", "env_dir", "html_dir")] == [
        "results",
        "env",
        "html",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "content"),
        ('{"version": 1, "regressions_thresholds": []}', "wanted an object"),
        ('{"version": 1, "regressions_thresholds": {"a": "x"}}', "wanted a number"),
        ('{"version": 1, "regressions_thresholds": {"a": 0}}', "a number above 0"),
        ('{"version": 1, "regressions_thresholds": {"(": 0.1}}', "an expression"),
        ("", "content: got an empty file, wanted asv's settings"),
        ("\n\n", "content: got an empty file"),
        ("[1]", "content: got list"),
        ('{"version": 1, "results_dir": 5}', "results_dir: got 5, wanted a string"),
        ('{"version": 1, "repo": null}', "repo: got None, wanted a string"),
        ('{"version": 1, "html_dir": "a\\u0000"}', "html_dir: got .*, wanted a string"),
        ('{"version": 1, "branches": "main"}', "branches: got 'main', wanted a list of strings"),
        ('{"version": 1, "plugins": [1]}', r"plugins: got \[1\], wanted a list of strings"),
        ('{"version": 1, "hash_length": true}', "hash_length: got True, wanted a number"),
        ('{"version": 1, "regressions_first_commits": 5}', "first_commits: got 5, wanted an obj"),
        ("[" * 60_000, "content: got maximum recursion"),
        ('{"version": 1, "a": [' + "1," * 300_000, "got 600021 bytes, wanted .* at most 65536"),
    ],
)
def test_broken_settings_are_named(tmp_path: Path, text: str, message: str) -> None:
    config = tmp_path / "asv.conf.json"
    config.write_text(text)
    with pytest.raises(ResultFileError, match=message) as raised:
        read_thresholds(config)
    assert "asv.conf.json" in str(raised.value)
    assert known_thresholds(tmp_path / "none.json") == {}
    with pytest.raises(ResultFileError, match=message):
        known_thresholds(config)


def test_a_full_disk_names_the_log_of_a_run(tmp_path: Path) -> None:
    log = tmp_path / "asv.log"
    log.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: '.*asv\.log'"):
        asv.run([sys.executable, "-c", "print('a line')"], log, lambda line: None)


def test_what_a_run_prints_may_be_any_bytes(tmp_path: Path) -> None:
    lines: list[str] = []
    words = [sys.executable, "-c", "import os; os.write(1, b'\\xff\\n')"]
    assert asv.run(words, tmp_path / "asv.log", lines.append) == 0
    assert lines == ["\ufffd\n"]


def test_a_machine_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(asv.multiprocessing, "Lock", refuse)
    with pytest.raises(MeasurementError, match="/dev/shm: got Permission denied, wanted a folder"):
        asv.run([sys.executable, "-c", ""], tmp_path / "log", print)


def test_our_own_thresholds_can_be_read(repo: Path) -> None:
    assert read_thresholds(repo / "asv.conf.json") == {".*": 0.1, ".*peakmem_": 0.3}


def test_kept_results_say_nothing_of_where_the_interpreter_is(
    tree: AsvTree, tmp_path: Path
) -> None:
    tree.benchmark("rope.time_rope")
    tree.benchmark("gpu.time_gpu")
    path = tree.run(
        A,
        {"rope.time_rope": 0.5, "gpu.time_gpu": math.nan},
        samples={"rope.time_rope": [[0.4, 0.5, 0.6]]},
        environment=asv_environment_name(PYTHON),
    )
    document = json.loads(path.read_text(encoding="utf-8"))
    document["python"] = document["params"]["python"] = PYTHON
    path.write_text(json.dumps(document), encoding="utf-8")

    kept = keep_results(tree.results, tmp_path / "kept", "box", A, PYTHON)
    name = f"existing-py{sys.version_info.major}.{sys.version_info.minor}"
    assert kept.name == f"{A[:8]}-{name}.json"
    assert "somebody" not in kept.read_text(encoding="utf-8")
    found = ResultsDirectory(tmp_path / "kept", "box").load(A, name)
    wanted = ResultsDirectory(tree.results, "box").load(A, asv_environment_name(PYTHON))
    assert found.results == wanted.results
    assert found.commit_date == wanted.commit_date
    assert found.hardware.python_version == ".".join(platform.python_version_tuple()[:2])
    with pytest.raises(ResultFileError, match=f"{A[:8]}-existing"):
        keep_results(tree.results, tmp_path / "kept", "box", A, "/usr/bin/python3")


def test_reports_of_an_earlier_run_do_not_stay_beside_kept_results(
    tree: AsvTree, tmp_path: Path
) -> None:
    tree.benchmark("rope.time_rope")
    path = tree.run(A, {"rope.time_rope": 0.5}, environment=asv_environment_name(PYTHON))
    arguments = (tree.results, tmp_path / "kept", "box", A, PYTHON)
    kept = keep_results(*arguments)
    reports_path(kept).write_text("of an earlier run\n", encoding="utf-8")
    assert not reports_path(path).exists()
    keep_results(*arguments)
    assert not reports_path(kept).exists()


def test_what_failed_in_an_earlier_round_has_failed(tree: AsvTree, tmp_path: Path) -> None:
    tree.benchmark("m.track_ms", "ms", {"n": ["1", "2", "3"]})
    tree.benchmark("m.track_all", "ms")
    environment = asv_environment_name(PYTHON)
    arguments = (tree.results, "box", A, PYTHON)
    tree.run(A, {"m.track_ms": [1.0, None, math.nan], "m.track_all": None}, environment=environment)
    failed = failures(*arguments)
    assert failed == {("m.track_ms", 1), ("m.track_all", 0)}
    tree.run(A, {"m.track_ms": [1.0, 2.0, 3.0], "m.track_all": 4.0}, environment=environment)
    assert failures(*arguments) == set()
    keep_results(tree.results, tmp_path / "kept", "box", A, PYTHON, failed)
    results = ResultsDirectory(tmp_path / "kept", "box").load(A).results
    assert [result.status.value for result in results] == ["ok", "failed", "ok", "failed"]
    tree.run(A, {"m.track_ms": None, "m.track_all": 4.0}, environment=environment)
    keep_results(tree.results, tmp_path / "kept", "box", A, PYTHON, failed)


@pytest.mark.parametrize("changed", ["python", "c++"])
def test_a_build_of_other_tools_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    compiler = tmp_path / "c++"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def built(version: str) -> str:
        compiler.write_text(f"#!/bin/sh\necho {version}\necho built today: $$\n")
        compiler.chmod(0o755)
        return asv.toolchain.__wrapped__()

    first = built("12.2")
    assert built("12.2") == first
    assert len(first) == 8
    if changed == "python":
        monkeypatch.setattr(platform, "python_version", lambda: "3.99.0")
    assert built("12.2" if changed == "python" else "13.1") != first
    (tmp_path / "asv.conf.json").write_text('{"version": 1}')
    old = tmp_path / ".asv" / "builds" / A  # as of another toolchain
    old.mkdir(parents=True)
    (old / "built").touch()
    with pytest.raises(ResultFileError, match="git clone"):
        Builds(tmp_path, tmp_path / ".asv", "box").prepare(A)


def test_names_that_are_too_long_for_a_file_are_found(tree: AsvTree, tmp_path: Path) -> None:
    python = f"/{'long' * 40}/bin/python"
    tree.benchmark("rope.time_rope")
    written = tree.run(A, {"rope.time_rope": 0.5}, environment=asv_environment_name(python)[:60])
    written.rename(tree.results / result_file("box", A, asv_environment_name(python)))
    assert keep_results(tree.results, tmp_path / "kept", "box", A, python).is_file()


def test_a_commit_that_cannot_be_built_is_named(tmp_path: Path) -> None:
    (tmp_path / "asv.conf.json").write_text('{"version": 1}')
    builds = Builds(tmp_path, tmp_path / ".asv", "box")
    with pytest.raises(ResultFileError, match="git clone") as raised:
        builds.prepare("f" * 40)
    assert os.fspath(tmp_path) in str(raised.value)


def test_a_commit_is_measured_by_its_own_benchmarks_where_todays_do_not_fit(
    tmp_path: Path,
) -> None:
    suite = tmp_path / "benchmarks" / "suite.py"
    suite.parent.mkdir()
    (suite.parent / "__init__.py").touch()
    suite.write_text("import json\n")
    (tmp_path / "asv.conf.json").write_text('{"version": 1}')
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    builds = Builds(tmp_path, tmp_path / ".asv", "box")
    commit = find_commit(tmp_path, "HEAD") or ""
    python = tmp_path / ".asv" / "builds" / f"{commit}-{asv.toolchain()}" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (python.parent.parent / "built").touch()
    assert builds.benchmarks(commit) == suite.parent
    suite.write_text("import module_that_came_later\n")
    own = builds.benchmarks(commit)
    assert own.name == "benchmarks"
    assert (own / "suite.py").read_text() == "import json\n"
    assert builds.benchmarks(commit) == own
    with pytest.raises(ResultFileError, match="git"):
        builds.benchmarks("f" * 40)


PATIENT = """
import signal, sys, time
from pathlib import Path

def end(number, frame):
    Path(sys.argv[1]).write_text("ended well")
    sys.exit(1)

signal.signal(signal.SIGINT, end)
Path(sys.argv[2]).touch()
time.sleep(100)
"""


def test_an_interrupted_run_of_asv_ends_its_benchmark_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, begun = tmp_path / "ended", tmp_path / "begun"
    words = [sys.executable, "-c", PATIENT, str(ended), str(begun)]
    monkeypatch.setattr(asv, "_PATIENCE_S", 1.0)
    (tmp_path / "asv.conf.json").write_text('{"version": 1}')
    builds = Builds(tmp_path, tmp_path / "work", "box")
    monkeypatch.setattr(builds, "prepare", lambda commit: Path(sys.executable))
    monkeypatch.setattr(asv, "run_command", lambda *more: words)

    def interrupt(number: int, frame: object) -> None:
        if begun.exists():
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            builds.run(A)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ended.read_text() == "ended well"
