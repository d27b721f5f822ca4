"""The suite of two GPUs: on two of the stand-in's devices that are alike."""

from __future__ import annotations

from ctypes import CDLL
from pathlib import Path
from typing import Any

import build_standin
import pytest
from suite_caches import nothing_prepared

from rocmforge.gpu import exchange_time
from rocmforge.model.synthetic import make_model


@pytest.fixture
def suite(
    standin: dict[str, CDLL], repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Any:
    monkeypatch.syspath_prepend(str(repo))
    from benchmarks import checks, inference, several_gpus

    model = make_model(tmp_path / "small.gguf", "tiny", "Q4_0", layers=2)
    monkeypatch.setenv("STANDIN_DEVICES", "gfx1100,gfx1100")
    monkeypatch.setenv("ROCMFORGE_CACHE", str(build_standin.cache_beside(tmp_path)))
    monkeypatch.setattr(several_gpus, "model_path", lambda name: model)
    monkeypatch.setattr(several_gpus, "PROMPT", 32)
    monkeypatch.setattr(checks, "CHECK_LENGTHS", (9, 2))
    monkeypatch.setattr(checks, "CHECK_STEPS", 1)
    monkeypatch.setattr(inference, "BUDGET_S", 0.0)
    with nothing_prepared((several_gpus,)):
        yield several_gpus


@pytest.mark.parametrize("way", ["peer access", "host memory"])
def test_sums_over_two_gpus_are_timed(suite: Any, way: str) -> None:
    benchmark = suite.AllReduce()
    benchmark.setup(1 << 12, way)
    samples = benchmark.track_all_reduce_us(1 << 12, way)["samples"]
    benchmark.teardown(1 << 12, way)
    assert min(samples) > 0


def test_the_norm_of_a_sum_is_timed(suite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "COLUMNS", 64)
    monkeypatch.setattr(exchange_time, "CALLS", 4)
    benchmark = suite.ReduceScatterRmsnormAllGather()
    benchmark.setup(32, "peer access")
    samples = benchmark.track_reduce_rmsnorm_us(32, "peer access")["samples"]
    benchmark.teardown(32, "peer access")
    assert min(samples) > 0


def test_without_peer_access_it_is_not_timed(suite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_NO_PEERS", "1")
    benchmark = suite.AllReduce()
    with pytest.raises(NotImplementedError, match="cannot reach"):
        benchmark.setup(1 << 12, "peer access")
    benchmark.teardown(1 << 12, "peer access")


@pytest.mark.slow
def test_a_model_is_timed_on_one_gpu_and_on_two(suite: Any) -> None:
    for devices in suite.SPLITS:
        benchmark = suite.Split()
        benchmark.setup("small", devices)
        assert len(benchmark.engine.devices) == int(devices[0])
        assert min(benchmark.track_prefill_ms_per_token("small", devices)["samples"]) > 0
        assert min(benchmark.track_decode_ms_per_token("small", devices)["samples"]) > 0


def test_one_gpu_is_not_enough(suite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_DEVICES", "gfx1100,gfx90a")
    with pytest.raises(NotImplementedError, match="no two GPUs"):
        suite.two_gpus()
