"""The suites of steps and of fusion rules on a GPU: their times are those of the steps' kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import build_standin
import pytest
from suite_caches import nothing_prepared

from rocmforge.errors import MeasurementError
from rocmforge.gpu import product_launches, replay
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.fusion import FUSIONS
from rocmforge.gpu.launch import Launch
from rocmforge.model.synthetic import make_model
from rocmforge.timing import collect

pytestmark = pytest.mark.either_wave

KERNEL_US, LAUNCH_S = 50.0, 30e-6  # planted
DECODE, PROMPT = "decode at 5", "prompt of 12"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the model and its reference logits go."""
    return build_standin.cache_beside(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def model(cache: Path) -> Path:
    return make_model(cache / "small.gguf", "tiny", "Q4_K_M", layers=2)


@pytest.fixture
def suites(
    kernels: Kernels, repo: Path, monkeypatch: pytest.MonkeyPatch, cache: Path, model: Path
) -> Iterator[dict[str, Any]]:
    """The suites on the device of `kernels`, with small shapes."""
    monkeypatch.syspath_prepend(str(repo))
    from benchmarks import checks, devices, fusion, rule_graphs, rule_steps, steps

    runtime = kernels.runtime
    monkeypatch.setenv("ROCMFORGE_DEVICE", f"{runtime.platform}:{runtime.properties.index}")
    monkeypatch.setenv("ROCMFORGE_CACHE", str(cache))
    monkeypatch.setattr(checks, "CHECK_LENGTHS", (9, 2))
    monkeypatch.setattr(checks, "CHECK_STEPS", 1)
    monkeypatch.setattr(steps, "model_path", lambda name: model)
    monkeypatch.setattr(steps, "PASSES", {DECODE: (1, 1, 5), PROMPT: (1, 12, 0)})
    sizes = {"WIDTH": 256, "INNER": 512, "HEADS": 2, "HEAD_DIM": 64, "LAYERS": 2}
    for name, size in sizes.items():
        monkeypatch.setattr(rule_graphs, name, size)
    monkeypatch.setattr(rule_steps, "cold_bytes", lambda device: 200_000)
    monkeypatch.setattr(replay, "SHORTEST_S", 1e-6)  # a kernel takes longer than a launch
    few = partial(collect, fewest=1, most=1, warmup=0, warmup_budget=0.0)
    for module in (fusion, steps):
        monkeypatch.setattr(module, "collect", few)
    modules = (devices, fusion, rule_graphs, rule_steps, steps)
    with nothing_prepared(modules):
        yield {module.__name__.removeprefix("benchmarks."): module for module in modules}


@pytest.fixture
def planted(plant_times: Callable[[float, float], None]) -> None:
    """Each kernel takes KERNEL_US on the stand-in, and each launch LAUNCH_S."""
    plant_times(1e-6 * KERNEL_US, LAUNCH_S)


def value(result: dict[str, Any]) -> float:
    (sample,) = result["samples"]
    return float(sample)


@pytest.mark.parametrize(
    ("step", "of"), [("matmul_qkv", DECODE), ("attention", PROMPT), ("gate_up_swiglu", PROMPT)]
)
@pytest.mark.usefixtures("planted")
def test_a_step_takes_what_its_kernels_take(suites: dict[str, Any], step: str, of: str) -> None:
    benchmark = suites["steps"].OnGpu()
    benchmark.setup(step, of, "gpu")
    each = len(benchmark.step.launches) / benchmark.step.calls
    took = value(benchmark.track_us(step, of, "gpu"))
    assert took == pytest.approx(each * KERNEL_US, rel=1e-2)
    nbytes = benchmark.step.cost.bytes / benchmark.step.calls
    rate = value(benchmark.track_gb_per_second(step, of, "gpu"))
    assert rate == pytest.approx(nbytes / took / 1e3, rel=1e-2)
    assert 0 < value(benchmark.track_launch_us(step, of, "gpu")) < 1e6


def test_the_parameters_name_every_step_of_a_gpu(suites: dict[str, Any]) -> None:
    steps = suites["steps"]
    for name in steps.PASSES:
        run = {step.label for step in steps.timed_pass(name, "gpu").steps}
        assert run <= set(steps.GPU_LABELS)
    with pytest.raises(NotImplementedError, match="rope_q: decode at 5 has no such step"):
        steps.OnGpu().setup("rope_q", DECODE, "gpu")


@pytest.mark.usefixtures("planted")
def test_the_parts_of_a_pass_make_the_whole(suites: dict[str, Any]) -> None:
    benchmark = suites["steps"].Pass()
    benchmark.setup(DECODE, "gpu")
    assert 0.8 < value(benchmark.track_parts_over_whole(DECODE, "gpu")) < 1.1


@pytest.mark.parametrize(
    ("suite", "work", "fused", "unfused", "tokens"),
    [
        ("GateUpSwiglu", "Q4_K", 1, 2, 1),
        ("GateUpSwiglu", "Q4_K", 1, 2, 10),
        ("EmbedRmsnorm", "Q4_0", 1, 2, 1),
        ("EmbedRmsnorm", "Q4_0", 1, 2, 10),
        ("RmsnormRoute", "F32", 1, 4, 1),
        ("AddExpertsRmsnorm", "Q4_K", 1, 2, 1),
        ("RopeKvAppend", "q8_0", 1, 3, 1),
        ("RopeKvAppend", "q8_0", 1, 3, 10),
        ("RopeAttention", "q8_0", 1, 4, 1),
        ("RopeAttention", "fp8_e4m3", 1, 4, 1),
    ],
)
@pytest.mark.usefixtures("planted")
def test_a_rule_saves_kernels(
    suites: dict[str, Any], suite: str, work: str, fused: int, unfused: int, tokens: int
) -> None:
    took, moved = {}, {}
    for way in ("fused", "unfused"):
        benchmark = getattr(suites["fusion"], suite)()
        benchmark.setup(work, tokens, way, "gpu")
        took[way] = value(benchmark.track_us(work, tokens, way, "gpu"))
        moved[way] = benchmark.track_bytes_moved(work, tokens, way, "gpu")
    assert took["fused"] == pytest.approx(fused * KERNEL_US, rel=1e-2)
    assert took["unfused"] == pytest.approx(unfused * KERNEL_US, rel=1e-2)
    assert moved["unfused"] > moved["fused"] > 0


def test_every_rule_of_a_gpu_has_a_suite(suites: dict[str, Any]) -> None:
    rules = {getattr(one, "rule", None) for one in vars(suites["fusion"]).values()}
    assert set(FUSIONS) <= rules


@pytest.mark.parametrize("kernel", ["gate_up_swiglu", "swiglu"])
def test_a_wrong_kernel_of_either_way_is_not_timed(
    suites: dict[str, Any], kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right: Callable[..., Launch] = getattr(product_launches, kernel)

    def wrong(*given: Any, **options: Any) -> Launch:
        """Take the gate for both."""
        return right(*given, **{**options, "up": options["gate"]})

    monkeypatch.setattr(product_launches, kernel, wrong)
    with pytest.raises(MeasurementError, match="gate_up_swiglu Q4_0, 1 tokens"):
        suites["fusion"].GateUpSwiglu().setup("Q4_0", 1, "unfused", "gpu")
