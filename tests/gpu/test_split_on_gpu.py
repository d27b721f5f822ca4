"""A model whose layers lie on the CPU and a GPU, or on two GPUs; the stand-in has two.

tests/split has what needs no GPU.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model.small_models import written
from numpy.typing import NDArray
from shared_prompts import check_tokens
from split_passes import IDS, steps, tokens

from rocmforge import loading
from rocmforge.cli import main
from rocmforge.demo import demo_model
from rocmforge.devices import chosen_devices
from rocmforge.engine import Engine
from rocmforge.errors import DeviceError, OutOfMemoryError
from rocmforge.gpu import cache
from rocmforge.gpu.backend import GpuBackend
from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.executor import GpuExecutor
from rocmforge.gpu.runtime import Runtime
from rocmforge.model.synthetic import make_model
from rocmforge.ops.cases import relative_rms
from rocmforge.plan.lockstep import Work
from rocmforge.profiling.run import Options, profile_model
from rocmforge.profiling.telemetry import Telemetry
from rocmforge.sampling import SamplingParams

pytestmark = pytest.mark.either_wave

F16_BOUND = 3e-3
WINDOW = {"attention__sliding_window": 9}
EXPERTS = {"expert_count": 5, "expert_used_count": 3}
MODELS = {
    "gemma2, tied": written("gemma2", **WINDOW, block_count=3, attn_logit_softcapping=5.0),
    "gpt-oss": written(
        "gpt-oss", **EXPERTS, **WINDOW, block_count=3, expert_feed_forward_length=96
    ),
    "olmo2, no norm first": written("olmo2", **WINDOW, block_count=4),
}


@pytest.fixture(scope="module")
def device(kernels: Kernels) -> str:
    return f"{kernels.runtime.platform}:{kernels.runtime.properties.index}"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written("llama", block_count=4)(tmp_path_factory.mktemp("models") / "m.gguf")


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCMFORGE_CPU_EXACT", "1")


def opened(path: Path, device: str, **options: Any) -> Engine:
    return Engine.from_gguf(path, device, ctx=64, sequences=3, page_size=16, **options)


@pytest.mark.parametrize("name", MODELS)
def test_the_cpu_and_a_gpu_give_what_the_cpu_gives(device: str, name: str, tmp_path: Path) -> None:
    path = MODELS[name](tmp_path / "m.gguf")
    with opened(path, "cpu") as engine:
        wanted, chosen = steps(engine), tokens(engine)
    with opened(path, device, gpu_layers=2) as engine:
        assert engine.devices == ("cpu", device)
        for got, want in zip(steps(engine), wanted, strict=True):
            assert relative_rms(got, want) <= F16_BOUND
        assert tokens(engine) == chosen
        assert not engine.runs_ahead


def test_two_stages_on_gpus_change_no_bit(
    device: str, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(llama, device) as engine:
        wanted, chosen = steps(engine), tokens(engine)
    monkeypatch.setattr(cache, "FIRST_TOKENS", 16)  # pages come later, on both
    twice = chosen_devices(device) * 2  # as two cards of a kind
    monkeypatch.setattr(loading, "chosen_devices", lambda device: twice)
    with opened(llama, device) as engine:
        assert engine.devices == (device, device)
        for got, want in zip(steps(engine), wanted, strict=True):
            np.testing.assert_array_equal(got, want)
        assert tokens(engine) == chosen


def test_the_cpu_and_two_gpus(standin: object, llama: Path) -> None:
    with opened(llama, "cpu") as engine:
        wanted = steps(engine)
    with Engine.from_gguf(llama, ["hip:1", "hip:0"], gpu_layers=3, ctx=64, sequences=2) as engine:
        assert engine.devices == ("cpu", "hip:1", "hip:0")
        for got, want in zip(steps(engine), wanted, strict=True):
            assert relative_rms(got, want) <= F16_BOUND


def test_windows_pass_pages_of_all_stages(device: str, tmp_path: Path) -> None:
    path = written("gemma2", **WINDOW, block_count=4)(tmp_path / "m.gguf")

    def passed(engine: Engine) -> list[NDArray[np.float32]]:
        first, second = engine.add_sequence(), engine.add_sequence()
        found = [engine.prefill(first, IDS), engine.prefill(first, IDS[:21])]
        found.append(engine.prefill(second, IDS[:13]))  # where the first one's pages were
        for at in range(13):
            found += list(engine.decode([first, second], [IDS[at], IDS[at + 9]]))
        table = engine.cache.table
        assert table.windows is not None
        pages = np.array(table.pages(first))
        assert (pages.size, table.windows.without(pages).size) == (4, 3)
        return found

    with opened(path, "cpu") as engine:
        wanted = passed(engine)
    with opened(path, device, gpu_layers=2) as engine:
        for got, want in zip(passed(engine), wanted, strict=True):
            assert relative_rms(got, want) <= F16_BOUND


def test_int8_products_and_shared_prefixes(device: str, tmp_path: Path) -> None:
    path = make_model(tmp_path / "m.gguf", "tiny", "Q4_K_M", seed=5, layers=2)
    with opened(path, device, gpu_layers=1) as engine:
        check_tokens(engine)


def test_as_many_layers_as_there_are_or_more_are_one_device(device: str, llama: Path) -> None:
    for layers, wanted in ((4, device), (99, device), (0, "cpu")):
        with opened(llama, device, gpu_layers=layers) as engine:
            assert engine.devices == (wanted.partition(":")[0],)


@pytest.mark.ahead
def test_a_stage_needs_no_kernel_that_was_not_begun_before_the_upload(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_model(tmp_path / "m.gguf", "tiny", "Q4_K_M", seed=5, layers=4)
    begun: list[Build] = []
    begin, pack = Kernels.begin, GpuBackend.pack

    def noting(self: Kernels, builds: Iterable[Build]) -> None:
        given = list(builds)
        begun.extend(given)
        begin(self, given)

    def packing(self: GpuBackend, *arguments: Any) -> Any:
        assert begun
        return pack(self, *arguments)

    monkeypatch.setattr(Kernels, "begin", noting)
    monkeypatch.setattr(GpuBackend, "pack", packing)
    with opened(path, device, gpu_layers=3) as engine:
        split: Any = engine._executor
        needed = {(one.file, str(one.defines)) for one in split._executors[1].builds()}
        assert needed <= {(one.file, str(one.defines)) for one in begun}
        assert not {"embed.hip", "embed_rmsnorm.hip"} & {one.file for one in begun}


def test_a_gpu_that_fails_ends_the_run_and_all_is_freed(
    device: str, kernels: Kernels, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = kernels.runtime.memory_info()[0]
    left = [4]
    launch = GpuExecutor._launch

    def failing(self: GpuExecutor, *arguments: Any) -> Work[None]:
        left[0] -= 1
        if left[0] == 0:
            raise DeviceError("the device has gone")
        return launch(self, *arguments)

    monkeypatch.setattr(GpuExecutor, "_launch", failing)
    with opened(llama, device, gpu_layers=2) as engine:
        generation = engine.generate([IDS[:5]], SamplingParams(max_tokens=9))
        with pytest.raises(DeviceError, match="the device has gone"):
            list(generation)
        assert engine.cache.table.allocator.n_free == 12
        assert len(list(engine.generate([IDS[:5]], SamplingParams(max_tokens=9)))) == 9
    if kernels.runtime.platform == "hip":  # CUDA's driver keeps what it caches
        assert kernels.runtime.memory_info()[0] == free


def test_what_does_not_fit_is_told_with_the_layers_that_do(
    device: str, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(llama, device) as engine:
        weights = engine.weight_bytes
    monkeypatch.setattr(loading, "room", lambda free: weights // 2)

    def full(self: Runtime, nbytes: int) -> int:
        raise OutOfMemoryError("no memory")

    monkeypatch.setattr(Runtime, "allocate", full)
    with pytest.raises(OutOfMemoryError) as told:
        opened(llama, device)
    taken, missing = "[0-9.]+ KiB with keys and values of 192 tokens", "[0-9.]+ KiB more than"
    assert re.search(f"; 4 of 4 layers and the output take {taken}, {missing}", str(told.value))
    assert "; gpu_layers=1 (--gpu-layers 1) has room, or gpu_layers=" in str(told.value)
    assert str(told.value).endswith(") with split_mode=stream (--split-mode stream)")
    with pytest.raises(OutOfMemoryError, match=r"; 2 of 4 layers and the output take .*layers=1 "):
        opened(llama, device, gpu_layers=2)
    monkeypatch.setattr(loading, "room", lambda free: 10)
    with pytest.raises(OutOfMemoryError, match="wanted a smaller context, or the CPU"):
        opened(llama, device)
    monkeypatch.setattr(loading, "room", lambda free: 2 * weights)
    with pytest.raises(OutOfMemoryError, match=r"for which there was room before loading$"):
        opened(llama, device)
    twice = chosen_devices(device) * 2
    monkeypatch.setattr(loading, "chosen_devices", lambda device: twice)
    monkeypatch.setattr(loading, "room", lambda free: 3 * weights // 4)
    with pytest.raises(OutOfMemoryError, match=r" more than there is room for; gpu_layers=4 "):
        opened(llama, device, gpu_layers=[3, 1])


def test_what_stages_tell_names_their_devices(device: str, llama: Path) -> None:
    with opened(llama, device, gpu_layers=3) as engine:
        sequence, seen = engine.add_sequence(), Telemetry()
        with engine.observed(seen):
            engine.prefill(sequence, IDS[:12])
            for token in IDS[:3]:
                engine.decode([sequence], [token])
        prompt, *_, replayed = seen.passes
        names = [step.name for step in prompt.steps]
        assert names[0] == "cpu embed"
        assert names[-1] == f"{device} matmul_output"
        assert names.index(f"{device} receive") > names.index("cpu matmul_down")
        ends = [(one.start + one.seconds, next_.start) for one, next_ in pairwise(prompt.steps)]
        assert all(end <= start + 1e-6 for end, start in ends)
        assert (replayed.graph, len(replayed.steps)) == (True, 0)
        assert len(replayed.facts()) == len(seen.passes[1].facts())
        timed = engine.timed_pass([sequence], [[5]])
        try:
            labels = {step.label for step in timed.steps}
            assert {"cpu embed", f"{device} matmul_output"} <= labels
            whole, copies = timed.seconds(), timed.copy_seconds()
            assert copies is not None
            assert 0 < min(copies) < whole
        finally:
            timed.close()
        split: Any = engine._executor
        _, step = [kept for kept in split._executors[1]._passes._kept.values() if kept.ran]
        first, *others = [launch for _, launches in step.steps for launch in launches]
        assert not first.early  # it waits for the copy of what is received
        assert any(launch.early for launch in others)
        again = engine.add_sequence()
        tokens = [*IDS[:12], *IDS[:3], 5]
        assert engine.cache.table.length(sequence) == len(tokens)
        engine.prefill(again, tokens)
        after = [engine.decode([each], [6])[0] for each in (sequence, again)]
        assert relative_rms(*after) <= F16_BOUND
        held = engine.memory()
        assert held.pinned > held.inputs > 0


def test_names_of_several_devices_are_checked(standin: object, llama: Path) -> None:
    assert [choice.name for choice in chosen_devices("hip:1, hip:0")] == ["hip:1", "hip:0"]
    for wrong, told in (
        ("hip:0,hip:0", "device: got hip:0 twice, wanted different GPUs"),
        ("hip,hip:0", "device: got hip:0 twice, wanted different GPUs"),
        ("cpu,hip:0", "device: got 'cpu' of 2 devices, wanted GPUs, as hip:0,hip:1; gpu_layers"),
        ("hip:0,tpu", "device: got 'tpu', wanted one of auto, cpu, hip, cuda"),
    ):
        with pytest.raises(ValueError, match=told):
            chosen_devices(wrong)
    with pytest.raises(ValueError, match="device: got 2 GPUs, and fewer layers for them"):
        opened(llama, "hip:0,hip:1", gpu_layers=1)
    for layers in ([2], [1, 0], [1, 1, 1]):
        with pytest.raises(ValueError, match="one number for all GPUs, or one from 1 for each of"):
            opened(llama, "hip:0,hip:1", gpu_layers=layers)
    with pytest.raises(ValueError, match=r"got \[3, 2\], wanted together at most the model's 4"):
        opened(llama, "hip:0,hip:1", gpu_layers=[3, 2])
    with opened(llama, "hip:0,hip:1", gpu_layers=[1, 2]) as engine:
        split: Any = engine._executor
        assert [stage.cache.n_layers for stage in split._executors] == [1, 1, 2]


def test_a_profile_is_of_one_device(standin: object) -> None:
    each: tuple[dict[str, Any], ...] = (
        {"device": "hip:0,hip:1"},
        {"device": "hip:0", "gpu_layers": 2},
    )
    for options in each:
        with pytest.raises(ValueError, match=r"profile: got a model on .*, wanted one device"):
            profile_model(Options(str(demo_model()), ctx=64, tokens=2, **options))


def test_the_command_line_takes_layers_and_devices(
    standin: object, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["A hammer is", "-n", "3", "--ctx", "64", "--json", "--device"]
    said = []
    for more in (["cpu"], ["hip:0", "-ngl", "2"], ["hip:0,hip:1", "--gpu-layers", "1,2"]):
        assert main(["generate", *words, *more]) == 0
        said.append(json.loads(capsys.readouterr().out))
    assert [one["device"] for one in said] == ["cpu", "cpu+hip:0", "cpu+hip:0+hip:1"]
    assert len({one["text"] for one in said}) == 1
    options = ["-p", "4", "-n", "0", "-r", "1", "-o", "json", "-ngl", "2,99", "-t", "1"]
    assert main(["bench", "model", *options, "--device", "hip:0/hip:1"]) == 0
    rows = json.loads(capsys.readouterr().out)
    found = [(row["device"], row["gpu_layers"], row["threads"]) for row in rows]
    assert found == [("cpu+hip:0+hip:1", 2, 1), ("hip:0+hip:1", None, None)]
    assert all(row["ideal_seconds"] is None and row["tokens_per_second"] > 0 for row in rows)
