"""Whole models on a GPU, or on its stand-in: against float64, and no farther off than llama.cpp.

Prompts run in float16 arithmetic, single tokens on activations rounded to int8. Small sizes: the
stand-in runs every thread of the GPU as a fiber of the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from model.small_models import written
from numpy.typing import NDArray

from rocmforge.engine import Engine
from rocmforge.errors import DeviceError, OutOfMemoryError
from rocmforge.gguf.reader import GGUFFile
from rocmforge.gpu import cache, lowering
from rocmforge.gpu.batch_shape import prompt_shape, room_of
from rocmforge.gpu.compiler import BuildRecorder, Kernels
from rocmforge.gpu.executor import ARENA_SHARE, GpuExecutor
from rocmforge.gpu.runtime import Runtime
from rocmforge.kv import KvDtype
from rocmforge.model import decoder
from rocmforge.model.synthetic import make_model
from rocmforge.ops.cases import relative_rms
from rocmforge.plan.graph import Op
from rocmforge.plan.operands import Rotation
from rocmforge.plan.records import Rope
from rocmforge.sampling import SamplingParams
from rocmforge.testing import reference_logits

F16_BOUND = 3e-3
INT8_BOUND = 0.03
IDS = [3 + (7 * i * i + 11 * i) % 250 for i in range(21)]
MIXES = ("Q4_K_M", "Q8_0", "F16")


@pytest.fixture(scope="session")
def device(kernels: Kernels) -> str:
    """The device of `kernels` as an engine takes it."""
    return f"{kernels.runtime.platform}:{kernels.runtime.properties.index}"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {mix: make_model(folder / f"{mix}.gguf", "tiny", mix, seed=5, layers=2) for mix in MIXES}


@pytest.fixture(scope="session")
def wanted(models: dict[str, Path]) -> dict[str, NDArray[np.float32]]:
    return {mix: reference_logits(path, IDS) for mix, path in models.items()}


@pytest.mark.either_wave
@pytest.mark.parametrize("mix", MIXES)
def test_a_prompt_in_float16(
    device: str, mix: str, models: dict[str, Path], wanted: dict[str, NDArray[np.float32]]
) -> None:
    with Engine.from_gguf(models[mix], device, ctx=64) as engine:
        assert engine.backend.name == device.partition(":")[0]
        assert relative_rms(engine.logits(IDS), wanted[mix]) <= F16_BOUND


@pytest.mark.parametrize("preset", ["tiny", "tiny-moe"])
def test_prompts_of_every_plan(device: str, tmp_path: Path, preset: str) -> None:
    """Passes of every room up to 1,024 tokens; products change kernels between them.

    Real GPUs run a longer one too.
    """
    path = make_model(tmp_path / "m.gguf", preset, "Q4_K_M", seed=5, layers=1)
    ids = np.random.default_rng(0).integers(3, 250, 1100)
    counts = [100, 150, 300, 400, 520, *([1100] if device.startswith("cuda") else [])]
    with Engine.from_gguf(path, device, ctx=1120) as engine, Engine.from_gguf(path, "cpu") as cpu:
        for count in counts:
            rows = []
            for one in (engine, cpu):
                sequence = one.add_sequence()
                rows.append(one.prefill(sequence, ids[:count]))
                one.remove_sequence(sequence)
            assert relative_rms(rows[0], rows[1]) <= INT8_BOUND


@pytest.mark.parametrize("architecture", ["phi3", "smollm3"])  # one matrix for two; no rotation
def test_what_architectures_differ_in(device: str, tmp_path: Path, architecture: str) -> None:
    path = make_model(
        tmp_path / "m.gguf", "tiny", "F16", seed=5, layers=4, architecture=architecture
    )
    logits = reference_logits(path, IDS[:12])
    with Engine.from_gguf(path, device, ctx=64) as engine:
        assert relative_rms(engine.logits(IDS[:12]), logits) <= F16_BOUND
        sequence = engine.add_sequence()
        engine.prefill(sequence, IDS[:11])
        assert relative_rms(engine.decode([sequence], IDS[11:12])[0], logits[11]) <= F16_BOUND


EXPERTS = {"expert_count": 5, "expert_used_count": 3}
WINDOW = {"attention__sliding_window": 9}
OTHERS = {
    "gemma2": written(
        "gemma2",
        **WINDOW,
        block_count=3,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=3.0,
        attention__head_count=8,
    ),
    "gemma3": written("gemma3", **WINDOW, block_count=7),
    "granite": written(
        "granite", logit_scale=4.0, residual_scale=0.3, embedding_scale=6.0, attention__scale=0.15
    ),
    "glm4": written("glm4", rope__dimension_count=8, bias=True),
    "qwen3 half turned": written("qwen3", rope__dimension_count=8),
    "phi3 half turned": written("phi3", rope__dimension_count=8),
    "olmo2": written("olmo2", **WINDOW, block_count=4),
    "mistral3": written(
        "mistral3",
        rope__scaling__type="yarn",
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=8,
        attention__temperature_scale=0.3,
    ),
    "gpt-oss": written(
        "gpt-oss", **EXPERTS, **WINDOW, block_count=2, expert_feed_forward_length=96
    ),
    "qwen2moe": written("qwen2moe", **EXPERTS, shared=48, expert_feed_forward_length=96),
    "starcoder2": written("starcoder2"),
    "cohere2": written("cohere2", **WINDOW, block_count=4, logit_scale=0.25),
    "olmoe": written("olmoe", **EXPERTS, attention__head_count_kv=4),
    "granitemoe": written("granitemoe", **EXPERTS, residual_scale=0.3, shared=32, logit_scale=2.0),
    "llama with a window and biases": written("llama", **WINDOW, bias=True, all_biases=True),
}


@pytest.mark.either_wave
@pytest.mark.parametrize("name", OTHERS)
def test_windows_caps_norms_and_scales(device: str, tmp_path: Path, name: str) -> None:
    path = OTHERS[name](tmp_path / "m.gguf")
    ids = [3 + (7 * i * i + 11 * i) % 90 for i in range(21)]
    logits = reference_logits(path, ids)
    with Engine.from_gguf(path, device, ctx=64) as engine:
        assert relative_rms(engine.logits(ids), logits) <= F16_BOUND
        sequence = engine.add_sequence()
        engine.prefill(sequence, ids[:11])
        for at in (11, 12, 13, 14):
            assert relative_rms(engine.decode([sequence], [ids[at]])[0], logits[at]) <= F16_BOUND


@pytest.mark.either_wave
@pytest.mark.parametrize("name", OTHERS)
def test_hopper_has_launches_for_every_architecture(device: str, tmp_path: Path, name: str) -> None:
    """Rows of 64 and 96 columns: which dtypes ops read and write differs, and where plans end."""
    with Engine.from_gguf(OTHERS[name](tmp_path / "m.gguf"), device, ctx=64) as engine:
        executor = engine._executor
        assert isinstance(executor, GpuExecutor)
        passes, properties = executor._passes, engine.backend.kernels.runtime.properties
        hopper = replace(properties, architecture="sm_90", wave_size=32)
        passes._runtime = cast(Any, SimpleNamespace(properties=hopper, platform="cuda"))
        recorder = BuildRecorder(passes._runtime)
        passes.lowering = replace(passes.lowering, kernels=recorder)
        shapes = [prompt_shape(tokens) for tokens in (9, 128, 129, 300, 400, 513, 1024, 2048, 2049)]
        assert passes.builds(shapes, lambda _: 0, lambda _: (0, 0))


@pytest.mark.parametrize("weight_format", [None, "Q8_0"])
def test_long_prompts_whose_rows_are_no_whole_128_columns(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weight_format: str | None
) -> None:
    """On Hopper rows have room between them then, which changes no logit."""
    path = written("gpt-oss", **EXPERTS, embedding_length=160, attention__head_count=4)(
        tmp_path / "m.gguf"
    )
    ids = [3 + (7 * i * i + 11 * i) % 90 for i in range(150)]

    def logits() -> NDArray[np.float32]:
        with Engine.from_gguf(path, device, ctx=256, weight_format=weight_format) as engine:
            return engine.logits(ids)

    spaced = logits()
    monkeypatch.setattr(lowering, "LEAST_SPACED", 1 << 20)
    np.testing.assert_array_equal(logits(), spaced)
    if weight_format is None:  # of Q8_0 the CPU rounds activations, too, and chooses other experts
        assert relative_rms(spaced, reference_logits(path, ids)) <= F16_BOUND


@pytest.mark.either_wave
@pytest.mark.parametrize("architecture", ["gemma2", "llama"])  # each second layer, and all
def test_windows_pass_pages(device: str, tmp_path: Path, architecture: str) -> None:
    """Layers with a window find in other places of their memory what they still see."""
    path = written(architecture, **WINDOW, block_count=3)(tmp_path / "m.gguf")
    ids = [3 + (7 * i * i + 11 * i) % 90 for i in range(56)]
    logits = reference_logits(path, ids)
    with Engine.from_gguf(path, device, ctx=64, page_size=16, sequences=2) as engine:
        first, second = engine.add_sequence(), engine.add_sequence()
        for begin, end in ((0, 21), (21, 45)):
            row = engine.prefill(first, ids[begin:end])
            assert relative_rms(row, logits[end - 1]) <= F16_BOUND
        engine.prefill(second, ids[:13])  # where the first one's pages were
        for at in range(45, 51):
            rows = engine.decode([first, second], [ids[at], ids[at - 32]])
            assert relative_rms(rows[0], logits[at]) <= F16_BOUND
            assert relative_rms(rows[1], logits[at - 32]) <= F16_BOUND
        windows = engine.cache.table.windows
        assert windows is not None
        pages = np.array(engine.cache.table.pages(first))
        assert (pages.size, windows.without(pages).size) == (4, 2)
        for sequence in (first, second):
            engine.remove_sequence(sequence)
        ahead = [t.id for t in engine.generate([ids[:20]], SamplingParams(max_tokens=20))]
        one = engine.add_sequence()
        step = [int(engine.prefill(one, ids[:20]).argmax())]
        while len(step) < 20:
            step.append(int(engine.decode([one], step[-1:])[0].argmax()))
        assert ahead == step


def test_heads_that_no_kernel_takes_are_refused_before_a_weight_is_read(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written("llama", attention__key_length=320, attention__value_length=320)(
        tmp_path / "m.gguf"
    )

    def refuse(self: GGUFFile, name: str) -> None:
        raise AssertionError(f"read {name}")

    monkeypatch.setattr(GGUFFile, "tensor", refuse)
    with pytest.raises(ValueError, match="head dim: got 320, wanted a multiple of 8 up to 256 on"):
        Engine.from_gguf(path, device, ctx=64)


@pytest.mark.either_wave
@pytest.mark.parametrize("mix", ["Q4_K_M", pytest.param("Q8_0", marks=pytest.mark.slow), "MXFP4"])
def test_mixtures_of_experts(device: str, tmp_path: Path, mix: str) -> None:
    path = make_model(tmp_path / "m.gguf", "tiny-moe", mix, seed=5, layers=2)
    logits = reference_logits(path, IDS)
    with Engine.from_gguf(path, device, ctx=64) as engine:
        assert relative_rms(engine.logits(IDS), logits) <= INT8_BOUND
        sequences = [engine.add_sequence() for _ in range(2)]
        for sequence in sequences:
            engine.prefill(sequence, IDS[:12])
        for at in (12, 13, 14):  # the second is captured, the third replayed
            for row in engine.decode(sequences, [IDS[at]] * 2):
                assert relative_rms(row, logits[at]) <= INT8_BOUND


@pytest.mark.either_wave
@pytest.mark.parametrize("keys", [{"fused": True}, EXPERTS], ids=["fused", "experts"])
def test_scales_beside_matrices_of_nvfp4(device: str, tmp_path: Path, keys: dict[str, Any]) -> None:
    """Random codes, which rounding changes more than weights with a bell's curve: the CPU's int8
    gives single tokens an error of 0.02 to 0.35, an H100's gave one of the three 0.07."""
    path = written("llama", nvfp4=True, feed_forward_length=128, **keys)(tmp_path / "m.gguf")
    ids = [i % 97 for i in IDS]
    logits = reference_logits(path, ids)
    with Engine.from_gguf(path, device, ctx=64) as engine:
        assert relative_rms(engine.logits(ids), logits) <= 2 * F16_BOUND
        sequence = engine.add_sequence()
        engine.prefill(sequence, ids[:12])
        rows = [engine.decode([sequence], [ids[at]])[0] for at in (12, 13, 14)]
        assert relative_rms(np.stack(rows), logits[12:15]) <= 5 * INT8_BOUND


def test_a_prompt_where_there_are_no_matrix_units(
    device: str,
    models: dict[str, Path],
    wanted: dict[str, NDArray[np.float32]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rocmforge.gpu.lowering.prompt_kernel", lambda *_: "matmul_dot4")
    with Engine.from_gguf(models["Q4_K_M"], device, ctx=64) as engine:
        error = relative_rms(engine.logits(IDS), wanted["Q4_K_M"])
        assert F16_BOUND < error <= INT8_BOUND


def test_each_layer_turns_by_its_own_rotation(
    device: str,
    models: dict[str, Path],
    wanted: dict[str, NDArray[np.float32]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer_ops = decoder._Decoder.layer
    others_by_own: dict[Rotation, Rotation] = {}  # queries and keys turn by the same

    def other_in_layer_one(self: Any, w: Any) -> Iterator[Op]:
        for op in layer_ops(self, w):
            if isinstance(op, Rope) and w.index == 1:
                own = op.rotation
                other = replace(own, frequencies=own.frequencies / 8, magnitude=1.5)
                yield replace(op, rotation=others_by_own.setdefault(own, other))
            else:
                yield op

    monkeypatch.setattr(decoder._Decoder, "layer", other_in_layer_one)
    others = reference_logits(models["F16"], IDS)
    assert relative_rms(others, wanted["F16"]) > 10 * F16_BOUND
    with Engine.from_gguf(models["F16"], device, ctx=64) as engine:
        assert relative_rms(engine.logits(IDS), others) <= F16_BOUND
        assert relative_rms(engine.logits(IDS[:1]), others[:1]) <= F16_BOUND


@pytest.mark.parametrize("mix", MIXES)
def test_token_by_token_and_together(
    device: str, mix: str, models: dict[str, Path], wanted: dict[str, NDArray[np.float32]]
) -> None:
    bound = INT8_BOUND if mix != "F16" else F16_BOUND
    with Engine.from_gguf(models[mix], device, ctx=64, sequences=3, page_size=16) as engine:
        first, second = engine.add_sequence(), engine.add_sequence()
        assert relative_rms(engine.prefill(first, IDS[:17]), wanted[mix][16]) <= bound
        assert relative_rms(engine.prefill(second, IDS[:3]), wanted[mix][2]) <= bound
        for step in range(4):  # the second run of a shape is captured, later ones are replayed
            rows = engine.decode([second, first], [IDS[3 + step], IDS[17 + step]])
            for row, at in zip(rows, (3 + step, 17 + step), strict=True):
                assert relative_rms(row, wanted[mix][at]) <= bound
        alone = engine.decode([second], [IDS[7]])
        assert relative_rms(alone[0], wanted[mix][7]) <= bound


@pytest.mark.either_wave
@pytest.mark.parametrize(("kv_dtype", "bound"), [("q8_0", 2e-2), ("fp8_e4m3", 8e-2)])
def test_keys_and_values_of_eight_bits(
    device: str,
    models: dict[str, Path],
    wanted: dict[str, NDArray[np.float32]],
    kv_dtype: KvDtype,
    bound: float,
) -> None:
    with Engine.from_gguf(models["F16"], device, ctx=64, kv_dtype=kv_dtype) as engine:
        heads, dims = 2 * engine.config.n_kv_heads * engine.config.n_layers, engine.config.head_dim
        scales = {"q8_0": dims // 32, "fp8_e4m3": 1}[kv_dtype]
        assert engine.cache.bytes_per_token == heads * (dims + 2 * scales)
        error = relative_rms(engine.logits(IDS), wanted["F16"])
        assert bound / 20 < error <= bound


@pytest.mark.parametrize("chunk", [2048, 1024, 512])
def test_prompts_run_in_longer_chunks_where_there_is_memory_for_them(
    device: str, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    with Engine.from_gguf(models["Q4_K_M"], device, ctx=2048, sequences=2) as engine:
        executor = engine._executor
        assert isinstance(executor, GpuExecutor)
        arena = executor._passes.plan(room_of(prompt_shape(chunk))).nbytes
        memory = int(arena / ARENA_SHARE) + 1
        monkeypatch.setattr(Runtime, "memory_info", lambda _: (memory, memory))
        executor.__dict__.pop("prefill_chunk", None)
        with pytest.raises(ValueError, match=f"got 4000, wanted at most {chunk} in one pass"):
            engine.timed_pass([engine.add_sequence(), engine.add_sequence()], [[5] * 2000] * 2)


@pytest.mark.either_wave
def test_generate_is_greedy_and_repeats(device: str, models: dict[str, Path]) -> None:
    with Engine.from_gguf(models["Q8_0"], device, ctx=64) as engine:
        params = SamplingParams(max_tokens=6)
        texts = [[t.id for t in engine.generate([IDS[:9]], params)] for _ in range(2)]
        assert len(texts[0]) == 6
        assert texts[0] == texts[1]


def test_closing_gives_the_memory_back(
    device: str, kernels: Kernels, models: dict[str, Path]
) -> None:
    if kernels.runtime.platform == "cuda":
        pytest.skip("the driver keeps what it caches; the stand-in counts exactly")
    free, _ = kernels.runtime.memory_info()
    with Engine.from_gguf(models["Q8_0"], device, ctx=64) as engine:
        engine.logits(IDS)
        sequence = engine.add_sequence()
        for token in IDS[:3]:
            engine.decode([sequence], [token])
        assert kernels.runtime.memory_info()[0] < free
    assert kernels.runtime.memory_info()[0] == free


@pytest.mark.parametrize(
    "release",
    ["synchronize", "free", "free_pinned", "destroy_graph", "destroy_stream", "destroy_event"],
)
def test_closing_goes_on_where_one_release_fails(
    release: str,
    device: str,
    kernels: Kernels,
    models: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if kernels.runtime.platform == "cuda":
        pytest.skip("the driver keeps what it caches; the stand-in counts exactly")
    free, _ = kernels.runtime.memory_info()
    engine = Engine.from_gguf(models["Q8_0"], device, ctx=64)
    sequence = engine.add_sequence()
    for token in IDS[:3]:
        engine.decode([sequence], [token])
    fail_once(monkeypatch, kernels, release)
    with pytest.raises(DeviceError, match=f"{release} failed"):
        engine.close()
    assert kernels.runtime.memory_info()[0] == free


def test_closing_again_releases_nothing_again(
    device: str, kernels: Kernels, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine.from_gguf(models["Q8_0"], device, ctx=64)
    engine.logits(IDS)
    parts = (engine._executor, engine.cache, engine.backend)
    fail_once(monkeypatch, kernels, "free")
    with pytest.raises(DeviceError, match="free failed"):
        parts[0].close()
    for part in parts[1:]:
        part.close()
    kind, calls = type(kernels.runtime), []
    for name in ("free", "free_pinned", "destroy_stream", "destroy_event", "destroy_graph"):
        monkeypatch.setattr(kind, name, lambda *_, name=name: calls.append(name))
    for part in parts:
        part.close()
    engine.close()
    assert calls == []


def test_a_constant_that_does_not_arrive_is_given_back(
    device: str, kernels: Kernels, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernels.runtime.platform == "cuda":
        pytest.skip("the driver keeps what it caches; the stand-in counts exactly")
    free, _ = kernels.runtime.memory_info()
    fail_once(monkeypatch, kernels, "copy_to_device")  # matrices are packed: that takes a stream
    with pytest.raises(DeviceError, match="copy_to_device failed"):
        Engine.from_gguf(models["Q8_0"], device, ctx=64)
    assert kernels.runtime.memory_info()[0] == free


def fail_once(monkeypatch: pytest.MonkeyPatch, kernels: Kernels, name: str) -> None:
    """Let a call that waits do its work and then fail, the first time."""
    kind = type(kernels.runtime)
    work = getattr(kind, name)
    failed = []

    def call(*arguments: Any) -> None:
        work(*arguments)
        if len(arguments) < 4 and not failed:
            failed.append(name)
            raise DeviceError(f"{name} failed")

    monkeypatch.setattr(kind, name, call)


def test_a_cache_that_does_not_fit_is_an_error_that_frees_what_was_taken(
    device: str, kernels: Kernels, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "FIRST_TOKENS", 2048 << 18)
    free, _ = kernels.runtime.memory_info()
    with pytest.raises(OutOfMemoryError):
        Engine.from_gguf(models["Q8_0"], device, ctx=2048, sequences=1 << 18)
    assert kernels.runtime.memory_info()[0] >= free - (64 << 20)
