"""A GPU that computes all layers and reads the weights of some from the host's memory."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from model.small_models import written
from numpy.typing import NDArray
from pinned_memory import Pinned
from split_passes import steps, tokens

from rocmforge import loading
from rocmforge.bench import model_rows
from rocmforge.cli import main
from rocmforge.devices import open_backend
from rocmforge.engine import Engine
from rocmforge.errors import OutOfMemoryError
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.runtime import Runtime
from rocmforge.model.synthetic import make_model
from rocmforge.profiling.memory import device_memory, memory_profile
from rocmforge.profiling.run import Options, profile_model
from rocmforge.speed import ideal, measure

pytestmark = pytest.mark.either_wave

EXPERTS = {"expert_count": 5, "expert_used_count": 3, "expert_feed_forward_length": 96}


@pytest.fixture(scope="module")
def device(kernels: Kernels) -> str:
    return f"{kernels.runtime.platform}:{kernels.runtime.properties.index}"


def opened(path: Path, device: str | None, **options: Any) -> Engine:
    given = {"ctx": 64, "sequences": 3, "page_size": 16, **options}
    return Engine.from_gguf(path, device, **given)


@pytest.mark.parametrize(
    ("architecture", "fmt", "keys"),
    [
        pytest.param("llama", "Q8_0", {}, marks=pytest.mark.slow),
        ("llama", "F16", {}),
        ("gemma2", "Q8_0", {}),
        ("qwen3moe", "Q8_0", {**EXPERTS, "embedding_length": 96}),
        pytest.param(
            "qwen3moe", "F16", {**EXPERTS, "embedding_length": 96}, marks=pytest.mark.slow
        ),
        ("llama", None, {"nvfp4": True, "feed_forward_length": 128}),
    ],
)
def test_no_bit_changes(
    device: str, architecture: str, fmt: str | None, keys: dict[str, Any], tmp_path: Path
) -> None:
    path = written(architecture, block_count=3, **keys)(tmp_path / "m.gguf")
    with opened(path, device, weight_format=fmt) as engine:
        wanted, chosen, nbytes = steps(engine), tokens(engine), engine.weight_bytes
        assert engine.streamed_layers == 0
    for layers, streamed in ((2, 1), (0, 3), (3, 0)):
        given = {"split_mode": "stream", "gpu_layers": layers, "weight_format": fmt}
        with opened(path, device, **given) as engine:
            assert (len(engine.devices), engine.streamed_layers) == (1, streamed)
            assert engine.weight_bytes == nbytes
            for got, want in zip(steps(engine), wanted, strict=True):
                np.testing.assert_array_equal(got, want)
            assert tokens(engine) == chosen


def test_weights_lie_in_the_hosts_memory_until_the_engine_is_closed(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = Pinned(monkeypatch)
    path = make_model(tmp_path / "m.gguf", "tiny", "Q4_0", layers=4)
    held = []
    for layers in (4, 1):
        with opened(path, device, split_mode="stream", gpu_layers=layers) as engine:
            held.append((pinned.nbytes, engine.weight_bytes))
        gc.collect()
        assert pinned.nbytes == 0
    (none, nbytes), (most, same) = held
    assert same == nbytes
    assert nbytes / 2 < most - none < nbytes  # the output stays on the GPU


@pytest.mark.parametrize(
    ("allowed", "told"),
    [
        (1 << 22, r"got no memory; .*4 of 4 layers, the embedding, .* gpu_layers=[123] "),
        (1 << 10, r"got no memory; .*4 of 4 layers, .* more than .*; wanted a smaller context$"),
        (1 << 40, r"got no memory; .*4 of 4 layers, .* there was room before loading$"),
    ],
)
def test_a_model_that_does_not_fit_is_told_what_does(
    device: str, allowed: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Runtime, nbytes: int) -> int:
        raise OutOfMemoryError("got no memory")

    path = make_model(tmp_path / "m.gguf", "tiny", "F16", layers=4)
    monkeypatch.setattr(loading, "room", lambda free: allowed)
    monkeypatch.setattr(Runtime, "allocate", full)
    with pytest.raises(OutOfMemoryError, match=told):
        opened(path, device, split_mode="stream")


def test_weights_that_the_host_has_no_room_for_are_refused(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_model(tmp_path / "m.gguf", "tiny", "F16", layers=4)
    with opened(path, device, split_mode="stream", gpu_layers=0) as engine:
        each = engine.streamed_bytes // 4

    def room_for(free: int) -> None:
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free))

    room_for(3 * each - 1)
    told = r"the host's memory: got .* free, wanted .* of 4 layers; gpu_layers=2 .* or more"
    with pytest.raises(OutOfMemoryError, match=told):
        opened(path, device, split_mode="stream", gpu_layers=0)
    opened(path, device, split_mode="stream", gpu_layers=2).close()

    pinned, left = Pinned(monkeypatch), [4]
    allocate = Runtime.allocate_pinned

    def full(self: Runtime, nbytes: int) -> NDArray[np.uint8]:
        left[0] -= 1
        if left[0] < 0:
            raise OutOfMemoryError("the host: got no memory")
        return allocate(self, nbytes)

    monkeypatch.setattr(Runtime, "allocate_pinned", full)
    with pytest.raises(OutOfMemoryError, match="the host: got no memory"):
        opened(path, device, split_mode="stream", gpu_layers=2)
    assert pinned.nbytes == 0


def test_streamed_weights_are_not_the_devices(device: str, tmp_path: Path) -> None:
    path = make_model(tmp_path / "m.gguf", "tiny", "Q4_0", layers=4)
    found = []
    for layers in (4, 0):
        backend = open_backend(device)
        before = device_memory(backend)
        backend.close()
        with opened(path, device, split_mode="stream", gpu_layers=layers) as engine:
            profile = memory_profile(engine, before)
            assert profile.weight_bytes == engine.weight_bytes
            found.append((profile.engine_bytes, profile.streamed_bytes))
    (whole, none), (rest, streamed) = found
    assert none == 0 < streamed
    assert whole - rest == streamed


def test_where_nothing_can_be_streamed_to_is_refused(
    standin: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_DEVICES", "gfx1100,gfx1100")
    path = make_model(tmp_path / "m.gguf", "tiny", "F16", layers=2)
    for name, got in (("cpu", "the CPU, which was asked for"), ("hip:0,hip:1", "hip:0, hip:1")):
        with pytest.raises(ValueError, match=f"split mode stream: got {got}, wanted one GPU"):
            opened(path, name, split_mode="stream")
    options = Options(path, device="hip:0", gpu_layers=1, split_mode="stream")
    with pytest.raises(ValueError, match="profile: got split mode stream, wanted a model whose"):
        profile_model(options)
    with pytest.raises(ValueError, match=r"gpu_layers: got \[1, 1\], wanted one number for all"):
        opened(path, "hip:0", split_mode="stream", gpu_layers=[1, 1])


def test_it_is_measured_beside_the_other_modes(
    device: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def peaks(engine: Engine, model: Any, work: Any) -> Any:
        return ideal.measured_peaks(engine, model, work) if engine.streamed_layers else None

    monkeypatch.setattr(measure, "measured_peaks", peaks)  # which take long on the stand-in
    path = make_model(tmp_path / "m.gguf", "tiny", "Q4_0", layers=2)
    words = ["bench", "model", str(path), "--device", device, "-ngl", "1", "-sm", "stream,layer"]
    assert main([*words, "-p", "8", "-n", "0", "-r", "1", "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["device"], row["split_mode"], row["gpu_layers"]) for row in rows] == [
        (device, "stream", 1),
        (f"cpu+{device}", "layer", 1),
    ]
    assert all(row["tokens_per_second"] > 0 for row in rows)
    assert rows[0]["time_over_ideal"] is None
    assert "(1 layers) (others in host memory)" in model_rows.markdown(rows)
    every = ["-ngl", "2", "-sm", "layer,stream,stream", "-t", "1,2", "-p", "8", "-n", "0"]
    assert main([*words[:5], *every, "-r", "1", "-o", "json"]) == 0
    out = capsys.readouterr()
    (row,) = json.loads(out.out)
    assert (row["device"], row["split_mode"], row["gpu_layers"]) == (device, None, None)
    assert out.err.count("-t: threads are the CPU's, and change nothing on") == 1
    only = ["--device", "cpu", "-sm", "stream,stream", "-p", "8", "-n", "0"]
    assert main([*words[:3], *only]) == 1
    nowhere = "split mode stream: got the CPU, which was asked for, wanted one GPU"
    assert nowhere in capsys.readouterr().out
    mixed = ["--device", "cpu", "-sm", "layer,stream", "-p", "8", "-n", "0", "-o", "json"]
    assert main([*words[:3], *mixed]) == 0
    reasons = [row["reason"] for row in json.loads(capsys.readouterr().out)]
    assert reasons == [nowhere, None]
