"""tools/planned_pass.py: what is planned without a device is what an engine launches and reads."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tool_modules import tool_module

from rocmforge.engine import Engine
from rocmforge.errors import DeviceError
from rocmforge.gpu import cross_compile
from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.runtime import DeviceProperties, Runtime
from rocmforge.model.synthetic import make_model
from rocmforge.sampling import Sampler
from rocmforge.sampling_params import SamplingParams

LAYERS, KV_HEADS, HEAD_DIM = 4, 2, 64  # of the preset "tiny"
PROMPT = 40


@pytest.fixture(scope="module")
def tool() -> Any:
    return tool_module("planned_pass")


@pytest.mark.parametrize("mix", ["Q4_K_M", "Q4_0"])
def test_the_plan_is_what_an_engine_runs(
    tool: Any, kernels: Kernels, mix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = kernels.runtime
    if runtime.platform != "hip":
        pytest.skip("passes are planned for AMD GPUs")
    seen: list[int] = []
    take = Launch.enqueue

    def noted(self: Launch, runtime: Runtime, stream: object = None) -> None:
        blocks = self.grid[0] * self.grid[1] * self.grid[2]
        seen.append(blocks * -(-self.threads // runtime.properties.wave_size))
        take(self, runtime, stream)

    draw = Sampler(SamplingParams(temperature=0.0)).draw
    model = make_model(tmp_path / "tiny.gguf", "tiny", mix)
    device = f"hip:{runtime.properties.index}"
    with Engine.from_gguf(model, device, ctx=tool.CTX) as engine:
        sequence = engine.add_sequence()
        monkeypatch.setattr(Launch, "enqueue", noted)
        token = engine.prefill_token(sequence, [*range(5, 5 + PROMPT)], draw())
        prompt, seen[:] = [*seen], []
        engine.decode_tokens([sequence], [token], [draw()])
        matrices = engine.weight_bytes
    for tokens, depth, launched in ((PROMPT, 0, prompt), (1, PROMPT, seen)):
        planned = tool.planned_pass("tiny", mix, runtime.properties, tokens, depth)
        assert planned.launches == len(launched)
        assert Counter(step.waves for step in planned.steps) <= Counter(launched)
        kv = (depth + tokens) * LAYERS * 2 * 2 * KV_HEADS * HEAD_DIM
        appended = planned.nbytes - matrices - kv
        assert 0 <= appended <= tokens * LAYERS * 2 * 2 * KV_HEADS * HEAD_DIM
        assert planned.flops > 2 * tokens * (matrices - 1024 * 256)


def test_bad_input_is_refused(tool: Any) -> None:
    device = DeviceProperties(0, "GPU", "gfx1100", 32, 48, 1 << 34, 65536, False)
    for tokens, depth in ((0, 5), (1, -1), (tool.CTX, 1)):
        with pytest.raises(ValueError, match=f"got {tokens}, {depth}, wanted at least 1 and 0"):
            tool.planned_pass("7B", "Q4_0", device, tokens, depth)
    with pytest.raises(ValueError, match="preset: got '9B', wanted one of"):
        tool.planned_pass("9B", "Q4_0", device, 1, 0)


def test_the_waves_that_estimates_assume_are_those_of_the_compiled_kernels(
    tool: Any, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        cross_compile.clang_version()
    except DeviceError as error:
        pytest.skip(str(error))
    estimate = tool_module("estimate_radeon")
    monkeypatch.setenv("ROCMFORGE_CACHE", str(repo / "build" / "cross_compile"))
    targets: dict[Any, tuple[Build, str]] = {}
    for card in estimate.CARDS:
        for model in estimate.MODELS:
            planned = tool.planned_pass(*model.split("-", 1), card.device, 1, estimate.DEPTH)
            for build in planned.builds:
                key = build.file, str(build.defines), card.architecture
                targets[key] = build, card.architecture
    assert {key[0] for key in targets} >= {"matmul.hip", "gate_up_swiglu.hip", "rope_attention.hip"}
    for build, compiled in cross_compile.compile_builds(targets.values()):
        waves = {kernel.resources.name: kernel.occupancy for kernel in compiled}
        assert min(waves.values()) >= estimate.WAVES, (build.file, build.defines, waves)
