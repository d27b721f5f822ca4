"""A whole model: time to first token, prefill, decode, page sizes, peak memory, energy.

The model is loaded and its logits are checked before anything is timed. Loading and tokenizing
are not in the times of prompts. Random weights and random prompts: speed depends on neither.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge.cpu.cache import PagedKVCache
from rocmforge.engine import Engine
from rocmforge.errors import OutOfMemoryError, UnsupportedModelError
from rocmforge.gguf.reader import GGUFFile
from rocmforge.kv import PAGE_SIZES
from rocmforge.model.config import ModelConfig
from rocmforge.profiling.energy import EnergyMeter
from rocmforge.sampling import SamplingParams
from rocmforge.speed.sequences import Sequences, prefill_seconds, random_ids, ttft
from rocmforge.timing import WARMUP_MOST, collect

from .checks import open_engine
from .devices import DEVICES, device_name
from .models import (
    DEMO,
    EXPERTS,
    GRIDS,
    LARGE,
    MODELS,
    WHOLE_EXPERTS,
    WINDOWED,
    model_path,
    refuse_slow,
)
from .samples import ROUNDS, track

PROMPTS = (32, 128, 256, 512, 2048)
BATCHES = (1, 4, 8, 16, 32)
CONTEXTS = (0, 1024, 2048, 4096, 16384, 32768)
KV_DTYPES = ("f16", "q8_0")
WHOLE = tuple(name for name in MODELS if name != DEMO)  # shapes of real models
LONG = 2048  # tokens of a prompt
PAGED = 1024  # tokens before the steps with different pages
DECODE_CONTEXT = 64  # tokens in each sequence before the first decode step
DECODE_STEPS = 48  # at most: samples a process
GROWTH = DECODE_STEPS + WARMUP_MOST  # tokens that a measured sequence grows by
BUDGET_S = 2.0  # of sampling, a process
ENERGY_S = 3.0  # of decoding while the energy is measured
POWER_WARMUP_S = 1.0  # a card's power is a mean of the last second
RANDOM_KV = 1 << 20  # numbers, again and again


@functools.cache
def engine(
    model: str,
    device: str,
    ctx: int,
    sequences: int,
    kv_dtype: Any = "f16",
    page_size: int = 32,
) -> Engine:
    """Load and check a model once per process; NotImplementedError where it cannot run here."""
    device_name(device)
    refuse_slow(model, device)
    path, trained = model_path(model), trained_context(model)
    if ctx > trained:
        raise NotImplementedError(f"{model}: {ctx} tokens, trained for {trained}")
    try:
        return open_engine(
            path,
            device,
            ctx,
            sequences=sequences,
            kv_dtype=kv_dtype,
            page_size=page_size,
            whole_cache=True,
        )
    except (OutOfMemoryError, UnsupportedModelError) as error:
        raise NotImplementedError(f"{model}: {error}") from error


def trained_context(model: str) -> int:
    """Return the most tokens that a model takes."""
    with GGUFFile(model_path(model)) as file:
        return ModelConfig.from_gguf(file).ctx_train


def prompt_samples(measure: Callable[[], float], tokens: int) -> list[float]:
    """Repeat a prompt; one that takes ten seconds on a CPU only twice a process."""
    return collect(measure, fewest=4 if tokens < LONG else 2, budget=BUDGET_S)


def decode_seconds(
    on: Engine, batch: int, steps: int = DECODE_STEPS, context: int = DECODE_CONTEXT
) -> list[float]:
    """Seconds of each step in which `batch` sequences grow by a token, with its choice.

    They begin with `context` tokens each. With one sequence these are its inter-token latencies.
    """
    with Sequences(on, context, batch, steps + WARMUP_MOST) as sequences:
        return collect(sequences.step_seconds, fewest=8, most=steps, budget=BUDGET_S)


def decode_seconds_at(on: Engine, context: int) -> list[float]:
    """Seconds of each step of one sequence behind a context of any length.

    A long prompt takes minutes on a CPU: keys and values are random numbers there.
    """
    if not isinstance(on.cache, PagedKVCache):
        return decode_seconds(on, 1, context=context)
    generator = np.random.default_rng(0)
    random: NDArray[Any] = generator.standard_normal(RANDOM_KV, np.float32)
    if on.cache.dtype == "q8_0":  # bytes that are ordinary numbers as scales, too
        random = generator.integers(16, 32, RANDOM_KV, np.int8)
    for pages in (on.cache.k, on.cache.v):
        flat = pages.reshape(-1)
        for start in range(0, flat.size, RANDOM_KV):
            part = flat[start : start + RANDOM_KV]
            part[:] = random[: part.size]
    with Sequences(on, 0, 1, context + GROWTH) as sequences:
        on.cache.table.extend(sequences.ids[0], context)
        return collect(sequences.step_seconds, fewest=8, most=DECODE_STEPS, budget=BUDGET_S)


@functools.cache
def joules_per_token(model: str, device: str) -> float:
    """Energy of the whole card while one sequence is decoded, over its tokens.

    NotImplementedError, with the reason, where the card's figures are not good enough.
    """
    meter = EnergyMeter(device_name(device))  # before the engine uses the card
    on = engine(model, device, DECODE_CONTEXT + GROWTH, 1)
    with Sequences(on, DECODE_CONTEXT, 1, GROWTH) as sequences:
        _decode_for(sequences, POWER_WARMUP_S)
        meter.begin()
        tokens, seconds = _decode_for(sequences, ENERGY_S)
        found = meter.end(seconds)
    if found.joules is None:
        raise NotImplementedError(f"joules per token: {found.reason}")
    return found.joules / tokens


def _decode_for(sequences: Sequences, least: float) -> tuple[int, float]:
    """Decode again and again for some seconds; return tokens and seconds."""
    tokens, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < least:
        for _ in range(GROWTH):
            sequences.step_seconds()
        sequences.rewind()
        tokens += GROWTH
    return tokens, time.perf_counter() - begin


class Prompt:
    """One prompt of a given length."""

    params = (MODELS, PROMPTS, DEVICES)
    param_names = ("model", "tokens", "device")
    timeout = 900

    def setup(self, model: str, tokens: int, device: str) -> None:
        self.engine = engine(model, device, tokens, 1)

    def track_ttft_ms(self, model: str, tokens: int, device: str) -> dict[str, Any]:
        samples = prompt_samples(lambda: ttft(self.engine, tokens), tokens)
        return track([1e3 * s for s in samples])

    def track_prefill_ms_per_token(self, model: str, tokens: int, device: str) -> dict[str, Any]:
        samples = prompt_samples(lambda: prefill_seconds(self.engine, tokens), tokens)
        return track([1e3 * s / tokens for s in samples])

    def track_prefill_tokens_per_second(
        self, model: str, tokens: int, device: str
    ) -> dict[str, Any]:
        samples = prompt_samples(lambda: prefill_seconds(self.engine, tokens), tokens)
        return track([tokens / s for s in samples])

    track_ttft_ms.unit = "ms"
    track_ttft_ms.rounds = ROUNDS
    track_prefill_ms_per_token.unit = "ms"
    track_prefill_ms_per_token.rounds = ROUNDS
    track_prefill_tokens_per_second.unit = "tokens/s"
    track_prefill_tokens_per_second.direction = "higher"


class Decode:
    """Some sequences grow by a token a step; per token means step time over sequences."""

    params = (MODELS, BATCHES, DEVICES)
    param_names = ("model", "batch", "device")
    timeout = 900

    def setup(self, model: str, batch: int, device: str) -> None:
        self.engine = engine(model, device, DECODE_CONTEXT + GROWTH, batch)

    def track_decode_ms_per_token(self, model: str, batch: int, device: str) -> dict[str, Any]:
        return track([1e3 * s / batch for s in decode_seconds(self.engine, batch)])

    def track_decode_tokens_per_second(self, model: str, batch: int, device: str) -> dict[str, Any]:
        return track([batch / s for s in decode_seconds(self.engine, batch)])

    track_decode_ms_per_token.unit = "ms"
    track_decode_ms_per_token.rounds = ROUNDS
    track_decode_tokens_per_second.unit = "tokens/s"
    track_decode_tokens_per_second.direction = "higher"


class Context:
    """One sequence grows behind a context, whose keys and values are f16 or q8_0.

    A context as long as the model was trained for begins so much earlier that it ends there.
    """

    params = (WHOLE, CONTEXTS, KV_DTYPES, DEVICES)
    param_names = ("model", "context", "kv", "device")
    timeout = 900

    def setup(self, model: str, context: int, kv: str, device: str) -> None:
        device_name(device)
        trained = trained_context(model)
        self.context = trained - GROWTH if trained - GROWTH < context <= trained else context
        self.engine = engine(model, device, self.context + GROWTH, 1, kv)

    def track_decode_ms_per_token(
        self, model: str, context: int, kv: str, device: str
    ) -> dict[str, Any]:
        return track([1e3 * s for s in decode_seconds_at(self.engine, self.context)])

    track_decode_ms_per_token.unit = "ms"
    track_decode_ms_per_token.rounds = ROUNDS


class LargeContext(Context):
    """The same for larger models, on GPUs: their prompts and their memory take a CPU too long."""

    params = (LARGE, CONTEXTS[3:], KV_DTYPES[:1], ("gpu",))


class PageSize:
    """One sequence grows behind 1024 tokens, in pages of 16, 32 or 64."""

    params = (WHOLE[:1], PAGE_SIZES, DEVICES)
    param_names = ("model", "page_size", "device")
    timeout = 900

    def setup(self, model: str, page_size: int, device: str) -> None:
        self.engine = engine(model, device, PAGED + GROWTH, 1, page_size=page_size)

    def track_decode_ms_per_token(self, model: str, page_size: int, device: str) -> dict[str, Any]:
        return track([1e3 * s for s in decode_seconds_at(self.engine, PAGED)])

    track_decode_ms_per_token.unit = "ms"
    track_decode_ms_per_token.rounds = ROUNDS


class Size:
    """Larger models: a prompt of 128 tokens, and one sequence that grows."""

    params = (LARGE, DEVICES)
    param_names = ("model", "device")
    timeout = 3600  # the first process makes the model and computes its reference logits

    def setup(self, model: str, device: str) -> None:
        self.engine = engine(model, device, 256, 1)

    def track_prefill_ms_per_token(self, model: str, device: str) -> dict[str, Any]:
        samples = collect(lambda: prefill_seconds(self.engine, 128), budget=BUDGET_S)
        return track([1e3 * s / 128 for s in samples])

    def track_decode_ms_per_token(self, model: str, device: str) -> dict[str, Any]:
        return track([1e3 * s for s in decode_seconds(self.engine, 1)])

    track_prefill_ms_per_token.unit = "ms"
    track_decode_ms_per_token.unit = "ms"


class Experts(Size):
    """The same for a mixture of experts, and with eight sequences, which choose more of them."""

    params = (tuple(EXPERTS), DEVICES)

    def setup(self, model: str, device: str) -> None:
        self.engine = engine(model, device, 256, 8)

    def track_decode_8_ms_per_token(self, model: str, device: str) -> dict[str, Any]:
        return track([1e3 * s / 8 for s in decode_seconds(self.engine, 8)])

    track_decode_8_ms_per_token.unit = "ms"


class WholeExperts(Experts):
    """The same with all layers, on GPUs."""

    params = (tuple(WHOLE_EXPERTS), ("gpu",))


class Grids(Size):
    """The same for a model in a format whose weights are entries of a grid."""

    params = (tuple(GRIDS), DEVICES)


class Windows(Context):
    """A model whose layers, but every sixth, see 512 tokens: what a context costs it."""

    params = (tuple(WINDOWED), (0, 4096, 16384), KV_DTYPES[:1], DEVICES)


class Energy:
    """Energy of the whole card for a token, while one sequence is decoded for three seconds.

    n/a, with the reason, where the card reports too little, or other processes use it.
    """

    params = ((*WHOLE, LARGE[1]), ("gpu",))
    param_names = ("model", "device")
    timeout = 900

    def setup(self, model: str, device: str) -> None:
        joules_per_token(model, device)

    def track_joules_per_token(self, model: str, device: str) -> float:
        return joules_per_token(model, device)

    track_joules_per_token.unit = "J"


class PeakMemory:
    """Most resident memory of a process that loads a model, reads 256 tokens and writes 16."""

    params = (MODELS, DEVICES)
    param_names = ("model", "device")
    timeout = 900

    def setup(self, model: str, device: str) -> None:
        self.engine = engine(model, device, 256 + 16, 1)

    def peakmem_generate(self, model: str, device: str) -> None:
        ids = random_ids(self.engine, 256)
        for _ in self.engine.generate([ids], SamplingParams(max_tokens=16)):
            pass
