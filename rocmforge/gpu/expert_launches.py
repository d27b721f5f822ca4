"""From records of mixtures of experts to launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rocmforge.gpu.dtypes import Q8
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops import experts, experts_batch
from rocmforge.gpu.ops.rmsnorm_route import rmsnorm_route
from rocmforge.gpu.pass_memory import PassMemory
from rocmforge.plan.fused_records import AddExpertsRmsnorm, RmsnormRoute
from rocmforge.plan.records import AddExperts, ExpertGateUp, ExpertMatmul, Route


@dataclass(frozen=True)
class ExpertLaunches:
    """Makes the launches of experts in one pass."""

    memory: PassMemory

    def route(self, op: Route) -> Launch:
        """Choose experts by their scores."""
        tokens = self.memory.shape.tokens
        scores = self.memory.f32(op.scores)
        return experts.route(
            self.memory.kernels, scores=scores, tokens=tokens, choice=self._choice(op)
        )

    def rmsnorm_route(self, op: RmsnormRoute, out: Any) -> Launch:
        """A norm, the scores of the experts, and their choice."""
        return rmsnorm_route(
            self.memory.kernels,
            x=self.memory.f32(op.x),
            norm=self.memory.lowering.constant(op.norm),
            eps=op.eps,
            router=op.router,
            bias=self.memory.optional(op.bias),
            words=self.memory.lowering.arrivals(),
            out=out,
            tokens=self.memory.shape.tokens,
            choice=self._choice(op.route),
        )

    def expert_gate_up(self, op: ExpertGateUp, out: Any) -> Sequence[Launch]:
        """The activation of two products with the experts of each token."""
        jobs, tokens = self._jobs(op), self.memory.shape.tokens
        both: dict[str, Any] = {
            "x": self.memory.in_dtype(op.x, self.memory.lowering.expert_dtypes(op, tokens)[0]),
            "gate": op.gate,
            "up": op.up,
            "gate_bias": self.memory.optional(op.gate_bias),
            "up_bias": self.memory.optional(op.up_bias),
            "activation": op.activation,
        }
        if self.memory.lowering.batches_experts(op, tokens):
            groups = experts_batch.grouped(jobs, op.gate)
            return experts_batch.expert_gate_up_batch(groups, **both, out=out)
        return experts.expert_gate_up(jobs, **both, out=out)

    def expert_matmul(self, op: ExpertMatmul) -> Sequence[Launch]:
        """Products with the experts of each token."""
        jobs, tokens = self._jobs(op), self.memory.shape.tokens
        one: dict[str, Any] = {
            "x": self.memory.in_dtype(op.x, self.memory.lowering.expert_dtypes(op, tokens)[0]),
            "weight": op.weight,
            "bias": self.memory.optional(op.bias),
            "out": self.memory.f32(op.out),
        }
        if self.memory.lowering.batches_experts(op, tokens):
            groups = experts_batch.grouped(jobs, op.weight)
            return experts_batch.expert_matmul_batch(groups, **one)
        return experts.expert_matmul(jobs, **one)

    def add_experts(self, op: AddExperts) -> Launch:
        """Add the experts' results to the residual, each by its share."""
        return experts.add_experts(self.memory.kernels, **self._added(op), accumulate=op.accumulate)

    def add_experts_rmsnorm(self, op: AddExpertsRmsnorm) -> Launch:
        """Do that, and norm the result."""
        return experts.add_experts_rmsnorm(
            self.memory.kernels,
            **self._added(op),
            norm=self.memory.lowering.constant(op.norm),
            normed=self.memory.in_dtype(op.normed, Q8),
            squares_out=self.memory.f32(op.squares),
        )

    def _jobs(self, op: ExpertGateUp | ExpertMatmul) -> experts.Jobs:
        return experts.Jobs(
            self.memory.kernels,
            experts=self.memory.f32(op.experts),
            tokens=self.memory.shape.tokens,
            chosen=op.experts.columns,
            count=op.count,
            scratch=self.memory.scratch(op.label),
        )

    def _choice(self, op: Route) -> experts.Choice:
        return experts.Choice(
            bias=self.memory.optional(op.bias),
            experts=self.memory.f32(op.experts),
            shares=self.memory.f32(op.shares),
            count=op.count,
            chosen=op.chosen,
            normalized=op.normalized,
            sigmoid=op.sigmoid,
            scale=op.scale,
        )

    def _added(self, op: AddExperts | AddExpertsRmsnorm) -> dict[str, Any]:
        return {
            "parts": self.memory.f32(op.parts),
            "shares": self.memory.f32(op.shares),
            "x": self.memory.f32(op.x),
            "tokens": self.memory.shape.tokens,
            "chosen": op.shares.columns,
            "columns": op.x.columns,
        }
