"""From records of products to launches: GEMVs, GEMMs, and the activations behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rocmforge.gpu import arrays
from rocmforge.gpu.dtypes import F16, Q8
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.lowering import GEMV_ROWS, reads_norm
from rocmforge.gpu.matrix import DeviceMatrix
from rocmforge.gpu.ops import matmul_f16, reduce_rmsnorm
from rocmforge.gpu.ops.matmul import gate_up_swiglu, matmul, matmul_rmsnorm
from rocmforge.gpu.ops.matmul_batch import Scratch, gate_up_swiglu_batch, matmul_batch
from rocmforge.gpu.ops.matmul_dot4 import matmul_dot4
from rocmforge.gpu.ops.matmul_prompt import gate_up_swiglu_prompt, matmul_prompt
from rocmforge.gpu.ops.products import by_launch
from rocmforge.gpu.ops.softcap import softcap
from rocmforge.gpu.ops.swiglu import swiglu
from rocmforge.gpu.ops.unpack import as_f16
from rocmforge.gpu.pass_memory import PassMemory
from rocmforge.plan.fused_records import GateUpSwiglu, MatmulRmsnorm
from rocmforge.plan.operands import RowScale, Tensor
from rocmforge.plan.records import Gelu, Matmul, Swiglu


@dataclass(frozen=True)
class ProductLaunches:
    """Makes the launches of products in one pass."""

    memory: PassMemory

    def matmul(self, op: Matmul) -> Sequence[Launch]:
        """Launches of products with matrices that share activations."""
        return self._scaled(op, self._matmul(op))

    def _matmul(self, op: Matmul) -> Sequence[Launch]:
        """GEMVs: one launch for all matrices whose activations have one dtype; or GEMMs."""
        rows = self.memory.shape.rows(op.x)
        parts = [
            (w, self.memory.f32(out), self.memory.optional(bias))
            for w, out, bias in zip(op.weights, op.outs, op.biases, strict=True)
        ]
        if rows > GEMV_ROWS:
            if self.memory.lowering.batches(op.weights, rows):
                return [self._batched(op, rows, some) for some in by_launch(parts)]
            return [launch for some in by_launch(parts) for launch in self._gemm(op, rows, some)]
        launches = []
        dtypes = [self.memory.lowering.activation_dtype(w.format, rows) for w in op.weights]
        for dtype in dict.fromkeys(dtypes):
            own = [part for part, read in zip(parts, dtypes, strict=True) if read == dtype]
            weights, outs, biases = zip(*own, strict=True)
            launches.append(
                matmul(
                    self.memory.kernels,
                    x=self.memory.in_dtype(op.x, dtype),
                    weights=weights,
                    outs=outs,
                    biases=biases,
                    tokens=rows,
                    accumulate=op.accumulate,
                    x_scale=self._row_scale(op.x_scale),
                )
            )
        return launches

    def matmul_rmsnorm(self, op: MatmulRmsnorm) -> Launch:
        """A product that is added to the residual, and the norm of the result."""
        tokens = self.memory.shape.tokens
        return matmul_rmsnorm(
            self.memory.kernels,
            x=self.memory.in_dtype(
                op.x, self.memory.lowering.activation_dtype(op.weight.format, tokens)
            ),
            weight=op.weight,
            bias=self.memory.optional(op.bias),
            out=self.memory.f32(op.out),
            norm=self.memory.lowering.constant(op.norm),
            normed=self.memory.in_dtype(op.normed, Q8),
            squares_out=self.memory.f32(op.squares),
            tokens=tokens,
        )

    def gate_up_swiglu(self, op: GateUpSwiglu, out: Any) -> Sequence[Launch]:
        """SwiGLU of two products, of any number of tokens."""
        tokens = self.memory.shape.tokens
        weights, lowering = (op.gate, op.up), self.memory.lowering
        (dtype,) = lowering.product_dtypes(weights, tokens, spaced=reads_norm(op))
        x = self.memory.in_dtype(op.x, dtype)
        both: dict[str, Any] = {"x": x, "gate": op.gate, "up": op.up, "out": out, "tokens": tokens}
        if tokens <= GEMV_ROWS:
            scale = self._row_scale(op.x_scale)
            return [gate_up_swiglu(self.memory.kernels, **both, x_scale=scale)]
        if lowering.batches(weights, tokens):
            return [
                gate_up_swiglu_batch(self.memory.kernels, **both, scratch=self._batch_scratch(op))
            ]
        if lowering.multiplies_f16(weights, tokens):
            unpacked, (both["gate"], both["up"]) = as_f16(
                self.memory.kernels, weights, self.memory.scratch(op.label)
            )
            return [*unpacked, matmul_f16.gate_up_swiglu_f16(self.memory.kernels, **both)]
        return [gate_up_swiglu_prompt(self.memory.kernels, **both)]

    def swiglu(self, op: Swiglu, out: Any) -> Launch:
        """The activation of gate times up."""
        rows, columns = self.memory.shape.rows(op.out), op.out.columns
        return swiglu(
            self.memory.kernels,
            gate=self.memory.f32(op.gate),
            up=self.memory.f32(op.up),
            out=out,
            rows=rows,
            columns=columns,
            activation=op.activation,
        )

    def gelu(self, op: Gelu, out: Any) -> Launch:
        """GELU of one tensor."""
        return swiglu(
            self.memory.kernels,
            gate=self.memory.f32(op.x),
            up=self.memory.f32(op.x),
            out=out,
            rows=self.memory.shape.rows(op.x),
            columns=op.x.columns,
            activation="gelu_alone",
        )

    def softcap(self, x: Tensor, scale: float = 1.0, cap: float = 0.0) -> Launch:
        """x · scale, or cap · tanh(x · scale / cap), in place."""
        rows, columns = self.memory.shape.rows(x), x.columns
        x_at = self.memory.f32(x)
        return softcap(
            self.memory.kernels, x=x_at, rows=rows, columns=columns, scale=scale, cap=cap
        )

    def by_rows(self, x: Tensor) -> bool:
        """Whether devices add up rows of their own."""
        rows, lowering = self.memory.shape.rows(x), self.memory.lowering
        return lowering.adds_by_rows(rows) and reduce_rmsnorm.runs(rows, x.columns, lowering.peers)

    def _scaled(self, op: Matmul, launches: Sequence[Launch]) -> Sequence[Launch]:
        """A product with its scale s; what it is added to is divided by s first."""
        if op.scale == 1.0:
            return launches
        before = [self.softcap(out, 1.0 / op.scale) for out in op.outs if op.accumulate]
        return [*before, *launches, *(self.softcap(out, op.scale) for out in op.outs)]

    def _batched(
        self, op: Matmul, rows: int, parts: Sequence[tuple[DeviceMatrix, int, int | None]]
    ) -> Launch:
        weights, outs, biases = zip(*parts, strict=True)
        lowering = self.memory.lowering
        (dtype,) = lowering.product_dtypes(op.weights, rows, spaced=reads_norm(op))
        return matmul_batch(
            self.memory.kernels,
            x=self.memory.in_dtype(op.x, dtype),
            weights=weights,
            outs=outs,
            biases=biases,
            tokens=rows,
            scratch=self._batch_scratch(op),
            accumulate=op.accumulate,
        )

    def _batch_scratch(self, op: Matmul | GateUpSwiglu) -> Scratch:
        return Scratch(self.memory.scratch(op.label), self.memory.lowering.arrivals())

    def _gemm(
        self, op: Matmul, rows: int, parts: Sequence[tuple[DeviceMatrix, int, int | None]]
    ) -> Sequence[Launch]:
        """Products that share x: in one launch if they are matmul_f16's, else one by one."""
        weights, outs, biases = zip(*parts, strict=True)
        memory, more = self.memory, self._accumulates(op, rows)
        if memory.lowering.multiplies_f16(weights, rows):
            unpacked, halves = as_f16(memory.kernels, weights, memory.scratch(op.label))
            product = matmul_f16.matmul_f16(
                memory.kernels,
                x=memory.in_dtype(op.x, F16),
                weights=halves,
                outs=[arrays.F32(out) for out in outs],
                biases=biases,
                tokens=rows,
                **more,
            )
            return [*unpacked, product]
        if len(parts) > 1:
            return [launch for part in parts for launch in self._gemm(op, rows, [part])]
        (weight,), (out,), (bias,) = weights, outs, biases
        dtype = memory.lowering.activation_dtype(weight.format, rows)
        run: Callable[..., Launch] = matmul_prompt if dtype == F16 else matmul_dot4
        product = run(
            memory.kernels,
            x=memory.in_dtype(op.x, dtype),
            weight=weight,
            out=arrays.F32(out),
            bias=bias,
            tokens=rows,
            **more,
        )
        return [product]

    def _accumulates(self, op: Matmul, rows: int) -> dict[str, Any]:
        """To which tokens of the results a GEMM adds; only the device that owns them does so."""
        if op.by_rows and self.by_rows(op.outs[0]):
            own = reduce_rmsnorm.own_rows(rows, self.memory.lowering.peers)
            return {"accumulate": True, "added": own}
        return {"accumulate": op.accumulate}

    def _row_scale(self, scale: RowScale | None) -> arrays.Squares | None:
        return arrays.Squares(self.memory.f32(scale.squares), scale.eps) if scale else None
