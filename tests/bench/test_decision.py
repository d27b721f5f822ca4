"""The rule: each of its conditions alone keeps a slower benchmark from being a regression."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rocmforge.bench.compare import compare
from rocmforge.bench.comparison import Outcome, Row
from rocmforge.bench.decision import ALPHA, Verdict, evidence
from rocmforge.bench.noise import Noise
from rocmforge.bench.results import Direction, Result, ResultSet, Status
from rocmforge.bench.statistics import Summary, summarize
from rocmforge.hardware import Hardware

HOST = Hardware(cpu_name="x")
LOWER, HIGHER = Direction.LOWER, Direction.HIGHER


def result(
    samples: Sequence[float],
    unit: str = "ms",
    direction: Direction = LOWER,
    name: str = "m.x",
    marked: str | None = None,
    kept: bool = True,
    version: str = "v1",
) -> Result:
    summary = summarize(samples)
    return Result(
        name=name,
        param_names=(),
        params=(),
        status=Status.OK,
        value=summary.p50,
        summary=summary,
        samples=tuple(samples) if kept else (),
        unit=unit,
        direction=direction,
        version=version,
        started_at=None,
        marked=marked,
    )


def run(*results: Result, commit: str = "a") -> ResultSet:
    return ResultSet(Path("r.json"), "box", commit * 40, None, "env", HOST, results)


def judged(before: Result, after: Result, noise: Noise | None = None) -> Row:
    known = {} if noise is None else {before.label: noise}
    (row,) = compare(run(before), run(after, commit="b"), noise=known).rows
    return row


def around(middle: float, spread: float = 0.01, n: int = 12, seed: int = 0) -> list[float]:
    random = np.random.default_rng(seed)
    samples = middle * np.exp(spread * random.standard_normal(n))
    return [float(x) for x in samples * (middle / np.median(samples))]


def test_slower_by_more_than_the_threshold_and_surely() -> None:
    row = judged(result(around(10.0)), result(around(11.5, seed=1)))
    assert (row.verdict, row.note) == (Verdict.REGRESSION, "")
    assert row.low is not None
    assert row.high is not None
    assert 1.10 < row.low < 1.15 < row.high < 1.20
    assert judged(result(around(11.5)), result(around(10.0))).verdict is Verdict.IMPROVED


def test_where_higher_is_better_the_interval_is_still_of_after_over_before() -> None:
    before = result(around(100.0), "tokens/s", HIGHER)
    after = result(around(80.0, seed=1), "tokens/s", HIGHER)
    row = judged(before, after)
    assert row.verdict is Verdict.REGRESSION
    assert row.low is not None
    assert row.high is not None
    assert 0.75 < row.low < 0.8 < row.high < 0.85
    assert judged(after, before).verdict is Verdict.IMPROVED


@pytest.mark.parametrize(("direction", "worse"), [(LOWER, 2.0), (HIGHER, 0.5)])
def test_better_quartiles_show_what_a_burst_hides(direction: Direction, worse: float) -> None:
    """Most samples before were disturbed: medians say that nothing changed, quartiles do not."""
    calm, disturbed = [10.0] * 10, [10.0 * worse] * 6
    before = result([*calm[:4], *disturbed], direction=direction)
    after = result([x * worse for x in calm], direction=direction)
    row = judged(before, after)
    assert row.verdict is Verdict.OK
    assert row.quiet_slowdown == pytest.approx(2.0)
    assert judged(result(calm, kept=False), after).quiet_slowdown is None


def test_slower_within_the_threshold_is_ok_however_sure() -> None:
    row = judged(result(around(10.0, 1e-4)), result(around(10.9, 1e-4, seed=1)))
    assert row.verdict is Verdict.OK


def test_samples_that_overlap_cannot_tell_and_say_how_many_more_would() -> None:
    before, after = around(10.0, 0.3), around(11.5, 0.3, seed=1)
    row = judged(result(before), result(after))
    assert row.verdict is Verdict.CANNOT_TELL
    assert not row.gates
    found = re.fullmatch(r"about (\d+) more samples on either side would settle it", row.note)
    assert found
    wanted = 12 + 4 * int(found[1])  # it is an estimate
    settled = judged(result(around(10.0, 0.3, wanted)), result(around(11.5, 0.3, wanted, seed=1)))
    assert settled.verdict is Verdict.REGRESSION


def test_three_samples_are_too_few_however_far_apart() -> None:
    row = judged(result([1.0, 1.01, 1.02]), result([2.0, 2.01, 2.02]))
    assert row.verdict is Verdict.CANNOT_TELL
    assert "2 more samples" in row.note  # 1 / C(10, 5) = 1 / 252 ≤ 0.01 / 2
    more = judged(result([1.0 + i / 100 for i in range(5)]), result([2.0] * 5))
    assert more.verdict is Verdict.REGRESSION


def test_the_same_samples_prove_less_among_many_benchmarks() -> None:
    before, after = [1.0 + i / 100 for i in range(5)], [2.0 + i / 100 for i in range(5)]
    pairs = [(result(before, name=f"m.{i}"), result(after, name=f"m.{i}")) for i in range(30)]
    quiet = [(result(around(1.0, n=5), name=f"q.{i}"),) * 2 for i in range(30)]
    alone = compare(run(pairs[0][0]), run(pairs[0][1]))
    assert alone.rows[0].verdict is Verdict.REGRESSION
    many = [pairs[0], *quiet]
    among = compare(run(*(a for a, _ in many)), run(*(b for _, b in many)))
    assert among.rows[0].verdict is Verdict.CANNOT_TELL


def test_what_runs_of_one_commit_differ_by_is_no_regression() -> None:
    before, after = result(around(10.0)), result(around(12.0, seed=1))
    loud = Noise("ms", "v1", (10.0, 10.1, 12.5), 0)
    row = judged(before, after, loud)
    assert (row.verdict, row.note) == (
        Verdict.CANNOT_TELL,
        "runs of one commit differ by 25 %: measure both interleaved",
    )
    quiet = Noise("ms", "v1", (10.0, 10.1, 10.2), 0)
    assert judged(before, after, quiet).verdict is Verdict.REGRESSION
    changed = Noise("ms", "v0", (10.0, 10.1, 12.5), 0)  # of other code
    assert judged(before, after, changed).verdict is Verdict.REGRESSION


@pytest.mark.parametrize("side", ["before", "after"])
def test_what_was_measured_under_load_cannot_tell(side: str) -> None:
    load = "other work took 40 % of the CPU time"
    before = result(around(10.0), marked=load if side == "before" else None)
    after = result(around(20.0), marked=load if side == "after" else None)
    for marked in (after, replace(after, value=before.value, samples=before.samples)):
        row = judged(before, marked)
        assert (row.verdict, row.note) == (Verdict.CANNOT_TELL, load)


def test_what_is_counted_needs_no_test() -> None:
    assert judged(result([100.0], "bytes"), result([120.0], "bytes")).verdict is Verdict.REGRESSION
    row = judged(result([100.0], "bytes"), result([80.0], "bytes"))
    assert (row.verdict, row.low, row.high) == (Verdict.IMPROVED, 0.8, 0.8)
    noisy = Noise("bytes", "v1", (100.0, 121.0), 0)
    row = judged(result([100.0], "bytes"), result([120.0], "bytes"), noisy)
    assert row.verdict is Verdict.CANNOT_TELL


def test_a_single_time_cannot_tell() -> None:
    row = judged(result([10.0]), result([20.0]))
    assert row.verdict is Verdict.CANNOT_TELL
    assert row.note.startswith("a single sample: 7 more on either side")


def test_without_samples_intervals_decide() -> None:
    before = result(around(10.0), kept=False)
    assert judged(before, result(around(12.0), kept=False)).verdict is Verdict.REGRESSION
    wide = judged(before, result(around(11.5, 0.4, seed=1), kept=False))
    assert wide.verdict is Verdict.CANNOT_TELL
    assert wide.note == "the intervals do not settle it: record samples on both sides"


@pytest.mark.parametrize("kept", ["before", "after"])
def test_samples_on_one_side_alone_leave_the_intervals(kept: str) -> None:
    """As with a baseline that was saved before baselines kept samples."""
    before = result(around(10.0), kept=kept == "before")
    after = result(around(30.0), kept=kept == "after")
    assert judged(before, after).verdict is Verdict.REGRESSION
    near = result(around(11.5, 0.4, seed=1), kept=kept == "after")
    assert judged(result(around(10.0, 0.4), kept=kept == "before"), near).verdict is (
        Verdict.CANNOT_TELL
    )


def test_an_unknown_interval_proves_nothing() -> None:
    summary = Summary(None, None, None, 20.0, None, None, 3, -math.inf, math.inf)
    after = result([20.0], kept=False)
    after = Result(**{**{f: getattr(after, f) for f in after.__slots__}, "summary": summary})
    assert judged(result(around(10.0), kept=False), after).verdict is Verdict.CANNOT_TELL


def test_nothing_but_doubt_is_no_pass() -> None:
    comparison = compare(run(result([10.0])), run(result([20.0]), commit="b"))
    assert comparison.outcome is Outcome.NOTHING_MEASURED


def test_zeros_are_compared_without_an_interval() -> None:
    found = evidence(result([0.0] * 9), result([1.0] * 9))
    assert (found.slowdown, found.low, found.high) == (math.inf, 0.0, math.inf)
    assert judged(result([0.0] * 9), result([1.0] * 9)).verdict is Verdict.REGRESSION
    assert judged(result([1.0] * 9), result([0.0] * 9)).verdict is Verdict.IMPROVED


def test_where_nothing_changed_hardly_anything_is_called_changed() -> None:
    """Of comparisons of 20 benchmarks with samples spread by 15 %, at most ALPHA err (and luck)."""
    random = np.random.default_rng(11)
    wrong = 0
    for _ in range(200):
        sides = [
            run(
                *(
                    result(np.exp(0.15 * random.standard_normal(12)).tolist(), name=f"m.{i}")
                    for i in range(20)
                ),
                commit=commit,
            )
            for commit in "ab"
        ]
        rows = compare(*sides).rows
        wrong += any(row.verdict in (Verdict.REGRESSION, Verdict.IMPROVED) for row in rows)
    assert wrong <= 200 * ALPHA + 3


def test_what_nobody_measured_the_noise_of_is_said() -> None:
    sides = [run(result(around(10.0), name="m.a"), result([1.0], "bytes", name="m.b"))] * 2
    notes = compare(*sides).notes
    assert notes[-1].startswith("noise unknown for 1 of 1 benchmarks: rocmforge bench noise")
    known = {"m.a": Noise("ms", "v1", (1.0, 1.1), 0)}
    assert not any("noise" in note for note in compare(*sides, noise=known).notes)
    other_unit = {"m.a": Noise("s", "v1", (1.0, 9.9), 0)}
    assert "1 of 1" in compare(*sides, noise=other_unit).notes[-1]


def test_a_benchmark_can_have_a_threshold_of_its_own() -> None:
    sides = [
        run(result(around(value), name="m.loud"), result(around(value), name="m.x"), commit=commit)
        for value, commit in ((10.0, "a"), (11.5, "b"))
    ]
    rows = compare(*sides, thresholds={"m": 0.05, r"m\.loud": 0.2, r"m\.x": 0.1}).rows
    assert [(r.verdict, r.threshold) for r in rows] == [
        (Verdict.OK, 0.2),
        (Verdict.REGRESSION, 0.1),
    ]
    with pytest.raises(ValueError, match="threshold: got -1"):
        compare(*sides, thresholds={"loud": -1})
