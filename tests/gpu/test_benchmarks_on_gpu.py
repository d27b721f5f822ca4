"""The benchmarks that only a GPU has: what fusing saves, allocations while generating, memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import build_standin
import pytest
from suite_caches import nothing_prepared

from rocmforge.errors import MeasurementError
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.fusion import FUSIONS
from rocmforge.model.synthetic import make_model

pytestmark = pytest.mark.either_wave

MODEL = "small"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the model and its reference logits go."""
    return build_standin.cache_beside(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def model(cache: Path) -> Path:
    return make_model(cache / "small.gguf", "tiny", "Q4_K_M", layers=1)


@pytest.fixture
def suites(
    kernels: Kernels, repo: Path, monkeypatch: pytest.MonkeyPatch, cache: Path, model: Path
) -> Iterator[dict[str, Any]]:
    """Suites on the device of `kernels`, with a model of one layer."""
    monkeypatch.syspath_prepend(str(repo))
    from benchmarks import checks, devices, first_token, fusion, ideal_time, inference, memory

    runtime = kernels.runtime
    monkeypatch.setenv("ROCMFORGE_DEVICE", f"{runtime.platform}:{runtime.properties.index}")
    monkeypatch.setenv("ROCMFORGE_CACHE", str(cache))
    for module in (first_token, fusion, inference, memory):
        monkeypatch.setattr(module, "model_path", lambda name: model)
    monkeypatch.setattr(checks, "CHECK_LENGTHS", (9, 2))
    monkeypatch.setattr(checks, "CHECK_STEPS", 1)
    monkeypatch.setattr(memory, "STEPS", 16)
    monkeypatch.setattr(inference, "BUDGET_S", 0.0)
    monkeypatch.setattr(first_token, "TOKENS", 16)
    found = (devices, ideal_time, first_token, fusion, inference, memory)
    with nothing_prepared(found):
        yield {module.__name__.removeprefix("benchmarks."): module for module in found}


def test_fusing_saves_launches_and_bytes(suites: dict[str, Any]) -> None:
    step = suites["fusion"].DecodeStep()
    launches, moved = {}, {}
    for rules in ("none", "gate_up_swiglu", "default"):
        step.setup(MODEL, rules, "gpu")
        launches[rules] = step.track_launches(MODEL, rules, "gpu")
        moved[rules] = step.track_activation_bytes(MODEL, rules, "gpu")
    assert launches["none"] > launches["gate_up_swiglu"] > launches["default"] > 0
    assert moved["none"] > moved["gate_up_swiglu"]
    assert moved["none"] > moved["default"]
    assert min(step.track_decode_ms_per_token(MODEL, "default", "gpu")["samples"]) > 0
    assert set(step.params[1]) == {"none", "default", *FUSIONS}


def test_a_step_that_launches_nothing_is_refused(
    suites: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = suites["fusion"].DecodeStep()
    step.setup(MODEL, "default", "gpu")
    step.track_launches(MODEL, "default", "gpu")
    step.engine.decode([step.engine.add_sequence()], [3])
    with pytest.raises(MeasurementError, match="no launch"):
        step.track_launches(MODEL, "default", "gpu")  # replayed from a graph by now


def test_generating_allocates_no_device_memory(suites: dict[str, Any]) -> None:
    memory = suites["memory"]
    benchmark = memory.DeviceAllocations()
    benchmark.setup(MODEL, "gpu")
    assert benchmark.track_allocations(MODEL, "gpu") == 0
    runtime = benchmark.steps.engine.backend.kernels.runtime
    with memory.counted(benchmark.steps.engine.backend.kernels.runtime, "allocate") as calls:
        runtime.free(runtime.allocate(64))
    assert calls == {"allocate": 1}
    assert "allocate" not in vars(type(runtime))  # what was watched is as it was


def test_device_memory_is_seen_while_it_is_there(suites: dict[str, Any]) -> None:
    benchmark = suites["memory"].DeviceMemory()
    benchmark.setup(MODEL, "gpu")
    peak, steady, weights, kv, overhead = (
        getattr(benchmark, f"track_{name}_bytes")(MODEL, "gpu")
        for name in ("peak", "steady", "weight", "kv", "overhead")
    )
    assert peak >= steady > 1_000_000
    # tokens that the cache begins with, keys and values, heads, head dim, float16
    assert kv == 512 * 2 * 2 * 64 * 2
    assert steady == weights + kv + overhead
    assert min(weights, overhead) > 0


@pytest.mark.parametrize("part", ["host_to_device", "embedding", "device_to_host"])
def test_what_a_gpu_does_for_the_first_token_is_timed_on_it(
    suites: dict[str, Any], part: str
) -> None:
    benchmark = suites["first_token"].FirstToken()
    benchmark.setup(MODEL, part, "gpu")
    assert min(benchmark.track_ms(MODEL, part, "gpu")["samples"]) > 0


def test_the_energy_of_a_card_that_reports_none_is_not_available(
    suites: dict[str, Any], kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernels.runtime.platform == "cuda":
        pytest.skip("NVIDIA's cards report it")
    inference = suites["inference"]
    monkeypatch.setattr(inference, "ENERGY_S", 0.1)
    monkeypatch.setattr(inference, "POWER_WARMUP_S", 0.0)
    with pytest.raises(NotImplementedError, match="reports neither energy nor power"):
        inference.Energy().setup(MODEL, "gpu")


def test_the_energy_of_a_token_is_what_the_meter_says_over_the_tokens(
    suites: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    inference = suites["inference"]
    seen: list[float] = []

    class Meter:
        def __init__(self, device: str) -> None:
            assert device.startswith(("hip:", "cuda:"))

        def begin(self) -> None:
            seen.append(0.0)

        def end(self, seconds: float) -> Any:
            seen.append(seconds)
            return SimpleNamespace(joules=1.0, reason=None)

    monkeypatch.setattr(inference, "EnergyMeter", Meter)
    monkeypatch.setattr(inference, "ENERGY_S", 1e-3)
    monkeypatch.setattr(inference, "POWER_WARMUP_S", 0.0)
    benchmark = inference.Energy()
    benchmark.setup(MODEL, "gpu")
    tokens = 1 / benchmark.track_joules_per_token(MODEL, "gpu")
    assert tokens == pytest.approx(inference.GROWTH)
    assert seen[0] == 0.0
    assert seen[1] > 1e-3


def test_a_deep_context_is_prefilled_on_a_gpu(suites: dict[str, Any]) -> None:
    inference = suites["inference"]
    benchmark = inference.LargeContext()
    benchmark.setup(MODEL, 40, "f16", "gpu")
    samples = benchmark.track_decode_ms_per_token(MODEL, 40, "f16", "gpu")["samples"]
    assert min(samples) > 0
