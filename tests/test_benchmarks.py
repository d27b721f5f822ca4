"""The asv suites: found by asv, run on their smallest parameters, and unable to time a wrong op."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from suite_caches import nothing_prepared

from rocmforge.cpu.backend import CpuBackend
from rocmforge.cpu.executor import HOST_RULES
from rocmforge.errors import DeviceError, MeasurementError
from rocmforge.gpu.cross_compile import ARCHITECTURES, all_builds, clang_version
from rocmforge.gpu.fusion import FUSIONS
from rocmforge.gpu.runtime import DeviceProperties
from rocmforge.gpu.tuning import UNTUNED

discovery = pytest.importorskip("asv_runner.discovery")

SMALLEST: dict[str, tuple[Any, ...]] = {
    "attention.Decode": (128, "cpu"),
    "attention.HeadDim": (32, "cpu"),
    "attention.Model": ("1.1B", "token at 4096", "cpu"),
    "attention.Prefill": ("128x4x32", "cpu"),
    "dequantize.Dequantize": ("Q4_0", "cpu"),
    "dequantize.Size": ("Q4_0",),
    "first_token.FirstToken": ("tiny-Q4_K_M", "tokenize", "cpu"),
    "fusion.DecodeStep": ("1.1B-Q4_K_M", "none", "gpu"),
    "fusion.DequantizeMatmul": ("Q4_0", 1, "unfused", "cpu"),
    "fusion.DequantizeMatmulBytes": ("Q4_0", 1, "unfused"),
    "fusion.AddExpertsRmsnorm": ("Q4_K", 1, "unfused", "gpu"),
    "fusion.EmbedRmsnorm": ("Q4_0", 1, "unfused", "gpu"),
    "fusion.GateUpSwiglu": ("Q4_0", 1, "unfused", "cpu"),
    "fusion.MatmulRmsnorm": ("Q4_0", 1, "unfused", "gpu"),
    "fusion.RmsnormRoute": ("F32", 1, "unfused", "gpu"),
    "fusion.RopeKvAppend": ("f16", 1, "unfused", "gpu"),
    "fusion.RopeAttention": ("f16", 1, "unfused", "gpu"),
    "fusion.FlashAttention": ("prompt of 512", "unfused", "cpu"),
    "fusion.FlashAttentionBytes": ("token at 4096", "unfused"),
    "inference.Context": ("tiny-Q4_K_M", 1024, "f16", "cpu"),
    "inference.Energy": ("tiny-Q4_K_M", "gpu"),
    "inference.LargeContext": ("tiny-Q4_K_M", 1024, "f16", "gpu"),
    "inference.Decode": ("tiny-Q4_K_M", 4, "cpu"),
    "inference.PageSize": ("tiny-Q4_K_M", 16, "cpu"),
    "inference.PeakMemory": ("tiny-Q4_K_M", "cpu"),
    "inference.Prompt": ("tiny-Q4_K_M", 32, "cpu"),
    "inference.Size": ("tiny-Q4_K_M", "cpu"),
    "inference.Experts": ("tiny-moe-Q4_K_M", "cpu"),
    "inference.WholeExperts": ("tiny-moe-Q4_K_M", "gpu"),
    "inference.Windows": ("tiny-Q4_K_M", 1024, "f16", "cpu"),
    "inference.Grids": ("tiny-Q4_K_M", "cpu"),
    "kernel_resources.KernelResources": ("swiglu.hip", "gfx1100"),
    "kernel_resources.Loads": ("swiglu.hip", "gfx1100"),
    "matmul.Bandwidth": ("Q4_0", "cpu"),
    "matmul.Dense": ("32x32x768", "F16", "cpu"),
    "matmul.InstructionSet": ("Q4_0", 1, "portable"),
    "matmul.Quantized": ("Q4_0", 1, "cpu"),
    "memory.Append": (64, 16, "cpu"),
    "memory.DeviceAllocations": ("tiny-Q4_K_M", "gpu"),
    "memory.DeviceMemory": ("tiny-Q4_K_M", "gpu"),
    "memory.Generating": ("tiny-Q4_K_M", "cpu"),
    "memory.KVPerToken": ("70B",),
    "memory.KVTotal": ("70B", 4096),
    "memory.Load": ("tiny-Q4_K_M", "cpu"),
    "memory.Mixed": (16,),
    "memory.Pages": (16,),
    "quality.Quality": ("Q4_K", "cpu"),
    "roofline.Attention": (1024, "cpu"),
    "roofline.Decode": ("tiny-Q4_K_M", "cpu"),
    "roofline.Dequantize": ("Q4_0", "cpu"),
    "roofline.Matmul": ("Q4_0", 1, "cpu"),
    "rows.HotToken": ("softmax", "cpu"),
    "rows.Prompt": ("softmax", "cpu"),
    "several_gpus.AllReduce": (1 << 14, "peer access"),
    "several_gpus.ReduceScatterRmsnormAllGather": (512, "peer access"),
    "several_gpus.Split": ("tiny-Q4_K_M", "2 GPUs, tensor"),
    "startup.Help": (),
    "startup.Import": ("rocmforge",),
    "startup.Load": ("tiny-Q4_K_M", "cpu"),
    "steps.OnCpu": ("matmul_qkv", "decode at 128", "cpu"),
    "steps.OnGpu": ("matmul_qkv", "decode at 128", "gpu"),
    "steps.Pass": ("decode at 128", "cpu"),
}
ZERO = ("spilled_registers", "lds_bytes", "allocations")
"""Metrics whose best value is 0."""


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
        for module in ("cold", "rule_steps"):
            patch.setattr(sys.modules[f"benchmarks.{module}"], "cold_bytes", lambda device: 1 << 20)
        patch.setattr(sys.modules["benchmarks.steps"], "MODEL", "tiny-Q4_K_M")
        for name in ("WIDTH", "INNER"):
            patch.setattr(sys.modules["benchmarks.rule_graphs"], name, 512)
        patch.setattr(sys.modules["benchmarks.startup"], "FEWEST", 4)
        patch.setattr(sys.modules["benchmarks.startup"], "BUDGET_S", 0.0)
        yield found


@pytest.fixture
def fresh(suite: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The suite with nothing prepared, and nothing left behind."""
    modules = [
        sys.modules[f"benchmarks.{m}"]
        for m in ("devices", "ideal_time", *{n.split(".")[0] for n in suite})
    ]
    with nothing_prepared(modules):
        yield suite


def in_class(suite: dict[str, Any], name: str) -> list[Any]:
    return [b for key, b in suite.items() if key.startswith(f"{name}.")]


def test_asv_finds_the_suites_and_their_kinds(suite: dict[str, Any]) -> None:
    assert {name.split(".")[0] for name in suite} == {
        "attention",
        "dequantize",
        "first_token",
        "fusion",
        "inference",
        "kernel_resources",
        "matmul",
        "memory",
        "quality",
        "roofline",
        "rows",
        "several_gpus",
        "startup",
        "steps",
    }
    assert {b.type for b in suite.values()} == {"time", "peakmemory", "track"}
    assert {name.rsplit(".", 1)[0] for name in suite} == set(SMALLEST)


@pytest.mark.parametrize("name", SMALLEST)
def test_every_benchmark_runs_on_its_smallest_parameters(
    suite: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["benchmarks.inference"], "BUDGET_S", 0.1)
    if name.startswith("kernel_resources."):
        clang_or_skip()
    if SMALLEST[name][-1:] == ("gpu",) or name.startswith("several_gpus."):
        pytest.skip("on a GPU only; see below")
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
            assert value > 0 or (value == 0 and benchmark.name.endswith(ZERO))


def clang_or_skip() -> None:
    try:
        clang_version()
    except DeviceError as error:
        pytest.skip(str(error))


def test_kernel_resources_grow_with_the_kernel(suite: dict[str, Any]) -> None:
    clang_or_skip()
    code = suite["kernel_resources.KernelResources.track_code_bytes"].func
    vgprs = suite["kernel_resources.KernelResources.track_vgprs"].func
    assert code("swiglu.hip", "gfx1100") < code("rmsnorm.hip", "gfx1100")
    assert 1 < vgprs("swiglu.hip", "gfx942") <= 512


@pytest.mark.parametrize("name", ["KernelResources.track_vgprs", "Loads.track_bytes_per_load"])
def test_kernel_resources_are_those_of_every_hot_kernel_file(
    suite: dict[str, Any], name: str
) -> None:
    files, architectures = suite[f"kernel_resources.{name}"].params
    assert architectures == [repr(a) for a in ARCHITECTURES]
    hot = {b.file for a in ARCHITECTURES for b in all_builds(a) if b.hot}
    assert hot == {file.strip("'") for file in files}


def test_without_two_gpus_their_suite_is_skipped_and_fails_nowhere(
    fresh: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["benchmarks.several_gpus"], "alike_gpus", list)
    for name in (each for each in SMALLEST if each.startswith("several_gpus.")):
        for benchmark in in_class(fresh, name):
            benchmark._current_params = SMALLEST[name]
            assert benchmark.do_setup() is True
            benchmark.do_teardown()  # as asv does


def test_kernel_resources_without_clang_are_skipped(
    fresh: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> str:
        raise DeviceError("clang-19 is not installed")

    monkeypatch.setattr("rocmforge.gpu.cross_compile.clang_version", missing)
    for name in ("kernel_resources.KernelResources", "kernel_resources.Loads"):
        for benchmark in in_class(fresh, name):
            benchmark._current_params = SMALLEST[name]
            assert benchmark.do_setup() is True


def test_loads_of_commits_that_did_not_count_them_are_skipped(
    fresh: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    clang_or_skip()
    monkeypatch.delattr("rocmforge.gpu.cross_compile.bytes_per_load")
    for name, skipped in (("KernelResources", False), ("Loads", True)):
        for benchmark in in_class(fresh, f"kernel_resources.{name}"):
            benchmark._current_params = SMALLEST[f"kernel_resources.{name}"]
            assert benchmark.do_setup() is skipped


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


@pytest.mark.parametrize("name", [n for n in SMALLEST if SMALLEST[n][-1:] in (("cpu",), ("gpu",))])
def test_without_a_gpu_it_is_skipped(
    fresh: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocmforge.devices._LISTS", {"hip": list, "cuda": list})
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
        ("matmul", "matmul.InstructionSet"),
        ("swiglu", "fusion.GateUpSwiglu"),
        ("gate_up_swiglu", "fusion.GateUpSwiglu"),
        ("gate_up_swiglu", "inference.Prompt"),
        ("matmul", "fusion.DequantizeMatmul"),
        ("matmul", "roofline.Matmul"),
        ("matmul", "roofline.Decode"),
        ("matmul", "inference.Prompt"),
        ("attention", "inference.Decode"),
        ("attention", "attention.Decode"),
        ("attention", "attention.Prefill"),
        ("attention", "attention.HeadDim"),
        ("attention", "attention.Model"),
        ("attention", "roofline.Attention"),
        ("softmax", "fusion.FlashAttention"),
        ("softmax", "rows.HotToken"),
        ("softmax", "rows.Prompt"),
        ("dequantize", "dequantize.Dequantize"),
        ("dequantize", "roofline.Dequantize"),
        ("kv_append", "memory.Append"),
        ("matmul", "steps.OnCpu"),
        ("attention", "steps.Pass"),
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
        with pytest.raises(
            MeasurementError, match=r"logits|matmul|attention|dequantize|kv_append|softmax|swiglu"
        ):
            benchmark.do_setup()


@pytest.mark.parametrize("where", ["second page", "several sequences"])
def test_a_kernel_that_is_wrong_only_there_fails_too(
    fresh: dict[str, Any], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    right = CpuBackend.attention

    def wrong(self: CpuBackend, *arguments: Any, **options: Any) -> None:
        """Write zeros past the first page, or where there are several sequences."""
        right(self, *arguments, **options)
        lengths = arguments[3].lengths
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
    models: Any = sys.modules["benchmarks.models"]
    mine = tmp_path / "mine.gguf"
    monkeypatch.setattr(models, "USER_MODEL", mine)
    monkeypatch.setenv("ROCFORGE_TEST_MODEL", str(mine))
    with pytest.raises(NotImplementedError, match="ROCFORGE_TEST_MODEL"):
        models.model_path("mine")
    mine.touch()
    assert models.model_path("mine") == mine


def test_a_usable_gpu_would_be_taken(
    fresh: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    devices: Any = sys.modules["benchmarks.devices"]
    card = DeviceProperties(2, "X", "sm_90", 32, 132, 140 << 30, 49152, False)
    monkeypatch.setattr("rocmforge.devices._LISTS", {"cuda": lambda: [card]})
    monkeypatch.setattr("rocmforge.devices._DRIVERS", {"cuda": lambda: True})
    assert devices.device_name("gpu") == "cuda:2"
    assert devices.has_device("gpu")


def test_a_model_too_large_for_this_machine_is_skipped(
    fresh: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    models: Any = sys.modules["benchmarks.models"]
    monkeypatch.setenv("ROCMFORGE_CACHE", str(tmp_path / "new"))
    benchmark = fresh["inference.Size.track_decode_ms_per_token"]
    benchmark._current_params = ("3B-Q4_K_M", "cpu")
    memory, disk = SimpleNamespace(available=1 << 40), SimpleNamespace(free=2 << 30)
    monkeypatch.setattr(models.psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(models.shutil, "disk_usage", lambda folder: disk)
    with pytest.raises(NotImplementedError, match="2 GB of disk"):
        models.large_model("3B-Q4_K_M")
    memory.available = 3 << 30
    with pytest.raises(NotImplementedError, match="3 GB of memory"):
        models.large_model("3B-Q4_K_M")
    assert benchmark.do_setup() is True
    monkeypatch.setattr(models.os, "sched_getaffinity", lambda process: {0, 1})
    memory.available = disk.free = 1 << 40
    benchmark._current_params = ("13B-Q4_K_M", "cpu")
    assert benchmark.do_setup() is True
    with pytest.raises(NotImplementedError, match="13B-Q4_K_M: got 2 cores, wanted 4"):
        models.refuse_slow("13B-Q4_K_M", "cpu")
    models.refuse_slow("8B-Q4_K_M", "cpu")
    models.refuse_slow("13B-Q4_K_M", "gpu")
    assert not list(tmp_path.rglob("*.gguf"))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("steps.OnCpu.track_us", ("matmul_qkv", "decode at 2000", "cpu")),  # as at 128
        ("steps.OnCpu.track_us", ("swiglu", "decode at 128", "cpu")),
    ],
)
def test_what_the_cpu_does_not_have_is_skipped(
    fresh: dict[str, Any], name: str, parameters: tuple[Any, ...]
) -> None:
    fresh[name]._current_params = parameters
    assert fresh[name].do_setup() is True


@pytest.mark.parametrize("part", ["load", "embedding", "prefill", "first_token"])
def test_the_cpu_has_the_other_parts_of_the_first_token(fresh: dict[str, Any], part: str) -> None:
    benchmark = fresh["first_token.FirstToken.track_ms"]
    params = benchmark._current_params = ("tiny-Q4_K_M", part, "cpu")
    assert benchmark.do_setup() is False
    assert min(benchmark.func(*params)["samples"]) > 0


def test_a_context_as_long_as_the_trained_one_ends_there(fresh: dict[str, Any]) -> None:
    inference: Any = sys.modules["benchmarks.inference"]
    context = inference.Context()
    for wanted, depth in ((0, 0), (1984, 1984), (1985, 1984), (2048, 1984)):
        context.setup("tiny-Q4_K_M", wanted, "f16", "cpu")
        assert context.context == depth
        assert context.engine.ctx >= depth + inference.GROWTH
    with pytest.raises(NotImplementedError, match="2113 tokens, trained for 2048"):
        context.setup("tiny-Q4_K_M", 2049, "f16", "cpu")


def test_steps_behind_random_keys_and_values_see_the_whole_context(
    fresh: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    inference: Any = sys.modules["benchmarks.inference"]
    monkeypatch.setattr(inference, "BUDGET_S", 0.0)
    on = inference.engine("tiny-Q4_K_M", "cpu", 512 + inference.GROWTH, 1)
    seen = []
    right = CpuBackend.attention

    def noted(
        self: CpuBackend, q: Any, k: Any, v: Any, queries: Any, *rest: Any, **how: Any
    ) -> None:
        seen.append((queries.lengths.max(), *(float(a.astype(np.float32).std()) for a in (k, v))))
        right(self, q, k, v, queries, *rest, **how)

    monkeypatch.setattr(CpuBackend, "attention", noted)
    assert len(inference.decode_seconds_at(on, 512)) == 8
    length, keys, values = seen[0]
    assert length == 513
    assert keys == pytest.approx(1.0, abs=0.1)
    assert values == pytest.approx(1.0, abs=0.1)
    assert on.cache.table.allocator.n_free == on.cache.n_pages


def test_unfused_work_moves_more_bytes(suite: dict[str, Any]) -> None:
    moved = suite["fusion.DequantizeMatmulBytes.track_bytes_moved"].func
    assert moved("Q4_0", 1, "unfused") == moved("Q4_0", 1, "fused") + 8 * 512 * 512
    scores = suite["fusion.FlashAttentionBytes.track_bytes_moved"].func
    for work, tokens, queries, passes in (
        ("token at 4096", 4096, 1, 4),
        ("prompt of 512", 512, 512, 7),
    ):
        wider = 2 * tokens * 4 * 64 * 2  # keys and values in float32, not float16
        more = passes * 4 * 32 * queries * tokens
        assert scores(work, "unfused") == scores(work, "fused") + wider + more


def test_cold_weights_rotate(fresh: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    matmul: Any = sys.modules["benchmarks.matmul"]
    read: list[int] = []
    right = matmul.ops.matmul

    def noted(x: Any, weights: Any) -> Any:
        read.append(id(weights))
        return right(x, weights)

    monkeypatch.setattr(matmul.ops, "matmul", noted)
    call = matmul.cold_matmul(matmul.cases.MatmulCase(1, 512, 512, "Q8_0"), "cpu")
    copies = -(-(1 << 20) // (512 * 512 // 32 * 34 + 4 * 2 * 512))
    assert len(set(read)) == len(read) == copies  # each was checked
    for _ in range(2 * copies):
        call()
    assert read == 3 * read[:copies]


def test_the_steps_are_those_that_engines_run(suite: dict[str, Any]) -> None:
    steps: Any = sys.modules["benchmarks.steps"]
    run = [step.label for step in steps.timed_pass("decode at 128", "cpu").steps]
    assert tuple(run) == steps.CPU_LABELS
    assert run == [*steps.labels(steps.ops_of("decode at 128", "cpu"))]
    assert {"attention", "matmul_qkv", "gate_up_swiglu"} <= set(run) & set(steps.GPU_LABELS)
    reads = {op.label for op in steps.ops_of("decode at 2000", "cpu") if steps.reads_context(op)}
    assert reads == {"attention"}
    bytes_of = {
        name: {step.label: step.cost.bytes for step in steps.timed_pass(name, "cpu").steps}
        for name in ("decode at 128", "decode at 2000")
    }
    short, long = bytes_of.values()
    assert {label for label in short if short[label] != long[label]} == reads


def test_steps_of_a_gpu_are_known_before_the_model_is_loaded(
    suite: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: Any = sys.modules["benchmarks.steps"]
    properties = SimpleNamespace(architecture="sm_90", compute_units=132, wave_size=32)
    runtime = SimpleNamespace(properties=properties)
    on = SimpleNamespace(kernels=SimpleNamespace(runtime=runtime, tuning=UNTUNED))
    monkeypatch.setattr(steps, "backend", lambda _: on)
    monkeypatch.setattr(steps, "timed_pass", lambda *_: pytest.fail("it was loaded"))
    steps.ops_of.cache_clear()
    try:
        reads = {op.label for op in steps.ops_of(steps.LONG, "gpu") if steps.reads_context(op)}
        assert reads == {"rope_attention"}
        for label, name, reason in (
            ("attention", steps.LONG, "no such step"),
            ("rope_attention", "prompt of 512", "no such step"),
            ("matmul_down", steps.LONG, "the context makes no difference"),
        ):
            with pytest.raises(NotImplementedError, match=reason):
                steps.timed_step(label, name, "gpu")
    finally:
        steps.ops_of.cache_clear()


def test_the_parts_of_a_pass_make_the_whole(suite: dict[str, Any]) -> None:
    measure = suite["steps.Pass.track_parts_over_whole"]
    measure._current_params = ("prompt of 512", "cpu")
    assert measure.do_setup() is False
    samples = measure.func("prompt of 512", "cpu")["samples"]
    assert 0.4 < sorted(samples)[len(samples) // 2] < 2  # other load may fall on either


def test_each_fused_kernel_is_beside_the_ops_that_it_replaces(suite: dict[str, Any]) -> None:
    fusion: Any = sys.modules["benchmarks.fusion"]
    graphs: Any = sys.modules["benchmarks.rule_graphs"]
    timed = {one.rule for one in vars(fusion).values() if hasattr(one, "rule")}
    assert timed == set(graphs.EXAMPLES) == {*FUSIONS, *(rule.__name__ for rule in HOST_RULES)}
    moved = suite["fusion.GateUpSwiglu.track_bytes_moved"]
    way_bytes = {}
    for way in ("fused", "unfused"):
        moved._current_params = ("Q8_0", 1, way, "cpu")
        assert moved.do_setup() is False
        way_bytes[way] = moved.func("Q8_0", 1, way, "cpu")
    # two matrices of 512 x 512, 512 activations in and out; unfused gate and up between the ops
    assert way_bytes["fused"] == 2 * 512 * 512 // 32 * 34 + 4 * (512 + 512)
    assert way_bytes["unfused"] - way_bytes["fused"] == 4 * 512 * (2 + 2)
