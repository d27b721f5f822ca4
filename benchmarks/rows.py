"""The small ops of a 7B model between its matrices: RMSNorm, RoPE, softmax and SwiGLU.

For one token, where an op takes microseconds and its call counts, and for a prompt of 512. Times
are of the public ops, which write into one array again and again: on the CPU host times, checks of
shapes included, on a GPU device times. RoPE, which backends compute in place, is called there: the
public op's copy would take most of its time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from rocmforge import ops
from rocmforge.ops import cases, reference
from rocmforge.timing import seconds_per_call

from .checks import checked
from .devices import DEVICES, backend, clock
from .samples import ROUNDS, track

OPS = ("rmsnorm", "rope", "softmax", "swiglu")
TOKENS = (1, 512)
EPS = 1e-5


@functools.cache
def prepared(op: str, tokens: int, device: str) -> tuple[Callable[[], Any], int]:
    """Make inputs, check the op against the reference; return it as a call, and its bytes."""
    on = backend(device)
    at = TOKENS.index(tokens)
    what = f"{op} of {tokens} tokens"
    arguments: tuple[Any, ...]
    if op == "rope":
        turned = cases.ROPE_TIMED[at]
        arguments = (*turned.inputs(), False)
        call = functools.partial(ops.rope, *arguments, on)
        checked(what, call, reference.rope(*arguments), turned.tolerance)
        return functools.partial(on.rope, *arguments), turned.bytes
    case = cases.ROWS_TIMED[op][at]
    x, other = case.inputs(2)
    arguments = {"rmsnorm": (x, other[0].copy(), EPS), "softmax": (x,), "swiglu": (x, other)}[op]
    call = functools.partial(getattr(ops, op), *arguments, on, np.empty_like(x))
    wanted = getattr(reference, op)(*arguments)
    return checked(what, call, wanted, case.tolerance(op)), case.bytes(op)


class Rows:
    """One call, warm: its data fits into the caches of most machines."""

    params = (OPS, TOKENS, DEVICES)
    param_names = ("op", "tokens", "device")

    def setup(self, op: str, tokens: int, device: str) -> None:
        self.call, self.bytes = prepared(op, tokens, device)

    def track_us(self, op: str, tokens: int, device: str) -> dict[str, Any]:
        return track([1e6 * s for s in seconds_per_call(self.call, clock=clock)])

    def track_gb_per_second(self, op: str, tokens: int, device: str) -> dict[str, Any]:
        return track([self.bytes / s / 1e9 for s in seconds_per_call(self.call, clock=clock)])

    track_us.unit = "us"
    track_us.rounds = ROUNDS
    track_gb_per_second.unit = "GB/s"
    track_gb_per_second.direction = "higher"
