"""A trace has every span and sample once, nests on each row, and is JSON that all viewers read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_profile import HOSTILE_OP, made_profile

from rocmforge.profiling.profile import Profile, Span
from rocmforge.profiling.trace import write_trace


def refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def trace_of(profile: Profile, folder: Path) -> dict[str, Any]:
    path = folder / "trace.json"
    write_trace(profile, path)
    return json.loads(path.read_text("utf-8"), parse_constant=refuse)


@pytest.fixture
def trace(tmp_path: Path) -> dict[str, Any]:
    return trace_of(made_profile(), tmp_path)


def events(trace: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == kind]


def test_every_span_is_one_event_in_microseconds(trace: dict[str, Any]) -> None:
    slices = {(e["name"], e["cat"], e["ts"], e["dur"]) for e in events(trace, "X")}
    shift = 250_000  # the first sample was taken 0.25 s before the profile began
    assert slices == {
        ("load", "request", 0 + shift, 1_500_000),
        ("request", "request", 1_500_000 + shift, 200_000),
        ("prefill", "phase", 1_500_000 + shift, 50_000),
        ("pass", "pass", 1_510_000 + shift, 30_000),
        (HOSTILE_OP, "op", 1_510_000 + shift, 10_000),
        ("matmul_qkv", "op", 1_520_000 + shift, 20_000),
        ("pass", "pass", 1_535_000 + shift, 20_000),
        ("decode", "phase", 1_600_000 + shift, 100_000),
    }
    assert len(events(trace, "X")) == len(slices)


def test_what_has_no_place_in_time_is_counted(trace: dict[str, Any]) -> None:
    assert trace["otherData"]["spans_left_out"] == 5 + 3  # NaN, infinite, negative


def test_host_and_device_are_processes_with_names(trace: dict[str, Any]) -> None:
    names = {e["pid"]: e["args"]["name"] for e in events(trace, "M") if e["name"] == "process_name"}
    host = next(e["pid"] for e in events(trace, "X") if e["name"] == "load")
    device = next(e["pid"] for e in events(trace, "X") if e["name"] == "matmul_qkv")
    assert host != device
    assert 0 not in (host, device)
    assert names == {host: "host", device: "hip:0: Radeon <b>RX</b> & co"}


def test_times_ascend_and_rows_nest(trace: dict[str, Any]) -> None:
    timed = [e for e in trace["traceEvents"] if e["ph"] != "M"]
    assert [e["ts"] for e in timed] == sorted(e["ts"] for e in timed)
    assert all(e["ts"] >= 0 for e in timed)
    open_until: dict[tuple[int, int], list[float]] = {}
    for event in events(trace, "X"):
        ends = open_until.setdefault((event["pid"], event["tid"]), [])
        while ends and ends[-1] <= event["ts"]:
            ends.pop()
        end = event["ts"] + event["dur"]
        assert not ends or end <= ends[-1], event
        ends.append(end)
    passes = [e["tid"] for e in events(trace, "X") if e["name"] == "pass"]
    assert len(set(passes)) == 2  # they overlap


def test_each_quantity_is_a_counter_of_what_was_shown(trace: dict[str, Any]) -> None:
    power = [e for e in events(trace, "C") if e["name"] == "power"]
    assert [(e["ts"], e["args"]) for e in power] == [
        (0, {"W": 100.0}),
        (500_000, {"W": 200.0}),
        (2_000_000, {"W": 300.0}),
    ]
    share = [e["args"] for e in events(trace, "C") if e["name"] == "utilization"]
    assert share == [{"%": 50.0}] * 5
    assert {e["name"] for e in events(trace, "C")} == {
        "clock",
        "power",
        "temperature",
        "utilization",
        "memory in use",
    }


def test_a_profile_without_monitor_and_spans_is_a_trace_too(tmp_path: Path) -> None:
    trace = trace_of(replace(made_profile(), monitor=None, spans=()), tmp_path)
    assert trace["traceEvents"] == []


def test_neighbours_that_touch_stay_on_one_row(tmp_path: Path) -> None:
    """Times that differ by a rounding error of floats are the same nanosecond."""
    tenth = 0.1
    spans = tuple(Span("op", "op", n * tenth, tenth, "device") for n in range(50))
    trace = trace_of(replace(made_profile(), spans=spans), tmp_path)
    assert len({e["tid"] for e in events(trace, "X")}) == 1


def test_an_old_trace_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("old")
    trace_of(made_profile(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_a_missing_folder_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_trace(made_profile(), tmp_path / "missing" / "trace.json")
