"""Causal attention over the paged KV cache: whole prompts, and one token over a long context.

Cases come from `rocmforge.ops.cases`. Times are of the public `ops.attention`, which is one flash
pass, over a cold float16 KV cache: on the CPU host times, its checks of shapes and pages included,
on a GPU device times. `fusion.py` has the same work op by op; q8_0 caches are an engine's, in
`inference.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from rocmforge import ops
from rocmforge.gpu.head_dims import MAX_GPU_HEAD_DIM
from rocmforge.ops import cases, reference
from rocmforge.timing import seconds_per_call

from .cold import cold, own
from .devices import DEVICES, backend, clock
from .samples import Timed, track

PREFILL = {f"{c.lengths[0]}x{c.heads}x{c.head_dim}": c for c in cases.ATTENTION_PREFILL}
"""Sequence x heads x head dim."""
DECODE = {c.lengths[0]: c for c in cases.ATTENTION_DECODE}
"""Tokens in the cache."""
HEAD_DIMS = {c.head_dim: c for c in cases.ATTENTION_HEAD_DIMS}
WORK = ("prompt of 512", "token at 4096")


@functools.cache
def cold_attention(case: cases.AttentionCase, device: str) -> Callable[[], object]:
    """Make inputs and copies, check each against the reference, return them as one call."""
    on = backend(device)
    if device != "cpu" and case.head_dim > MAX_GPU_HEAD_DIM:
        raise NotImplementedError(f"head dim {case.head_dim}: GPUs take up to {MAX_GPU_HEAD_DIM}")
    arguments = case.inputs().arguments

    def copy() -> Callable[[], Any]:
        q, k_pages, v_pages, *batch = arguments
        return functools.partial(
            ops.attention, own(on, q), own(on, k_pages), own(on, v_pages), *batch, on
        )

    wanted = reference.attention(*arguments)
    tolerance = case.tolerance(on.attention_precision(max(case.queries)))
    return cold(f"attention {case}", on, case.bytes, copy, wanted, tolerance)


class Prefill(Timed):
    """All tokens of one sequence attend at once."""

    params = (tuple(PREFILL), DEVICES)
    param_names = ("shape", "device")

    def setup(self, shape: str, device: str) -> None:
        self.call = cold_attention(PREFILL[shape], device)

    def time_attention(self, shape: str, device: str) -> None:
        self.call()

    def track_gflops(self, shape: str, device: str) -> dict[str, Any]:
        flops = PREFILL[shape].flops
        return track([flops / s / 1e9 for s in seconds_per_call(self.call, clock=clock)])

    track_gflops.unit = "GFLOP/s"
    track_gflops.direction = "higher"


class Decode(Timed):
    """One token attends to a context; 32 heads, 4 KV heads, head dim 64 as in a 1.1B model."""

    params = (tuple(DECODE), DEVICES)
    param_names = ("context", "device")

    def setup(self, context: int, device: str) -> None:
        self.call = cold_attention(DECODE[context], device)

    def time_attention(self, context: int, device: str) -> None:
        self.call()


class HeadDim(Timed):
    """A prompt of 256 tokens over 8 heads of 32 to 512 dims; n/a above 256 on a GPU."""

    params = (tuple(HEAD_DIMS), DEVICES)
    param_names = ("head_dim", "device")

    def setup(self, head_dim: int, device: str) -> None:
        self.call = cold_attention(HEAD_DIMS[head_dim], device)

    def time_attention(self, head_dim: int, device: str) -> None:
        self.call()


class Model(Timed):
    """The heads of real models: a prompt, and one token over a long context."""

    params = (tuple(cases.ATTENTION_MODELS), WORK, DEVICES)
    param_names = ("model", "work", "device")

    def setup(self, model: str, work: str, device: str) -> None:
        self.call = cold_attention(cases.ATTENTION_MODELS[model][WORK.index(work)], device)

    def time_attention(self, model: str, work: str, device: str) -> None:
        self.call()
