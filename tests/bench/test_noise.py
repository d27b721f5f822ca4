"""Noise of runs of one commit: what it is, that it survives a file, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocmforge.bench.noise import Noise, learn, load_noise, noise_path, save_noise
from rocmforge.bench.results import Direction, Result, ResultSet, Status
from rocmforge.bench.statistics import summarize
from rocmforge.errors import MeasurementError, ResultFileError
from rocmforge.hardware import Hardware, hardware_tag

HOST = Hardware(cpu_name="x", cpu_microarchitecture="zen4", cpu_count=2)


def result(name: str, value: float | None, marked: str | None = None) -> Result:
    return Result(
        name=name,
        param_names=(),
        params=(),
        status=Status.FAILED if value is None else Status.OK,
        value=value,
        summary=None if value is None else summarize([value]),
        samples=(),
        unit="ms",
        direction=Direction.LOWER,
        version="v1",
        started_at=None,
        marked=marked,
    )


def run(*results: Result, commit: str = "a" * 40) -> ResultSet:
    return ResultSet(Path("r.json"), "box", commit, None, "env", HOST, results)


def test_spread_and_floor_of_medians() -> None:
    values = [10.0, 10.0, 10.2, 10.4, 12.0]
    noise = learn([run(result("m.track_ms", value)) for value in values])
    one = noise["m.track_ms"]
    assert one.medians == tuple(values)
    assert one.spread == pytest.approx(0.4 / 10.2)  # quartiles are 10.0 and 10.4
    assert one.floor == pytest.approx(0.2)
    assert (one.unit, one.version, one.marked) == ("ms", "v1", 0)


def test_what_never_changes_has_no_noise() -> None:
    noise = learn([run(result("m.track_bytes", 0.0)), run(result("m.track_bytes", 0.0))])
    assert (noise["m.track_bytes"].spread, noise["m.track_bytes"].floor) == (0.0, 0.0)


def test_a_zero_among_others_is_no_small_noise() -> None:
    assert Noise("ms", None, (0.0, 1.0), 0).floor == float("inf")


def test_what_failed_or_ran_once_is_left_out_and_marks_are_counted() -> None:
    noise = learn(
        [
            run(result("a", 1.0, marked="load"), result("b", 1.0)),
            run(result("a", 2.0), result("b", None)),
            run(result("a", 3.0, marked="load")),
        ]
    )
    assert list(noise) == ["a"]
    assert noise["a"].marked == 2
    assert noise["a"].medians == (1.0, 2.0, 3.0)  # but one were marked


def test_a_run_under_load_is_no_noise() -> None:
    noise = learn([run(result("a", 1.0)), run(result("a", 9.0, "load")), run(result("a", 1.1))])
    assert noise["a"].medians == (1.0, 1.1)
    assert noise["a"].marked == 1


@pytest.mark.parametrize(
    ("runs", "error", "message"),
    [
        ([run(result("a", 1.0))], MeasurementError, "got 1 run, wanted at least 2"),
        ([run(result("a", 1.0)), run(result("a", 1.0), commit="b" * 40)], ValueError, "bbbbbbbb"),
        (
            [run(result("a", 1.0)), replace(run(result("a", 1.0)), hardware=Hardware("gpu"))],
            ValueError,
            "other hardware",
        ),
    ],
    ids=["one", "commits", "hardware"],
)
def test_runs_that_do_not_belong_together_are_refused(
    runs: list[ResultSet], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        learn(runs)


def test_a_file_keeps_everything(tmp_path: Path) -> None:
    noise = learn([run(result("m.track_ms('a', 1)", value)) for value in (1.0, 1.5)])
    path = noise_path(tmp_path, HOST)
    save_noise(path, noise, run())
    assert path.parent.name == hardware_tag(HOST)
    assert load_noise(path) == noise
    with pytest.raises(MeasurementError):
        save_noise(path, {}, run())
    assert load_noise(path) == noise


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("medians", [1.0]),
        ("medians", [1.0, None]),
        ("medians", [1.0, -2.0]),
        ("medians", "1, 2"),
        ("marked", -1),
        ("marked", True),
        ("version", 7),
        ("unit", None),
    ],
)
def test_a_broken_entry_is_named(tmp_path: Path, key: str, value: Any) -> None:
    path = tmp_path / "noise.json"
    save_noise(path, learn([run(result("m", 1.0)), run(result("m", 2.0))]), run())
    document = json.loads(path.read_text(encoding="utf-8"))
    document["benchmarks"]["m"][key] = value
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ResultFileError, match=key):
        load_noise(path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 9}', '{"version": 1}'])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "noise.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ResultFileError, match=r"noise\.json"):
        load_noise(path)
