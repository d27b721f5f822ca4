"""A model of which each GPU has a part of every matrix: what one GPU gives, and how it fails.

The stand-in runs the devices at the same time. tests/model/test_shards.py has the parts.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model.small_models import written
from numpy.typing import NDArray
from shared_prompts import check_tokens
from split_passes import IDS, steps, tokens

from rocmforge.engine import Engine
from rocmforge.errors import DeviceError, ModelError
from rocmforge.gpu import exchange_time, executor
from rocmforge.gpu.executor import GpuExecutor
from rocmforge.gpu.hip import HipRuntime
from rocmforge.gpu.runtime import Runtime
from rocmforge.model.synthetic import make_model
from rocmforge.ops.cases import relative_rms
from rocmforge.plan.lockstep import Work
from rocmforge.profiling.telemetry import Telemetry
from rocmforge.sampling import SamplingParams

pytestmark = pytest.mark.either_wave

F16_BOUND = 3e-3
INT8_BOUND = 0.03  # of activations that are rounded otherwise where sums differ in a bit
WINDOW = {"attention__sliding_window": 9}
EXPERTS = {"expert_count": 5, "expert_used_count": 3, "expert_feed_forward_length": 96}
MODELS = {
    "llama": written("llama", **WINDOW),
    "qwen3": written("qwen3", bias=True),
    "gemma2": written("gemma2", **WINDOW),
    "phi3": written("phi3"),
    "command-r": written("command-r"),
    "starcoder2": written("starcoder2"),
    "gpt-oss": written("gpt-oss", **EXPERTS, **WINDOW),
    "qwen3moe": written("qwen3moe", **EXPERTS),
    "qwen2moe": written("qwen2moe", **EXPERTS, shared=96),
}
WIDE = {"embedding_length": 128, "feed_forward_length": 160, "attention__head_count_kv": 4}
Names = Callable[[int], list[str]]


@pytest.fixture(autouse=True)
def _chosen_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few and small sums say which way the stand-in's devices exchange."""
    monkeypatch.setattr(exchange_time, "CALLS", 2)
    monkeypatch.setattr(exchange_time, "TOKEN", 64)


def opened(path: Path, devices: list[str], **options: Any) -> Engine:
    mode = {"split_mode": "tensor"} if len(devices) > 1 else {}
    given = {"ctx": 64, "sequences": 3, "page_size": 16, "kv_dtype": "f32", **mode, **options}
    return Engine.from_gguf(path, devices, **given)


def check_passes(got: list[NDArray[np.float32]], wanted: list[NDArray[np.float32]]) -> None:
    """Steps of two sequences are exact; matrix units round longer prompts to float16."""
    for one, other in zip(got, wanted, strict=True):
        assert relative_rms(one, other) <= (1e-5 if one.shape[0] == 2 else F16_BOUND)


def check_same(path: Path, devices: list[str], **options: Any) -> None:
    """Many devices give the logits and tokens of the first one."""
    with opened(path, devices[:1], **options) as one:
        assert one.runs_ahead
        wanted, chosen = steps(one), tokens(one)
    with opened(path, devices, **options) as engine:
        assert engine.devices == tuple(devices)
        assert engine.runs_ahead
        check_passes(steps(engine), wanted)
        assert tokens(engine) == chosen


@pytest.mark.parametrize("name", MODELS)
def test_two_devices_give_what_one_gives(alike: Names, name: str, tmp_path: Path) -> None:
    check_same(MODELS[name](tmp_path / "m.gguf"), alike(2))


@pytest.mark.either_wave
@pytest.mark.parametrize("count", [3, 4])
def test_parts_of_unequal_widths(alike: Names, count: int, tmp_path: Path) -> None:
    heads = {"attention__head_count": count, "attention__head_count_kv": count}
    sizes = {**WIDE, **heads, "attention__key_length": 32, "attention__value_length": 32}
    check_same(written("llama", **sizes)(tmp_path / "m.gguf"), alike(count))


def launched(engine: Engine) -> set[str]:
    """Kernels of the passes that the first device keeps."""
    split: Any = engine._executor
    passes = split._executors[0]._passes._kept.values()
    return {one.name for kept in passes for _, launches in kept.steps for one in launches}


@pytest.mark.either_wave
@pytest.mark.parametrize(
    ("fmt", "name"),
    [
        *(("F16", name) for name in ("llama", "qwen3", "gemma2")),
        ("Q8_0", "llama"),
        *(pytest.param("Q8_0", name, marks=pytest.mark.slow) for name in ("qwen3", "gemma2")),
    ],
)
def test_long_prompts_are_added_up_by_rows(
    alike: Names, name: str, fmt: str, tmp_path: Path
) -> None:
    path, devices = MODELS[name](tmp_path / "m.gguf"), alike(2)
    ids = (IDS * 6)[:139]
    options = {"ctx": 192, "weight_format": fmt}

    def found(engine: Engine) -> list[NDArray[np.float32]]:
        sequence = engine.add_sequence()
        last = engine.prefill(sequence, ids)
        return [engine.logits(ids), last, engine.decode([sequence], [5])]

    with opened(path, devices[:1], **options) as one:
        wanted = found(one)
    with opened(path, devices, **options) as engine:
        for got, want in zip(found(engine), wanted, strict=True):
            assert relative_rms(got, want) <= (F16_BOUND if fmt == "F16" else INT8_BOUND)
        assert ("reduce_rmsnorm" in launched(engine)) == (name != "gemma2")  # norms of parts


def test_cards_that_do_not_reach_each_other(
    alike: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runtime, "can_reach", lambda self, other: False)
    check_same(MODELS["llama"](tmp_path / "m.gguf"), alike(2))


@pytest.mark.either_wave
@pytest.mark.parametrize("wanted", ["Q4_K", pytest.param("Q8_0", marks=pytest.mark.slow), "F16"])
def test_weights_quantized_anew_in_unequal_numbers_of_blocks(
    alike: Names, wanted: str, tmp_path: Path
) -> None:
    sizes = {"embedding_length": 256, "feed_forward_length": 768, "attention__key_length": 128}
    path = written("llama", **sizes, attention__value_length=128)(tmp_path / "m.gguf")
    options = {"weight_format": wanted, "kv_dtype": "q8_0"}
    with opened(path, alike(1), **options) as one:
        logits, held = steps(one), one.cache.bytes_per_token
    with opened(path, alike(2), **options) as engine:
        for got, want in zip(steps(engine), logits, strict=True):
            assert relative_rms(got, want) <= INT8_BOUND
        assert engine.cache.bytes_per_token == held


def test_prompts_that_begin_alike_share_pages_of_all_devices(alike: Names, tmp_path: Path) -> None:
    path = make_model(tmp_path / "m.gguf", "tiny", "Q8_0", seed=5, layers=2)
    with opened(path, alike(2), kv_dtype="f16") as engine:
        check_tokens(engine)


def refused(path: Path, told: str, error: type[Exception] = ModelError, **options: Any) -> None:
    given = {"device": "hip:0,hip:1", "split_mode": "tensor", "ctx": 32, **options}
    with pytest.raises(error, match=told):
        Engine.from_gguf(path, **given)


@pytest.mark.usefixtures("standin")
def test_what_cannot_be_split_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_DEVICES", "gfx1100,gfx1100,gfx90a,gfx1100")
    llama = MODELS["llama"](tmp_path / "llama.gguf")
    three, olmo = "hip:0,hip:1,hip:3", written("olmo2")(tmp_path / "olmo2.gguf")
    refused(llama, "a model cut for 3 GPUs: got 4 heads, wanted a multiple of 3", device=three)
    refused(olmo, "got norms over all heads together, wanted norms of each head")
    small = make_model(tmp_path / "small.gguf", "tiny", "Q4_K", layers=1)
    refused(small, r"blk.0.attn_output.weight: got 128 columns for each, wanted .* 256 for Q4_K")
    for error, told, options in (
        (ValueError, "gpu_layers: got 1 with split mode tensor, wanted none", {"gpu_layers": 1}),
        (ValueError, "got hip:0, wanted 2 to 8 GPUs", {"device": "hip:0"}),
        (ValueError, "got the CPU, which was asked for, wanted 2 to 8", {"device": "cpu"}),
        (ValueError, r"\(gfx90a, 4 .*\), wanted GPUs that are alike", {"device": "hip:0,hip:2"}),
        (
            ValueError,
            "split_mode: got 'rows', wanted layer, tensor or stream",
            {"split_mode": "rows"},
        ),
    ):
        refused(llama, told, error, **options)


def test_devices_agree_on_a_step_that_was_begun_ahead(
    alike: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, devices = MODELS["llama"](tmp_path / "m.gguf"), alike(2)
    takes, asked = GpuExecutor.takes, [0]

    def sometimes(self: GpuExecutor, *step: Any) -> bool:
        asked[0] += 1
        return takes(self, *step) and asked[0] % 3 > 0  # not the same for both

    with opened(path, devices[:1]) as one:
        wanted = tokens(one)
    monkeypatch.setattr(GpuExecutor, "takes", sometimes)
    monkeypatch.setattr(executor, "LAUNCHES", 3)  # many turns, of which a graph has none
    with opened(path, devices) as engine:
        assert tokens(engine) == wanted
    assert asked[0] > 5


def test_devices_that_choose_different_tokens_are_told(
    alike: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choosing, calls = GpuExecutor.choosing, [0]

    def other(self: GpuExecutor, *step: Any) -> Work[list[int]]:
        calls[0] += 1
        own = calls[0]
        chosen = yield from choosing(self, *step)
        return [token + own for token in chosen]

    monkeypatch.setattr(GpuExecutor, "choosing", other)
    told = pytest.raises(DeviceError, match=r"split mode tensor: got tokens .* of two GPUs")
    with opened(MODELS["llama"](tmp_path / "m.gguf"), alike(2)) as engine, told:
        list(engine.generate([IDS[:5]]))


def free_bytes(count: int) -> list[int]:
    """Of the stand-in's devices."""
    gc.collect()
    runtimes = [HipRuntime(index) for index in range(count)]
    return [runtime.memory_info()[0] for runtime in runtimes]


@pytest.mark.either_wave
@pytest.mark.parametrize(
    ("at", "rank", "error"),
    [
        (1, 1, DeviceError),  # in the prompt
        (2, 0, KeyboardInterrupt),  # in a step
        (5, 0, DeviceError),  # in one that is begun ahead
        (5, 1, KeyboardInterrupt),
        *(
            pytest.param(at, rank, error, marks=pytest.mark.slow)
            for at, rank, error in (
                *((1, 0, DeviceError), (1, 0, KeyboardInterrupt), (1, 1, KeyboardInterrupt)),
                *((2, 0, DeviceError), (2, 1, DeviceError), (2, 1, KeyboardInterrupt)),
                *((5, 0, KeyboardInterrupt), (5, 1, DeviceError)),
            )
        ),
    ],
)
def test_a_device_that_fails_ends_the_call_and_the_engine_goes_on(
    alike: Names,
    error: type[BaseException],
    rank: int,
    at: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices = alike(2)
    if not devices[0].startswith("hip"):
        pytest.skip("CUDA's driver keeps what it caches")
    path = MODELS["llama"](tmp_path / "m.gguf")
    free, params = free_bytes(2), SamplingParams(max_tokens=9)
    launch, left = GpuExecutor._launch, [0]
    with opened(path, devices) as engine:
        split: Any = engine._executor
        table = engine.cache.table
        wanted = [token.id for token in engine.generate([IDS[:5]], params)]
        sequence = engine.add_sequence()
        engine.prefill(sequence, IDS[:7])
        step = engine.decode([sequence], [5])
        table.truncate(sequence, 7)

        def failing(self: GpuExecutor, *arguments: Any) -> Work[None]:
            left[0] -= self is split._executors[rank]
            if left[0] == 0 and self is split._executors[rank]:
                raise error("it has gone")
            return launch(self, *arguments)

        with monkeypatch.context() as patched:
            patched.setattr(GpuExecutor, "_launch", failing)
            left[0] = at
            with pytest.raises(error, match="it has gone"):
                list(engine.generate([IDS[:5]], params))
            left[0] = 1
            with pytest.raises(error, match="it has gone"):
                engine.decode([sequence], [5])
            left[0] = 1
            with pytest.raises(error, match="it has gone"):
                engine.prefill(sequence, IDS)
        assert table.length(sequence) == 7
        np.testing.assert_array_equal(engine.decode([sequence], [5]), step)
        assert [token.id for token in engine.generate([IDS[:5]], params)] == wanted
        engine.remove_sequence(sequence)
        assert table.allocator.n_free == 12
    assert free_bytes(2) == free


def test_an_observer_sees_the_passes_of_the_first_device(alike: Names, tmp_path: Path) -> None:
    with opened(MODELS["llama"](tmp_path / "m.gguf"), alike(2)) as engine:
        sequence, seen = engine.add_sequence(), Telemetry()
        with engine.observed(seen):
            engine.prefill(sequence, IDS[:12])
            for token in IDS[:3]:
                engine.decode([sequence], [token])
        prompt, first, *_, replayed = seen.passes
        for one in (prompt, first):
            labels = [step.name for step in one.steps]
            assert sum(label.startswith(("all_reduce", "reduce_rmsnorm")) for label in labels) == 4
        assert (replayed.graph, len(replayed.facts())) == (True, len(first.facts()))
        held, alone = engine.memory(), engine.weight_bytes
        assert held.pinned > held.inputs > 0
    with opened(tmp_path / "m.gguf", alike(1)) as one_device:
        assert alone == one_device.weight_bytes  # each matrix once in all parts
