"""How a device runs the steps of a pass: which dtypes its kernels read and write, and their memory.

The number of rows decides. Up to 8 are a GEMV: the kernels of `ops/matmul.py` read each matrix once
for all of them, those of NVIDIA from 5 rows on with matrix units. `ops/matmul_batch.py` follows
where there are matrix units: up to 64 rows, on NVIDIA 128, on Hopper 2,048 of quantized weights.
More are a GEMM: tiles go through the matrix units (`ops/matmul_prompt.py`, `ops/matmul_dot4.py`);
for long prompts the weights become float16 in memory first (`ops/unpack.py`, `ops/matmul_f16.py`).
`pass_lowering.py` makes the launches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

import numpy as np

from rocmforge.gpu import arrays
from rocmforge.gpu.batch_shape import BatchShape, least_of
from rocmforge.gpu.compiler import BuildRecorder, Kernels
from rocmforge.gpu.dtypes import F16, F32, HALVES, NUMBER_BYTES, PERMUTED, Q8, Place, Step
from rocmforge.gpu.matrix import DENSE, DeviceMatrix
from rocmforge.gpu.ops import (
    attention,
    attention_prompt,
    batch_blocks,
    experts,
    experts_batch,
    matmul_batch,
    matmul_f16,
)
from rocmforge.gpu.ops.dot_rows import MAX_TOKENS, reads_f16
from rocmforge.gpu.ops.matmul_prompt import prompt_kernel
from rocmforge.gpu.ops.products import by_launch
from rocmforge.gpu.peers import NO_PEERS, Peers
from rocmforge.plan.fused_records import (
    AddExpertsRmsnorm,
    AllReduceRmsnorm,
    EmbedRmsnorm,
    GateUpSwiglu,
    MatmulRmsnorm,
    ReduceRmsnorm,
    RmsnormRoute,
    RopeAttention,
    SelectLayernorm,
    SelectRmsnorm,
)
from rocmforge.plan.graph import Op
from rocmforge.plan.operands import Rotation, Tensor
from rocmforge.plan.records import (
    Attention,
    ExpertGateUp,
    ExpertMatmul,
    Gelu,
    Layernorm,
    Matmul,
    Rmsnorm,
    Swiglu,
)

GEMV_ROWS = MAX_TOKENS
"""Rows up to which a product is a GEMV."""

LEAST_BY_ROWS = 129
"""Rows of a pass from which each device of a group adds up rows of its own (ops/reduce_rmsnorm.py).
Products of matmul_batch cannot add to some rows alone, and from here on others take their place.
Fewer rows were not measured: not the 65 to 128 for which AMD has other products either."""

LEAST_SPACED = 129
"""Rows from which products read permuted rows with room between them, where K is no multiple of
128. A plan ends before it (ROOMS in batch_shape.py). With gpt-oss-20B, where K is 2,880, prompts of
256 and more gain by it, and prompts of 16 to 64 lose (docs/EXPERIMENTS.md)."""

ARRIVALS = np.zeros(batch_blocks.COUNTERS, np.uint32)
"""Counters of kernels/device.h and words of kernels/handover.h: every kernel leaves them at 0."""


def activation_dtype(architecture: str, fmt: str, rows: int) -> str:
    """Dtype of the activations that a matmul with weights of a format reads, by their rows."""
    if rows <= GEMV_ROWS:
        return F32 if fmt in DENSE else F16 if reads_f16(architecture, fmt, rows) else Q8
    return F16 if prompt_kernel(architecture, fmt) == "matmul_prompt" else Q8


def halves_of(columns: int, multiple: int = arrays.Permuted.COLUMNS) -> tuple[str, ...]:
    """Dtypes of float16 in which a kernel writes rows of so many columns.

    Permuted rows have a multiple of 128 columns, or of 32 if the kernel leaves room between rows.
    """
    return HALVES if columns % multiple == 0 else (F16,)


def reads_norm(op: Op) -> bool:
    """Whether a product reads what a norm wrote, in all models that we run.

    Norms can leave room between permuted rows. What is added to the residual comes from attention
    or from an activation.
    """
    if isinstance(op, Matmul):
        return not op.accumulate
    return isinstance(op, GateUpSwiglu | ExpertGateUp)


def _nowhere(weight: DeviceMatrix) -> DeviceMatrix:
    """A matrix of the same shape and format."""
    return replace(weight, codes=0, high=0, scales=0, supers=0)


def _experts(op: ExpertGateUp | ExpertMatmul) -> tuple[DeviceMatrix, ...]:
    return (op.gate, op.up) if isinstance(op, ExpertGateUp) else (op.weight,)


class Pages(Protocol):
    """Keys and values in device memory; see `rocmforge.gpu.cache.DeviceKVCache`."""

    @property
    def page_size(self) -> int:
        """P."""

    @property
    def dtype(self) -> str:
        """Of the stored numbers, one of `rocmforge.kv.KV_DTYPES`."""

    @property
    def windowed(self) -> Collection[int]:
        """The layers that have memory of their own behind pages."""

    def pages(self, layer: int) -> tuple[int, int]:
        """Addresses of a layer's keys and values."""

    def scales(self, layer: int) -> tuple[int, int]:
        """Addresses of their scales."""


@dataclass(frozen=True)
class Lowering:
    """A device on which passes of one model run.

    Parameters
    ----------
    kernels
        The device.
    cache
        Where keys and values lie.
    ctx
        Most tokens of a sequence.
    constant
        Gives the device's address of a host array.
    table
        Gives the addresses of a rotation's cosines and sines (positions, R / 2), float32.
    unpacks
        Whether there is memory for weights that become float16 in front of their products.
    peers
        This device's view of the group that it exchanges sums with.
    """

    kernels: Kernels | BuildRecorder
    cache: Pages
    ctx: int
    constant: Callable[[Any], int]
    table: Callable[[Rotation], tuple[int, int]]
    unpacks: bool = True
    peers: Peers = NO_PEERS

    def reading(self, shape: BatchShape) -> Callable[[Op, Tensor], Sequence[str]]:
        """Dtypes in which an op reads a tensor, as `dtypes.lower` asks."""

        def dtypes(op: Op, tensor: Tensor) -> Sequence[str]:
            if isinstance(op, GateUpSwiglu) and tensor == op.x:
                return self.product_dtypes((op.gate, op.up), shape.tokens, spaced=reads_norm(op))
            if isinstance(op, ExpertGateUp | ExpertMatmul) and tensor == op.x:
                return self.expert_dtypes(op, shape.tokens)
            if isinstance(op, MatmulRmsnorm) and tensor == op.x:
                return (self.activation_dtype(op.weight.format, shape.tokens),)
            if isinstance(op, Matmul) and tensor == op.x:
                rows = shape.rows(tensor)
                return self.product_dtypes(op.weights, rows, spaced=reads_norm(op))
            return (F32,)

        return dtypes

    def writing(self, shape: BatchShape) -> Callable[[Op], Sequence[str]]:
        """Dtypes that an op can write, as `dtypes.lower` asks."""

        def dtypes(op: Op) -> Sequence[str]:
            width = op.writes[0].columns if op.writes else 0
            whole = (Q8,) if width % arrays.GROUP == 0 else ()
            halves = halves_of(width)
            match op:
                case Rmsnorm() if op.x == op.out or op.accumulate or op.weight.size != width:
                    return (F32,)
                case RmsnormRoute():
                    return (F32, *whole)
                case EmbedRmsnorm() | Rmsnorm() | SelectRmsnorm():
                    return (F32, *halves_of(width, arrays.GROUP), *whole)
                case Layernorm() | SelectLayernorm() | Swiglu() | Gelu():
                    return (F32, *halves, *whole)
                case Attention() | RopeAttention():  # one kernel's block writes whole heads
                    heads = (Q8,) if shape.single and op.head_dim % arrays.GROUP == 0 else ()
                    return (F32, *halves, *heads)
                case MatmulRmsnorm() | AllReduceRmsnorm() | AddExpertsRmsnorm():
                    return (F32, Q8)  # the sum and squares, normed
                case ReduceRmsnorm():
                    # The sum, normed. reduce_rmsnorm.hip writes no permuted one: see batch_dtype.
                    return (F32, *halves)
                case GateUpSwiglu():
                    return (F32, F16, *whole) if shape.tokens <= GEMV_ROWS else halves
                case ExpertGateUp() if self.batches_experts(op, shape.tokens):
                    return (F32, *halves_of(op.gate.rows // op.count))
                case ExpertGateUp() if op.gate.rows // op.count % arrays.GROUP == 0:
                    return (F32, Q8)  # each expert's rows are whole groups
                case _:
                    return (F32,)

        return dtypes

    def nbytes(self, place: Place, shape: BatchShape) -> int:
        """Memory of a tensor in a dtype."""
        tensor, dtype = place
        rows, columns = shape.rows(tensor), tensor.columns
        if dtype == Q8:
            return arrays.Q8.nbytes(rows, columns)
        if dtype == PERMUTED:
            columns = arrays.Permuted.stride(columns)
        return rows * columns * NUMBER_BYTES[dtype]

    def scratch_bytes(self, steps: Sequence[Step], room: BatchShape) -> dict[str, int]:
        """Memory that launches need beside tensors, by the labels of their ops.

        Parameters
        ----------
        steps
            Of a plan.
        room
            The largest shape that shares the plan: every smaller one has enough, too.
        """
        product, attended = cache(self._product_bytes), cache(self._attention_bytes)
        found: dict[str, int] = {}
        for op in (step.op for step in steps):
            match op:
                case Attention() | RopeAttention():
                    nbytes = attended(op.heads, op.kv_heads, op.head_dim, room)
                case ExpertGateUp() | ExpertMatmul():
                    nbytes = experts.scratch_bytes(room.tokens, op.experts.columns, op.count)
                case GateUpSwiglu():
                    nbytes = product((_nowhere(op.gate), _nowhere(op.up)), room.tokens, gated=True)
                case Matmul():
                    weights = tuple(map(_nowhere, op.weights))
                    nbytes = product(weights, room.rows(op.x), gated=False)
                case _:
                    continue
            found[op.label] = max(found.get(op.label, 0), nbytes)
        return found

    def adds_by_rows(self, rows: int) -> bool:
        """Whether devices of a group add up rows of their own, if they have room for it."""
        return self.peers.ranks > 1 and rows >= LEAST_BY_ROWS

    def batches(self, weights: Sequence[DeviceMatrix], rows: int) -> bool:
        """Whether matmul_batch runs products of so many rows that share x, if they are no GEMV."""
        if self.adds_by_rows(rows):
            return False
        architecture = self.kernels.runtime.properties.architecture
        dtypes = {self.activation_dtype(w.format, rows) for w in weights}
        return dtypes == {F16} and matmul_batch.runs(architecture, weights, rows)

    def batch_dtype(self, columns: int, rows: int, *, spaced: bool) -> str:
        """Dtype of the activations that matmul_batch and experts_batch read.

        `spaced`: their rows may have room between them.
        """
        if self.adds_by_rows(rows):  # reduce_rmsnorm.hip writes F16
            return F16
        if spaced and rows >= LEAST_SPACED:
            columns = arrays.Permuted.stride(columns)
        architecture = self.kernels.runtime.properties.architecture
        return PERMUTED if matmul_batch.reads_permuted(architecture, columns) else F16

    def product_dtypes(
        self, weights: Sequence[DeviceMatrix], rows: int, *, spaced: bool
    ) -> tuple[str, ...]:
        """Dtypes of the activations that products read, which share x; see `batch_dtype`."""
        if rows > GEMV_ROWS and self.batches(weights, rows):
            return (self.batch_dtype(weights[0].columns, rows, spaced=spaced),)
        return tuple(dict.fromkeys(self.activation_dtype(w.format, rows) for w in weights))

    def multiplies_f16(self, weights: Sequence[DeviceMatrix], rows: int) -> bool:
        """Whether a prompt's products that share x are matmul_f16's, in one launch."""
        if not self.unpacks and not all(matmul_f16.is_f16(w) for w in weights):
            return False
        return matmul_f16.runs(self.kernels.runtime.properties.architecture, weights, rows)

    def _product_bytes(self, weights: tuple[DeviceMatrix, ...], rows: int, *, gated: bool) -> int:
        """Of products that share x: sums of blocks that share bands, or weights made float16."""
        architecture = self.kernels.runtime.properties.architecture
        if rows <= GEMV_ROWS:
            return 0
        found = [0]
        if self.unpacks and not self.batches(weights, rows):
            together = [weights] if gated else [*by_launch(weights), *((w,) for w in weights)]
            found += [matmul_f16.unpacked_bytes(architecture, some, rows) for some in together]
        for some in by_launch(weights):
            name, columns = some[0].kernel_format, some[0].columns
            every = [sum(w.rows for w in some)] if gated else [w.rows for w in some]
            for tokens in matmul_batch.sizes(architecture, weights):
                if tokens > least_of(rows):
                    found.append(
                        matmul_batch.scratch_bytes(self.kernels, name, every, columns, tokens)
                    )
                if tokens >= rows:
                    break
        return max(found)

    def _attention_bytes(self, heads: int, kv_heads: int, head_dim: int, room: BatchShape) -> int:
        if not room.single:
            properties, kv = self.kernels.runtime.properties, self.cache.dtype
            units, tokens = properties.compute_units, room.tokens
            return attention_prompt.scratch_bytes(
                properties.architecture, units, tokens, heads, head_dim, kv, self.ctx
            )
        return max(
            attention.scratch_bytes(
                sequences, heads, head_dim, self.splits(heads, kv_heads, head_dim, sequences)
            )
            for sequences in range(1, room.sequences + 1)
        )

    def activation_dtype(self, fmt: str, rows: int) -> str:
        """See the function of that name."""
        return activation_dtype(self.kernels.runtime.properties.architecture, fmt, rows)

    def expert_dtypes(self, op: ExpertGateUp | ExpertMatmul, tokens: int) -> tuple[str, ...]:
        """Dtypes of the activations that experts' products read, by the tokens of the pass."""
        if self.batches_experts(op, tokens):
            columns = _experts(op)[0].columns
            return (self.batch_dtype(columns, tokens, spaced=reads_norm(op)),)
        found = (self.activation_dtype(w.format, 1) for w in _experts(op))
        return tuple(dict.fromkeys(found))

    def batches_experts(self, op: ExpertGateUp | ExpertMatmul, tokens: int) -> bool:
        """Whether experts' products of so many tokens run on the matrix units."""
        architecture = self.kernels.runtime.properties.architecture
        return experts_batch.runs(architecture, _experts(op), tokens)

    def arrivals(self) -> int:
        """Address of `ARRIVALS`, which hold 0 between launches."""
        return self.constant(ARRIVALS)

    def splits(self, heads: int, kv_heads: int, head_dim: int, sequences: int) -> int:
        """Into how many parts attention of single tokens splits a context."""
        properties = self.kernels.runtime.properties
        units, architecture = properties.compute_units, properties.architecture
        chosen = attention.choose(architecture, head_dim, self.cache.dtype, heads // kv_heads)
        return attention.choose_splits(
            architecture, units, chosen, sequences, heads, kv_heads, self.ctx
        )
