"""The small ops of a 7B model between its matrices: RMSNorm, RoPE, softmax and SwiGLU.

For a prompt of 512, cold, and for one token, whose rows a cache holds. Times are of the public ops:
on the CPU host times, checks of shapes included, on a GPU device times. RoPE, which backends
compute in place, is called there: the public op's copy would take most of its time.
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
from .cold import cold, copies, own
from .devices import DEVICES, backend, clock
from .samples import ROUNDS, track

OPS = ("rmsnorm", "rope", "softmax", "swiglu")
TOKENS = (1, 512)
EPS = 1e-5


@functools.cache
def prepared(op: str, tokens: int, device: str) -> tuple[Callable[[], object], int]:
    """Make inputs, check the op against the reference; return it as a call, and its bytes.

    One token's rows are hot, those of a prompt cold.
    """
    if op == "rope":
        return _rope(tokens, device)
    on = backend(device)
    case = cases.ROWS_TIMED[op][TOKENS.index(tokens)]
    x, other = case.inputs(2)
    rest: tuple[Any, ...] = {"rmsnorm": (other[0].copy(), EPS), "softmax": (), "swiglu": (other,)}[
        op
    ]

    def copy() -> Callable[[], Any]:
        arguments = (own(on, a) if isinstance(a, np.ndarray) else a for a in (x, *rest))
        return functools.partial(getattr(ops, op), *arguments, on, np.empty_like(x))

    what, nbytes = f"{op} of {tokens} tokens", case.bytes(op)
    wanted, tolerance = getattr(reference, op)(x, *rest), case.tolerance(op)
    if tokens == 1:
        return on.timed([checked(what, copy(), wanted, tolerance)]), nbytes
    return cold(what, on, nbytes, copy, wanted, tolerance), nbytes


def _rope(tokens: int, device: str) -> tuple[Callable[[], object], int]:
    on, case = backend(device), cases.ROPE_TIMED[TOKENS.index(tokens)]
    x, *angles = (*case.inputs(), False)
    call = functools.partial(ops.rope, x, *angles, on)
    checked(f"rope of {tokens} tokens", call, reference.rope(x, *angles), case.tolerance)
    count = 1 if tokens == 1 else copies(on, case.bytes)
    return on.timed(
        [functools.partial(on.rope, own(on, x), *angles) for _ in range(count)]
    ), case.bytes


class _Rows:
    params = (OPS, DEVICES)
    param_names = ("op", "device")
    tokens: int

    def setup(self, op: str, device: str) -> None:
        self.call, self.bytes = prepared(op, self.tokens, device)

    def track_us(self, op: str, device: str) -> dict[str, Any]:
        return track([1e6 * s for s in seconds_per_call(self.call, clock=clock)])

    def track_gb_per_second(self, op: str, device: str) -> dict[str, Any]:
        return track([self.bytes / s / 1e9 for s in seconds_per_call(self.call, clock=clock)])

    track_us.unit = "us"
    track_us.rounds = ROUNDS
    track_gb_per_second.unit = "GB/s"
    track_gb_per_second.direction = "higher"


class Prompt(_Rows):
    """512 tokens, whose rows no cache holds."""

    tokens = 512


class HotToken(_Rows):
    """One token, whose rows a cache holds: what a call costs."""

    tokens = 1
