"""Boxes of one kind beside each other: the one that differs is named, equal ones are not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from asv_tree import A, B
from fleet_bundles import bundle, provenance

from rocmforge.bench.fleet.boxes import Standing, standings
from rocmforge.bench.fleet.parts import Part
from rocmforge.bench.fleet.store import Store


def compared(
    folder: Path,
    values: Mapping[str, float],
    rates: Mapping[str, float] | None = None,
    unit: str = "ms",
    commits: tuple[str, ...] = (A,),
    benchmarks: int = 5,
) -> list[Standing]:
    """The standings of boxes that each measured a copy, or a commit of its own, that fast."""
    store = Store(folder / "fleet", folder / "fleet" / "results")
    for number, (box, value) in enumerate(values.items()):
        commit, copy = commits[number % len(commits)], number // len(commits)
        part = Part(commit, "cpu", "quick", copy=copy)
        one = provenance(part, f"0000000{number}", box)
        timed = {f"a.track_{n}": (n + 1) * value for n in range(benchmarks)}
        read = {"read_gb_per_second": [rates[box]]} if rates else {}
        bundle(store.inbox, one, values=timed, rates=read, unit=unit)
    store.collect(lambda error: pytest.fail(str(error)))
    return standings(store.merge().values())


def outliers(found: list[Standing]) -> list[tuple[str, str, float]]:
    return [(one.box, one.what, round(one.slowdown, 2)) for one in found if one.is_outlier]


def test_equal_boxes_are_compared_and_none_is_named(tmp_path: Path) -> None:
    found = compared(tmp_path, {"n0": 2.0, "n1": 2.1, "n2": 1.9})
    assert [one.count for one in found] == [5, 5, 5]
    assert outliers(found) == []


def test_of_two_boxes_the_slower_one_is_named(tmp_path: Path) -> None:
    found = compared(tmp_path, {"n0": 2.6, "n1": 2.0})
    assert outliers(found) == [("n0", "benchmarks", 1.3)]
    assert str(found[0]) == "n0 (box): 1.30 times slower, over 5 benchmarks"


def test_of_several_the_one_that_differs(tmp_path: Path) -> None:
    assert outliers(compared(tmp_path / "1", {"n0": 2.0, "n1": 2.0, "n2": 3.0})) == [
        ("n2", "benchmarks", 1.5)
    ]
    (faster,) = [
        one for one in compared(tmp_path / "2", {"n0": 2.0, "n1": 2.0, "n2": 1.0}) if one.is_outlier
    ]
    assert str(faster).startswith("n2 (box): 2.00 times faster, over 5")


def test_rates_are_better_where_they_are_higher(tmp_path: Path) -> None:
    found = compared(tmp_path, {"n0": 50.0, "n1": 100.0}, unit="tokens/s")
    assert outliers(found) == [("n0", "benchmarks", 2.0)]


def test_reference_kernels_tell_though_no_commit_was_measured_twice(tmp_path: Path) -> None:
    values, rates = {"n0": 2.0, "n1": 9.0}, {"n0": 20.0, "n1": 10.0}
    found = compared(tmp_path, values, rates, commits=(A, B))
    assert outliers(found) == [("n1", "read_gb_per_second", 2.0)]
    assert {one.what for one in found} == {"read_gb_per_second"}
    said = "n1 (box): 2.00 times slower in reading memory, over 5 benchmarks"
    assert str(found[0]) == said


def test_a_few_benchmarks_say_nothing(tmp_path: Path) -> None:
    rates = {"n0": 20.0, "n1": 10.0}
    assert compared(tmp_path, {"n0": 2.0, "n1": 9.0}, rates, benchmarks=4) == []


def test_a_box_alone_is_not_compared(tmp_path: Path) -> None:
    assert compared(tmp_path, {"n0": 2.0}, {"n0": 9.0}) == []
