"""The overview's cards: what they say of comparisons, and which figures they show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from dashboard_runs import machine, result, run

from rocmforge.bench.compare import compare
from rocmforge.bench.dashboard import overview
from rocmforge.bench.dashboard.speeds import DECODE, PREFILL, Speed, speeds
from rocmforge.bench.results import Direction, Result, ResultSet


def verdict(before: list[Result], after: list[Result]) -> dict[str, str]:
    first, second = run("a", *before, day=1), run("b", *after, day=2)
    known = machine(second, earlier=[first])
    judged = replace(known, previous=first, since_previous=compare(first, second))
    return overview.verdicts(judged)[0]


def said(before: list[Result], after: list[Result]) -> str:
    return verdict(before, after)["said"]


def test_what_cannot_be_compared_is_no_unchanged_benchmark() -> None:
    one = result("a.track_a", {}, 1.0)
    other = replace(one, version="other")
    own = replace(one, version="own")
    assert said([own], [other]) == "0 benchmarks beside aaaaaaaa: 1 not comparable."


def test_what_is_new_or_missing_is_not_among_the_compared() -> None:
    same, gone = result("a.track_a", {}, 1.0), result("b.track_b", {}, 1.0)
    assert said([same, gone], [same]) == "1 benchmark beside aaaaaaaa: 1 missing."
    assert said([same], [same, gone]) == "1 benchmark beside aaaaaaaa: no change."
    assert said([same], [gone]) == "0 benchmarks beside aaaaaaaa: 1 missing."


def test_what_mostly_cannot_be_told_is_no_pass() -> None:
    timed = [result(f"a.time_{name}", {}, 1.0) for name in "abc"]
    marked = [replace(one, marked="other work took 80 % of the CPU time") for one in timed]
    assert verdict(timed, timed)["outcome"] == "pass"
    found = verdict(timed, [timed[0], *marked[1:]])
    assert (found["outcome"], found["said"]) == (
        "cannot tell",
        "3 benchmarks beside aaaaaaaa: 2 cannot tell.",
    )


def speed(phase: str, value: float | None, device: str, **more: Any) -> Speed:
    fields: dict[str, Any] = {
        "model": "1.1B",
        "format": "Q4_0",
        "phase": phase,
        "setting": "batch 1" if phase == DECODE else "prompt of 128",
        "device": device,
        "value": value,
        "unit": "tokens/s",
        "direction": Direction.HIGHER,
        "commit": "a" * 40,
        "date": None,
        "source": "newest run",
    }
    return Speed(**{**fields, **more})


ONE = overview.Headline("1.1B", "Q4_0", 128)


def test_all_figures_are_of_the_device_and_the_source_of_decode() -> None:
    decode = speed(DECODE, 10.0, "cpu")
    beside = speed(PREFILL, 90.0, "2 threads", source="baseline")
    same = speed(PREFILL, 80.0, "cpu", source="baseline")
    rows = [speed(PREFILL, 900.0, "gpu"), beside, same, decode]
    assert ONE.figures(rows) == {DECODE: decode, PREFILL: same}
    assert ONE.figures([*rows[:2], decode]) == {DECODE: decode, PREFILL: beside}


def test_what_was_measured_beside_llama_cpp_is_of_the_same_device() -> None:
    peer = speed(DECODE, 5.0, "2 threads", peer=4.0, ratio=1.25)
    assert overview.beside_peer([peer], ONE, {DECODE: speed(DECODE, 9.0, "cpu")}) == {DECODE: peer}
    assert overview.beside_peer([peer], ONE, {DECODE: speed(DECODE, 9.0, "gpu")}) == {}


@pytest.mark.parametrize(
    ("device", "value", "wanted"),
    [("gpu", 2.0, (0.5, "a" * 8)), ("cpu", 2.0, None), ("gpu", 1e-310, None), ("gpu", -2.0, None)],
)
def test_the_share_of_the_roofline_is_of_the_device_of_decode(
    device: str, value: float, wanted: tuple[float, str] | None
) -> None:
    params = {"model": "1.1B-Q4_0", "device": device}
    known = machine(run("a", result(overview.ROOFLINE, params, value)))
    assert overview.roofline_share(known, ONE, speed(DECODE, 9.0, "gpu")) == wanted


def test_the_headline_is_what_most_machines_have_a_value_of() -> None:
    many = [speed(phase, 1.0, "cpu", model="8B") for phase in (PREFILL, DECODE)]
    one = [speed(PREFILL, 1.0, "cpu")]
    none = [speed(PREFILL, None, "cpu", model="9B")]
    assert overview.choose_headline([[*many, *one, *none], one, none, none]) == ONE
    assert overview.choose_headline([none]) is None


@pytest.mark.parametrize("value", [1e-310, 1e-307, -1.0, float("inf"), 0.0])
def test_an_odd_value_is_no_speed(value: float) -> None:
    params = {"model": "1.1B-Q4_0"}
    name = "inference.Size.track_decode_ms_per_token"
    (row,) = speeds(machine(run("a", result(name, params, value))))
    assert row.value is None
    assert row.absent


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(1e-310, "n/a"), (-1.0, "n/a"), (1e-9, "1e-09 tokens/s"), (1234.5, "1,234 tokens/s")],
)
def test_a_figure_of_any_size_is_short(value: float, wanted: str) -> None:
    assert overview.figure(speed(DECODE, value, "cpu")) == wanted


def test_the_line_has_one_environment_and_one_version_and_nothing_that_is_marked() -> None:
    name, params = "inference.Decode.track_decode_tokens_per_second", {"model": "m-Q4_0"}

    def of(commit: str, value: float, **more: Any) -> ResultSet:
        return run(commit, result(name, params, value, "tokens/s", **more), day=ord(commit))

    other = replace(of("e", 50.0), asv_environment="virtualenv-py3.12")
    runs = [of("a", 1.0, version="0"), of("b", 9.0), of("c", 2.0, marked="busy"), of("d", 8.0)]
    line = overview.sparkline([*runs, other, of("f", 7.0)], None)
    assert line is not None
    assert [value for _, _, value in line["points"]] == [9.0, 8.0, 7.0]
