"""The least time that a pass of a model could take on a device, by its measured roofline.

Every matrix is read once a pass, of experts those that its tokens choose, and so are the keys and
values that it attends to; multiplications are those of the matrices and of attention. What else a
pass reads and computes is left out: it is little, and without it the time stays a lower bound.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rocmforge.engine import Engine
from rocmforge.gguf.reader import GGUFFile
from rocmforge.model.config import ModelConfig
from rocmforge.plan.cost import attention_flops, experts_read
from rocmforge.profiling.roofline import CEILINGS as CEILINGS
from rocmforge.profiling.roofline import Peaks, measure_peaks


@dataclass(frozen=True)
class Matrices:
    """The matrices of a file that multiply a token: all but an embedding that is no output too.

    Parameters
    ----------
    nbytes, weights
        In the file, without those of experts.
    expert_bytes, expert_weights
        Those of experts.
    expert_share
        Of the experts, those that each token goes to; 0 without experts.
    output_weights
        Those of the output, which multiplies only tokens whose logits are wanted.
    format
        The one that most weights have.
    """

    nbytes: int
    weights: int
    expert_bytes: int
    expert_weights: int
    expert_share: float
    output_weights: int
    format: str

    def read_bytes(self, tokens: int) -> int:
        """Bytes that a pass of some tokens reads."""
        return self.nbytes + round(self.expert_bytes * experts_read(self.expert_share, tokens))

    @property
    def weights_a_token(self) -> int:
        """Weights that multiply each token."""
        return self.weights + round(self.expert_weights * self.expert_share)


def matrices(path: str | os.PathLike[str]) -> Matrices:
    """Read what a model multiplies with from its header."""
    with GGUFFile(path) as file:
        found = {info.name: info for info in file.tensors.values() if len(info.shape) == 2}
        experts = [info for info in file.tensors.values() if len(info.shape) == 3]
        chosen = ModelConfig.from_gguf(file).experts
    output = "output.weight"
    if output in found:
        del found["token_embd.weight"]
    else:
        output = "token_embd.weight"
    weights: Counter[str] = Counter()
    for info in (*found.values(), *experts):
        weights[info.format.name] += math.prod(info.shape)
    expert_weights = sum(math.prod(info.shape) for info in experts)
    return Matrices(
        nbytes=sum(info.nbytes for info in found.values()),
        weights=weights.total() - expert_weights,
        expert_bytes=sum(info.nbytes for info in experts),
        expert_weights=expert_weights,
        expert_share=chosen.used / chosen.count if chosen else 0.0,
        output_weights=math.prod(found[output].shape),
        format=weights.most_common(1)[0][0],
    )


@dataclass(frozen=True)
class Work:
    """What a pass reads and computes at least.

    Parameters
    ----------
    nbytes
        Of matrices, keys and values.
    operations
        Multiply and add count as two.
    tokens
        That are multiplied at once.
    """

    nbytes: int
    operations: int
    tokens: int


def step_work(engine: Engine, model: Matrices, depth: int, batch: int) -> Work:
    """Work of a step in which `batch` sequences of `depth` tokens grow by one."""
    return Work(
        nbytes=model.read_bytes(batch) + batch * (depth + 1) * engine.cache.bytes_per_token,
        operations=2 * model.weights_a_token * batch + _attention(engine, [1] * batch, depth),
        tokens=batch,
    )


def prefill_work(engine: Engine, model: Matrices, depth: int, tokens: int) -> Work:
    """Work of a prompt behind `depth` tokens; logits are those of its last token alone."""
    repeated = model.weights_a_token - model.output_weights
    products = 2 * (repeated * tokens + model.output_weights)
    return Work(
        nbytes=model.read_bytes(tokens) + (depth + tokens) * engine.cache.bytes_per_token,
        operations=products + _attention(engine, [tokens], depth),
        tokens=tokens,
    )


def _attention(engine: Engine, counts: Sequence[int], depth: int) -> int:
    """Operations of all layers for new tokens of some sequences, behind `depth` tokens each."""
    config = engine.config
    lengths = [depth + count for count in counts]
    return config.n_layers * attention_flops(counts, lengths, config.n_heads, config.head_dim)


def measured_peaks(engine: Engine, model: Matrices, work: Work) -> Peaks | None:
    """Measure what the engine's device reaches for such work, as `measure_peaks` does.

    None where the ceiling of such products is not known, layers lie on several devices, or weights
    are read over a bus.
    """
    if len(engine.devices) > 1 or engine.streamed_layers:
        return None
    ceiling = CEILINGS.get(engine.backend.matmul_precision(model.format, work.tokens))
    return None if ceiling is None else measure_peaks(engine.backend, work.nbytes, ceiling)
