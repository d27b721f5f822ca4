"""Matrix products: the dense shapes that the suite promises, every weight format at 4096 × 4096.

Cases come from `rocmforge.ops.cases`, so that a test of the same case checks the same work. Times
are of the public `ops.matmul`, weights packed before: host times on the CPU, device times on a GPU,
where the rounding of the given activations is left out. Weights and activations are cold.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from rocmforge import ops
from rocmforge.cpu.backend import CpuBackend, instruction_sets
from rocmforge.env import CPU_ISAS
from rocmforge.gguf.formats import FORMATS
from rocmforge.ops import cases, reference
from rocmforge.timing import seconds_per_call

from .cold import cold, own
from .devices import DEVICES, backend, clock
from .samples import Timed, track

N = 4096  # rows and columns of the quantized matrices

DENSE = {f"{c.tokens}x{c.columns}x{c.rows}": c for c in cases.MATMUL_DENSE if c.format == "F32"}
"""Shapes T x K x N."""


@functools.cache
def cold_matmul(
    case: cases.MatmulCase, device: str, isa: str | None = None
) -> Callable[[], object]:
    """Make inputs and copies, check each product against the reference, return it as a call.

    With `isa` it runs on the CPU with that instruction set.
    """
    on = CpuBackend(isa=isa) if isa else backend(device)
    x, matrix = case.inputs()

    def copy() -> Callable[[], Any]:
        return functools.partial(ops.matmul, own(on, x), ops.pack(matrix, on))

    tolerance = case.tolerance(on.matmul_precision(case.format, case.tokens))
    return cold(f"matmul {case}", on, case.bytes, copy, reference.matmul(x, matrix), tolerance)


class Dense(Timed):
    """F32 and F16 weights in the shapes T x K x N."""

    params = (tuple(DENSE), ("F32", "F16"), DEVICES)
    param_names = ("shape", "format", "device")

    def setup(self, shape: str, format: str, device: str) -> None:  # noqa: A002
        base = DENSE[shape]
        self.case = cases.MatmulCase(base.tokens, base.rows, base.columns, format)
        self.call = cold_matmul(self.case, device)

    def time_matmul(self, shape: str, format: str, device: str) -> None:  # noqa: A002
        self.call()

    def track_gflops(self, shape: str, format: str, device: str) -> dict[str, Any]:  # noqa: A002
        return track([self.case.flops / s / 1e9 for s in seconds_per_call(self.call, clock=clock)])

    track_gflops.unit = "GFLOP/s"
    track_gflops.direction = "higher"


class Quantized(Timed):
    """Every format at 4096 × 4096 for batches of 1 to 64 tokens and prompts of 128 and 512."""

    params = (tuple(FORMATS), (1, 4, 8, 16, 64, 128, 512), DEVICES)
    param_names = ("format", "tokens", "device")

    def setup(self, format: str, tokens: int, device: str) -> None:  # noqa: A002
        self.call = cold_matmul(cases.MatmulCase(tokens, N, N, format), device)

    def time_matmul(self, format: str, tokens: int, device: str) -> None:  # noqa: A002
        self.call()


class Bandwidth:
    """Every format at 4096 × 4096 and one token: bytes of weights and activations a second."""

    params = (tuple(FORMATS), DEVICES)
    param_names = ("format", "device")

    def setup(self, format: str, device: str) -> None:  # noqa: A002
        self.case = cases.MatmulCase(1, N, N, format)
        self.call = cold_matmul(self.case, device)

    def track_gb_per_second(self, format: str, device: str) -> dict[str, Any]:  # noqa: A002
        return track([self.case.bytes / s / 1e9 for s in seconds_per_call(self.call, clock=clock)])

    track_gb_per_second.unit = "GB/s"
    track_gb_per_second.direction = "higher"


class InstructionSet:
    """One token and a prompt of 128 on each instruction set of this CPU."""

    params = (("F16", "Q4_0", "Q8_0", "Q4_K", "Q6_K"), (1, 128), CPU_ISAS)
    param_names = ("format", "tokens", "isa")

    def setup(self, format: str, tokens: int, isa: str) -> None:  # noqa: A002
        if isa not in instruction_sets():
            raise NotImplementedError(f"no {isa} on this CPU")
        self.call = cold_matmul(cases.MatmulCase(tokens, N, N, format), "cpu", isa)

    def track_cold_ms(self, format: str, tokens: int, isa: str) -> dict[str, Any]:  # noqa: A002
        return track([1e3 * s for s in seconds_per_call(self.call)])

    track_cold_ms.unit = "ms"
