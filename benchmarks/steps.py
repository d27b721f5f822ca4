"""The steps of an engine's passes: each kernel as decoding and prompts run it.

A model is loaded and its logits are checked. Then a pass is taken apart into its steps, as the
executor runs them: fused as it fuses, in its dtypes, with its launches. The same step of all layers
runs again and again, so that weights, keys and values are those of one layer after another: cold
where those of all layers are more than a cache holds. What is less (norms, a short context, on some
GPUs the output matrix) is hotter than in the pass: `Pass` shows how much that is.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from rocmforge.cpu.executor import HOST_RULES
from rocmforge.errors import MeasurementError
from rocmforge.gguf.formats import FORMATS
from rocmforge.gpu.batch_shape import BatchShape
from rocmforge.gpu.compiler import wave_size
from rocmforge.gpu.cross_compile import ARCHITECTURES
from rocmforge.gpu.dtypes import Convert
from rocmforge.gpu.fusion import pass_steps, wanted_fusions
from rocmforge.gpu.lowering import Lowering
from rocmforge.gpu.matrix import DeviceMatrix
from rocmforge.gpu.tuning import UNTUNED
from rocmforge.model.decoder import decoder_graph
from rocmforge.model.synthetic import ModelPlan, plan_model
from rocmforge.model.weights import LayerWeights, ModelWeights
from rocmforge.plan.cost import Costs
from rocmforge.plan.fusion import fuse
from rocmforge.plan.graph import Op
from rocmforge.plan.operands import Embedding
from rocmforge.plan.protocols import TimedPass, TimedStep
from rocmforge.timing import collect

from .checks import open_engine
from .devices import DEVICES, backend
from .models import GENERATED, model_path
from .samples import ROUNDS, track

MODEL = "1.1B-Q4_K_M"  # 0.6 GB of weights, which no cache holds
LONG = "decode at 2000"
PASSES = {
    "decode at 128": (1, 1, 128),
    LONG: (1, 1, 2000),
    "8 sequences at 128": (8, 1, 128),
    "prompt of 512": (1, 512, 0),
}
"""Sequences, new tokens of each, and tokens that each has before."""


def model_ops() -> Sequence[Op]:
    """The model's pass, before anything is fused; its matrices have formats and no weights."""
    plan = plan_model(*GENERATED[MODEL])
    config = plan.preset.config
    fields = [field.name for field in dataclasses.fields(LayerWeights) if field.name != "index"]
    layers = tuple(
        LayerWeights(
            index=layer, **{field: _weight(plan, f"blk.{layer}.{field}") for field in fields}
        )
        for layer in range(config.n_layers)
    )
    norm, output = _weight(plan, "output_norm"), _weight(plan, "output")
    weights = ModelWeights(None, None, layers, norm, None, output)  # type: ignore[arg-type]
    embedding = Embedding(np.empty((1, 1), np.uint8), FORMATS["F16"])
    return decoder_graph(config, weights, embedding, config.ctx_train).ops


def _weight(plan: ModelPlan, field: str) -> Any:
    name = field.removesuffix("_bias") + (".bias" if field.endswith("_bias") else ".weight")
    if name not in plan.tensors:
        return None
    shape, fmt = plan.tensors[name]
    return np.ones(shape, np.float32) if len(shape) == 1 else DeviceMatrix.at(0, fmt.name, *shape)


def gpu_ops() -> Iterator[Op | Convert]:
    """What the passes consist of on any GPU."""
    ops = model_ops()
    for architecture in (*ARCHITECTURES, "sm_90"):
        runtime = SimpleNamespace(
            properties=SimpleNamespace(
                architecture=architecture, compute_units=1, wave_size=wave_size(architecture)
            )
        )
        kernels: Any = SimpleNamespace(runtime=runtime, tuning=UNTUNED)
        for name in PASSES:
            yield from _gpu_ops_of(name, ops, kernels)


def _gpu_ops_of(name: str, ops: Sequence[Op], kernels: Any) -> Iterator[Op | Convert]:
    """What a pass consists of on a GPU with these kernels."""
    sequences, tokens, _ = PASSES[name]
    outputs = None if tokens == 1 else (tokens - 1,)
    shape = BatchShape(sequences * tokens, sequences, outputs, tokens == 1, tokens)
    lowering = Lowering(kernels, None, 1, None, None)  # type: ignore[arg-type]
    fused = wanted_fusions(kernels.tuning)
    yield from (step.op for step in pass_steps(ops, lowering, shape, fused))


def labels(ops: Iterator[Op | Convert] | Sequence[Op]) -> tuple[str, ...]:
    """Names of steps, each once, in order."""
    return tuple(dict.fromkeys(op.label for op in ops))


CPU_LABELS = labels(fuse(model_ops(), HOST_RULES))
GPU_LABELS = labels(gpu_ops())


@functools.cache
def ops_of(name: str, device: str) -> tuple[Op | Convert, ...]:
    """What a pass consists of on a device of this machine; the model is not loaded for it."""
    if device == "cpu":
        return tuple(fuse(model_ops(), HOST_RULES))
    on: Any = backend(device)
    return tuple(_gpu_ops_of(name, model_ops(), on.kernels))


def reads_context(op: Op | Convert) -> bool:
    """Whether a step takes longer in a longer context."""

    def cost(length: int) -> Any:
        return Costs((1,), (length,), 1, 1, lambda *_: 0).of(op, (), ())

    return not isinstance(op, Convert) and cost(1) != cost(2)


@functools.cache
def timed_pass(name: str, device: str) -> TimedPass:
    """Load and check the model, fill its cache by prompts, and return a pass; once a process."""
    sequences, tokens, context = PASSES[name]
    length = context + tokens
    engine = open_engine(model_path(MODEL), device, length, sequences=sequences)
    random = np.random.default_rng(0)
    taken = [engine.add_sequence(length) for _ in range(sequences)]
    new = random.integers(0, engine.config.vocab_size, (sequences, length))
    for sequence, ids in zip(taken, new, strict=True):
        if context:
            engine.prefill(sequence, ids[:context])
    return engine.timed_pass(taken, list(new[:, context:]))


def timed_step(label: str, name: str, device: str) -> TimedStep:
    """Return one step of a pass; NotImplementedError where it would say nothing."""
    own = [op for op in ops_of(name, device) if op.label == label]
    if not own:
        raise NotImplementedError(f"{label}: {name} has no such step on this device")
    if name == LONG and not any(map(reads_context, own)):
        raise NotImplementedError(f"{label}: the context makes no difference to it")
    for step in timed_pass(name, device).steps:
        if step.label == label:
            return step
    raise MeasurementError(f"{label}: the engine runs no such step in {name}, the plan has one")


class _Steps:
    """Time of one call, on a GPU device time, and how fast it reads and writes.

    Bytes count once: matrices, activations in and out, and the keys and values that are read or
    written. See `rocmforge.plan.cost`.
    """

    timeout = 900

    def setup(self, step: str, of: str, device: str) -> None:
        self.step = timed_step(step, of, device)

    def track_us(self, step: str, of: str, device: str) -> dict[str, Any]:
        return track([1e6 * s for s in collect(self.step.seconds)])

    def track_gb_per_second(self, step: str, of: str, device: str) -> dict[str, Any]:
        nbytes = self.step.cost.bytes / self.step.calls
        return track([nbytes / s / 1e9 for s in collect(self.step.seconds)])

    track_us.unit = "us"
    track_us.rounds = ROUNDS
    track_gb_per_second.unit = "GB/s"
    track_gb_per_second.direction = "higher"


class OnCpu(_Steps):
    """The steps of a CPU's passes."""

    params = (CPU_LABELS, tuple(PASSES), ("cpu",))
    param_names = ("step", "pass", "device")


class OnGpu(_Steps):
    """The steps of a GPU's passes; and what the host needs to launch one outside a graph."""

    params = (GPU_LABELS, tuple(PASSES), ("gpu",))
    param_names = ("step", "pass", "device")

    def track_launch_us(self, step: str, of: str, device: str) -> dict[str, Any]:
        return track([1e6 * s for s in collect(self.step.launch_seconds)])

    track_launch_us.unit = "us"


class Pass:
    """All steps of a pass, added up, over the whole pass: about 1 unless one is left out.

    Below 1 is what the pass does between its steps, and what steps find in caches that run alone.
    """

    params = (tuple(PASSES), DEVICES)
    param_names = ("pass", "device")
    timeout = 900

    def setup(self, name: str, device: str) -> None:
        self.timed = timed_pass(name, device)

    def track_parts_over_whole(self, name: str, device: str) -> dict[str, Any]:
        def measure() -> float:
            parts = sum(step.calls * step.seconds() for step in self.timed.steps)
            return parts / self.timed.seconds()

        return track(collect(measure))

    track_parts_over_whole.unit = "times"
