"""conditions.html: clocks, power, temperature and other load of each run; joules per token."""

from __future__ import annotations

from typing import Any

from dashboard_runs import machine, result, run

from rocmforge.bench.dashboard.conditions_data import ENERGY, conditions_data
from rocmforge.bench.results import Result

CARD = {
    "clock_mhz": [900.0, 1500.0, 1980.0],
    "power_watts": [100.0, 150.0, 200.0],
    "temperature_celsius": [40.0, 41.0, 42.0],
    "throttle": [],
}


def process(**environment: Any) -> Result:
    return result("rope.time_rope", unit="seconds", environment=environment)


def conditions(*results: Result) -> dict[str, Any]:
    found = run("a", *results)
    (box,) = conditions_data([machine(found)], {"box": [found]})["machines"]
    (one,) = box["runs"]
    return dict(one)


def test_a_field_has_least_median_and_most_of_all_processes() -> None:
    one = conditions(
        process(others_share=0.01, cpu_mhz=[2000.0, 2500.0, 3000.0], gpus=[CARD]),
        process(others_share=0.05, cpu_mhz=[1000.0, 2700.0, 2900.0], gpus=[]),
        process(others_share=0.02, cpu_mhz=None),
    )
    assert one["load"] == [1.0, 2.0, 5.0]
    assert one["cpu_clock"] == [1000.0, 2600.0, 3000.0]
    assert one["gpu_clock"] == [900.0, 1500.0, 1980.0]
    assert one["gpu_power"] == [100.0, 150.0, 200.0]
    assert one["gpu_memory_clock"] is None
    assert (one["commit"], one["date"], one["measured"]) == ("aaaaaaaa", "2023-11-14", "2023-12-14")


def test_throttling_is_none_where_the_card_told_of_none_and_unknown_without_a_card() -> None:
    assert conditions(process(gpus=[CARD]))["throttling"] == []
    assert conditions(process(gpus=[]))["throttling"] is None
    both = conditions(process(gpus=[{"throttle": ["power cap", "heat"]}, {"throttle": ["heat"]}]))
    assert both["throttling"] == ["heat", "power cap"]


def test_marked_benchmarks_are_counted_among_the_timed_ones() -> None:
    quiet, loud = process(others_share=0.0), process(others_share=0.9)
    marked = result("rope.time_rope", unit="seconds", marked="other work")
    one = conditions(quiet, loud, marked, result("a.track_bytes", unit="bytes"))
    assert (one["marked"], one["timed"]) == (1, 3)


def test_nonsense_in_an_environment_is_not_recorded() -> None:
    one = conditions(
        process(others_share="much", cpu_mhz=[True, float("nan"), 10**400], gpus=["card", None]),
    )
    assert one["load"] is None
    assert one["cpu_clock"] is None
    assert one["throttling"] is None


def test_joules_per_token_are_one_point_for_each_commit_and_model() -> None:
    def energy(value: float) -> Result:
        return result(ENERGY, {"model": "1B", "device": "gpu"}, value, "J")

    baseline = run("b", energy(0.3), day=2)
    runs = [run("a", energy(0.31), day=1), run("b", energy(0.25), day=2)]
    (box,) = conditions_data([machine(baseline=baseline)], {"box": runs})["machines"]
    assert [(one["commit"], one["value"]) for one in box["energy"]] == [
        ("aaaaaaaa", 0.31),
        ("bbbbbbbb", 0.25),
    ]
