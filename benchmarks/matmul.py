"""Matrix products: R2's dense shapes, and every weight format at 4096 × 4096.

Cases come from `rocmforge.ops.cases`, so that a test of the same case checks the same work. Times
are of the public `ops.matmul`, weights packed before: host times on the CPU, device times on a GPU.
All but `Cold` and `InstructionSet` repeat one product: its weights lie in whatever caches hold
them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

from rocmforge import ops
from rocmforge.cpu.backend import CpuBackend, instruction_sets
from rocmforge.env import CPU_ISAS
from rocmforge.gguf.formats import FORMATS
from rocmforge.ops import cases, reference
from rocmforge.timing import seconds_per_call

from .checks import checked
from .devices import DEVICES, backend, clock
from .samples import ROUNDS, Timed, track

N = 4096  # rows and columns of the quantized matrices
COLD_BYTES = 512 << 20  # of weights that take turns; the largest cache we know has 256 MiB (MI300X)

DENSE = {f"{c.tokens}x{c.columns}x{c.rows}": c for c in cases.MATMUL_DENSE if c.format == "F32"}
"""Shapes T x K x N."""


@functools.cache
def prepared(case: cases.MatmulCase, device: str) -> Callable[[], Any]:
    """Make inputs, check the product against the reference, return it as a call."""
    on = backend(device)
    x, matrix = case.inputs()
    call = functools.partial(ops.matmul, x, ops.pack(matrix, on))
    precision = on.matmul_precision(case.format, case.tokens)
    return checked(f"matmul {case}", call, reference.matmul(x, matrix), case.tolerance(precision))


@functools.cache
def in_turns(case: cases.MatmulCase, device: str, isa: str | None = None) -> Callable[[], Any]:
    """Return a call that multiplies with the next of many copies of a matrix; each is checked.

    With `isa` it runs on the CPU with that instruction set.
    """
    on = CpuBackend(isa=isa) if isa else backend(device)
    x, matrix = case.inputs()
    copies = [ops.pack(matrix, on) for _ in range(-(-COLD_BYTES // matrix.data.nbytes))]
    wanted = reference.matmul(x, matrix)
    tolerance = case.tolerance(on.matmul_precision(case.format, case.tokens))
    for weights in copies:
        checked(f"matmul {case}", functools.partial(ops.matmul, x, weights), wanted, tolerance)
    turns = itertools.cycle(copies)
    return lambda: ops.matmul(x, next(turns))


class Dense(Timed):
    """F32 and F16 weights in the shapes T x K x N."""

    params = (tuple(DENSE), ("F32", "F16"), DEVICES)
    param_names = ("shape", "format", "device")

    def setup(self, shape: str, format: str, device: str) -> None:  # noqa: A002
        base = DENSE[shape]
        self.case = cases.MatmulCase(base.tokens, base.rows, base.columns, format)
        self.call = prepared(self.case, device)

    def time_matmul(self, shape: str, format: str, device: str) -> None:  # noqa: A002
        self.call()

    def track_gflops(self, shape: str, format: str, device: str) -> dict[str, Any]:  # noqa: A002
        return track([self.case.flops / s / 1e9 for s in seconds_per_call(self.call, clock=clock)])

    track_gflops.unit = "GFLOP/s"
    track_gflops.direction = "higher"


class Quantized(Timed):
    """Every format at 4096 × 4096 for 1, 4 and 8 tokens and prompts of 128 and 512."""

    params = (tuple(FORMATS), (1, 4, 8, 128, 512), DEVICES)
    param_names = ("format", "tokens", "device")

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
        return track([self.case.bytes / s / 1e9 for s in seconds_per_call(self.call, clock=clock)])

    track_gb_per_second.unit = "GB/s"
    track_gb_per_second.direction = "higher"


class Cold:
    """Every format at 4096 × 4096 and one token, with weights that no cache holds, as in decoding.

    Copies of one matrix are used in turn. Together they are larger than the caches of the machines
    that we know, so that each is read from memory.
    """

    params = (tuple(FORMATS), DEVICES)
    param_names = ("format", "device")

    def setup(self, format: str, device: str) -> None:  # noqa: A002
        self.call = in_turns(cases.MatmulCase(1, N, N, format), device)

    def track_cold_ms(self, format: str, device: str) -> dict[str, Any]:  # noqa: A002
        return track([1e3 * s for s in seconds_per_call(self.call, clock=clock)])

    track_cold_ms.unit = "ms"
    track_cold_ms.rounds = ROUNDS


class InstructionSet:
    """One token and a prompt of 128 on each instruction set of this CPU, weights as in `Cold`."""

    params = (("F16", "Q4_0", "Q8_0", "Q4_K", "Q6_K"), (1, 128), CPU_ISAS)
    param_names = ("format", "tokens", "isa")

    def setup(self, format: str, tokens: int, isa: str) -> None:  # noqa: A002
        if isa not in instruction_sets():
            raise NotImplementedError(f"no {isa} on this CPU")
        self.call = in_turns(cases.MatmulCase(tokens, N, N, format), "cpu", isa)

    def track_cold_ms(self, format: str, tokens: int, isa: str) -> dict[str, Any]:  # noqa: A002
        return track([1e3 * s for s in seconds_per_call(self.call)])

    track_cold_ms.unit = "ms"
