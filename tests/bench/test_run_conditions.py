"""`bench run` on a busy machine; what stands beside a number: its error, conditions, reports."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_project import git

from rocmforge.bench import measure, other_work
from rocmforge.bench.baseline import load_baseline
from rocmforge.bench.cli import main
from rocmforge.bench.reports import read_reports
from rocmforge.bench.tables import MARK_LEGEND
from rocmforge.hardware import hardware_tag

pytest.importorskip("asv")

CHECKED_SUITE = '''\
"""A time with a check before it, a size, and a check that fails."""

import numpy as np

from rocmforge.timing import seconds_per_call

from .checks import checked
from .samples import track

SIZES = (1, 50_000)


class Spin:
    params = (SIZES,)
    param_names = ("size",)

    def setup(self, size):
        checked("numbers", lambda: np.array([1.0, 1.001 if size > 1 else 1.0]), np.ones(2), 0.01)

    def track_ms(self, size):
        return track([1e3 * s for s in seconds_per_call(lambda: sum(range(size)), fewest=8)])

    def track_bytes(self, size):
        return size

    track_ms.unit = "ms"
    track_bytes.unit = "bytes"


def track_wrong_ms():
    checked("wrong numbers", lambda: np.zeros(2), np.ones(2), 0.01)
    return 1.0


track_wrong_ms.unit = "ms"
'''


@pytest.fixture
def checked_project(project: Path) -> Path:
    """The project with a suite that checks its results."""
    (project / "benchmarks" / "checked.py").write_text(CHECKED_SUITE, encoding="utf-8")
    git(project, "add", "-A")
    git(project, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "second")
    return project


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """Processes that keep every CPU busy, three on each."""
    spinning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(3 * len(os.sched_getaffinity(0)))
    ]
    yield
    for process in spinning:
        process.kill()
        process.wait()


def measured(project: Path) -> dict[str, Any]:
    """Return what the local baseline says of each benchmark beside its metrics."""
    path = project / ".asv" / "baselines" / hardware_tag() / "baseline.json"
    stored = json.loads(path.read_text(encoding="utf-8"))["baselines"]
    return {label: entry["metadata"] for label, entry in stored.items()}


@pytest.mark.usefixtures("busy_machine")
@pytest.mark.parametrize(
    "command", [["gate"], pytest.param(["run", "--save-baseline"], marks=pytest.mark.slow)]
)
def test_a_busy_machine_is_refused_before_anything_is_measured(
    checked_project: Path, capfd: pytest.CaptureFixture[str], command: list[str]
) -> None:
    begin = time.monotonic()
    assert main([*command, "--bench", r"^checked\.Spin", "--max-load", "20"]) == 3
    assert time.monotonic() - begin < 15
    said = capfd.readouterr().err
    assert re.search(
        r"other work takes \d+ % of the CPU time or more \(limit 20 %, --max-load\)", said
    )
    assert "nothing was measured yet: stop what else runs on this machine" in said
    assert not list((checked_project / ".asv" / "results").glob("*/*.json"))


def test_a_burst_at_the_start_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = iter([0.9, 0.8, 0.1])
    monkeypatch.setattr(other_work, "others_share", lambda: next(shares))
    other_work.refuse_busy(0.2)
    assert next(shares, None) is None


@pytest.mark.slow
@pytest.mark.usefixtures("busy_machine")
def test_a_planted_load_marks_what_it_slows_and_refuses_the_run(
    checked_project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "refuse_busy", lambda limit: None)  # it comes a moment later
    arguments = ["--bench", r"^checked\.Spin", "--max-load", "20", "--save-baseline"]
    assert main(["run", *arguments]) == 3
    said = capfd.readouterr()
    assert "2 of 2 timed benchmarks were disturbed by other work" in said.err
    assert "% of the CPU time" in said.err
    assert "stop what else runs" in said.err
    assert MARK_LEGEND in said.out
    assert re.search(r"Spin\.track_ms +50000 +! \d", said.out)
    assert re.search(r"Spin\.track_bytes +50000 +\d", said.out)  # a size has no mark
    assert not (checked_project / "baselines").exists()
    found = measured(checked_project)
    assert "other work took" in found["checked.Spin.track_ms(50000)"]["marked"]
    assert found["checked.Spin.track_ms(50000)"]["conditions"]["others_share"] > 0.2
    assert found["checked.Spin.track_bytes(50000)"]["marked"] is None


def test_errors_and_conditions_stand_with_each_number(
    checked_project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--bench", r"^checked\.Spin", "--save-baseline"]) == 0
    shown = capfd.readouterr().out
    assert MARK_LEGEND not in shown
    assert "7.1e-04" in shown
    found = measured(checked_project)
    large, one = (found[f"checked.Spin.track_ms({size})"] for size in (50_000, 1))
    assert large["error"] == pytest.approx(1e-3 / 2**0.5)
    assert one["error"] == 0.0
    assert large["marked"] is None
    assert large["conditions"]["processes"] == 1
    assert large["conditions"]["wall_seconds"] > 0
    assert large["conditions"]["gpus"] == []
    assert "kernel" in large["conditions"]["versions"]
    baseline = checked_project / "baselines" / hardware_tag() / "baseline.json"
    kept = {r.label: r.error for r in load_baseline(baseline).results}
    assert kept["checked.Spin.track_ms(50000)"] == large["error"]

    # measured again, a benchmark's reports are replaced; a wrong result fails and has no number
    (written,) = (checked_project / ".asv" / "results").glob("*/*.jsonl")
    before = read_reports(written)
    assert len(before) == 4
    assert large["reference"]["read_gb_per_second"] > 0.1
    assert len(large["process_medians"]) == 1
    assert main(["run", "--bench", r"^checked\.(Spin\.track_ms|track_wrong)"]) == 1
    shown = capfd.readouterr().out
    assert "wrong numbers: wrong result, not timed" in shown
    assert "failed    checked.track_wrong_ms" in shown
    after = read_reports(written)
    assert len(after) == 4  # the failed one has nothing to say
    assert {len(reports) for reports in after.values()} == {1}
    assert sum(before.get(key) == found for key, found in after.items()) == 2


MEASURES = ("/x/asv/benchmark.py", "run", "/b")


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        ([*MEASURES, "m.C.time_x-12", "{}", "None", "/r"], ("m.C.time_x", 12)),
        (["benchmark.py", "run", "/b", "m.track_x", "{}", "None", "/r"], ("m.track_x", None)),
        (["benchmark.py", "discover", "/b", "/r"], None),
        (["benchmark.py", "setup_cache", "/b", "m.time_x-1", "{}"], None),
        ([*MEASURES, "what is this", "{}", "None", "/r"], None),
        ([*MEASURES, "m.C.time_x-12"], None),
        (["pytest", "run", "/b", "m.time_x-1", "{}", "None", "/r"], None),
        (["benchmark.py"], None),
        ([""], None),
    ],
)
def test_the_benchmark_of_a_process(argv: list[str], wanted: tuple[str, int] | None) -> None:
    from benchmarks.recording import measured_benchmark

    found = measured_benchmark(argv)
    assert wanted == (found and (found.benchmark, found.index))


def test_an_error_that_is_none_is_refused() -> None:
    from benchmarks.checks import note_error

    note_error(0.0)
    for value in (float("nan"), float("inf"), -1.0):
        with pytest.raises(ValueError, match="finite number"):
            note_error(value)
