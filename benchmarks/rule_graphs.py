"""Small graphs in which a fusion rule finds something, in the shape of a layer of a 7B model.

They begin with an embedding and end with logits, so that the executors of devices run them and
their results can be compared. What the rule is about is there several times, each with weights or
pages of its own. The last one decides the logits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rocmforge.gguf.formats import FORMATS, Format
from rocmforge.ops.matrix import Matrix
from rocmforge.plan.graph import Graph, Op
from rocmforge.plan.operands import Embedding, Rotation, Tensor
from rocmforge.plan.records import (
    AddExperts,
    Attention,
    Embed,
    ExpertGateUp,
    ExpertMatmul,
    KvAppend,
    Matmul,
    Rmsnorm,
    Rope,
    Route,
    SelectOutputs,
    Swiglu,
)

WIDTH, INNER = 4096, 11008
HEADS, HEAD_DIM = 32, 128
EXPERTS, CHOSEN, EXPERT_ROWS = 32, 4, 32
NARROW = 256  # columns and rows of what is around the rule's ops
TOKENS = 1024  # in the vocabulary
LAYERS = 8  # into whose pages keys and values go
ROWS = 251  # of random weights; a matrix repeats them, which is no multiple of any tile
EPS = 1e-5
AROUND = "Q8_0"  # format of the matrices around: activations are rounded as in most models

Pack = Callable[[np.ndarray, Format, int], Any]
"""As of `Backend.pack`."""


@dataclass(frozen=True)
class Example:
    """A graph, and how many times it has what its rule is about."""

    graph: Graph
    copies: int


@functools.cache
def weights(rows: int, columns: int, fmt: str) -> np.ndarray:
    """Blocks of Gaussian weights (N, row_bytes) of standard deviation 1/√K."""
    random = np.random.default_rng(rows + columns)
    floats = random.standard_normal((ROWS, columns), np.float32) / np.float32(math.sqrt(columns))
    return np.resize(Matrix.from_floats(floats, fmt).data, (rows, FORMATS[fmt].row_bytes(columns)))


def gate_up_swiglu(fmt: str, least_bytes: int, pack: Pack) -> Example:
    """Feed-forward parts whose gate and up are of a format, each with matrices of its own."""
    x, y = Tensor("x", WIDTH), Tensor("y", NARROW)
    gate, up = Tensor("gate", INNER), Tensor("up", INNER)
    down = _packed(pack, NARROW, INNER, AROUND)
    both = weights(2 * INNER, WIDTH, fmt)
    copies = -(-least_bytes // both.nbytes)
    ops: list[Op] = [Embed(_embedding(WIDTH, "F16"), x)]
    for _ in range(copies):
        pair = tuple(pack(half, FORMATS[fmt], WIDTH) for half in (both[:INNER], both[INNER:]))
        ops.append(Matmul(x, pair, (gate, up), (None, None), role="gate_up"))
        ops.append(Swiglu(gate, up, gate))
        ops.append(Matmul(gate, (down,), (y,), (None,), role="down"))
    return Example(_with_logits(ops, y, pack), copies)


def embed_rmsnorm(fmt: str, least_bytes: int, pack: Pack) -> Example:
    """Embedding rows of a format and their norm, of which both are read: once, hence hot."""
    x, h, other = (Tensor(name, WIDTH) for name in ("x", "h", "other"))
    y = Tensor("y", NARROW)
    read = _packed(pack, NARROW, WIDTH, AROUND)
    norm = np.linspace(0.5, 1.5, WIDTH, dtype=np.float32)
    ops: list[Op] = [
        Embed(_embedding(WIDTH, fmt), x),
        Rmsnorm(x, norm, EPS, h),
        Matmul(h, (read,), (y,), (None,), role="of_h"),
        Rmsnorm(x, np.ones(WIDTH, np.float32), EPS, other),
        Matmul(other, (read,), (y,), (None,), accumulate=True, role="of_other"),
    ]
    return Example(_with_logits(ops, y, pack), 1)


def rmsnorm_route(fmt: str, least_bytes: int, pack: Pack) -> Example:
    """The norm in front of a mixture of experts, a router of a format and its choice; hot."""
    x, h, y = Tensor("x", WIDTH), Tensor("h", WIDTH), Tensor("y", NARROW)
    read = _packed(pack, NARROW, WIDTH, AROUND)
    norm = np.linspace(0.5, 1.5, WIDTH, dtype=np.float32)
    *mixture, add = _mixture(h, y, fmt, pack)
    ops: list[Op] = [
        Embed(_embedding(WIDTH, "F16"), x),
        Rmsnorm(x, norm, EPS, h),
        *mixture,
        Matmul(h, (read,), (y,), (None,), role="of_h"),
        add,
    ]
    return Example(_with_logits(ops, y, pack), 1)


def add_experts_rmsnorm(fmt: str, least_bytes: int, pack: Pack) -> Example:
    """Results of experts that are added to h, and the norm of h for a product of a format; hot."""
    x, h, normed = (Tensor(name, WIDTH) for name in ("x", "h", "normed"))
    y = Tensor("y", NARROW)
    read = _packed(pack, NARROW, WIDTH, fmt)
    norm = np.linspace(0.5, 1.5, WIDTH, dtype=np.float32)
    ops: list[Op] = [
        Embed(_embedding(WIDTH, "F16"), h),
        Rmsnorm(h, norm, EPS, x),
        *_mixture(x, h, "F32", pack),
        Rmsnorm(h, norm, EPS, normed),
        Matmul(normed, (read,), (y,), (None,), role="of_normed"),
    ]
    return Example(_with_logits(ops, y, pack), 1)


def _mixture(x: Tensor, out: Tensor, router: str, pack: Pack) -> list[Op]:
    """What experts give, which is added to `out` in the last op."""
    scores, experts, shares = (
        Tensor(name, n)
        for name, n in (("scores", EXPERTS), ("experts", CHOSEN), ("shares", CHOSEN))
    )
    hidden, parts = Tensor("hidden", CHOSEN * EXPERT_ROWS), Tensor("parts", CHOSEN * out.columns)
    matrix = _packed(pack, EXPERTS, WIDTH, router)
    gate, up = (_packed(pack, EXPERTS * EXPERT_ROWS, WIDTH, AROUND) for _ in range(2))
    down = _packed(pack, EXPERTS * out.columns, EXPERT_ROWS, AROUND)
    return [
        Matmul(x, (matrix,), (scores,), (None,), role="router"),
        Route(scores, experts, shares, normalized=True),
        ExpertGateUp(x, gate, up, experts, EXPERTS, hidden),
        ExpertMatmul(hidden, down, experts, EXPERTS, parts),
        AddExperts(parts, shares, out),
    ]


def matmul_rmsnorm(fmt: str, least_bytes: int, pack: Pack) -> Example:
    """Products with matrices of a format that are added to h, and the norm of h that follows."""
    x, h, normed = (Tensor(name, WIDTH) for name in ("x", "h", "normed"))
    y = Tensor("y", NARROW)
    embedding, read = _embedding(WIDTH, "F16"), _packed(pack, NARROW, WIDTH, AROUND)
    square = weights(WIDTH, WIDTH, fmt)
    norm = np.linspace(0.5, 1.5, WIDTH, dtype=np.float32)
    copies = -(-least_bytes // square.nbytes)
    ops: list[Op] = [Embed(embedding, h), Rmsnorm(h, norm, EPS, x)]
    for _ in range(copies):
        matrix = pack(square, FORMATS[fmt], WIDTH)
        ops.append(Embed(embedding, h))
        ops.append(Matmul(x, (matrix,), (h,), (None,), accumulate=True, role="to_h"))
        ops.append(Rmsnorm(h, norm, EPS, normed))
        ops.append(Matmul(normed, (read,), (y,), (None,), role="of_normed"))
    return Example(_with_logits(ops, y, pack), copies)


def rope_kv_append(kv_dtype: str, least_bytes: int, pack: Pack) -> Example:
    """Rotation of queries and keys, and their way into the pages of some layers."""
    width = HEADS * HEAD_DIM
    x, mixed, y = Tensor("x", NARROW), Tensor("mixed", width), Tensor("y", NARROW)
    q, k, v = (Tensor(name, width) for name in ("q", "k", "v"))
    projections = tuple(
        pack(part, FORMATS[AROUND], NARROW)
        for part in np.split(weights(3 * width, NARROW, AROUND), 3)
    )
    read = _packed(pack, NARROW, width, AROUND)
    frequencies = 1e4 ** (-np.arange(HEAD_DIM // 2) * 2 / HEAD_DIM)
    rotation = Rotation(frequencies, 1.0, False)
    ops: list[Op] = [Embed(_embedding(NARROW, "F16"), x)]
    for layer in range(LAYERS):
        ops.append(Matmul(x, projections, (q, k, v), (None,) * 3, role="qkv"))
        ops += [Rope(t, rotation, HEAD_DIM) for t in (q, k)]
        ops.append(KvAppend(k, v, layer, HEAD_DIM))
        ops.append(Attention(q, layer, mixed, HEAD_DIM**-0.5, HEADS, HEAD_DIM))
        ops.append(Matmul(mixed, (read,), (y,), (None,), role="of_mixed"))
    return Example(_with_logits(ops, y, pack), LAYERS)


def rope_attention(kv_dtype: str, least_bytes: int, pack: Pack) -> Example:
    """The same, with the attention that follows."""
    return rope_kv_append(kv_dtype, least_bytes, pack)


EXAMPLES: dict[str, Callable[[str, int, Pack], Example]] = {
    make.__name__: make
    for make in (
        gate_up_swiglu,
        embed_rmsnorm,
        rmsnorm_route,
        add_experts_rmsnorm,
        matmul_rmsnorm,
        rope_kv_append,
        rope_attention,
    )
}
"""By the name of the rule.

They take the format of weights or the dtype of the cache, the least bytes of weights that take
turns, and what packs matrices.
"""


def _packed(pack: Pack, rows: int, columns: int, fmt: str) -> Any:
    return pack(weights(rows, columns, fmt), FORMATS[fmt], columns)


def _embedding(columns: int, fmt: str) -> Embedding:
    return Embedding(weights(TOKENS, columns, fmt), FORMATS[fmt])


def _with_logits(ops: Sequence[Op], y: Tensor, pack: Pack) -> Graph:
    last, logits = Tensor("last", NARROW, "outputs"), Tensor("logits", NARROW, "outputs")
    output = _packed(pack, NARROW, NARROW, AROUND)

    ending = (
        SelectOutputs(y, last),
        Rmsnorm(last, np.ones(NARROW, np.float32), EPS, last),
        Matmul(last, (output,), (logits,), (None,), role="output"),
    )
    return Graph([*ops, *ending], logits)
