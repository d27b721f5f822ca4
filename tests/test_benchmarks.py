"""The asv suites: found by asv, run on their smallest parameters, and unable to time a wrong op."""

from __future__ import annotations

import itertools
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rocmforge.cpu.backend import CpuBackend
from rocmforge.errors import MeasurementError

discovery = pytest.importorskip("asv_runner.discovery")

SMALLEST: dict[str, tuple[Any, ...]] = {
    "quality.Quality": ("Q4_K", "cpu"),
    "attention.Decode": (1024, "cpu"),
    "attention.Prefill": ("128x4x32", "cpu"),
    "dequantize.Dequantize": ("Q4_0", "cpu"),
    "dequantize.Size": ("Q4_0",),
    "inference.Decode": ("tiny-Q4_K_M", 4, "cpu"),
    "inference.PeakMemory": ("tiny-Q4_K_M", "cpu"),
    "inference.Prompt": ("tiny-Q4_K_M", 32, "cpu"),
    "matmul.Bandwidth": ("Q4_0", "cpu"),
    "matmul.Dense": ("32x32x768", "F16", "cpu"),
    "matmul.Quantized": ("Q4_0", 1, "cpu"),
    "memory.Append": (64, 16, "cpu"),
    "memory.KVPerToken": ("70B",),
    "memory.KVTotal": ("70B", 4096),
    "memory.Load": ("tiny-Q4_K_M", "cpu"),
    "memory.Pages": (16,),
}


@pytest.fixture(scope="module")
def suite(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Every benchmark that asv finds, by name; generated models go to a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ROCFORGE_TEST_MODEL", raising=False)
        patch.setenv("ROCMFORGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.syspath_prepend(str(repo))
        found = {b.name: b for b in discovery.disc_benchmarks(str(repo / "benchmarks"))}
        for module in ("matmul", "dequantize"):
            patch.setattr(sys.modules[f"benchmarks.{module}"], "N", 512)
        yield found


@pytest.fixture
def fresh(suite: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The suite with nothing prepared, and nothing left behind."""
    modules = [
        sys.modules[f"benchmarks.{m}"] for m in ("common", *{n.split(".")[0] for n in suite})
    ]
    caches = [v for m in modules for v in vars(m).values() if hasattr(v, "cache_clear")]

    def clear() -> None:
        for cache in caches:
            cache.cache_clear()

    clear()
    yield suite
    clear()


def in_class(suite: dict[str, Any], name: str) -> list[Any]:
    return [b for key, b in suite.items() if key.startswith(f"{name}.")]


def labels(suite: dict[str, Any]) -> list[str]:
    return [
        f"{name}({', '.join(values)})"
        for name, b in suite.items()
        for values in itertools.product(*b.params)
    ]


def test_asv_finds_the_suites_and_their_kinds(suite: dict[str, Any]) -> None:
    assert {name.split(".")[0] for name in suite} == {
        "attention",
        "dequantize",
        "inference",
        "matmul",
        "memory",
        "quality",
    }
    assert {b.type for b in suite.values()} == {"time", "peakmemory", "track"}
    assert {name.rsplit(".", 1)[0] for name in suite} == set(SMALLEST)


def test_throughputs_declare_their_direction_and_units(suite: dict[str, Any]) -> None:
    for name, benchmark in suite.items():
        higher = getattr(benchmark, "direction", "lower") == "higher"
        assert benchmark.unit.endswith("/s") == higher, name
        assert benchmark.unit != "unit", name


def test_asv_check_passes(repo: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "asv", "check", "-E", f"existing:{sys.executable}"],
        cwd=repo,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No problems found" in done.stdout
    assert done.returncode == 0


def test_every_quick_expression_finds_a_benchmark(suite: dict[str, Any], repo: Path) -> None:
    lines = (repo / "benchmarks" / "quick.txt").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    known = labels(suite)
    for pattern in patterns:
        expression = pattern.replace("<device>", "'cpu'").replace("<model>", r"0\.5B-Q4_K_M")
        assert any(re.search(expression, label) for label in known), pattern
    assert {p.split(".")[0] for p in patterns} == {name.split(".")[0] for name in suite}


@pytest.mark.parametrize("name", SMALLEST)
def test_every_benchmark_runs_on_its_smallest_parameters(
    suite: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["benchmarks.inference"], "BUDGET_S", 0.1)
    for benchmark in in_class(suite, name):
        benchmark._current_params = SMALLEST[name]
        assert benchmark.do_setup() is False
        result = benchmark.func(*SMALLEST[name])
        if benchmark.type != "track":
            continue
        if isinstance(result, dict):
            assert result["number"] == 1
            assert len(result["samples"]) >= 4
        for value in result["samples"] if isinstance(result, dict) else [result]:
            assert math.isfinite(value)
            assert value > 0


def test_sizes_are_the_published_ones(suite: dict[str, Any]) -> None:
    per_token = suite["memory.KVPerToken.track_kv_bytes_per_token"].func
    total = suite["memory.KVTotal.track_kv_bytes"].func
    # 2 (K and V) · 2 bytes · layers · KV heads · head dim, of each model's config.json
    wanted = {"1B": 16 * 8 * 64, "7B": 32 * 32 * 128, "13B": 40 * 40 * 128, "70B": 80 * 8 * 128}
    assert {shape: per_token(shape) for shape in wanted} == {s: 4 * n for s, n in wanted.items()}
    assert total("7B", 4096) == 2 * 2**30
    assert suite["memory.Pages.track_unused_bytes"].func(64) == 24 * 4 * wanted["1B"]
    assert suite["memory.Pages.track_table_bytes"].func(32) == 4 * 32 + 4
    assert suite["dequantize.Size.track_bits_per_weight"].func("Q4_0") == 4.5


@pytest.mark.parametrize("name", [n for n in SMALLEST if SMALLEST[n][-1] == "cpu"])
def test_without_a_gpu_it_is_skipped(
    fresh: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["benchmarks.common"], "list_devices", list)
    for benchmark in in_class(fresh, name):
        benchmark._current_params = (*SMALLEST[name][:-1], "gpu")
        assert benchmark.do_setup() is True


def test_a_prompt_beyond_the_trained_context_is_skipped(fresh: dict[str, Any]) -> None:
    benchmark = fresh["inference.Prompt.track_ttft_ms"]
    benchmark._current_params = ("tiny-Q4_K_M", 2049, "cpu")
    assert benchmark.do_setup() is True


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("matmul", "matmul.Quantized"),
        ("matmul", "matmul.Dense"),
        ("matmul", "matmul.Bandwidth"),
        ("matmul", "inference.Prompt"),
        ("attention", "inference.Decode"),
        ("attention", "attention.Decode"),
        ("attention", "attention.Prefill"),
        ("dequantize", "dequantize.Dequantize"),
        ("kv_append", "memory.Append"),
    ],
)
def test_a_wrong_kernel_fails_instead_of_being_timed(
    fresh: dict[str, Any], monkeypatch: pytest.MonkeyPatch, op: str, name: str
) -> None:
    right = getattr(CpuBackend, op)

    def wrong(self: CpuBackend, *arguments: Any, **options: Any) -> None:
        """Change one number in eight of what the op writes."""
        right(self, *arguments, **options)
        position = {"matmul": 2, "kv_append": 2}.get(op, -1)
        written = arguments[position]
        for array in written if isinstance(written, (list, tuple)) else [written]:
            array[..., ::8] *= np.asarray(1.5, array.dtype)

    monkeypatch.setattr(CpuBackend, op, wrong)
    for benchmark in in_class(fresh, name):
        benchmark._current_params = SMALLEST[name]
        with pytest.raises(MeasurementError, match=r"logits|matmul|attention|dequantize|kv_append"):
            benchmark.do_setup()


@pytest.mark.parametrize("where", ["second page", "several sequences"])
def test_a_kernel_that_is_wrong_only_there_fails_too(
    fresh: dict[str, Any], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    right = CpuBackend.attention

    def wrong(self: CpuBackend, *arguments: Any) -> None:
        """Write zeros past the first page, or where there are several sequences."""
        right(self, *arguments)
        lengths = arguments[4]
        if lengths.max() > 32 if where == "second page" else lengths.size > 1:
            arguments[-1][:] = 0

    monkeypatch.setattr(CpuBackend, "attention", wrong)
    for benchmark in in_class(fresh, "inference.Prompt"):
        benchmark._current_params = SMALLEST["inference.Prompt"]
        with pytest.raises(MeasurementError, match="logits"):
            benchmark.do_setup()


def test_a_users_model_is_one_more_value(
    suite: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    common: Any = sys.modules["benchmarks.common"]
    mine = tmp_path / "mine.gguf"
    monkeypatch.setattr(common, "USER_MODEL", mine)
    with pytest.raises(NotImplementedError, match="ROCFORGE_TEST_MODEL"):
        common.model_path("mine")
    mine.touch()
    assert common.model_path("mine") == mine


def test_a_usable_gpu_would_be_taken(
    fresh: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    common: Any = sys.modules["benchmarks.common"]
    found = [SimpleNamespace(kind="cpu", usable=True), SimpleNamespace(kind="cuda", usable=True)]
    monkeypatch.setattr(common, "list_devices", lambda: found)
    assert common.device_name("gpu") == "cuda"
    assert common.has_device("gpu")
