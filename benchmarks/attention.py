"""Causal attention over the paged KV cache: whole prompts, and one token over a long context.

Cases come from `rocmforge.ops.cases`. Times are host times of the public `ops.attention`, its
checks of shapes and pages included.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from rocmforge import ops
from rocmforge.ops import cases, reference
from rocmforge.timing import seconds_per_call

from .common import DEVICES, REPEAT, ROUNDS, backend, checked, track

PREFILL = {f"{c.lengths[0]}x{c.heads}x{c.head_dim}": c for c in cases.ATTENTION_PREFILL}
"""Sequence x heads x head dim."""
DECODE = {c.lengths[0]: c for c in cases.ATTENTION_DECODE}
"""Tokens in the cache."""


@functools.cache
def prepared(case: cases.AttentionCase, device: str) -> Callable[[], Any]:
    """Make inputs, check the op against the reference, return it as a call."""
    on = backend(device)
    inputs = case.inputs()
    arguments = [getattr(inputs, field.name) for field in dataclasses.fields(inputs)]
    call = functools.partial(ops.attention, *arguments, on)
    wanted = reference.attention(*arguments)
    return checked(f"attention {case}", call, wanted, case.tolerance)


class Prefill:
    """All tokens of one sequence attend at once."""

    params = (tuple(PREFILL), DEVICES)
    param_names = ("shape", "device")
    repeat = REPEAT
    rounds = ROUNDS

    def setup(self, shape: str, device: str) -> None:
        self.call = prepared(PREFILL[shape], device)

    def time_attention(self, shape: str, device: str) -> None:
        self.call()

    def track_gflops(self, shape: str, device: str) -> dict[str, Any]:
        flops = PREFILL[shape].flops
        return track([flops / s / 1e9 for s in seconds_per_call(self.call)])

    track_gflops.unit = "GFLOP/s"
    track_gflops.direction = "higher"
    track_gflops.rounds = ROUNDS


class Decode:
    """One token attends to a context; 32 heads, 4 KV heads, head dim 64 as in a 1.1B model."""

    params = (tuple(DECODE), DEVICES)
    param_names = ("context", "device")
    repeat = REPEAT
    rounds = ROUNDS

    def setup(self, context: int, device: str) -> None:
        self.call = prepared(DECODE[context], device)

    def time_attention(self, context: int, device: str) -> None:
        self.call()
