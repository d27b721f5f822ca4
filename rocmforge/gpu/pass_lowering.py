"""From the steps of one pass to launches of kernels: one case an op, for one batch shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rocmforge.array_types import Floats
from rocmforge.gpu import arrays
from rocmforge.gpu.batch_shape import BatchAddresses, BatchShape
from rocmforge.gpu.dtypes import F16, F32, Q8, Convert, Place, Step
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.lowering import GEMV_ROWS, Lowering
from rocmforge.gpu.matrix import DeviceMatrix
from rocmforge.gpu.ops import all_reduce, experts, experts_batch, matmul_f16, reduce_rmsnorm
from rocmforge.gpu.ops.all_gather import all_gather
from rocmforge.gpu.ops.attention import attention
from rocmforge.gpu.ops.attention_prompt import attention_prompt
from rocmforge.gpu.ops.embed import embed
from rocmforge.gpu.ops.kv_append import kv_append
from rocmforge.gpu.ops.layernorm import layernorm
from rocmforge.gpu.ops.matmul import gate_up_swiglu, matmul, matmul_rmsnorm
from rocmforge.gpu.ops.matmul_batch import (
    Scratch,
    gate_up_swiglu_batch,
    matmul_batch,
    most_tokens,
)
from rocmforge.gpu.ops.matmul_batch import runs as runs_batch
from rocmforge.gpu.ops.matmul_dot4 import matmul_dot4
from rocmforge.gpu.ops.matmul_prompt import FILE as PROMPT_FILE
from rocmforge.gpu.ops.matmul_prompt import gate_up_swiglu_prompt, matmul_prompt
from rocmforge.gpu.ops.products import MOST
from rocmforge.gpu.ops.quantize import quantize
from rocmforge.gpu.ops.rmsnorm import rmsnorm
from rocmforge.gpu.ops.rmsnorm_route import rmsnorm_route
from rocmforge.gpu.ops.rope import rope
from rocmforge.gpu.ops.rope_attention import rope_attention
from rocmforge.gpu.ops.rope_kv_append import rope_kv_append
from rocmforge.gpu.ops.sample import sample
from rocmforge.gpu.ops.softcap import softcap
from rocmforge.gpu.ops.swiglu import swiglu
from rocmforge.gpu.ops.unpack import as_f16
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
from rocmforge.plan.operands import Embedding, Rotation, RowScale, Tensor
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

EARLY_TOKENS = 64  # of a pass, up to which launches start early
LARGE_GRIDS = (PROMPT_FILE, matmul_f16.FILE)  # which do not


class PassLowering:
    """Makes the launches of one pass.

    Parameters
    ----------
    lowering
        The device.
    shape, batch
        The batch, and where its description lies.
    address
        Where a tensor lies in a dtype.
    scratch
        Address of `Lowering.scratch_bytes` or `Lowering.unpacked_bytes`, whichever is more.
    """

    def __init__(
        self,
        lowering: Lowering,
        shape: BatchShape,
        batch: BatchAddresses,
        address: Callable[[Place], int],
        scratch: int,
    ) -> None:
        self._lowering = lowering
        self._kernels: Any = lowering.kernels  # may be a BuildRecorder
        self._architecture = lowering.kernels.runtime.properties.architecture
        self._constant = lowering.constant
        self._shape = shape
        self._batch = batch
        self._address = address
        self._scratch = scratch
        self._copied = False  # a copy, no kernel, is what the next launch comes after

    def launches(self, steps: Sequence[Step]) -> list[Launch]:
        """Return the launches of steps from `dtypes.lower`.

        Those of a few rows are short: they start early, where the device can do so (decode of 1 to
        64 sequences takes 0.81 to 0.97 of its time on an H200). Larger grids lose by it: passes of
        16 to 64 rows through `matmul_prompt` took 1.37 to 1.45 of theirs. An embedding waits for a
        copy, as does what follows `Receive`, and nothing starts before a copy has ended.
        """
        few = self._shape.tokens <= EARLY_TOKENS
        launches = []
        for step in steps:
            early = few and not self._copied and not isinstance(step.op, Embed | EmbedRmsnorm)
            self._copied = isinstance(step.op, Receive)
            launches += [
                replace(launch, early=early and launch.file not in LARGE_GRIDS)
                for launch in self._step(step)
            ]
        return launches

    def _step(self, step: Step) -> Sequence[Launch]:
        match step.op:
            case Matmul() as op:
                return self._scaled(op, self._matmul(op))
            case MatmulRmsnorm() as op:
                return [self._matmul_rmsnorm(op)]
            case Rmsnorm() as op:
                rows = self._shape.rows(op.x) * op.x.columns // op.weight.size
                x, out = self._f32(op.x), self._out(step, op.out)
                base = self._f32(op.out) if op.accumulate else None
                return [self._rmsnorm(op.weight, op.eps, x, out, rows, base)]
            case Layernorm() as op:
                x, out = self._f32(op.x), self._out(step, op.out)
                return [self._layernorm(op, x, out, self._shape.rows(op.x))]
            case SelectRmsnorm() | SelectLayernorm() as op:
                return self._select_norm(op, self._out(step, op.out))
            case RopeKvAppend() as op:
                return [self._rope_kv_append(op)]
            case Attention() as op:
                return [self._attention(op, self._out(step, op.out))]
            case RopeAttention() as op:
                return [self._rope_attention(op, self._out(step, op.out))]
            case GateUpSwiglu() as op:
                return self._gate_up_swiglu(op, self._out(step, op.out))
            case Swiglu() as op:
                return [self._swiglu(op, self._out(step, op.out))]
            case Gelu() as op:
                return [self._gelu(op, self._out(step, op.out))]
            case Softcap() as op:
                return [self._softcap(op.x, cap=op.cap)]
            case Convert() as op:
                return [self._quantize(op)]
            case Embed() as op:
                return [self._embed(op.embedding, op.out, scale=op.scale)]
            case Receive():
                return []  # a copy, before all launches
            case EmbedRmsnorm() as op:
                return [self._embed_rmsnorm(op, self._out(step, op.out))]
            case Rope() as op:
                return [self._rope(op)]
            case KvAppend() as op:
                return [self._kv_append(op)]
            case Route() as op:
                return [self._route(op)]
            case RmsnormRoute() as op:
                return [self._rmsnorm_route(op, self._out(step, op.out))]
            case ExpertGateUp() as op:
                return self._expert_gate_up(op, self._out(step, op.out))
            case ExpertMatmul() as op:
                return self._expert_matmul(op)
            case AddExperts() as op:
                return [self._add_experts(op)]
            case AllReduce() as op:
                return self._all_reduce(op)
            case AllGather() as op:
                return self._all_gather(op)
            case AllReduceRmsnorm() as op:
                return [self._all_reduce_rmsnorm(op)]
            case ReduceRmsnorm() as op:
                return self._reduce_rmsnorm(op, self._out(step, op.out))
            case AddExpertsRmsnorm() as op:
                return [self._add_experts_rmsnorm(op)]
            case Sample() as op:
                return self._sample(op)
            case op:
                raise NotImplementedError(f"no kernel runs {type(op).__name__}")

    def _matmul(self, op: Matmul) -> Sequence[Launch]:
        """GEMVs: one launch for all matrices whose activations have one dtype; or GEMMs."""
        rows = self._shape.rows(op.x)
        parts = [
            (w, self._f32(out), self._optional(bias))
            for w, out, bias in zip(op.weights, op.outs, op.biases, strict=True)
        ]
        if rows > GEMV_ROWS:
            if self._batches(op.weights, rows):
                return [
                    self._batched(op, rows, parts[i : i + MOST]) for i in range(0, len(parts), MOST)
                ]
            return [launch for part in parts for launch in self._gemm(op, rows, *part)]
        launches = []
        dtypes = [self._lowering.activation_dtype(w.format, rows) for w in op.weights]
        for dtype in dict.fromkeys(dtypes):
            own = [part for part, read in zip(parts, dtypes, strict=True) if read == dtype]
            weights, outs, biases = zip(*own, strict=True)
            launches.append(
                matmul(
                    self._kernels,
                    x=self._as(op.x, dtype),
                    weights=weights,
                    outs=outs,
                    biases=biases,
                    tokens=rows,
                    accumulate=op.accumulate,
                    x_scale=self._row_scale(op.x_scale),
                )
            )
        return launches

    def _matmul_rmsnorm(self, op: MatmulRmsnorm) -> Launch:
        tokens = self._shape.tokens
        return matmul_rmsnorm(
            self._kernels,
            x=self._as(op.x, self._lowering.activation_dtype(op.weight.format, tokens)),
            weight=op.weight,
            bias=self._optional(op.bias),
            out=self._f32(op.out),
            norm=self._constant(op.norm),
            normed=self._as(op.normed, Q8),
            squares_out=self._f32(op.squares),
            tokens=tokens,
        )

    def _all_reduce(self, op: AllReduce) -> Sequence[Launch]:
        count, peers = self._shape.rows(op.x) * op.x.columns, self._lowering.peers
        return all_reduce.all_reduce(self._kernels, x=self._f32(op.x), count=count, peers=peers)

    def _all_gather(self, op: AllGather) -> Sequence[Launch]:
        return all_gather(
            self._kernels,
            part=self._f32(op.part),
            x=self._f32(op.x),
            rows=self._shape.rows(op.x),
            columns=op.x.columns,
            peers=self._lowering.peers,
        )

    def _all_reduce_rmsnorm(self, op: AllReduceRmsnorm) -> Launch:
        return all_reduce.all_reduce_rmsnorm(
            self._kernels,
            x=self._f32(op.x),
            norm=self._constant(op.norm),
            normed=self._as(op.normed, Q8),
            squares=self._f32(op.squares),
            rows=self._shape.rows(op.x),
            columns=op.x.columns,
            peers=self._lowering.peers,
        )

    def _reduce_rmsnorm(self, op: ReduceRmsnorm, out: Any) -> Sequence[Launch]:
        rows, x = self._shape.rows(op.x), self._f32(op.x)
        if not self._by_rows(op.x):
            return [
                *self._all_reduce(AllReduce(op.x)),
                self._rmsnorm(op.norm, op.eps, x, out, rows),
            ]
        return [
            reduce_rmsnorm.reduce_rmsnorm(
                self._kernels,
                x=x,
                norm=self._constant(op.norm),
                out=out,
                rows=rows,
                columns=op.x.columns,
                eps=op.eps,
                peers=self._lowering.peers,
            )
        ]

    def _by_rows(self, x: Tensor) -> bool:
        """Whether devices add up rows of their own: in passes whose products can add to these."""
        rows = self._shape.rows(x)
        if rows <= most_tokens(self._architecture):
            return False
        return reduce_rmsnorm.runs(rows, x.columns, self._lowering.peers)

    def _row_scale(self, scale: RowScale | None) -> arrays.Squares | None:
        return arrays.Squares(self._f32(scale.squares), scale.eps) if scale else None

    def _batched(
        self, op: Matmul, rows: int, parts: Sequence[tuple[DeviceMatrix, int, int | None]]
    ) -> Launch:
        weights, outs, biases = zip(*parts, strict=True)
        return matmul_batch(
            self._kernels,
            x=self._as(op.x, F16),
            weights=weights,
            outs=outs,
            biases=biases,
            tokens=rows,
            scratch=self._batch_scratch(),
            accumulate=op.accumulate,
        )

    def _batches(self, weights: Sequence[DeviceMatrix], rows: int) -> bool:
        """Whether matmul_batch runs products of so many rows."""
        dtypes = {self._lowering.activation_dtype(w.format, rows) for w in weights}
        return dtypes == {F16} and runs_batch(self._architecture, weights, rows)

    def _batch_scratch(self) -> Scratch:
        return Scratch(self._scratch, self._lowering.arrivals())

    def _gemm(
        self, op: Matmul, rows: int, weight: DeviceMatrix, out: int, bias: int | None
    ) -> Sequence[Launch]:
        dtype = self._lowering.activation_dtype(weight.format, rows)
        run: Callable[..., Launch] = matmul_prompt if dtype == F16 else matmul_dot4
        unpacked: Sequence[Launch] = ()
        if dtype == F16 and self._lowering.multiplies_f16((weight,), rows):
            run = matmul_f16.matmul_f16
            unpacked, (weight,) = as_f16(self._kernels, (weight,), self._scratch)
        more: dict[str, Any] = {"accumulate": op.accumulate}
        if op.by_rows and self._by_rows(op.outs[0]):
            own = reduce_rmsnorm.own_rows(rows, self._lowering.peers)
            more = {"accumulate": True, "added": own}
        product = run(
            self._kernels,
            x=self._as(op.x, dtype),
            weight=weight,
            out=arrays.F32(out),
            bias=bias,
            tokens=rows,
            **more,
        )
        return [*unpacked, product]

    def _gate_up_swiglu(self, op: GateUpSwiglu, out: Any) -> Sequence[Launch]:
        tokens = self._shape.tokens
        x = self._as(op.x, self._lowering.activation_dtype(op.gate.format, tokens))
        both: dict[str, Any] = {"x": x, "gate": op.gate, "up": op.up, "out": out, "tokens": tokens}
        if tokens <= GEMV_ROWS:
            scale = self._row_scale(op.x_scale)
            return [gate_up_swiglu(self._kernels, **both, x_scale=scale)]
        if self._batches((op.gate, op.up), tokens):
            return [gate_up_swiglu_batch(self._kernels, **both, scratch=self._batch_scratch())]
        weights = (op.gate, op.up)
        if self._lowering.multiplies_f16(weights, tokens):
            unpacked, (both["gate"], both["up"]) = as_f16(self._kernels, weights, self._scratch)
            return [*unpacked, matmul_f16.gate_up_swiglu_f16(self._kernels, **both)]
        return [gate_up_swiglu_prompt(self._kernels, **both)]

    def _swiglu(self, op: Swiglu, out: Any) -> Launch:
        rows, columns = self._shape.rows(op.out), op.out.columns
        return swiglu(
            self._kernels,
            gate=self._f32(op.gate),
            up=self._f32(op.up),
            out=out,
            rows=rows,
            columns=columns,
            activation=op.activation,
        )

    def _gelu(self, op: Gelu, out: Any) -> Launch:
        return swiglu(
            self._kernels,
            gate=self._f32(op.x),
            up=self._f32(op.x),
            out=out,
            rows=self._shape.rows(op.x),
            columns=op.x.columns,
            activation="gelu_alone",
        )

    def _softcap(self, x: Tensor, scale: float = 1.0, cap: float = 0.0) -> Launch:
        rows, columns = self._shape.rows(x), x.columns
        x_at = self._f32(x)
        return softcap(self._kernels, x=x_at, rows=rows, columns=columns, scale=scale, cap=cap)

    def _scaled(self, op: Matmul, launches: Sequence[Launch]) -> Sequence[Launch]:
        """A product with its scale s; what it is added to is divided by s first."""
        if op.scale == 1.0:
            return launches
        before = [self._softcap(out, 1.0 / op.scale) for out in op.outs if op.accumulate]
        return [*before, *launches, *(self._softcap(out, op.scale) for out in op.outs)]

    def _route(self, op: Route) -> Launch:
        tokens = self._shape.tokens
        scores = self._f32(op.scores)
        return experts.route(self._kernels, scores=scores, tokens=tokens, choice=self._choice(op))

    def _choice(self, op: Route) -> experts.Choice:
        return experts.Choice(
            bias=self._optional(op.bias),
            experts=self._f32(op.experts),
            shares=self._f32(op.shares),
            count=op.count,
            chosen=op.chosen,
            normalized=op.normalized,
            sigmoid=op.sigmoid,
            scale=op.scale,
        )

    def _rmsnorm_route(self, op: RmsnormRoute, out: Any) -> Launch:
        return rmsnorm_route(
            self._kernels,
            x=self._f32(op.x),
            norm=self._constant(op.norm),
            eps=op.eps,
            router=op.router,
            bias=self._optional(op.bias),
            scores=self._f32(op.scores),
            out=out,
            arrivals=self._lowering.arrivals(),
            tokens=self._shape.tokens,
            choice=self._choice(op.route),
        )

    def _jobs(self, op: ExpertGateUp | ExpertMatmul) -> experts.Jobs:
        return experts.Jobs(
            self._kernels,
            experts=self._f32(op.experts),
            tokens=self._shape.tokens,
            chosen=op.experts.columns,
            count=op.count,
            scratch=self._scratch,
        )

    def _expert_gate_up(self, op: ExpertGateUp, out: Any) -> Sequence[Launch]:
        jobs, tokens = self._jobs(op), self._shape.tokens
        both: dict[str, Any] = {
            "x": self._as(op.x, self._lowering.expert_dtypes(op, tokens)[0]),
            "gate": op.gate,
            "up": op.up,
            "gate_bias": self._optional(op.gate_bias),
            "up_bias": self._optional(op.up_bias),
            "activation": op.activation,
        }
        if self._lowering.batches_experts(op, tokens):
            return experts_batch.expert_gate_up_batch(experts_batch.grouped(jobs), **both, out=out)
        return experts.expert_gate_up(jobs, **both, out=out)

    def _expert_matmul(self, op: ExpertMatmul) -> Sequence[Launch]:
        jobs, tokens = self._jobs(op), self._shape.tokens
        one: dict[str, Any] = {
            "x": self._as(op.x, self._lowering.expert_dtypes(op, tokens)[0]),
            "weight": op.weight,
            "bias": self._optional(op.bias),
            "out": self._f32(op.out),
        }
        if self._lowering.batches_experts(op, tokens):
            return experts_batch.expert_matmul_batch(experts_batch.grouped(jobs), **one)
        return experts.expert_matmul(jobs, **one)

    def _add_experts(self, op: AddExperts) -> Launch:
        return experts.add_experts(self._kernels, **self._added(op), accumulate=op.accumulate)

    def _add_experts_rmsnorm(self, op: AddExpertsRmsnorm) -> Launch:
        return experts.add_experts_rmsnorm(
            self._kernels,
            **self._added(op),
            norm=self._constant(op.norm),
            normed=self._as(op.normed, Q8),
            squares_out=self._f32(op.squares),
        )

    def _added(self, op: AddExperts | AddExpertsRmsnorm) -> dict[str, Any]:
        return {
            "parts": self._f32(op.parts),
            "shares": self._f32(op.shares),
            "x": self._f32(op.x),
            "tokens": self._shape.tokens,
            "chosen": op.shares.columns,
            "columns": op.x.columns,
        }

    def _optional(self, array: Floats | None) -> int | None:
        return None if array is None else self._constant(array)

    def _quantize(self, op: Convert) -> Launch:
        rows, columns = self._shape.rows(op.x), op.x.columns
        x, out = self._f32(op.x), self._as(op.x, op.dtype)
        return quantize(self._kernels, x=x, out=out, rows=rows, columns=columns)

    def _embed(self, embedding: Embedding, out: Tensor, **more: Any) -> Launch:
        return embed(
            self._kernels,
            table=embedding.packed or self._constant(embedding.rows),
            format=embedding.format.name,
            tokens=self._batch.tokens,
            out=self._f32(out),
            count=self._shape.tokens,
            columns=out.columns,
            **more,
        )

    def _embed_rmsnorm(self, op: EmbedRmsnorm, normed: Any) -> Launch:
        weight = self._constant(op.weight)
        return self._embed(op.embedding, op.x, norm_weight=weight, eps=op.eps, normed=normed)

    def _rmsnorm(
        self, weight: Floats, eps: float, x: int, out: Any, rows: int, base: int | None = None
    ) -> Launch:
        return rmsnorm(
            self._kernels,
            x=x,
            weight=self._constant(weight),
            out=out,
            rows=rows,
            columns=weight.size,
            eps=eps,
            base=base,
        )

    def _layernorm(self, op: Layernorm | SelectLayernorm, x: int, out: Any, rows: int) -> Launch:
        return layernorm(
            self._kernels,
            x=x,
            weight=self._constant(op.weight),
            bias=self._optional(op.bias),
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

        x, columns = self._f32(op.x), op.x.columns
        if self._shape.outputs is None:
            return [norm(x, out, self._shape.tokens)]
        return [
            norm(x + 4 * columns * row, out.row(i, columns), 1)
            for i, row in enumerate(self._shape.outputs)
        ]

    def _rope_kv_append(self, op: RopeKvAppend) -> Launch:
        return rope_kv_append(
            self._kernels,
            q=self._f32(op.q),
            heads=op.q.columns // op.head_dim,
            **self._turned(op),
            **self._slots(op),
        )

    def _rope_attention(self, op: RopeAttention, out: Any) -> Launch:
        return rope_attention(self._kernels, **self._turned(op), **self._attended(op, out))

    def _turned(self, op: RopeKvAppend | RopeAttention) -> dict[str, Any]:
        return {
            "k": self._f32(op.k),
            "v": self._f32(op.v),
            "q_norm": self._optional(op.q_norm),
            "k_norm": self._optional(op.k_norm),
            "eps": op.eps,
            **self._rotation(op.rotation),
        }

    def _rope(self, op: Rope) -> Launch:
        return rope(
            self._kernels,
            x=self._f32(op.x),
            tokens=self._shape.tokens,
            heads=op.x.columns // op.head_dim,
            head_dim=op.head_dim,
            **self._rotation(op.rotation),
        )

    def _kv_append(self, op: KvAppend) -> Launch:
        return kv_append(self._kernels, k=self._f32(op.k), v=self._f32(op.v), **self._slots(op))

    def _attention(self, op: Attention, out: Any) -> Launch:
        if self._shape.single:
            return attention(self._kernels, **self._attended(op, out))
        return attention_prompt(
            self._kernels,
            starts=self._batch.starts,
            tokens=self._shape.tokens,
            max_queries=self._shape.longest,
            deep=self._shape.deep,
            **self._queried(op, out),
        )

    def _sample(self, op: Sample) -> Sequence[Launch]:
        return sample(
            self._kernels,
            logits=self._f32(op.logits),
            out=self._f32(op.token),
            draws=self._batch.draws,
            host=self._batch.chosen,
            parts=self._f32(op.parts),
            rows=self._shape.rows(op.logits),
            columns=op.logits.columns,
        )

    def _queried(self, op: Attention | RopeAttention, out: Any) -> dict[str, Any]:
        batch = self._batch
        return {
            **self._pages(op.layer, op.kv_heads, op.head_dim),
            "q": self._f32(op.q),
            "page_table": batch.window_table if self._windowed(op) else batch.page_table,
            "max_pages": batch.max_pages,
            "lengths": batch.lengths,
            "scratch": self._scratch,
            "arrivals": self._lowering.arrivals(),
            "out": out,
            "sequences": self._shape.sequences,
            "heads": op.heads,
            "scale": op.scale,
            "window": op.window,
            "softcap": op.softcap,
            "sinks": self._optional(op.sinks),
        }

    def _attended(self, op: Attention | RopeAttention, out: Any) -> dict[str, Any]:
        """What attention of one token a sequence takes."""
        return {
            **self._queried(op, out),
            "splits": self._lowering.splits(
                op.heads, op.kv_heads, op.head_dim, self._shape.sequences
            ),
        }

    def _rotation(self, rotation: Rotation) -> dict[str, Any]:
        cos, sin = self._lowering.table(rotation)
        return {
            "cos": cos,
            "sin": sin,
            "positions": self._batch.positions,
            "rotated": rotation.rotated,
            "interleaved": rotation.interleaved,
        }

    def _slots(self, op: KvAppend | RopeKvAppend) -> dict[str, Any]:
        batch = self._batch
        return {
            **self._pages(op.layer, op.k.columns // op.head_dim, op.head_dim),
            "pages": batch.window_pages if self._windowed(op) else batch.pages,
            "offsets": batch.offsets,
            "tokens": self._shape.tokens,
        }

    def _windowed(self, op: KvAppend | RopeKvAppend | Attention | RopeAttention) -> bool:
        return op.layer in self._lowering.cache.windowed

    def _pages(self, layer: int, kv_heads: int, head_dim: int) -> dict[str, Any]:
        cache = self._lowering.cache
        (k, v), (k_scales, v_scales) = cache.pages(layer), cache.scales(layer)
        return {
            "k_pages": k,
            "v_pages": v,
            "k_scales": k_scales,
            "v_scales": v_scales,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "page_size": cache.page_size,
            "kv": cache.dtype,
        }

    def _f32(self, tensor: Tensor) -> int:
        return self._address((tensor, F32))

    def _as(self, tensor: Tensor, dtype: str) -> Any:
        """A tensor in a dtype, as the kernels' functions take it."""
        at = self._address((tensor, dtype))
        if dtype == Q8:
            return arrays.Q8.at(at, self._shape.rows(tensor), tensor.columns)
        return arrays.F32(at) if dtype == F32 else arrays.F16(at)

    def _out(self, step: Step, tensor: Tensor) -> Any:
        return self._as(tensor, step.dtype(tensor))
