"""Noise of runs of one commit: what it is, that it survives a file, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocmforge.bench.noise import (
    Noise,
    learn,
    load_noise,
    noise_path,
    process_floors,
    save_noise,
)
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


def processes(label: str, *medians: float, device: str = "'cpu'", **more: Any) -> Result:
    name, _, size = label.partition("/")
    known = {"param_names": ("size", "device"), "params": (size, device), **more}
    return replace(result(name, medians[0]), process_medians=medians, **known)


def test_every_timed_benchmark_has_the_floor_of_its_kind() -> None:
    pairs = [processes(f"m.time_x/{i}", 1.0, 1.0 + i / 100) for i in range(1, 11)]
    loud = [processes(f"m.time_y/{i}", 1.0, 1.5) for i in range(5)]
    alone = processes("m.time_x/alone", 1.0)  # one process: its kind speaks for it
    counted = processes("m.track_bytes/1", 1.0, 9.0, unit="bytes")
    floors = process_floors([run(*pairs, *loud, alone, counted)])
    assert floors["m.time_x(alone, 'cpu')"] == pytest.approx(0.091)  # 90th percentile of 1 … 10 %
    assert floors["m.time_x(1, 'cpu')"] == pytest.approx(0.091)
    assert floors["m.time_x(10, 'cpu')"] == pytest.approx(0.10)  # its own is larger
    assert floors["m.time_y(0, 'cpu')"] == pytest.approx(0.5)
    assert counted.label not in floors


def test_a_kind_of_few_pairs_takes_those_of_its_device() -> None:
    many = [processes(f"m.time_x/{i}", 1.0, 1.2) for i in range(8)]
    few = [processes(f"m.time_few/{i}", 1.0, 1.01) for i in range(4)]
    gpu = [processes("m.time_few/0", 1.0, 1.01, device="'gpu'")]
    floors = process_floors([run(*many, *few, *gpu)])
    assert floors["m.time_few(0, 'cpu')"] == pytest.approx(0.2)
    assert floors["m.time_few(0, 'gpu')"] == pytest.approx(0.01)  # a GPU has no noise of a CPU


def test_what_differs_between_runs_is_no_noise_and_load_is_none_either() -> None:
    before = run(*(processes(f"m.time_x/{i}", 1.0, 1.02) for i in range(5)))
    after = run(
        *(processes(f"m.time_x/{i}", 3.0, 3.09) for i in range(5)),
        processes("m.time_x/loaded", 1.0, 7.0, marked="other work took 90 % of the CPU time"),
        commit="b" * 40,
    )
    assert process_floors([before, after])["m.time_x(0, 'cpu')"] == pytest.approx(0.03)
    assert process_floors([run(result("m.time_x", 1.0))]) == {}
