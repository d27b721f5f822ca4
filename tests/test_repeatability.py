"""tools/repeatability.py: runs are kept and continued, and the table says what they differ by."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tool_modules import tool_module

from rocmforge.bench.noise import load_noise
from rocmforge.hardware import hardware_tag

COMMIT = "c" * 40
VALUES = [10.0, 10.1, 10.2, 13.0]
BENCH = """
import json, sys
from pathlib import Path
state = Path({state!r})
count = int(state.read_text()) if state.exists() else 0
state.write_text(str(count + 1))
document = json.loads(Path({template!r}).read_text())
entry = document["baselines"]["m.track_ms"]
for key, value in entry["metrics"].items():
    if key.endswith("_ms"):
        entry["metrics"][key] = {values}[count]
Path({target!r}).parent.mkdir(parents=True, exist_ok=True)
Path({target!r}).write_text(json.dumps(document))
print("arguments", *sys.argv[1:])
sys.exit({code} if count == {fails_at} else 0)
"""


@pytest.fixture
def tool() -> Any:
    """The script as a module."""
    return tool_module("repeatability")


@pytest.fixture
def project(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root whose tools/bench.py writes the next of VALUES; the third call of all fails once."""
    from rocmforge.bench.baseline import save_baseline
    from rocmforge.bench.results import Direction, Result, ResultSet, Status
    from rocmforge.bench.statistics import summarize
    from rocmforge.hardware import detect

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
    target = tmp_path / ".asv" / "baselines" / hardware_tag() / "baseline.json"
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "bench.py").write_text(
        BENCH.format(
            state=str(tmp_path / "state"),
            template=str(tmp_path / "template.json"),
            target=str(target),
            values=[*VALUES[:2], 99.0, *VALUES[2:]],
            code=3,
            fails_at=2,
        ),
        encoding="utf-8",
    )
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool.provenance, "head", lambda root: (COMMIT, False))
    return tmp_path


def test_a_failed_run_is_not_kept_and_the_next_call_goes_on(
    tool: Any, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = project / ".asv" / "repeatability" / COMMIT / hashlib.sha256(b"m").hexdigest()[:8]
    assert tool.main(["--runs", "4", "--bench", "m"]) == 3
    said = capfd.readouterr()
    assert "exit 3, in run 3" in said.err
    assert "arguments --profile quick --bench m" in said.err
    assert sorted(p.name for p in kept.iterdir()) == ["01.json", "02.json"]

    assert tool.main(["--runs", "4", "--bench", "m", "--save"]) == 0
    said = capfd.readouterr()
    assert sorted(p.name for p in kept.iterdir()) == [f"0{i}.json" for i in (1, 2, 3, 4)]
    (row,) = (line.split() for line in said.out.splitlines() if line.startswith("m.track_ms"))
    assert row == ["m.track_ms", "10.15", "ms", "8.1", "%", "30.0", "%", "0", "of", "4"]
    assert "1 benchmarks in 4 runs: median spread 8.1 %, 1 above 5 %" in said.out
    saved = load_noise(project / "baselines" / hardware_tag() / "noise.json")
    assert saved["m.track_ms"].medians == tuple(VALUES)


def test_noise_is_not_replaced_by_that_of_fewer_benchmarks(
    tool: Any, project: Path, capfd: pytest.CaptureFixture[str]
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
    assert tool.main(["--runs", "2", "--save"]) == 2
    assert "without 1 of its benchmarks (m.other)" in capfd.readouterr().err
    assert len(load_noise(path)) == 2
    assert tool.main(["--runs", "2", "--save", "--replace"]) == 0
    assert list(load_noise(path)) == ["m.track_ms"]


def test_kept_runs_of_another_commit_are_refused(
    tool: Any, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = project / ".asv" / "repeatability" / COMMIT / "quick"
    kept.mkdir(parents=True)
    document = json.loads((project / "template.json").read_text(encoding="utf-8"))
    document["metadata"]["commit"] = "d" * 40
    for name in ("01.json", "02.json"):
        (kept / name).write_text(json.dumps(document), encoding="utf-8")
    assert tool.main(["--runs", "2"]) == 2
    assert "01.json" in capfd.readouterr().err


def test_a_changed_tree_is_refused(
    tool: Any, project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool.provenance, "head", lambda root: (COMMIT, True))
    assert tool.main([]) == 2
    assert "has changes: commit them" in capfd.readouterr().err
    assert not (project / ".asv").exists()


@pytest.mark.parametrize("runs", ["1", "x", "-3"])
def test_wrong_numbers_of_runs_are_usage_errors(repo: Path, runs: str) -> None:
    command = [sys.executable, str(repo / "tools" / "repeatability.py"), "--runs", runs]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "wanted 2 or more" in done.stderr
