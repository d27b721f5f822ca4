"""What the machine itself explains: reference kernels beside two runs, and runs that have none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rocmforge.bench.compare import compare
from rocmforge.bench.comparison import Comparison
from rocmforge.bench.decision import Verdict
from rocmforge.bench.machine_speed import SESSION_MS, differing_conditions, middle_rates
from rocmforge.bench.noise import Noise
from rocmforge.bench.results import Direction, Result, ResultSet, Status
from rocmforge.bench.statistics import summarize
from rocmforge.hardware import Hardware

FAST = {"read_gb_per_second": 45.0, "square_roots_per_ns": 1.0}
SLOW_MEMORY = {**FAST, "read_gb_per_second": 31.0}
SLOW_CLOCK = {**FAST, "square_roots_per_ns": 0.8}
HOST = Hardware(cpu_name="x")


def result(
    value: float,
    reference: dict[str, float] | None = None,
    *,
    name: str = "m.track_ms",
    unit: str = "ms",
    device: str = "'cpu'",
    started_at: int | None = 0,
) -> Result:
    samples = [value * (1 + i / 1000) for i in range(-4, 5)]
    return Result(
        name=name,
        param_names=("device",),
        params=(device,),
        status=Status.OK,
        value=value,
        summary=summarize(samples),
        samples=tuple(samples),
        unit=unit,
        direction=Direction.HIGHER if unit.endswith("/s") else Direction.LOWER,
        version="1",
        started_at=started_at,
        reference=reference,
    )


def run(commit: str, *results: Result) -> ResultSet:
    return ResultSet(Path("r.json"), "box", commit * 40, 0, "env", HOST, results)


def everything(factor: float, before: dict[str, float], after: dict[str, float]) -> Comparison:
    """Compare two runs of ten benchmarks between which all got slower."""
    names = [f"m.track_{i}_ms" for i in range(10)]
    return compare(
        run("a", *(result(1.0, before, name=name) for name in names)),
        run("b", *(result(factor, after, name=name) for name in names)),
    )


def test_everything_slower_on_a_machine_that_is_as_fast_is_a_regression_of_everything() -> None:
    found = everything(1.3, FAST, {**FAST, "read_gb_per_second": 44.0})
    assert {row.verdict for row in found.rows} == {Verdict.REGRESSION}


def test_everything_slower_on_a_machine_that_is_slower_cannot_be_told() -> None:
    found = everything(1.3, FAST, SLOW_MEMORY)
    assert {row.verdict for row in found.rows} == {Verdict.CANNOT_TELL}
    wanted = "the machine itself read memory at 45 GB/s then and 31 GB/s now"
    assert {row.note for row in found.rows} == {wanted}


def test_a_faster_machine_improves_nothing() -> None:
    found = everything(0.75, SLOW_MEMORY, FAST)
    assert {row.verdict for row in found.rows} == {Verdict.CANNOT_TELL}


@pytest.mark.parametrize(
    ("factor", "before", "after", "explained"),
    [
        (1.45, FAST, SLOW_MEMORY, True),
        (1.55, FAST, SLOW_MEMORY, True),  # within what the reference itself scatters
        (1.65, FAST, SLOW_MEMORY, False),  # more than the machine explains
        (0.7, FAST, SLOW_MEMORY, False),  # faster, though the machine is slower
        (1.2, SLOW_MEMORY, FAST, False),
        (1.2, FAST, SLOW_CLOCK, True),
        (1.2, FAST, {**FAST, "read_gb_per_second": 42.0}, False),  # as runs of one machine do
        (1.2, FAST, {"square_roots_per_ns": 1.0}, False),
    ],
)
def test_what_a_reference_explains(
    factor: float, before: dict[str, float], after: dict[str, float], explained: bool
) -> None:
    for unit, value in (("ms", factor), ("tokens/s", 1 / factor)):
        one, other = result(1.0, before, unit=unit), result(value, after, unit=unit)
        assert (differing_conditions(one, other) is not None) is explained


def test_neither_counts_nor_a_gpus_work_follow_the_host() -> None:
    for more in ({"unit": "bytes"}, {"device": "'gpu'"}):
        assert (
            differing_conditions(result(1.0, FAST, **more), result(1.3, SLOW_CLOCK, **more)) is None
        )


@pytest.mark.parametrize("reference", [(None, None), (FAST, None), (None, FAST)])
def test_without_a_reference_runs_that_are_far_apart_cannot_be_told(
    reference: tuple[dict[str, float] | None, dict[str, float] | None],
) -> None:
    before, after = (
        result(value, rates) for value, rates in zip((1.0, 1.5), reference, strict=True)
    )
    assert differing_conditions(before, replace(after, started_at=SESSION_MS)) is None
    assert differing_conditions(before, replace(after, started_at=None)) is None
    said = differing_conditions(before, replace(after, started_at=13 * SESSION_MS))
    assert said is not None
    assert said.startswith("measured 13 hours apart, and the machine's own speed was not recorded")
    said = differing_conditions(before, replace(after, started_at=SESSION_MS * 5 // 4))
    assert said is not None
    assert said.startswith("measured 75 minutes apart")
    found = compare(run("a", before), run("b", replace(after, started_at=72 * SESSION_MS)))
    assert found.rows[0].verdict is Verdict.CANNOT_TELL
    assert "3 days apart" in found.rows[0].note


def test_the_committed_runs_of_a_cpu_show_no_false_step(repo: Path) -> None:
    from rocmforge.bench.asv_results import ResultsDirectory
    from rocmforge.bench.run_environment import is_timed, with_stored_environments

    found = ResultsDirectory(repo / "results", "cpu-amd-epyc-zen5-2c")
    first, second = (with_stored_environments(found.load(c)) for c in ("6f18e7f1", "bc98d2b2"))
    timed = {one.label for one in second.results if is_timed(one)}
    verdicts = [row.verdict for row in compare(first, second).rows if row.label in timed]
    assert not {Verdict.REGRESSION, Verdict.IMPROVED} & set(verdicts)
    assert verdicts.count(Verdict.CANNOT_TELL) > 200
    assert verdicts.count(Verdict.OK) > 150


def test_the_floor_of_processes_holds_a_change_back_and_says_so() -> None:
    before = [
        replace(result(1.0, FAST, name=f"m.track_{i}"), process_medians=(0.9, 1.2))
        for i in range(5)
    ]
    after = [result(1.3, FAST, name=f"m.track_{i}") for i in range(5)]
    found = compare(run("a", *before), run("b", *after))
    assert {row.verdict for row in found.rows} == {Verdict.CANNOT_TELL}
    assert {row.note.partition(":")[0] for row in found.rows} == {
        "processes of one run differ by 33 %"
    }
    assert not [note for note in found.notes if "noise unknown" in note]
    known = {
        one.label: Noise("ms", "1", (1.0, 1.05), 0) for one in after
    }  # measured again and again
    found = compare(run("a", *before), run("b", *after), noise=known)
    assert {row.verdict for row in found.rows} == {Verdict.REGRESSION}


def test_the_middle_of_some_rates() -> None:
    assert middle_rates([FAST, SLOW_MEMORY, SLOW_MEMORY]) == SLOW_MEMORY
    assert middle_rates([FAST, None]) == {}
    assert middle_rates([FAST, {"square_roots_per_ns": 2.0}]) == {"square_roots_per_ns": 1.5}
