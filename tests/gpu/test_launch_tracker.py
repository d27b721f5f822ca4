"""Launches of an engine that is tracked: each kernel of a prompt, one graph a token of decode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from guarded import Gpu

from rocmforge.engine import Engine
from rocmforge.errors import DeviceError
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.runtime import Runtime
from rocmforge.model.synthetic import make_model
from rocmforge.plan.observation import ObservedPass
from rocmforge.profiling.launches import LaunchTracker

PROMPT = list(range(5, 22))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return make_model(path, "tiny", "Q4_K_M", seed=5, layers=2)


@pytest.fixture
def engine(kernels: Kernels, model: Path) -> Iterator[Engine]:
    device = f"{kernels.runtime.platform}:{kernels.runtime.properties.index}"
    with Engine.from_gguf(model, device, ctx=64) as engine:
        yield engine


def test_every_launch_of_a_prompt_is_tracked(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: Counter[str] = Counter()
    take = Launch.enqueue

    def noted(self: Launch, runtime: Runtime, stream: object = None) -> None:
        launched[self.name] += 1
        take(self, runtime, stream)

    monkeypatch.setattr(Launch, "enqueue", noted)
    passes: list[ObservedPass] = []
    with engine.observed(passes.append):
        engine.prefill(engine.add_sequence(), PROMPT)
    (seen,) = passes
    tracker = LaunchTracker()
    tracker(seen)
    assert {name: times.count for name, times in tracker.by_name().items()} == launched
    times = tracker.summary()
    assert times is not None
    assert times.minimum > 0
    part = next(part for part in seen.host if part.name == "launch")
    assert times.total < part.seconds
    for launch in seen.launches:
        assert part.start <= launch.start
        assert launch.start + launch.seconds <= part.start + part.seconds
    assert tracker.graphs() is None


def test_a_replayed_pass_is_one_launch(engine: Engine) -> None:
    sequence = engine.add_sequence()
    engine.prefill(sequence, PROMPT)
    for _ in range(3):
        engine.decode([sequence], [3])
    tracker = LaunchTracker()
    with engine.observed(tracker):
        for _ in range(4):
            engine.decode([sequence], [3])
    graphs = tracker.graphs()
    assert graphs is not None
    assert graphs.count == 4
    assert graphs.minimum > 0
    assert tracker.summary() is None


def test_what_is_not_observed_is_not_timed_and_computes_the_same(engine: Engine) -> None:
    tracker = LaunchTracker()
    plain = engine.prefill(engine.add_sequence(), PROMPT)
    engine.cache.table.remove(0)
    with engine.observed(tracker):
        observed = engine.prefill(engine.add_sequence(), PROMPT)
    np.testing.assert_array_equal(plain, observed)
    before = tracker.summary()
    engine.decode([1], [3])
    assert before is not None
    assert tracker.summary() == before


class Failing:
    """A launch that the device refuses."""

    def enqueue(self, runtime: Runtime, stream: Any = None) -> None:
        raise DeviceError("planted")


def test_launches_of_ones_own(gpu: Gpu) -> None:
    tracker = LaunchTracker()

    class Fill:
        def enqueue(self, runtime: Runtime, stream: Any = None) -> None:
            runtime.fill(address, 7, 16, stream)

    address = gpu.empty(16)
    tracker.enqueue("fill", Fill(), gpu.runtime)
    assert set(gpu.download(address, 16, np.uint8)) == {7}
    with pytest.raises(DeviceError, match="planted"):
        tracker.enqueue("failing", Failing(), gpu.runtime)
    assert list(tracker.by_name()) == ["fill"]
    assert tracker.by_name()["fill"].count == 1
