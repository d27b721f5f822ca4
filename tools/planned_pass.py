"""The pass of a model that no file holds, on a GPU that is not here: its steps and launches.

A preset gives the shapes, a mix the formats. Its ops are fused and lowered as on the device.
Nothing is written, compiled or run.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge.gguf.header import TensorInfo
from rocmforge.gpu.batch_shape import BatchAddresses, BatchShape
from rocmforge.gpu.compiler import Build, BuildRecorder
from rocmforge.gpu.fusion import pass_steps
from rocmforge.gpu.lowering import Lowering
from rocmforge.gpu.matrix import DeviceMatrix
from rocmforge.gpu.observation import activation_bytes, step_cost
from rocmforge.gpu.ops.sample import parts_bytes
from rocmforge.gpu.pass_lowering import PassLowering
from rocmforge.gpu.pass_memory import PassMemory
from rocmforge.gpu.runtime import DeviceProperties
from rocmforge.model.decoder import decoder_graph
from rocmforge.model.synthetic import ModelPlan, plan_model
from rocmforge.model.weights import load_weights
from rocmforge.plan.cost import Costs
from rocmforge.plan.fused_records import GateUpSwiglu, MatmulRmsnorm
from rocmforge.plan.graph import Graph
from rocmforge.plan.operands import Embedding, Tensor
from rocmforge.plan.records import Matmul, Sample

CTX = 2048
"""Most tokens of a sequence."""


@dataclass(frozen=True)
class PlannedStep:
    """One step of a pass.

    Parameters
    ----------
    nbytes
        Of matrices, keys and values: what no cache holds from one token to the next.
    flops
        Of everything that it computes.
    waves
        Of the launch that has most.
    launches
        Kernels.
    """

    nbytes: int
    flops: int
    waves: int
    launches: int


@dataclass(frozen=True)
class PlannedPass:
    """A pass.

    Parameters
    ----------
    steps
        In order.
    builds
        What would be compiled for it.
    """

    steps: tuple[PlannedStep, ...]
    builds: tuple[Build, ...]

    @property
    def nbytes(self) -> int:
        """Of all steps."""
        return sum(step.nbytes for step in self.steps)

    @property
    def flops(self) -> int:
        """Of all steps."""
        return sum(step.flops for step in self.steps)

    @property
    def launches(self) -> int:
        """Of all steps."""
        return sum(step.launches for step in self.steps)


@functools.cache
def planned_pass(
    preset: str, mix: str, device: DeviceProperties, tokens: int, depth: int
) -> PlannedPass:
    """Plan a pass of one sequence, which chooses the next token on the device.

    Parameters
    ----------
    preset, mix
        As of `rocmforge.model.synthetic.plan_model`.
    device
        An AMD GPU.
    tokens
        New ones: 1 is a step of decode, more are a prompt.
    depth
        Tokens in the cache before, with keys and values as float16.

    Raises
    ------
    ValueError
        A name is unknown; or there is no new token, or the context has no room for them.
    """
    if tokens < 1 or depth < 0 or depth + tokens > CTX:
        raise ValueError(
            f"tokens, depth: got {tokens}, {depth}, wanted at least 1 and 0, together up to {CTX}"
        )
    plan = plan_model(preset, mix)
    config = plan.preset.config
    outputs = None if tokens == 1 else (tokens - 1,)
    shape = BatchShape(tokens, 1, outputs, tokens == 1, tokens)
    runtime: Any = SimpleNamespace(properties=device, platform="hip")
    recorder = BuildRecorder(runtime)
    pages: Any = SimpleNamespace(
        page_size=32,
        dtype="f16",
        windowed=(),
        pages=lambda layer: (0, 0),
        scales=lambda layer: (0, 0),
    )
    lowering = Lowering(recorder, pages, CTX, lambda array: 0, lambda rotation: (0, 0))
    graph = _graph(plan)
    token_bytes = 2 * 2 * config.n_kv_heads * config.head_dim  # keys and values of a layer
    costs = Costs([tokens], [depth + tokens], 1, token_bytes, activation_bytes)
    run = PassLowering(
        PassMemory(lowering, shape, BatchAddresses(), lambda place: 0, lambda label: 0)
    )
    steps = []
    for step in pass_steps((*graph.ops, _sample(graph.result)), lowering, shape):
        launches = run.launches([step])
        cost = step_cost(step, costs)
        waves = [
            launch.grid[0]
            * launch.grid[1]
            * launch.grid[2]
            * -(-launch.threads // device.wave_size)
            for launch in launches
        ]
        nbytes = _matrix_bytes(step.op) + cost.kv_bytes
        steps.append(PlannedStep(nbytes, cost.flops, max(waves), len(launches)))
    return PlannedPass(tuple(steps), tuple(recorder.builds))


def _sample(logits: Tensor) -> Sample:
    return Sample(
        logits,
        Tensor("parts_of_logits", parts_bytes(1) // 4, logits.rows),
        Tensor("next_token", 1, logits.rows),
    )


def _matrix_bytes(op: object) -> int:
    match op:
        case Matmul():
            return sum(int(w.nbytes) for w in op.weights)
        case GateUpSwiglu():
            return int(op.gate.nbytes + op.up.nbytes)
        case MatmulRmsnorm():
            return int(op.weight.nbytes)
    return 0


def _graph(plan: ModelPlan) -> Graph:
    """The model's ops, over matrices that have shape and format alone."""
    file: Any = _NoFile(plan)
    weights = load_weights(
        file,
        plan.preset.config,
        lambda info, *_: DeviceMatrix.at(0, info.format.name, *info.shape),
    )
    info = weights.token_embd
    config, embedding = plan.preset.config, Embedding(file.tensor(info.name), info.format)
    return decoder_graph(config, weights, embedding, config.ctx_train)


class _NoFile:
    """Stands where a GGUF file does: tensors of a plan, whose numbers are ones or not there."""

    def __init__(self, plan: ModelPlan) -> None:
        self.path = plan.preset.name
        self.tensors = {
            name: TensorInfo(name, shape, fmt, 0, fmt.nbytes(shape))
            for name, (shape, fmt) in plan.tensors.items()
        }

    def tensor(self, name: str) -> NDArray[np.uint8]:
        """Bytes of a tensor; those of a matrix take no memory."""
        info = self.tensors[name]
        if len(info.shape) == 1:  # always F32
            return np.ones(info.shape, np.float32).view(np.uint8)
        rows, columns = info.shape
        return np.broadcast_to(np.uint8(0), (rows, info.format.row_bytes(columns)))

    def release(self, name: str) -> None:
        """Nothing is held."""
