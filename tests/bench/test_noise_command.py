"""`rocmforge bench noise`: runs are kept and continued, and the table says what they differ by."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rocmforge.bench import repeat
from rocmforge.bench.baseline import save_baseline
from rocmforge.bench.cli import main
from rocmforge.bench.measure import Run
from rocmforge.bench.noise import load_noise
from rocmforge.bench.results import Direction, Result, ResultSet, Status
from rocmforge.bench.statistics import summarize
from rocmforge.errors import MeasurementError
from rocmforge.hardware import detect, hardware_tag

COMMIT = "c" * 40
VALUES = [10.0, 10.1, 10.2, 13.0]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root in which a measurement gives the next of VALUES; the third of all fails once."""
    result = Result(
        name="m.track_ms",
        param_names=(),
        params=(),
        status=Status.OK,
        value=1.0,
        summary=summarize([1.0]),
        samples=(),
        unit="ms",
        direction=Direction.LOWER,
        version="v",
        started_at=None,
    )
    run = ResultSet(Path("r"), "box", COMMIT, None, "existing", detect(), (result,))
    save_baseline(tmp_path / "template.json", run)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "asv.conf.json").touch()
    values = iter([*VALUES[:2], None, *VALUES[2:]])

    def measure_head(bench: list[re.Pattern[str]], profile: str, *more: object) -> Run:
        value = next(values)
        if value is None:
            chosen = [one.pattern for one in bench]
            raise MeasurementError(f"nothing measured of {profile} {chosen}")
        one = replace(result, value=value, summary=summarize([value]))
        stored = tmp_path / "stored.json"
        save_baseline(stored, replace(run, results=(one,)))
        return Run(run, [], "box", stored, stored, stored)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(repeat, "measure_head", measure_head)
    monkeypatch.setattr(repeat.project, "head", lambda root: (COMMIT, False))
    return tmp_path


def test_a_failed_run_is_not_kept_and_the_next_call_goes_on(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = project / ".asv" / "repeatability" / COMMIT / hashlib.sha256(b"m").hexdigest()[:8]
    assert main(["noise", "--runs", "4", "--bench", "m"]) == 3
    said = capfd.readouterr()
    assert "in run 3" in said.err
    assert "nothing measured of quick ['m']" in said.err
    assert sorted(p.name for p in kept.iterdir()) == ["01.json", "02.json"]

    assert main(["noise", "--runs", "4", "--bench", "m", "--save"]) == 0
    said = capfd.readouterr()
    assert sorted(p.name for p in kept.iterdir()) == [f"0{i}.json" for i in (1, 2, 3, 4)]
    (row,) = (line.split() for line in said.out.splitlines() if line.startswith("m.track_ms"))
    assert row == ["m.track_ms", "10.15", "ms", "8.1", "%", "30.0", "%", "0", "of", "4"]
    assert "1 benchmarks in 4 runs: median spread 8.1 %, 1 above 5 %" in said.out
    saved = load_noise(project / "baselines" / hardware_tag() / "noise.json")
    assert saved["m.track_ms"].medians == tuple(VALUES)


def test_noise_is_not_replaced_by_that_of_fewer_benchmarks(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = project / ".asv" / "repeatability" / COMMIT / "quick"
    kept.mkdir(parents=True)
    for name in ("01.json", "02.json"):
        shutil.copy(project / "template.json", kept / name)
    path = project / "baselines" / hardware_tag() / "noise.json"
    path.parent.mkdir(parents=True)
    one = {"unit": "ms", "version": None, "medians": [1.0, 2.0], "marked": 0}
    older = {"version": 1, "benchmarks": {"m.track_ms": one, "m.other": one}}
    path.write_text(json.dumps(older), encoding="utf-8")
    assert main(["noise", "--runs", "2", "--save"]) == 2
    assert "without 1 of its benchmarks (m.other)" in capfd.readouterr().err
    assert len(load_noise(path)) == 2
    assert main(["noise", "--runs", "2", "--save", "--replace"]) == 0
    assert list(load_noise(path)) == ["m.track_ms"]


def test_kept_runs_of_another_commit_are_refused(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = project / ".asv" / "repeatability" / COMMIT / "quick"
    kept.mkdir(parents=True)
    document = json.loads((project / "template.json").read_text(encoding="utf-8"))
    document["metadata"]["commit"] = "d" * 40
    for name in ("01.json", "02.json"):
        (kept / name).write_text(json.dumps(document), encoding="utf-8")
    assert main(["noise", "--runs", "2"]) == 2
    assert "01.json" in capfd.readouterr().err


def test_a_changed_tree_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(repeat.project, "head", lambda root: (COMMIT, True))
    assert main(["noise"]) == 2
    assert "has changes: commit them" in capfd.readouterr().err
    assert not (project / ".asv").exists()


@pytest.mark.parametrize("runs", ["1", "x", "-3"])
def test_wrong_numbers_of_runs_are_usage_errors(
    runs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["noise", "--runs", runs])
    assert stopped.value.code == 2
    assert "wanted 2 or more" in capsys.readouterr().err
