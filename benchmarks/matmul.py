"""Matrix products: R2's dense shapes, and every weight format at 4096 × 4096.

Cases come from `rocmforge.ops.cases`, so that a test of the same case checks the same work. Times
are host times of the public `ops.matmul`, weights packed before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from rocmforge import ops
from rocmforge.gguf.formats import FORMATS
from rocmforge.ops import cases, reference
from rocmforge.timing import seconds_per_call

from .common import DEVICES, REPEAT, ROUNDS, backend, checked, track

N = 4096  # rows and columns of the quantized matrices

DENSE = {f"{c.tokens}x{c.columns}x{c.rows}": c for c in cases.MATMUL_DENSE if c.format == "F32"}
"""Shapes T x K x N."""


@functools.cache
def prepared(case: cases.MatmulCase, device: str) -> Callable[[], Any]:
    """Make inputs, check the product against the reference, return it as a call."""
    on = backend(device)
    x, matrix = case.inputs()
    call = functools.partial(ops.matmul, x, ops.pack(matrix, on))
    exact = getattr(on, "exact", False)
    return checked(f"matmul {case}", call, reference.matmul(x, matrix), case.tolerance(exact))


class Dense:
    """F32 and F16 weights in the shapes T x K x N."""

    params = (tuple(DENSE), ("F32", "F16"), DEVICES)
    param_names = ("shape", "format", "device")
    repeat = REPEAT
    rounds = ROUNDS

    def setup(self, shape: str, format: str, device: str) -> None:  # noqa: A002
        base = DENSE[shape]
        self.case = cases.MatmulCase(base.tokens, base.rows, base.columns, format)
        self.call = prepared(self.case, device)

    def time_matmul(self, shape: str, format: str, device: str) -> None:  # noqa: A002
        self.call()

    def track_gflops(self, shape: str, format: str, device: str) -> dict[str, Any]:  # noqa: A002
        return track([self.case.flops / s / 1e9 for s in seconds_per_call(self.call)])

    track_gflops.unit = "GFLOP/s"
    track_gflops.direction = "higher"
    track_gflops.rounds = ROUNDS


class Quantized:
    """Every format at 4096 × 4096 for 1, 4 and 8 tokens and a prompt of 128."""

    params = (tuple(FORMATS), (1, 4, 8, 128), DEVICES)
    param_names = ("format", "tokens", "device")
    repeat = REPEAT
    rounds = ROUNDS

    def setup(self, format: str, tokens: int, device: str) -> None:  # noqa: A002
        self.call = prepared(cases.MatmulCase(tokens, N, N, format), device)

    def time_matmul(self, format: str, tokens: int, device: str) -> None:  # noqa: A002
        self.call()


class Bandwidth:
    """Every format at 4096 × 4096 and one token, as bytes of weights and activations moved."""

    params = (tuple(FORMATS), DEVICES)
    param_names = ("format", "device")

    def setup(self, format: str, device: str) -> None:  # noqa: A002
        self.case = cases.MatmulCase(1, N, N, format)
        self.call = prepared(self.case, device)

    def track_gb_per_second(self, format: str, device: str) -> dict[str, Any]:  # noqa: A002
        return track([self.case.bytes / s / 1e9 for s in seconds_per_call(self.call)])

    track_gb_per_second.unit = "GB/s"
    track_gb_per_second.direction = "higher"
    track_gb_per_second.rounds = ROUNDS
