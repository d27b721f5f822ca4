"""`rocmforge bench fleet` itself, on the devices of this machine, with a stand-in that measures."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from fleet_runs import STANDIN, Fleet, git, repository

from rocmforge.bench.cli import main
from rocmforge.bench.fleet import local
from rocmforge.bench.fleet.local import LocalBox, LocalEngine, boxes_here
from rocmforge.bench.fleet.parts import KNOWN_KIND
from rocmforge.hardware import amd_architectures, detect

pytest.importorskip("asv")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of three commits with settings of asv, which is the current folder."""
    root = tmp_path / "project"
    repository(root)
    (root / "benchmarks").mkdir()
    (root / "benchmarks" / "__init__.py").touch()
    config = {"version": 1, "project": "p", "repo": ".", "branches": ["HEAD"]}
    (root / "asv.conf.json").write_text(json.dumps(config))
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "settings")
    monkeypatch.chdir(root)
    monkeypatch.setenv("ROCMFORGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("COLUMNS", raising=False)
    return root


def command(folder: Path, seconds: float = 0) -> str:
    words = [sys.executable, str(STANDIN), str(folder / "journal"), str(seconds)]
    return f'{shlex.join(words)} "$1" "$2"'


def test_from_commits_to_pages_and_again(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fleet", "HEAD~2..HEAD", "--command", command(tmp_path), "--out", "out"]
    assert main([*words, "--dry-run"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == ["boxes", "missing", "missing", "fleet"]
    assert not (project / "out").exists()
    assert main(words) == 0
    said = capsys.readouterr().out.splitlines()
    assert "fleet     2 of 2 parts gathered" in said
    assert said[-1] == "published out/html/index.html"
    assert "boxes     no two of one kind with enough to compare" in said
    assert (project / "out" / "html" / "index.html").exists()
    report = json.loads((project / "out" / "report.json").read_text("utf-8"))
    hashes = git(project, "rev-list", "--reverse", "HEAD~2..HEAD").split()
    assert [one["commit"] for one in report["gathered"].values()] == hashes
    assert report["missing"] == {}
    tags = [path.name for path in (project / "out" / "results").iterdir() if path.is_dir()]
    assert len(tags) == 1

    (tmp_path / "journal").unlink()
    assert main([*words, "--keep", "1"]) == 0  # what is wanted stays
    assert not (tmp_path / "journal").exists()
    capsys.readouterr()
    assert main(["fleet", *words[2:], "--keep", "1"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.startswith("dropped")]
    assert len([*(project / "out" / "parts").iterdir()]) == 1


def test_results_of_others_stay_and_are_named(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fleet", "--command", command(tmp_path), "--out", "out", "--results", "results"]
    assert main(words) == 0
    assert "kept " not in capsys.readouterr().out
    (machine,) = (project / "results").glob("*/machine.json")
    (project / "out" / "written.json").unlink()
    machine.write_text("{}")
    main(words)
    said = capsys.readouterr().out
    what = f"1 files of results that this fleet did not write: {machine.parent.name}/machine.json"
    assert f"kept      {what}" in said.splitlines()
    assert machine.read_text() == "{}"


def test_what_fails_is_missing_with_its_reason(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fleet", "--command", "echo no such device; false", "--out", "out", "--tries", "2"]
    assert main(words) == 3
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "fleet     0 of 1 parts gathered"
    (line,) = [line for line in said if line.startswith("missing")]
    assert line.count("no results/ in the checkout: no such device") == 2
    report = json.loads((project / "out" / "report.json").read_text("utf-8"))
    assert len(report["missing"]) == 1
    assert len([*(project / "out" / "failures").iterdir()]) == 2


def test_a_kind_that_is_not_here(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "--kind", "gfx9999", "--out", "out"]) == 3
    assert "no box of kind gfx9999, the engine has " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--slurm", "partition=x"], "--slurm goes with --engine slurm: got --engine local"),
        (["--engine", "slurm", "--slurm", "=x"], "got '=x', wanted NAME=VALUE or KIND:NAME=VALUE"),
        (["--command", "x", "--bench", "y"], "leave out --bench and --profile"),
        (["--kind", "../x"], "got '../x', wanted a name such as gfx942"),
        (["--boxes", "0"], "got '0', wanted 1 to 9"),
    ],
)
def test_wrong_usage(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["fleet", *words])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("commits", ["HEAD..HEAD", "x..y", "nothing"])
def test_commits_that_are_none(
    commits: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fleet", commits, "--out", "out"]) == 2
    assert f"got {commits!r}, wanted " in capsys.readouterr().err


@pytest.mark.parametrize(("engine", "package"), [("slurm", "submitit"), ("ray", "ray")])
def test_an_engine_whose_package_is_missing_names_its_extra(
    engine: str,
    package: str,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["fleet", "--engine", engine, "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"rocmforge bench fleet: error: --engine {engine}: got import of")
    assert f"pip install -e '.[fleet-{engine}]'" in error


def test_an_interrupt_ends_what_runs_and_says_that_the_rest_stays(
    project: Path, tmp_path: Path, repo: Path
) -> None:
    words = ["fleet", "--command", command(tmp_path, 60), "--out", "out"]
    own = {**os.environ, "PYTHONPATH": str(repo), "PYTHONFAULTHANDLER": "1"}
    running = subprocess.Popen(
        [sys.executable, "-m", "rocmforge", "bench", *words],
        stderr=subprocess.PIPE,
        env=own,
        text=True,
    )
    while not (tmp_path / "journal").exists():
        time.sleep(0.05)
    children = psutil.Process(running.pid).children(recursive=True)
    assert len(children) >= 2
    running.send_signal(signal.SIGTERM)  # a shell lets what it runs behind ignore SIGINT
    try:
        _, said = running.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        running.send_signal(signal.SIGABRT)  # it says where it is
        _, said = running.communicate()
    assert running.returncode == 130, said
    assert "what was gathered stays, and the same command measures the rest" in said
    psutil.wait_procs(children, timeout=5)
    left = [one for one in children if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert left == []


def test_a_worker_that_cannot_begin_is_a_failed_attempt(tmp_path: Path) -> None:
    """Its process ends without a bundle: what it said last is the reason."""
    (tmp_path / "file").write_text("")
    own = {"ROCMFORGE_CACHE": str(tmp_path / "file")}
    engine = LocalEngine({"n0": LocalBox("cpu", own)}, tmp_path)
    fleet = Fleet(tmp_path / "run")
    outcome = fleet.run(engine, fleet.wanted(("cpu",), 1), tries=1)
    assert len(outcome.missing) == 2
    assert all("ended with exit 1: " in why for why in outcome.missing.values())
    assert all("ROCMFORGE_CACHE" in why for why in outcome.missing.values())


def test_the_devices_of_this_machine() -> None:
    boxes = boxes_here()
    assert boxes
    assert all(KNOWN_KIND.fullmatch(box.kind) for box in boxes.values())
    if detect().gpu_architecture is None:
        assert [box.environment for box in boxes.values()] == [{}]


def test_each_gpu_of_the_kind_is_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "amd_architectures", lambda: ["gfx942", "gfx1100", "gfx942"])
    monkeypatch.setattr(local, "kind_of_hardware", lambda hardware: "gfx942")
    found = [(box.kind, {**box.environment}) for box in boxes_here().values()]
    assert found == [
        ("gfx942", {"ROCR_VISIBLE_DEVICES": "0"}),
        ("gfx942", {"ROCR_VISIBLE_DEVICES": "2"}),
    ]


def test_architectures_are_those_of_the_driver_in_its_order(tmp_path: Path) -> None:
    for number, target in (("0", 0), ("1", 90402), ("2", 110000), ("10", 90402)):
        node = tmp_path / "sys/class/kfd/kfd/topology/nodes" / number
        node.mkdir(parents=True)
        (node / "properties").write_text(f"simd_count 4\ngfx_target_version {target}\n")
    assert amd_architectures(tmp_path) == ["gfx942", "gfx1100", "gfx942"]
