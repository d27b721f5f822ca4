"""From the steps of one pass to launches of kernels: one case an op, for one batch shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rocmforge.array_types import Floats
from rocmforge.gpu.attention_launches import AttentionLaunches
from rocmforge.gpu.dtypes import Q8, Convert, Step
from rocmforge.gpu.expert_launches import ExpertLaunches
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops import all_reduce, reduce_rmsnorm
from rocmforge.gpu.ops.all_gather import all_gather
from rocmforge.gpu.ops.embed import embed
from rocmforge.gpu.ops.layernorm import layernorm
from rocmforge.gpu.ops.quantize import quantize
from rocmforge.gpu.ops.rmsnorm import rmsnorm
from rocmforge.gpu.ops.sample import sample
from rocmforge.gpu.pass_memory import PassMemory
from rocmforge.gpu.product_launches import ProductLaunches
from rocmforge.plan.fused_records import (
    AddExpertsRmsnorm,
    AllReduceRmsnorm,
    EmbedRmsnorm,
    GateUpSwiglu,
    MatmulRmsnorm,
    ReduceRmsnorm,
    RmsnormRoute,
    RopeAttention,
    RopeKvAppend,
    SelectLayernorm,
    SelectRmsnorm,
)
from rocmforge.plan.operands import Embedding, Tensor
from rocmforge.plan.records import (
    AddExperts,
    AllGather,
    AllReduce,
    Attention,
    Embed,
    ExpertGateUp,
    ExpertMatmul,
    Gelu,
    KvAppend,
    Layernorm,
    Matmul,
    Receive,
    Rmsnorm,
    Rope,
    Route,
    Sample,
    Softcap,
    Swiglu,
)


class PassLowering:
    """Makes the launches of one pass."""

    def __init__(self, memory: PassMemory) -> None:
        self._memory = memory
        self._products = ProductLaunches(memory)
        self._attention = AttentionLaunches(memory)
        self._experts = ExpertLaunches(memory)
        self._copied = False  # a copy, no kernel, is what the next launch comes after

    def launches(self, steps: Sequence[Step]) -> list[Launch]:
        """Return the launches of steps from `dtypes.lower`.

        They start early, where the device can do so: on an H200 decode of 1 to 64 sequences takes
        0.81 to 0.97 of its time, and a prompt of 65 to 2,000 tokens 0.9 to 1.0. An embedding waits
        for a copy, as does what follows `Receive`, and nothing starts before a copy has ended.
        """
        launches = []
        for step in steps:
            early = not self._copied and not isinstance(step.op, Embed | EmbedRmsnorm)
            self._copied = isinstance(step.op, Receive)
            launches += [replace(launch, early=early) for launch in self._step(step)]
        return launches

    def _step(self, step: Step) -> Sequence[Launch]:
        match step.op:
            case Matmul() as op:
                return self._products.matmul(op)
            case MatmulRmsnorm() as op:
                return [self._products.matmul_rmsnorm(op)]
            case Rmsnorm() as op:
                rows = self._memory.shape.rows(op.x) * op.x.columns // op.weight.size
                x, out = self._memory.f32(op.x), self._out(step, op.out)
                base = self._memory.f32(op.out) if op.accumulate else None
                return [self._rmsnorm(op.weight, op.eps, x, out, rows, base)]
            case Layernorm() as op:
                x, out = self._memory.f32(op.x), self._out(step, op.out)
                return [self._layernorm(op, x, out, self._memory.shape.rows(op.x))]
            case SelectRmsnorm() | SelectLayernorm() as op:
                return self._select_norm(op, self._out(step, op.out))
            case RopeKvAppend() as op:
                return [self._attention.rope_kv_append(op)]
            case Attention() as op:
                return [self._attention.attention(op, self._out(step, op.out))]
            case RopeAttention() as op:
                return [self._attention.rope_attention(op, self._out(step, op.out))]
            case GateUpSwiglu() as op:
                return self._products.gate_up_swiglu(op, self._out(step, op.out))
            case Swiglu() as op:
                return [self._products.swiglu(op, self._out(step, op.out))]
            case Gelu() as op:
                return [self._products.gelu(op, self._out(step, op.out))]
            case Softcap() as op:
                return [self._products.softcap(op.x, cap=op.cap)]
            case Convert() as op:
                return [self._quantize(op)]
            case Embed() as op:
                return [self._embed(op.embedding, op.out, scale=op.scale)]
            case Receive():
                return []  # a copy, before all launches
            case EmbedRmsnorm() as op:
                return [self._embed_rmsnorm(op, self._out(step, op.out))]
            case Rope() as op:
                return [self._attention.rope(op)]
            case KvAppend() as op:
                return [self._attention.kv_append(op)]
            case Route() as op:
                return [self._experts.route(op)]
            case RmsnormRoute() as op:
                return [self._experts.rmsnorm_route(op, self._out(step, op.out))]
            case ExpertGateUp() as op:
                return self._experts.expert_gate_up(op, self._out(step, op.out))
            case ExpertMatmul() as op:
                return self._experts.expert_matmul(op)
            case AddExperts() as op:
                return [self._experts.add_experts(op)]
            case AllReduce() as op:
                return self._all_reduce(op)
            case AllGather() as op:
                return self._all_gather(op)
            case AllReduceRmsnorm() as op:
                return [self._all_reduce_rmsnorm(op)]
            case ReduceRmsnorm() as op:
                return self._reduce_rmsnorm(op, self._out(step, op.out))
            case AddExpertsRmsnorm() as op:
                return [self._experts.add_experts_rmsnorm(op)]
            case Sample() as op:
                return self._sample(op)
            case op:
                raise NotImplementedError(f"no kernel runs {type(op).__name__}")

    def _all_reduce(self, op: AllReduce) -> Sequence[Launch]:
        count, peers = self._memory.shape.rows(op.x) * op.x.columns, self._memory.lowering.peers
        return all_reduce.all_reduce(
            self._memory.kernels, x=self._memory.f32(op.x), count=count, peers=peers
        )

    def _all_gather(self, op: AllGather) -> Sequence[Launch]:
        return all_gather(
            self._memory.kernels,
            part=self._memory.f32(op.part),
            x=self._memory.f32(op.x),
            rows=self._memory.shape.rows(op.x),
            columns=op.x.columns,
            peers=self._memory.lowering.peers,
        )

    def _all_reduce_rmsnorm(self, op: AllReduceRmsnorm) -> Launch:
        return all_reduce.all_reduce_rmsnorm(
            self._memory.kernels,
            x=self._memory.f32(op.x),
            norm=self._memory.lowering.constant(op.norm),
            normed=self._memory.in_dtype(op.normed, Q8),
            squares=self._memory.f32(op.squares),
            rows=self._memory.shape.rows(op.x),
            columns=op.x.columns,
            peers=self._memory.lowering.peers,
        )

    def _reduce_rmsnorm(self, op: ReduceRmsnorm, out: Any) -> Sequence[Launch]:
        rows, x = self._memory.shape.rows(op.x), self._memory.f32(op.x)
        if not self._products.by_rows(op.x):
            return [
                *self._all_reduce(AllReduce(op.x)),
                self._rmsnorm(op.norm, op.eps, x, out, rows),
            ]
        return [
            reduce_rmsnorm.reduce_rmsnorm(
                self._memory.kernels,
                x=x,
                norm=self._memory.lowering.constant(op.norm),
                out=out,
                rows=rows,
                columns=op.x.columns,
                eps=op.eps,
                peers=self._memory.lowering.peers,
            )
        ]

    def _quantize(self, op: Convert) -> Launch:
        rows, columns = self._memory.shape.rows(op.x), op.x.columns
        x, out = self._memory.f32(op.x), self._memory.in_dtype(op.x, op.dtype)
        return quantize(self._memory.kernels, x=x, out=out, rows=rows, columns=columns)

    def _embed(self, embedding: Embedding, out: Tensor, **more: Any) -> Launch:
        return embed(
            self._memory.kernels,
            table=embedding.packed or self._memory.lowering.constant(embedding.rows),
            format=embedding.format.name,
            tokens=self._memory.batch.tokens,
            out=self._memory.f32(out),
            count=self._memory.shape.tokens,
            columns=out.columns,
            **more,
        )

    def _embed_rmsnorm(self, op: EmbedRmsnorm, normed: Any) -> Launch:
        weight = self._memory.lowering.constant(op.weight)
        return self._embed(op.embedding, op.x, norm_weight=weight, eps=op.eps, normed=normed)

    def _rmsnorm(
        self, weight: Floats, eps: float, x: int, out: Any, rows: int, base: int | None = None
    ) -> Launch:
        return rmsnorm(
            self._memory.kernels,
            x=x,
            weight=self._memory.lowering.constant(weight),
            out=out,
            rows=rows,
            columns=weight.size,
            eps=eps,
            base=base,
        )

    def _layernorm(self, op: Layernorm | SelectLayernorm, x: int, out: Any, rows: int) -> Launch:
        return layernorm(
            self._memory.kernels,
            x=x,
            weight=self._memory.lowering.constant(op.weight),
            bias=self._memory.optional(op.bias),
            out=out,
            rows=rows,
            columns=op.x.columns,
            eps=op.eps,
        )

    def _select_norm(self, op: SelectRmsnorm | SelectLayernorm, out: Any) -> Sequence[Launch]:
        """One launch for all rows, or one for each that is wanted."""

        def norm(x: int, out: Any, rows: int) -> Launch:
            if isinstance(op, SelectLayernorm):
                return self._layernorm(op, x, out, rows)
            return self._rmsnorm(op.weight, op.eps, x, out, rows)

        x, columns = self._memory.f32(op.x), op.x.columns
        if self._memory.shape.outputs is None:
            return [norm(x, out, self._memory.shape.tokens)]
        return [
            norm(x + 4 * columns * row, out.row(i, columns), 1)
            for i, row in enumerate(self._memory.shape.outputs)
        ]

    def _sample(self, op: Sample) -> Sequence[Launch]:
        return sample(
            self._memory.kernels,
            logits=self._memory.f32(op.logits),
            out=self._memory.f32(op.token),
            draws=self._memory.batch.draws,
            host=self._memory.batch.chosen,
            parts=self._memory.f32(op.parts),
            rows=self._memory.shape.rows(op.logits),
            columns=op.logits.columns,
        )

    def _out(self, step: Step, tensor: Tensor) -> Any:
        return self._memory.in_dtype(tensor, step.dtype(tensor))
