"""Multiples of the ideal time: a peak that other work lowered is measured again, not believed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from suite_caches import nothing_prepared

from rocmforge.cpu.backend import CpuBackend
from rocmforge.errors import MeasurementError
from rocmforge.profiling.roofline import Peaks

GB = 10**9


@pytest.fixture
def ideal_time(repo: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(repo))
    from benchmarks import ideal_time

    with nothing_prepared([ideal_time]):
        yield ideal_time


def measured(rates: list[float], monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[int]:
    """Let the read rates be these, the last one again and again; return the sets that are asked."""
    asked: list[int] = []

    def peaks(backend: object, working_set: int, precision: str) -> Peaks:
        asked.append(working_set)
        return Peaks(rates[min(len(asked), len(rates)) - 1], 1e15, working_set, precision)

    monkeypatch.setattr(module, "measure_peaks", peaks)
    return asked


def taking(seconds: float) -> Callable[[], list[float]]:
    return lambda: [seconds] * 5


def test_a_peak_that_other_work_lowered_is_measured_until_it_is_found(
    ideal_time: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = measured([1e9, 0.5e9, 1.2e9, 2e9], monkeypatch, ideal_time)
    found = ideal_time.over_ideal(taking(0.5), CpuBackend(), GB, 0, "int8", 7)
    assert found["samples"] == [1.0] * 5
    assert asked == [7] * 4


def test_the_best_of_all_peaks_counts_also_for_what_follows(
    ideal_time: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = measured([1e9, 2e9, 0.1e9], monkeypatch, ideal_time)
    on = CpuBackend()
    ideal_time.over_ideal(taking(0.5), on, GB, 0, "int8", 7)
    assert ideal_time.over_ideal(taking(1.0), on, GB, 0, "int8", 7)["samples"] == [2.0] * 5
    assert len(asked) == 2


def test_work_that_was_quick_before_others_came_is_timed_beside_the_peaks(
    ideal_time: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured([1e9], monkeypatch, ideal_time)
    seconds = iter([0.5, 1.25])
    found = ideal_time.over_ideal(lambda: [next(seconds)] * 5, CpuBackend(), GB, 0, "f32", 7)
    assert found["samples"] == [1.25] * 5


def test_work_that_stays_faster_than_every_peak_is_refused(
    ideal_time: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = measured([1e9, 2e9, 1e9], monkeypatch, ideal_time)
    with pytest.raises(MeasurementError, match=r"got 4e\+05 µs in 5 tries, wanted no less than"):
        ideal_time.over_ideal(taking(0.4), CpuBackend(), GB, 0, "f32", 7)
    assert len(asked) == ideal_time.TRIES == 5


@pytest.mark.parametrize(("nbytes", "working_set"), [(12_000_000, 12_000_000), (GB, 64 << 20)])
def test_a_step_of_a_model_that_a_cache_holds_has_the_roofline_of_that_cache(
    ideal_time: ModuleType, monkeypatch: pytest.MonkeyPatch, nbytes: int, working_set: int
) -> None:
    from benchmarks import roofline

    asked = measured([1e15], monkeypatch, ideal_time)
    work = SimpleNamespace(nbytes=nbytes, operations=1)
    for name, value in {
        "model_path": lambda model: Path(model),
        "matrices": lambda path: SimpleNamespace(format="Q8_0"),
        "step_work": lambda *of: work,
        "cold_bytes": lambda device: 64 << 20,
    }.items():
        monkeypatch.setattr(roofline, name, value)
    monkeypatch.setattr(sys.modules["benchmarks.inference"], "decode_seconds", lambda *of: [1.0])
    decode = roofline.Decode()
    decode.engine = SimpleNamespace(backend=CpuBackend())
    decode.track_inverse_roofline_fraction("demo-Q8_0", "cpu")
    assert asked == [working_set]


def test_the_better_rate_of_two_measurements_stands() -> None:
    one, other = Peaks(1e9, 5e9, 8, "f32"), Peaks(2e9, 4e9, 8, "f32")
    assert one.best(other) == other.best(one) == Peaks(2e9, 5e9, 8, "f32")
