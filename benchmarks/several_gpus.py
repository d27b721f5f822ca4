"""Two GPUs of one machine: sums over both, and a model on one of them and on both.

All is n/a where there are no two GPUs that are alike.
"""

from __future__ import annotations

import functools
from typing import Any, get_args

from rocmforge.devices import alike_gpus, open_backend
from rocmforge.engine import Engine
from rocmforge.gpu.backend import GpuBackend
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.exchange_time import SIZES, all_reduce_seconds, reduce_rmsnorm_seconds
from rocmforge.gpu.peers import Group, Way

from . import recording
from .checks import CHECK_CTX, check_engine, wanted_logits
from .inference import decode_seconds, prefill_seconds, prompt_samples
from .models import model_path
from .samples import track

WAYS = get_args(Way)
MODELS = ("7B-Q4_K_M", "8B-Q4_K_M")
SPLITS = ("1 GPU", "2 GPUs, layer", "2 GPUs, tensor")
PROMPT = 2048
COLUMNS = 4096  # of a token in a sum: 7B and 8B


@functools.cache
def two_gpus() -> tuple[str, str]:
    """Name the first two GPUs that are alike; NotImplementedError where there are none."""
    found = alike_gpus()
    if not found:
        raise NotImplementedError("got no two GPUs that are alike")
    first, second, *_ = found[0]
    recording.watch_gpu(first)
    return first, second


@functools.cache
def both() -> tuple[Kernels, ...]:
    """Open the two GPUs."""
    opened = (open_backend(name) for name in two_gpus())
    return tuple(backend.kernels for backend in opened if isinstance(backend, GpuBackend))


class _Exchange:
    """Something that two GPUs do together, inside a captured graph."""

    group: Group | None = None

    def setup(self, size: int, way: str) -> None:
        self.group = Group([own.runtime for own in both()], through_host=way == WAYS[1])
        if self.group.way != way:
            raise NotImplementedError("the GPUs cannot reach each other's memory")

    def teardown(self, size: int, way: str) -> None:  # asv calls it where setup gave up, too
        if self.group is not None:
            self.group.close()


class AllReduce(_Exchange):
    """The sum of so many bytes of float32 over two GPUs."""

    params = (SIZES, WAYS)
    param_names = ("bytes", "way")

    def track_all_reduce_us(self, nbytes: int, way: str) -> dict[str, Any]:
        runs = [all_reduce_seconds(both(), self.group, nbytes // 4) for _ in range(5)]
        return track([1e6 * s for s in runs])

    track_all_reduce_us.unit = "us"


class ReduceScatterRmsnormAllGather(_Exchange):
    """The RMSNorm of a sum over two GPUs: reduce-scatter, RMSNorm and all-gather in one kernel."""

    params = ((512, 1024, 2048), WAYS)
    param_names = ("tokens", "way")

    def track_reduce_rmsnorm_us(self, tokens: int, way: str) -> dict[str, Any]:
        runs = [reduce_rmsnorm_seconds(both(), self.group, tokens, COLUMNS) for _ in range(5)]
        return track([1e6 * s for s in runs])

    track_reduce_rmsnorm_us.unit = "us"


@functools.cache
def engine(model: str, split: str, ctx: int) -> Engine:
    """Load and check a model once per process."""
    names = two_gpus()
    path = model_path(model)
    wanted_logits(path)
    loaded = Engine.from_gguf(
        path,
        names[0] if split == SPLITS[0] else names,
        split_mode="tensor" if split == SPLITS[2] else "layer",
        ctx=max(ctx, CHECK_CTX),
        whole_cache=True,
    )
    check_engine(loaded, path)
    return loaded


class Split:
    """A prompt of 2048 tokens, and one sequence that grows, on one GPU and on two."""

    params = (MODELS, SPLITS)
    param_names = ("model", "devices")
    timeout = 3600  # the first process makes the model and computes its reference logits

    def setup(self, model: str, devices: str) -> None:
        self.engine = engine(model, devices, PROMPT)

    def track_prefill_ms_per_token(self, model: str, devices: str) -> dict[str, Any]:
        samples = prompt_samples(lambda: prefill_seconds(self.engine, PROMPT), PROMPT)
        return track([1e3 * s / PROMPT for s in samples])

    def track_decode_ms_per_token(self, model: str, devices: str) -> dict[str, Any]:
        return track([1e3 * s for s in decode_seconds(self.engine, 1)])

    track_prefill_ms_per_token.unit = "ms"
    track_decode_ms_per_token.unit = "ms"
