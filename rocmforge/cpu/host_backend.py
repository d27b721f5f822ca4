"""What `cpu/executor.py` asks of a backend beside `plan.protocols.Backend`.

These are ops that only models call, and arguments that only models pass: `rocmforge.ops` offers the
others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from rocmforge.array_types import Floats, Ints
from rocmforge.kv.batch import Queries
from rocmforge.plan.operands import Activation
from rocmforge.plan.protocols import Backend, W


class HostBackend(Backend[W], Protocol[W]):
    """What `HostExecutor` asks of a backend besides."""

    def record(self, calls: Callable[[], None]) -> Callable[[], None]:
        """Run `calls`, and return what runs the same ops again.

        They then read what their arrays hold by that time. It keeps arrays and matrices alive.
        """

    def matmul(
        self,
        x: Floats,
        weights: Sequence[W],
        outs: Sequence[Floats],
        biases: Sequence[Floats | None] | None = None,
        accumulate: bool = False,
        scale: float = 1.0,
    ) -> None:
        """As of `Backend`, times `scale`."""

    def rmsnorm(
        self, x: Floats, weight: Floats, eps: float, out: Floats, accumulate: bool = False
    ) -> None:
        """As of `Backend`; `accumulate`: added to out."""

    def swiglu(
        self, gate: Floats, up: Floats, out: Floats, activation: Activation = "silu"
    ) -> None:
        """As of `Backend`, or with another activation."""

    def attention(
        self,
        q: Floats,
        k_pages: NDArray[Any],
        v_pages: NDArray[Any],
        queries: Queries,
        scale: float,
        out: Floats,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Floats | None = None,
    ) -> None:
        """As of `Backend`, with what the record `Attention` has besides."""

    def layernorm(
        self, x: Floats, weight: Floats, bias: Floats | None, eps: float, out: Floats
    ) -> None:
        """Out (rows, K) = (x − mean) / √(variance + eps) · weight + bias."""

    def gelu(self, x: Floats, out: Floats) -> None:
        """Out (rows, columns) = gelu(x)."""

    def softcap(self, x: Floats, cap: float, out: Floats) -> None:
        """Out (rows, columns) = cap · tanh(x / cap)."""

    def gate_up_swiglu(
        self, x: Floats, gate: W, up: W, activation: Activation, out: Floats
    ) -> None:
        """Out (T, N) = swiglu(x · gateᵀ, x · upᵀ) of x (T, K) and two matrices (N, K)."""

    def route(
        self,
        scores: Floats,
        normalized: bool,
        sigmoid: bool,
        scale: float,
        bias: Floats | None,
        experts: Ints,
        shares: Floats,
    ) -> None:
        """Choose k of E experts by scores (T, E), as the record `Route` has it."""

    def expert_gate_up_swiglu(
        self,
        x: Floats,
        gate: W,
        up: W,
        biases: tuple[Floats | None, Floats | None],
        activation: Activation,
        experts: Ints,
        count: int,
        out: Floats,
    ) -> None:
        """Out (T, k · F) of x (T, K) and the matrices (F, K) of experts (T, k) of `count`."""

    def expert_matmul(
        self, x: Floats, weight: W, bias: Floats | None, experts: Ints, count: int, out: Floats
    ) -> None:
        """Out (T, k · N) of x (T, k · K) and the matrices (N, K) of experts (T, k) of `count`."""

    def add_experts(self, parts: Floats, shares: Floats, x: Floats) -> None:
        """X (T, K) += Σ_i shares (T, k) · parts (T, k · K)."""
