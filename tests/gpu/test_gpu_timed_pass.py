"""A GPU's pass for timing: every launch of the pass is in one step, and its times are the device's.

On the stand-in, whose kernels take the time that is planted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from rocmforge.engine import Engine
from rocmforge.gpu import replay
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.executor import GpuExecutor
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.replay import Replay
from rocmforge.gpu.runtime import Runtime
from rocmforge.gpu.timed_pass import GpuTimedPass
from rocmforge.model.synthetic import make_model
from rocmforge.plan.fused_records import GateUpSwiglu, MatmulRmsnorm
from rocmforge.plan.records import Matmul

pytestmark = pytest.mark.either_wave

LAYERS = 2
PROMPT = list(range(5, 22))
KERNEL_S, LAUNCH_S = 5e-6, 30e-6

Kernel = tuple[str, tuple[int, int, int], int]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return make_model(path, "tiny", "Q4_K_M", seed=5, layers=LAYERS)


@pytest.fixture
def engine(kernels: Kernels, model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(replay, "SHORTEST_S", 1e-6)
    device = f"{kernels.runtime.platform}:{kernels.runtime.properties.index}"
    with Engine.from_gguf(model, device, ctx=64, sequences=4) as engine:
        yield engine


@pytest.fixture
def plant(plant_times: Callable[[float, float], None]) -> Callable[[], None]:
    """Let each kernel take KERNEL_S from then on."""
    return lambda: plant_times(KERNEL_S, LAUNCH_S)


def launched(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object]) -> Counter[Kernel]:
    """The kernels that a call launches, with grid and threads."""
    seen: list[Kernel] = []
    take = Launch.enqueue

    def noted(self: Launch, runtime: Runtime, stream: object = None) -> None:
        seen.append((self.name, self.grid, self.threads))
        take(self, runtime, stream)

    with monkeypatch.context() as patch:
        patch.setattr(Launch, "enqueue", noted)
        run()
    return Counter(seen)


def timed_pass(engine: Engine, batch: int, prompt: list[int]) -> GpuTimedPass:
    """A prompt, or a step of some sequences."""
    sequences = [engine.add_sequence() for _ in range(batch)]
    if len(prompt) == 1:
        for sequence in sequences:
            engine.prefill(sequence, PROMPT)
    made = engine.timed_pass(sequences, [prompt] * batch)
    assert isinstance(made, GpuTimedPass)
    return made


@pytest.mark.parametrize(("batch", "prompt"), [(1, [3]), (3, [3]), (1, PROMPT)])
def test_every_launch_of_a_pass_is_in_one_step(
    engine: Engine, batch: int, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = timed_pass(engine, batch, prompt)
    sequences = [engine.add_sequence() for _ in range(batch)]

    def run() -> None:
        if batch == 1:
            engine.prefill(sequences[0], prompt)
        else:
            engine.decode(sequences, prompt * batch)

    wanted = launched(monkeypatch, run)
    launches = [launch for step in timed.steps for launch in step.launches]
    assert Counter((one.name, one.grid, one.threads) for one in launches) == wanted
    executor = engine._executor
    assert isinstance(executor, GpuExecutor)
    steps = executor._passes.steps(timed._shape)[:-1]  # all but the choice of a token
    assert sum(step.calls for step in timed.steps) == len(steps)
    timed.close()


def test_steps_are_named_after_ops_and_count_the_layers(engine: Engine) -> None:
    timed = timed_pass(engine, 1, [3])
    calls = {s.label: s.calls for s in timed.steps if not s.label.startswith("quantize_")}
    # The last norm is of the wanted rows. Few rows of down leave a large GPU idle (`fills`).
    apart = {"matmul_down": LAYERS, "rmsnorm_h": LAYERS - 1}
    together = {"matmul_down": 1, "down_norm": LAYERS - 1}
    large = engine.backend.kernels.runtime.properties.compute_units > 8
    assert calls == {
        "embed_rmsnorm": 1,
        "matmul_qkv": LAYERS,
        "rope_attention": LAYERS,
        "attention_output_norm": LAYERS,
        "gate_up_swiglu": LAYERS,
        **(apart if large else together),
        "select_rmsnorm": 1,
        "matmul_output": 1,
    }
    executor = engine._executor
    assert isinstance(executor, GpuExecutor)
    ops = [step.op for step in executor._passes.steps(timed._shape)]
    matrices = [w for op in ops if isinstance(op, Matmul) for w in op.weights]
    normed = [op for op in ops if isinstance(op, MatmulRmsnorm)]
    matrices += [op.weight for op in normed]
    matrices += [w for op in ops if isinstance(op, GateUpSwiglu) for w in (op.gate, op.up)]
    read = sum(
        step.cost.weight_bytes
        for step in timed.steps
        if step.label.startswith(("matmul", "gate_up")) or step.label.endswith("_norm")
    )
    assert sum(w.nbytes for w in matrices) == engine.weight_bytes
    assert read == engine.weight_bytes + sum(op.norm.nbytes for op in normed)
    timed.close()


def test_activations_count_in_their_dtype(engine: Engine) -> None:
    timed = timed_pass(engine, 1, [3])
    (norm,) = (step for step in timed.steps if step.label == "select_rmsnorm")
    # reads 256 float32, writes 256 int8 in 8 groups with a scale and sums each
    assert norm.cost.activation_bytes == norm.calls * (4 * 256 + 256 + 8 * (4 + 4))
    timed.close()


def test_planted_times_come_back(
    engine: Engine, plant: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "SHORTEST_S", 2 * LAUNCH_S)  # so that the host is ahead
    timed = timed_pass(engine, 1, [3])
    plant()
    for step in timed.steps:
        each = len(step.launches) / step.calls
        assert step.seconds() == pytest.approx(each * KERNEL_S, rel=1e-3), step.label
        assert 0 < step.launch_seconds() < 1
    launches = sum(len(step.launches) for step in timed.steps)
    assert timed.seconds() == pytest.approx(launches * KERNEL_S, rel=0.2)  # and two copies
    timed.close()


@pytest.mark.parametrize("prompt", [[3], PROMPT])
def test_a_step_begins_with_what_the_pass_left(
    kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompt: list[int]
) -> None:
    monkeypatch.setattr(replay, "SHORTEST_S", 1e-6)
    device = f"{kernels.runtime.platform}:{kernels.runtime.properties.index}"
    model = make_model(tmp_path / "moe.gguf", "tiny-moe", "Q4_K_M", seed=5, layers=LAYERS)
    filled: list[tuple[int, int]] = []
    fill, seconds = Runtime.fill, Replay.seconds

    def noted(self: Runtime, target: int, byte: int, nbytes: int, stream: object = None) -> None:
        filled.append((target, nbytes))
        fill(self, target, byte, nbytes, stream)

    with Engine.from_gguf(model, device, ctx=64) as engine:
        sequence = engine.add_sequence()
        engine.prefill(sequence, PROMPT)
        monkeypatch.setattr(Runtime, "fill", noted)
        timed = engine.timed_pass([sequence], [prompt])
        assert isinstance(timed, GpuTimedPass)
        address, nbytes = filled[-1]
        executor = engine._executor
        assert isinstance(executor, GpuExecutor)
        steps = executor._passes.steps(timed._shape)
        # Scratch is last, in which jobs of an expert come together in any order.
        nbytes -= max(timed._lowering.scratch_bytes(steps, timed._shape).values())

        def tensors() -> bytes:
            held = np.empty(nbytes, np.uint8)
            engine.backend.kernels.runtime.copy_to_host(held, address)
            return held.tobytes()

        left = tensors()
        unlike = []

        def compared(self: Replay) -> float:
            unlike.append(tensors() != left)
            return seconds(self)

        monkeypatch.setattr(Replay, "seconds", compared)
        changed = []
        for step in timed.steps:
            step.seconds()
            changed.append(tensors() != left)
        timed.close()
    assert len(unlike) == len(changed)
    assert not any(unlike)
    assert any(changed)  # the residual


def test_timing_writes_what_a_pass_writes_and_gives_all_back(
    engine: Engine, kernels: Kernels
) -> None:
    timed_sequence, plain = engine.add_sequence(), engine.add_sequence()
    engine.prefill(plain, PROMPT)
    free, _ = kernels.runtime.memory_info()
    timed = engine.timed_pass([timed_sequence], [PROMPT])
    for step in timed.steps:
        step.seconds()
    timed.seconds()
    timed.close()
    timed.close()
    if kernels.runtime.platform != "cuda":  # whose driver keeps what it caches
        assert kernels.runtime.memory_info()[0] == free
    first, second = (engine.decode([s], [9]) for s in (timed_sequence, plain))
    np.testing.assert_array_equal(first, second)
