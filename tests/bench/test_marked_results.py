"""Conditions beside results: written, read back, judged; broken ones are named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asv_tree import report
from rich.console import Console

from rocmforge.bench.baseline import load_baseline, save_baseline
from rocmforge.bench.reports import compact, read_reports
from rocmforge.bench.results import Direction, Result, ResultSet, Status
from rocmforge.bench.run_environment import (
    is_timed,
    marked_share,
    refusal,
    with_environments,
)
from rocmforge.bench.statistics import summarize
from rocmforge.bench.tables import results_table
from rocmforge.errors import ResultFileError
from rocmforge.hardware import Hardware

QUIET: dict[str, Any] = {"others_share": 0.01, "quota_throttled_share": None, "gpus": []}


def result(name: str, params: tuple[str, ...] = (), unit: str = "ms") -> Result:
    return Result(
        name=name,
        param_names=tuple(f"p{i}" for i in range(len(params))),
        params=params,
        status=Status.OK,
        value=2.0,
        summary=summarize([2.0]),
        samples=(2.0,),
        unit=unit,
        direction=Direction.LOWER,
        version=None,
        started_at=None,
    )


RECORDS = (
    result("m.track_ms", ("'a'",)),
    result("m.track_ms", ("'b'",)),
    result("m.track_bytes", ("'a'",), "bytes"),
    result("m.track_all", unit="tokens/s"),
)


def joined(file: Path, **options: Any) -> tuple[Result, ...]:
    return with_environments(RECORDS, read_reports(file.with_suffix(".jsonl")), **options)


def by_label(folder: Path, **options: Any) -> dict[str, Result]:
    return {r.label: r for r in joined(folder / "r.json", **options)}


def test_without_reports_nothing_is_known(tmp_path: Path) -> None:
    assert joined(tmp_path / "none") == RECORDS
    assert refusal(RECORDS) is None
    assert marked_share(RECORDS) == (0, 3)


def test_a_record_gets_the_reports_of_its_parameters(tmp_path: Path) -> None:
    report(tmp_path / "r.json", "m.track_ms", 0, 1e-7, QUIET)
    report(tmp_path / "r.json", "m.track_ms", 0, 3e-7, {**QUIET, "others_share": 0.1})
    report(tmp_path / "r.json", "m.track_ms", 1, 5e-3, QUIET)
    report(tmp_path / "r.json", "m.track_all", None, None, {**QUIET, "others_share": None})
    report(tmp_path / "r.json", "m.unknown", 4, 1.0, QUIET)
    found = by_label(tmp_path)
    a, b, everything = (
        found[label] for label in ("m.track_ms('a')", "m.track_ms('b')", "m.track_all")
    )
    assert (a.error, b.error, everything.error) == (3e-7, 5e-3, None)
    assert a.environment == {"processes": 2, **QUIET, "others_share": 0.1}
    assert everything.environment is not None
    assert found["m.track_bytes('a')"].environment is None
    assert {r.marked for r in found.values()} == {None}


def gpu(**said: Any) -> dict[str, Any]:
    return {**QUIET, "gpus": [{"device": "cuda:0", **said}]}


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        ({**QUIET, "others_share": 0.63}, "other work took 63 % of the CPU time"),
        ({**QUIET, "others_share": 0.2}, None),  # the limit itself is allowed
        ({**QUIET, "others_share": None}, None),
        ({**QUIET, "quota_throttled_share": 0.3}, "a CPU quota held it back for 30 % of the time"),
        ({**QUIET, "quota_throttled_share": 0.01}, None),
        (gpu(throttle=["power cap", "temperature"]), "cuda:0 throttled: temperature"),
        (gpu(throttle=["power cap", "clocks setting"]), None),
        (gpu(throttle=None), None),
        (
            gpu(utilization_before=0.8, other_processes=1),
            "other work kept cuda:0 busy for 80 % of the time",
        ),
        (gpu(utilization_before=0.8, other_processes=None), "other work kept cuda:0 busy for 80"),
        (  # in a container
            gpu(utilization_before=0.8, other_processes=0),
            "work that no process list shows kept cuda:0 busy for 80 % of the time",
        ),
        (gpu(utilization_before=0.5, other_processes=0), None),  # our own last process
        (gpu(utilization_before=0.1, other_processes=1), None),
    ],
)
def test_what_marks_a_time(tmp_path: Path, conditions: dict[str, Any], reason: str | None) -> None:
    report(tmp_path / "r.json", "m.track_ms", 0, None, QUIET)
    report(tmp_path / "r.json", "m.track_ms", 0, None, conditions)  # one of two processes is enough
    report(tmp_path / "r.json", "m.track_bytes", 0, None, conditions)
    found = by_label(tmp_path)
    marked = found["m.track_ms('a')"].marked
    assert marked is None if reason is None else (marked or "").startswith(reason)
    assert found["m.track_bytes('a')"].marked is None


def test_the_limit_is_an_argument(tmp_path: Path) -> None:
    report(tmp_path / "r.json", "m.track_ms", 0, None, {**QUIET, "others_share": 0.5})
    assert by_label(tmp_path, limit=0.6)["m.track_ms('a')"].marked is None
    assert by_label(tmp_path, limit=0.4)["m.track_ms('a')"].marked is not None


@pytest.mark.parametrize(("limit", "marked"), [(0.1, True), (0.2, True), (0.7, False)])
def test_the_limit_may_be_above_that_of_unlisted_work(
    tmp_path: Path, limit: float, marked: bool
) -> None:
    load = gpu(utilization_before=0.6, other_processes=0)
    report(tmp_path / "r.json", "m.track_ms", 0, None, load)
    assert (by_label(tmp_path, limit=limit)["m.track_ms('a')"].marked is not None) is marked


@pytest.mark.parametrize(
    ("unit", "timed"),
    [
        *[(u, True) for u in ("seconds", "s", "ms", "us", "µs", "ns", "GB/s", "tokens/s")],
        ("times ideal", True),
        *[(u, False) for u in ("bytes", "bits", "registers", "perplexity", "nats", "unit", "")],
    ],
)
def test_which_units_are_times(unit: str, timed: bool) -> None:
    assert is_timed(result("m.x", unit=unit)) is timed
    assert not is_timed(replace(result("m.x", unit=unit), status=Status.FAILED))


def test_a_run_that_is_mostly_marked_is_refused(tmp_path: Path) -> None:
    loaded = {**QUIET, "others_share": 0.63}
    report(tmp_path / "r.json", "m.track_ms", 0, None, loaded)
    half = (*joined(tmp_path / "r.json"), result("m.more"))
    assert marked_share(half) == (1, 4)
    assert refusal(half) is None
    report(tmp_path / "r.json", "m.track_ms", 1, None, loaded)
    exactly = (*joined(tmp_path / "r.json"), result("m.more"))
    assert refusal(exactly) is None
    most = joined(tmp_path / "r.json")
    reason = refusal(most)
    assert reason is not None
    assert reason.startswith("2 of 3 timed benchmarks were disturbed by other work")
    assert "63 % of the CPU time" in reason
    assert "measure again" in reason


@pytest.mark.parametrize(
    ("runs", "kept"),
    [
        ((("1", False), ("1", False)), 2),  # two processes of one run
        ((("1", False), ("1", False), ("2", False)), 1),  # measured again
        ((("1", False), ("2", True), ("2", True)), 3),  # asv was told to append
        ((("1", False), ("2", True), ("3", False)), 1),
        ((("1", True),), 1),
    ],
)
def test_a_later_run_replaces_what_an_earlier_one_reported_unless_it_appends(
    tmp_path: Path, runs: tuple[tuple[str, bool], ...], kept: int
) -> None:
    file = tmp_path / "r.json"
    report(file, "m.track_ms", 1, None, QUIET, run="0")
    for number, (run, appends) in enumerate(runs):
        median = 2.0 + number * 1e-6  # the result is 2.0
        report(file, "m.track_ms", 0, None, QUIET, run=run, appends=appends, median=median)
    first, second, *_ = joined(file)
    assert first.process_medians == tuple(2.0 + n * 1e-6 for n in range(len(runs)))[-kept:]
    assert first.environment is not None
    assert first.environment["processes"] == kept
    assert second.environment is not None  # of another benchmark: nothing replaced it
    file.with_suffix(".jsonl").write_bytes(compact(file.with_suffix(".jsonl")))
    assert joined(file)[0] == first
    assert file.with_suffix(".jsonl").read_bytes().count(b"\n") == kept + 1


@pytest.mark.parametrize(
    ("medians", "known"),
    [((2.0,), True), ((1.9, 2.1), True), ((2.1, 2.2), False), ((1.9,), False), ((), True)],
)
def test_reports_of_a_run_that_was_killed_before_asv_stored_it_do_not_count(
    tmp_path: Path, medians: tuple[float, ...], known: bool
) -> None:
    file = tmp_path / "r.json"
    report(file, "m.track_ms", 0, None, {**QUIET, "others_share": 0.9})  # failed: no median
    for median in medians:
        report(file, "m.track_ms", 0, None, {**QUIET, "others_share": 0.9}, median=median)
    first, *_ = joined(file)
    assert (first.marked is not None) is known
    assert (first.environment is not None) is known


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"version": 1}, "version"),
        ({"version": 3}, "version"),
        ({"version": True}, "version"),
        ({"benchmark": 3}, "benchmark"),
        ({"index": "1"}, "index"),
        ({"index": True}, "index"),
        ({"error": "small"}, "error"),
        ({"run": 1}, "run"),
        ({"appends": "no"}, "appends"),
        ({"median": "fast"}, "median"),
        ({"median": float("nan")}, "median"),
        ({"reference": []}, "reference"),
        ({"reference": {"read_gb_per_second": 40.0}}, "read_gb_per_second"),
        ({"reference": {"read_gb_per_second": []}}, "read_gb_per_second"),
        ({"reference": {"square_roots_per_ns": [1.0, 0.0]}}, "square_roots_per_ns"),
        ({"error": float("nan")}, "error"),
        ({"conditions": []}, "conditions"),
        ({"conditions": {"others_share": "much"}}, "others_share"),
        ({"conditions": {"gpus": {}}}, "gpus"),
        ({"conditions": {"gpus": [3]}}, "gpus"),
        ({"conditions": {"gpus": [{}]}}, "device"),
        ({"conditions": gpu(device=3)}, "device"),
        ({"conditions": gpu(throttle=5)}, "throttle"),
        ({"conditions": gpu(throttle="power cap")}, "throttle"),
        ({"conditions": gpu(throttle=["power cap", None])}, "throttle"),
        ({"conditions": gpu(utilization_before="much")}, "utilization_before"),
        ({"conditions": gpu(utilization_before=float("nan"))}, "utilization_before"),
        ({"conditions": gpu(other_processes=[])}, "other_processes"),
    ],
)
def test_a_broken_report_is_named(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    report(tmp_path / "r.json", "m.track_ms", 0, None, QUIET)
    path = report(tmp_path / "r.json", "m.track_ms", 0, None, QUIET)
    first, second = path.read_text(encoding="utf-8").splitlines()
    broken = json.dumps({**json.loads(second), **change})
    path.write_text(f"{first}\n{broken}\n", encoding="utf-8")
    with pytest.raises(ResultFileError, match=named) as error:
        joined(tmp_path / "r.json")
    assert f"{path.name}, line 2" in str(error.value)


def results(*results: Result) -> ResultSet:
    host = Hardware(cpu_name="x")
    return ResultSet(Path("r.json"), "box", "a" * 40, None, "env", host, results)


def test_a_baseline_keeps_them(tmp_path: Path) -> None:
    loaded = {**QUIET, "others_share": 0.63}
    rates = {"read_gb_per_second": [40.0, 44.0, 45.0], "square_roots_per_ns": [1.0]}
    for median in (1.9, 2.1):
        more = {"median": median, "reference": rates}
        report(tmp_path / "c.json", "m.track_ms", 0, 2e-3, loaded, **more)
    path = tmp_path / "baseline.json"
    save_baseline(path, results(*joined(tmp_path / "c.json")))
    first, second, *_ = load_baseline(path).results
    assert first.error == 2e-3
    assert first.environment == {"processes": 2, **loaded}
    assert first.process_medians == (1.9, 2.1)
    assert first.reference == {"read_gb_per_second": 44.0, "square_roots_per_ns": 1.0}
    assert (second.process_medians, second.reference) == ((), None)
    assert first.marked == "other work took 63 % of the CPU time"
    assert (second.error, second.environment, second.marked) == (None, None, None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("error", "x"),
        ("conditions", []),
        ("marked", 3),
        ("process_medians", 3.0),
        ("process_medians", ["fast"]),
        ("reference", [1.0]),
        ("reference", {"read_gb_per_second": 0.0}),
        ("reference", {"read_gb_per_second": "fast"}),
        ("error", True),
        ("samples", 2.0),
        ("samples", [2.0, None]),
    ],
)
def test_a_baseline_that_contradicts_itself_is_named(
    tmp_path: Path, key: str, value: object
) -> None:
    path = tmp_path / "baseline.json"
    save_baseline(path, results(RECORDS[0]))
    document = json.loads(path.read_text(encoding="utf-8"))
    metadata = document["baselines"]["m.track_ms('a')"]["metadata"]
    metadata[key] = value
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ResultFileError, match=key.rstrip("s")):
        load_baseline(path)
    newer = ("error", "conditions", "marked", "samples", "process_medians", "reference")
    for name in newer:  # which older ones lack
        del metadata[name]
    path.write_text(json.dumps(document), encoding="utf-8")
    assert load_baseline(path).results[0].error is None


def shown(*results: Result) -> list[list[str]]:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(results_table(results, None))
    return [line.split() for line in capture.get().splitlines()]


def test_the_table_shows_marks_and_errors() -> None:
    plain = result("m.track_all")
    marked = replace(plain, marked="other work", error=2.3e-7)
    head, _, *rows = shown(marked, plain, replace(plain, error=0.0))
    assert head[-1] == "error"
    assert rows[0] == ["track_all", "!", "2", "ms", "1", "2.3e-07"]
    assert rows[1] == ["track_all", "2", "ms", "1"]
    assert rows[2] == ["track_all", "2", "ms", "1", "0"]
    assert shown(plain)[0][-1] == "change"
