"""A model measured on a GPU: where it ran, and that memory that is short leaves tests out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rocmforge.errors import OutOfMemoryError
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.runtime import Runtime
from rocmforge.model.synthetic import make_model
from rocmforge.profiling.roofline import Peaks
from rocmforge.speed import measure as measuring
from rocmforge.speed.measure import Speed, measure, speed_tests

pytestmark = pytest.mark.either_wave


@pytest.fixture(autouse=True)
def known_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in takes a minute to measure a rate of operations."""
    peaks = Peaks(1e9, 1e12, 1 << 20, "int8")
    monkeypatch.setattr(measuring, "measured_peaks", lambda *arguments: peaks)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "small.gguf", "tiny", "Q4_K_M", layers=1)


def measured(kernels: Kernels, model: Path, batches: tuple[int, ...]) -> list[Speed]:
    device = f"{kernels.runtime.platform}:{kernels.runtime.properties.index}"
    tests = speed_tests([8], [2], [16], batches)
    ignored: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        ignored.append((done, total))

    return list(measure(model, device, None, tests, 2, progress, progress))


def test_a_gpu_is_named_and_has_no_threads(kernels: Kernels, model: Path) -> None:
    prompt, one, two = measured(kernels, model, (1, 2))
    properties = kernels.runtime.properties
    for found in (prompt, one, two):
        assert found.place.name == properties.name
        assert found.place.architecture == properties.architecture
        assert found.place.threads is None
        assert found.reason is None
        assert len(found.seconds) == 2
        assert found.ideal_seconds is not None
    assert two.ideal_seconds == pytest.approx(one.ideal_seconds, rel=0.05)  # the weights, twice
    assert [found.test.name for found in (prompt, one)] == ["pp8 @ d16", "tg2 @ d16"]
    assert two.test.tokens == 4


def test_what_a_gpus_memory_does_not_hold_is_a_reason(
    kernels: Kernels, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Runtime.allocate

    def short(self: Runtime, nbytes: int) -> Any:
        if nbytes > 40 << 20:
            raise OutOfMemoryError(f"device memory: got 40 MB, wanted {nbytes >> 20}")
        return right(self, nbytes)

    monkeypatch.setattr(Runtime, "allocate", short)
    large, prompt, one = measured(kernels, model, (1, 4096))
    assert (large.test.batch, large.seconds) == (4096, ())
    assert large.reason is not None
    assert large.reason.startswith("device memory: got 40 MB, wanted ")
    assert prompt.seconds
    assert one.seconds
