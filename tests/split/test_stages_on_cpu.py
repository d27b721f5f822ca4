"""A model in two stages, each on the CPU: every bit is that of one stage.

What devices add is in tests/gpu/test_split_on_gpu.py.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from model.small_models import written
from shared_prompts import check_divergence, check_logits, check_tokens
from split_passes import IDS, steps

from rocmforge import loading
from rocmforge.cpu.backend import CpuBackend
from rocmforge.cpu.executor import BatchArrays, HostExecutor
from rocmforge.engine import Engine
from rocmforge.errors import DeviceError, ModelError, OutOfPagesError
from rocmforge.gpu.choose_device import Choice
from rocmforge.kv.batch import Batch
from rocmforge.model.synthetic import make_model
from rocmforge.profiling.memory import SEVERAL, memory_profile
from rocmforge.profiling.telemetry import Telemetry
from rocmforge.sampling import Sampler, SamplingParams

WINDOW = {"attention__sliding_window": 9}
EXPERTS = {"expert_count": 5, "expert_used_count": 3}
MODELS = {
    "llama": written("llama", **WINDOW, block_count=3),
    "gemma2, tied": written("gemma2", **WINDOW, block_count=3, final_logit_softcapping=3.0),
    "gpt-oss": written(
        "gpt-oss", **EXPERTS, **WINDOW, block_count=3, expert_feed_forward_length=96
    ),
    "olmo2, no norm first": written("olmo2", **WINDOW, block_count=4),
    "int8": lambda path: make_model(path, "tiny", "Q4_K_M", seed=5, layers=3),
}
Open = Callable[..., Engine]


@pytest.fixture
def on_two(monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens an engine on what passes for two devices with memory of their own."""

    def opened(path: Path, **more: Any) -> Engine:
        options = {"ctx": 64, "sequences": 4, "page_size": 16, **more}
        with monkeypatch.context() as patched:
            cpu = Choice("cpu", None, "")
            patched.setattr(loading, "chosen_devices", lambda device: [cpu, cpu])
            patched.setattr(CpuBackend, "free_bytes", lambda self: 1 << 30)
            return Engine.from_gguf(path, **options)

    return opened


def sampled(engine: Engine) -> list[tuple[int, int]]:
    params = SamplingParams(max_tokens=6, temperature=0.8, top_k=20, seed=4)
    return [(token.prompt, token.id) for token in engine.generate([IDS[:5], IDS[3:9]], params)]


@pytest.mark.parametrize("name", MODELS)
def test_two_stages_change_no_bit(name: str, on_two: Open, tmp_path: Path) -> None:
    path = MODELS[name](tmp_path / "m.gguf")
    with Engine.from_gguf(path, "cpu", ctx=64, sequences=4, page_size=16) as one:
        wanted, tokens = steps(one), sampled(one)
        held = one.weight_bytes, one.cache.bytes_per_token, one.cache.nbytes
    with on_two(path) as engine:
        assert engine.devices == ("cpu", "cpu")
        for got, want in zip(steps(engine), wanted, strict=True):
            np.testing.assert_array_equal(got, want)
        assert sampled(engine) == tokens
        cache = engine.cache
        assert (engine.weight_bytes, cache.bytes_per_token, cache.nbytes) == held


@pytest.mark.parametrize("architecture", ["gemma2", "llama"])  # each second layer, and all
def test_windows_pass_pages_of_all_stages(
    architecture: str, on_two: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(architecture, **WINDOW, block_count=3)(tmp_path / "m.gguf")

    def passed(engine: Engine, fail: Callable[[], None] = lambda: None) -> list[Any]:
        first, second = engine.add_sequence(), engine.add_sequence()
        found = [engine.prefill(first, IDS), engine.prefill(first, IDS[:21])]
        found.append(engine.prefill(second, IDS[:13]))  # where the first one's pages were
        fail()
        for at in range(13):
            found.append(engine.decode([first, second], [IDS[at], IDS[at + 9]]))
            found.append(
                engine.decode_tokens([second], [IDS[at]], [Sampler(SamplingParams()).draw()])
            )
        table = engine.cache.table
        assert table.windows is not None
        pages = np.array(table.pages(first))
        assert (pages.size, table.windows.without(pages).tolist()) == (4, pages[:3].tolist())
        return found

    def fail() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(split._executors[-1], "_arrays", broken)
            with pytest.raises(DeviceError):
                engine.decode([0, 1], IDS[:2])

    def broken(batch: Batch) -> BatchArrays:
        raise DeviceError("it has gone")

    with Engine.from_gguf(path, "cpu", ctx=64, sequences=2, page_size=16) as one:
        wanted = passed(one)
    with on_two(path, sequences=2) as engine:
        split: Any = engine._executor
        for got, want in zip(passed(engine, fail), wanted, strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_pool_on_the_cpu_goes_with_its_engine(on_two: Open, tmp_path: Path) -> None:
    engine = on_two(MODELS["llama"](tmp_path / "m.gguf"))
    split: Any = engine.cache
    pools = [weakref.ref(part.k) for part in split._parts]
    gc.disable()
    try:
        engine.close()
        del engine, split
        assert all(pool() is None for pool in pools)
    finally:
        gc.enable()


def test_prompts_that_begin_alike_share_pages_of_all_stages(on_two: Open, tmp_path: Path) -> None:
    path = make_model(tmp_path / "m.gguf", "tiny", "Q8_0", layers=2)
    with on_two(path) as engine:
        check_logits(engine, np.testing.assert_array_equal)
        check_divergence(engine, np.testing.assert_array_equal)
    with on_two(path) as engine:
        check_tokens(engine)


def test_a_stage_that_fails_leaves_the_sequences_as_they_were(
    on_two: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = MODELS["llama"](tmp_path / "m.gguf")
    with on_two(path, ctx=32, sequences=2) as engine:
        first, second = engine.add_sequence(), engine.add_sequence()
        engine.prefill(first, IDS[:7])
        engine.prefill(second, IDS[:3])
        wanted = engine.decode([first, second], IDS[7:9])
        engine.cache.table.truncate(first, 7)
        engine.cache.table.truncate(second, 3)
        arrays = HostExecutor._arrays
        split: Any = engine._executor

        def failing(self: HostExecutor, batch: Batch) -> BatchArrays:
            if self is split._executors[-1]:
                raise DeviceError("it has gone")
            return arrays(self, batch)

        with monkeypatch.context() as patched:
            patched.setattr(HostExecutor, "_arrays", failing)
            with pytest.raises(DeviceError, match="it has gone"):
                engine.decode([first, second], IDS[7:9])
            with pytest.raises(DeviceError, match="it has gone"):
                engine.timed_pass([first], [IDS[7:9]])
        assert [engine.cache.table.length(each) for each in (first, second)] == [7, 3]
        np.testing.assert_array_equal(engine.decode([first, second], IDS[7:9]), wanted)
        with pytest.raises(OutOfPagesError):
            engine.add_sequence(65)


def test_what_stages_tell_is_one_pass(on_two: Open, tmp_path: Path) -> None:
    with on_two(MODELS["llama"](tmp_path / "m.gguf")) as engine:
        sequence, seen = engine.add_sequence(), Telemetry()
        with engine.observed(seen):
            engine.prefill(sequence, IDS[:7])
            engine.decode([sequence], [5])
        engine.decode([sequence], [6])
        assert len(seen.passes) == 2
        summary = seen.summary("cpu")
        assert {"cpu embed", "cpu receive", "cpu matmul_qkv"} <= {op.label for op in summary.ops}
        assert sum(op.calls for op in summary.ops if op.label == "cpu matmul_qkv") == 2 * 3
        one = seen.passes[0]
        assert [step.start for step in one.steps] == sorted(step.start for step in one.steps)
        assert 0 < summary.op_seconds <= summary.device_seconds

        timed = engine.timed_pass([sequence], [[7]])
        labels = [step.label for step in timed.steps]
        assert sum(step.calls for step in timed.steps if step.label == "cpu matmul_output") == 1
        assert labels.index("cpu receive") > labels.index("cpu embed")
        assert timed.seconds() > 0
        assert timed.copy_seconds() is None
        assert timed.steps[0].seconds() > 0
        timed.close()

        found = memory_profile(engine)
        assert (found.device, found.reasons["device"]) == (None, SEVERAL)
        assert found.executor.activations > 0


@pytest.mark.parametrize("name", [b"blk.x.attn_norm.weight", b"blk.9.attn_norm.weight"])
def test_tensors_that_no_layer_has_are_listed(on_two: Open, tmp_path: Path, name: bytes) -> None:
    path = MODELS["llama"](tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes().replace(b"blk.1.attn_norm.weight", name))
    told = f"missing tensors: blk.1.attn_norm.weight; unknown tensors: {name.decode()}"
    with pytest.raises(ModelError, match=told):
        on_two(path)


def test_layers_for_devices_are_checked(on_two: Open, tmp_path: Path) -> None:
    path = written("llama", block_count=1)(tmp_path / "m.gguf")
    with pytest.raises(ValueError, match=r"got 2 GPUs, and fewer layers for them \(1\), wanted"):
        on_two(path)
    for wrong in (-1, "20", 2.0):
        with pytest.raises(ValueError, match=f"gpu_layers: got {wrong!r}, wanted integers from 0"):
            Engine.from_gguf(path, gpu_layers=cast(Any, wrong))
    with pytest.raises(DeviceError, match="gpu_layers: got 1 and the CPU, which was asked for;"):
        Engine.from_gguf(path, "cpu", gpu_layers=1)
    with Engine.from_gguf(path, gpu_layers=0, ctx=32) as engine:
        assert engine.devices == ("cpu",)
