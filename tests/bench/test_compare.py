"""Verdicts: the threshold, both directions, what is missing, new, failed or not comparable."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocmforge.bench.compare import compare
from rocmforge.bench.comparison import CODE_CHANGED, Comparison, Outcome, Row
from rocmforge.bench.decision import Verdict, slowdown
from rocmforge.bench.documents import to_junit, to_markdown
from rocmforge.bench.results import Direction, Result, ResultSet, Status
from rocmforge.bench.statistics import summarize
from rocmforge.bench.tables import changed_code_line, missing_line
from rocmforge.hardware import Hardware

fewer = settings(max_examples=60)

HOST = Hardware(cpu_name="AMD EPYC", cpu_arch="x86_64", cpu_count=2, os="Linux 6.1.0")
LOWER, HIGHER = Direction.LOWER, Direction.HIGHER


def result(value: float | None, status: Status = Status.OK, **changes: object) -> Result:
    base = Result(
        name="m.track_x",
        param_names=("n",),
        params=("1",),
        status=status if value is None else Status.OK,
        value=value,
        summary=None if value is None else summarize([value]),
        samples=() if value is None else (value,) * 12,
        unit="ms",
        direction=LOWER,
        version="1",
        started_at=None,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def run(*results: Result, hardware: Hardware = HOST, commit: str = "a" * 40) -> ResultSet:
    return ResultSet(Path("r.json"), "box", commit, None, "env", hardware, results)


def verdict_of(before: Result | None, after: Result | None, threshold: float = 0.10) -> Row:
    old = run(*([before] if before else []))
    new = run(*([after] if after else []), commit="b" * 40)
    return compare(old, new, threshold).rows[0]


@pytest.mark.parametrize(
    ("before", "after", "direction", "expected"),
    [
        (100.0, 115.0, LOWER, Verdict.REGRESSION),
        (115.0, 100.0, LOWER, Verdict.IMPROVED),
        (100.0, 109.9, LOWER, Verdict.OK),
        (100.0, 110.0, LOWER, Verdict.OK),
        (0.1, 0.11, LOWER, Verdict.OK),
        (100.0, 110.1, LOWER, Verdict.REGRESSION),
        (100.0, 92.0, LOWER, Verdict.OK),
        (100.0, 90.0, LOWER, Verdict.IMPROVED),
        (100.0, 85.0, HIGHER, Verdict.REGRESSION),
        (100.0, 115.0, HIGHER, Verdict.IMPROVED),
        (100.0, 92.0, HIGHER, Verdict.OK),
        (100.0, 90.0, HIGHER, Verdict.REGRESSION),
        (0.0, 0.0, LOWER, Verdict.OK),
        (0.0, 5.0, LOWER, Verdict.REGRESSION),
        (0.0, 5.0, HIGHER, Verdict.IMPROVED),
        (5.0, 0.0, LOWER, Verdict.IMPROVED),
        (5.0, 0.0, HIGHER, Verdict.REGRESSION),
        (1e-308, 1e308, LOWER, Verdict.REGRESSION),
        (-1.0, 1.0, LOWER, Verdict.NOT_COMPARABLE),
    ],
)
def test_threshold(before: float, after: float, direction: Direction, expected: Verdict) -> None:
    row = verdict_of(result(before, direction=direction), result(after, direction=direction))
    assert row.verdict is expected
    assert (row.before, row.after) == (before, after)
    assert row.gates == (expected is Verdict.REGRESSION)


def test_threshold_is_settable() -> None:
    assert verdict_of(result(100.0), result(104.0), 0.03).verdict is Verdict.REGRESSION
    assert verdict_of(result(100.0), result(140.0), 0.50).verdict is Verdict.OK
    assert verdict_of(result(0.7), result(0.805), 0.15).verdict is Verdict.OK  # just 15 %, rounded
    assert verdict_of(result(0.805), result(0.7), 0.15).verdict is Verdict.OK
    for bad in (0.0, -0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="threshold: got"):
            verdict_of(result(1.0), result(1.0), bad)


values = st.floats(1e-9, 1e9)
thresholds = st.floats(0.001, 2.0)
SWAPPED = {
    Verdict.REGRESSION: Verdict.IMPROVED,
    Verdict.IMPROVED: Verdict.REGRESSION,
    Verdict.OK: Verdict.OK,
}


@fewer
@given(values, values, thresholds, st.sampled_from(Direction))
def test_swapping_before_and_after_swaps_the_verdict(
    a: float, b: float, threshold: float, direction: Direction
) -> None:
    old, new = result(a, direction=direction), result(b, direction=direction)
    there = verdict_of(old, new, threshold).verdict
    assert verdict_of(new, old, threshold).verdict is SWAPPED[there]


@fewer
@given(values, values, thresholds)
def test_turning_the_direction_turns_the_verdict(a: float, b: float, threshold: float) -> None:
    lower = verdict_of(result(a), result(b), threshold).verdict
    higher = verdict_of(result(a, direction=HIGHER), result(b, direction=HIGHER), threshold)
    assert higher.verdict is SWAPPED[lower]


@fewer
@given(st.integers(1, 2**20), st.integers(1, 2**20), thresholds)
def test_time_and_throughput_of_one_run_agree(a: int, b: int, threshold: float) -> None:
    factor = slowdown(a, b, LOWER)
    if abs(factor / (1 + threshold) - 1) < 1e-6 or abs(factor * (1 + threshold) - 1) < 1e-6:
        return
    time = verdict_of(result(float(a)), result(float(b)), threshold)
    rates = [result(1000.0 / x, unit="tokens/s", direction=HIGHER) for x in (a, b)]
    assert verdict_of(*rates, threshold).verdict is time.verdict


@fewer
@given(values, values, st.floats(1e-3, 1e3))
def test_slowdown_has_no_unit(a: float, b: float, scale: float) -> None:
    assert slowdown(a * scale, b * scale, LOWER) == pytest.approx(slowdown(a, b, LOWER))
    assert slowdown(a, b, LOWER) * slowdown(b, a, LOWER) == pytest.approx(1.0)


def test_slowdown_refuses_negative_values() -> None:
    with pytest.raises(ValueError, match=r"got -1\.0, 2\.0"):
        slowdown(-1.0, 2.0, LOWER)


OK, FAILED, SKIPPED = result(1.0), result(None, Status.FAILED), result(None, Status.SKIPPED)


@pytest.mark.parametrize(
    ("before", "after", "verdict", "note", "outcome"),
    [
        (OK, FAILED, Verdict.FAILED, "before: ok", Outcome.REGRESSION),
        (FAILED, FAILED, Verdict.FAILED, "before: failed too", Outcome.NOTHING_MEASURED),
        (None, FAILED, Verdict.FAILED, "before: not measured", Outcome.NOTHING_MEASURED),
        (SKIPPED, FAILED, Verdict.FAILED, "before: n/a or not selected", Outcome.NOTHING_MEASURED),
        (FAILED, OK, Verdict.NEW, "failed before", Outcome.NOTHING_MEASURED),
        (None, OK, Verdict.NEW, "", Outcome.NOTHING_MEASURED),
        (SKIPPED, OK, Verdict.NEW, "n/a or not selected before", Outcome.NOTHING_MEASURED),
        (OK, None, Verdict.MISSING, "", Outcome.NOTHING_MEASURED),
        (OK, SKIPPED, Verdict.MISSING, "n/a or not selected now", Outcome.NOTHING_MEASURED),
        (
            FAILED,
            None,
            Verdict.MISSING,
            "failed before, not measured now",
            Outcome.NOTHING_MEASURED,
        ),
        (SKIPPED, SKIPPED, Verdict.SKIPPED, "", Outcome.NOTHING_MEASURED),
        (None, SKIPPED, Verdict.SKIPPED, "", Outcome.NOTHING_MEASURED),
    ],
)
def test_what_was_not_measured_on_both_sides(
    before: Result | None, after: Result | None, verdict: Verdict, note: str, outcome: Outcome
) -> None:
    comparison = compare(run(*filter(None, [before])), run(*filter(None, [after])))
    row = comparison.rows[0]
    assert (row.verdict, row.note, row.ratio) == (verdict, note, None)
    assert comparison.outcome is outcome


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"version": "2"}, "the benchmark's code changed"),
        ({"unit": "s"}, "unit or direction changed"),
        ({"direction": HIGHER}, "unit or direction changed"),
        ({"unit": None, "direction": None}, "not in benchmarks.json: unit and direction unknown"),
    ],
)
def test_not_comparable_is_no_pass(change: dict[str, object], note: str) -> None:
    comparison = compare(run(result(1.0)), run(result(1.0, **change)))
    assert comparison.rows[0].verdict is Verdict.NOT_COMPARABLE
    assert comparison.rows[0].note == note
    assert comparison.outcome is Outcome.NOTHING_MEASURED
    fine = result(1.0, name="m.fine")
    beside = compare(run(fine, result(1.0)), run(fine, result(1.0, **change)))
    of_code = note == CODE_CHANGED  # a remark: a new baseline settles it
    assert beside.outcome is (Outcome.PASS if of_code else Outcome.MISSING)
    assert replace(beside, may_miss=True).outcome is Outcome.PASS
    assert (changed_code_line(beside) is not None) is of_code


def test_a_benchmark_whose_code_changed_is_named_with_what_mends_it() -> None:
    fine = result(1.0, name="m.fine")
    before, after = run(fine, result(1.0)), run(fine, result(1.0, version="2"))
    line = changed_code_line(compare(before, after))
    assert line is not None
    assert line.startswith("not comparable: the code of 1 benchmark changed since: m.track_x(1): ")
    assert "rocmforge bench baseline refresh" in line
    assert missing_line(compare(before, after)) is None


def test_what_is_only_shown_never_fails() -> None:
    worse = compare(run(result(1.0)), run(result(2.0)))
    assert worse.outcome is Outcome.REGRESSION
    shown = replace(worse, shown_only=True)
    assert (shown.outcome.exit_code, "FAIL" in to_markdown(shown)) == (0, False)
    assert 'failures="1"' in to_junit(shown)
    assert to_markdown(shown).startswith("**shown, not judged (exit 0): 1 regression")


def test_without_versions_the_numbers_are_compared() -> None:
    assert verdict_of(result(1.0, version=None), result(2.0)).verdict is Verdict.REGRESSION


def mismatch(**changes: object) -> Comparison:
    other = replace(HOST, **changes)  # type: ignore[arg-type]
    return compare(run(result(1.0)), run(result(5.0), hardware=other, commit="b" * 40))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"gpu_name": "Radeon RX 7900 XT"}, "gpu_name: unknown → Radeon RX 7900 XT"),
        ({"gpu_architecture": "gfx1100"}, "gpu_architecture: unknown → gfx1100"),
        ({"gfx_override": "10.3.0"}, "gfx_override: unknown → 10.3.0"),
        ({"rocm_version": "7.0.1"}, "rocm_version: unknown → 7"),
        ({"cpu_name": "AMD EPYC 9B14"}, "cpu_name: AMD EPYC → AMD EPYC 9B14"),
        ({"cpu_count": 4}, "cpu_count: 2 → 4"),
        ({"os": "Darwin 24"}, "os: Linux → Darwin"),
    ],
)
def test_other_hardware_is_never_compared(change: dict[str, object], named: str) -> None:
    comparison = mismatch(**change)
    assert [str(difference) for difference in comparison.mismatches] == [named]
    assert comparison.outcome is Outcome.HARDWARE_MISMATCH
    assert [row.verdict for row in comparison.rows] == [Verdict.HARDWARE_MISMATCH]
    assert comparison.rows[0].ratio is None


def test_an_upgrade_of_the_driver_can_be_judged_and_another_power_cap_not() -> None:
    card = replace(HOST, gpu_name="x", driver_version="580.1", power_cap_watts=700)
    old = run(result(1.0), hardware=card)
    new = run(result(1.0), hardware=replace(card, driver_version="590.2"), commit="b" * 40)
    assert [str(d) for d in compare(old, new).mismatches] == ["driver_version: 580 → 590"]
    both = ("rocm_version", "driver_version")
    judged = compare(old, new, upgraded=both)
    assert judged.outcome is Outcome.PASS
    assert "differs, compared all the same: driver_version: 580.1 → 590.2" in judged.notes
    capped = replace(new, hardware=replace(new.hardware, power_cap_watts=500))
    assert compare(old, capped, upgraded=both).outcome is Outcome.HARDWARE_MISMATCH


def test_an_upgrade_of_rocm_can_be_judged() -> None:
    old = run(result(1.0), hardware=replace(HOST, rocm_version="6.4.1"))
    new = run(result(2.0), hardware=replace(HOST, rocm_version="7.0.0"), commit="b" * 40)
    assert compare(old, new).outcome is Outcome.HARDWARE_MISMATCH
    judged = compare(old, new, upgraded=("rocm_version",))
    assert judged.outcome is Outcome.REGRESSION
    assert "differs, compared all the same: rocm_version: 6.4.1 → 7.0.0" in judged.notes
    other = replace(new, hardware=replace(new.hardware, cpu_count=9))
    assert compare(old, other, upgraded=("rocm_version",)).outcome is Outcome.HARDWARE_MISMATCH


def test_another_hip_is_noted_and_so_is_an_override_on_both_sides() -> None:
    card = replace(HOST, gpu_name="x", rocm_version="6.4.1", gfx_override="10.3.0")
    old, new = run(result(1.0), hardware=card), run(result(1.0), hardware=card, commit="b" * 40)
    assert "both measured under HSA_OVERRIDE_GFX_VERSION=10.3.0" in compare(old, new).notes
    named = replace(new, hardware=replace(card, hip_version="6.4.43483"))
    judged = compare(old, named)
    assert judged.outcome is Outcome.PASS
    assert "differs, compared all the same: hip_version: unknown → 6.4.43483" in judged.notes


def test_a_newer_kernel_or_python_is_noted_and_compared() -> None:
    old = run(result(1.0), hardware=replace(HOST, python_version="3.11"))
    newer = replace(HOST, os="Linux 6.2.0", python_version="3.12.1")
    comparison = compare(old, run(result(2.0), hardware=newer, commit="b" * 40))
    assert comparison.outcome is Outcome.REGRESSION
    differing = [note for note in comparison.notes if note.startswith("differs")]
    assert [note.partition(": ")[2] for note in differing] == [
        "os: Linux 6.1.0 → Linux 6.2.0",
        "python_version: 3.11 → 3.12.1",
    ]
    same = replace(HOST, python_version="3.11.7")
    notes = compare(old, run(result(2.0), hardware=same, commit="b" * 40)).notes
    assert not any("python" in note for note in notes)


def test_notes_of_unknown_hardware_and_of_one_commit() -> None:
    nothing = Hardware()
    notes = compare(run(result(1.0), hardware=nothing), run(result(1.0), hardware=nothing)).notes
    assert "hardware unknown" in notes[0]
    assert "the same commit, aaaaaaaa" in notes[1]


def test_selection_by_name_and_parameters() -> None:
    rows = [result(1.0, params=("'Q4_0'",)), result(1.0, params=("'Q8_0'",))]
    comparison = compare(run(*rows), run(*rows), select=re.compile(r"track_x\('Q8").search)
    assert [row.label for row in comparison.rows] == ["m.track_x('Q8_0')"]
    nothing = compare(run(*rows), run(*rows), select=re.compile("no such").search)
    assert nothing.outcome is Outcome.NOTHING_MEASURED


def test_nothing_at_all() -> None:
    assert compare(run(), run()).outcome is Outcome.NOTHING_MEASURED
