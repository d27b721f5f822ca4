"""Change points and what they add up to: planted steps and drifts are found where they are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from history_tree import noisy

from rocmforge.bench.change_points import WINDOW, Values, change_points, levels, plausible
from rocmforge.bench.worsening import Kind, Worsening, worsenings

pytest.importorskip("scipy")
LIMIT, ALPHA = math.log(1.1), 3e-4


def series(count: int, spread: float = 0.02, seed: int = 0) -> Values:
    values: Values = np.log(noisy(count, spread, seed))
    return values


def found(values: Values, floor: float = 0.0, exact: bool = False) -> list[Worsening]:
    return worsenings(values, LIMIT, floor, ALPHA, exact)


@pytest.mark.parametrize("at", [2, 15, 57, 58])
@pytest.mark.parametrize("factor", [1.25, 0.8])
def test_a_step_is_found_at_its_commit_up_and_down(at: int, factor: float) -> None:
    values = series(60)
    values[at:] += math.log(factor)
    assert change_points(values, ALPHA) == [at]
    assert len(found(values)) == (factor > 1)


def test_steps_farther_apart_than_a_window_are_all_found() -> None:
    values = series(4 * WINDOW)
    for at in (40, 41 + WINDOW, 60 + 2 * WINDOW):
        values[at:] += 0.2
    assert change_points(values, ALPHA) == [40, 41 + WINDOW, 60 + 2 * WINDOW]
    assert [one.at for one in found(values)] == [40, 41 + WINDOW, 60 + 2 * WINDOW]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 60])
def test_equal_values_have_no_step(count: int) -> None:
    values = np.full(count, -6.3)
    assert change_points(values, ALPHA) == []
    assert found(values) == []
    assert found(values, exact=True) == []


def test_noise_alone_has_no_step() -> None:
    assert not [seed for seed in range(40) if found(series(60, 0.05, seed))]


@pytest.mark.parametrize("outlier", [0, 20, 39])
def test_an_outlier_is_no_step(outlier: int) -> None:
    values = series(40)
    values[outlier] += math.log(1.6)
    assert found(values) == []


def test_what_stays_within_the_threshold_is_no_step() -> None:
    values = series(60)
    values[30:] += math.log(1.08)
    assert change_points(values, ALPHA) == [30]
    assert found(values) == []
    assert len(worsenings(values, math.log(1.05), 0.0, ALPHA, False)) == 1


def test_a_step_must_exceed_what_medians_of_so_many_runs_differ_by() -> None:
    values = series(12)
    values[10:] += math.log(1.2)
    assert [one.at for one in found(values, floor=math.log(1.2))] == [10]
    assert found(values, floor=math.log(1.5)) == []
    many = series(60)
    many[30:] += math.log(1.2)
    assert [one.at for one in found(many, floor=math.log(1.5))] == [30]


def test_a_step_names_its_commits_and_levels() -> None:
    values = series(40)
    values[25:] += math.log(1.3)
    (one,) = found(values)
    assert (one.kind, one.good, one.at, one.bad) == (Kind.CHANGE_POINT, 24, 25, 25)
    assert (one.before, one.after, one.mended) == ((0, 25), (25, 40), None)


def test_the_range_widens_with_the_noise_and_holds_the_step() -> None:
    held, widths = 0, []
    for seed in range(40):
        values = series(40, 0.08, seed)
        values[20:] += math.log(1.2)
        first, last = plausible(values, 20)
        widths.append(last - first)
        at = int(np.argmax(np.abs(np.diff(values)))) + 1  # any place is within its own range
        low, high = plausible(values, at)
        assert low <= at <= high
        for one in found(values):
            held += one.good < 20 <= one.bad
    assert max(widths) > 1
    assert held >= 0.9 * sum(len(found(stepped(seed))) for seed in range(40))
    assert plausible(np.repeat([1.0, 2.0], 10), 10) == (10, 10)


def stepped(seed: int) -> Values:
    values = series(40, 0.08, seed)
    values[20:] += math.log(1.2)
    return values


def test_a_step_that_was_mended_says_since_when() -> None:
    values = series(60)
    values[20:40] += math.log(1.3)
    (one,) = found(values)
    assert (one.at, one.mended) == (20, 40)
    values[40:] += math.log(1.15)  # mended in part only
    (one,) = found(values)
    assert (one.at, one.mended) == (20, None)


def test_a_step_again_after_it_was_mended_stands() -> None:
    values = series(90)
    values[20:40] += math.log(1.3)
    values[60:] += math.log(1.3)
    assert [(one.at, one.mended) for one in found(values)] == [(20, 40), (60, None)]


def test_two_steps_are_two() -> None:
    values = series(60)
    values[20:] += math.log(1.2)
    values[40:] += math.log(1.2)
    assert [(one.kind, one.at) for one in found(values)] == [
        (Kind.CHANGE_POINT, 20),
        (Kind.CHANGE_POINT, 40),
    ]


@pytest.mark.parametrize("start", [10, 40])
def test_many_small_changes_are_one_drift(start: int) -> None:
    values = series(60, 0.01)
    values += np.clip(np.arange(60) - start, 0, 15) * math.log(1.01)
    (one,) = found(values)
    assert (one.kind, one.mended) == (Kind.DRIFT, None)
    assert abs(one.good - start) <= 3
    assert abs(one.bad - (start + 15)) <= 3
    assert one.before == (0, one.good + 1)


def test_a_drift_that_was_mended() -> None:
    values = series(80, 0.01)
    values[:60] += np.clip(np.arange(60) - 20, 0, 15) * math.log(1.02)
    (one,) = found(values)
    assert (one.kind, one.mended) == (Kind.DRIFT, 60)


def test_two_steps_below_the_threshold_add_up_to_a_drift() -> None:
    values = series(60, 0.01)
    values[20:] += math.log(1.07)
    values[40:] += math.log(1.07)
    assert [one.kind for one in found(values)] == [Kind.DRIFT]


def test_a_drift_too_slow_for_change_points_is_found_by_its_trend() -> None:
    values = series(100, 0.08, 3) + np.linspace(0, math.log(1.25), 100)
    assert change_points(values, 1e-5) == []
    (one,) = worsenings(values, LIMIT, 0.0, 1e-5, False)
    assert (one.kind, one.good, one.bad) == (Kind.DRIFT, 19, 80)
    assert (one.before, one.after) == ((0, 20), (80, 100))
    assert worsenings(-values, LIMIT, 0.0, 1e-5, False) == []


def test_a_faultless_drift_and_a_faultless_step_are_told_apart() -> None:
    flat = np.zeros(40)
    flat[20:] = 0.2
    assert [one.kind for one in found(flat)] == [Kind.CHANGE_POINT]
    slope = np.clip(np.arange(40) - 10, 0, 20) * 0.01
    assert [one.kind for one in found(slope)] == [Kind.DRIFT]


def test_counted_values_change_with_the_newest_commit_alone() -> None:
    values = np.log(np.array([100.0] * 9 + [120.0]))
    assert found(values) == []
    assert [(one.at, one.mended) for one in found(values, exact=True)] == [(9, None)]
    back = np.log(np.array([100.0, 120.0, 100.0, 100.0]))
    assert [(one.at, one.mended) for one in found(back, exact=True)] == [(1, 2)]


def test_levels_are_the_medians_between_change_points() -> None:
    assert levels(np.array([1.0, 2.0, 9.0, 5.0, 5.0]), [3]) == [2.0, 5.0]
