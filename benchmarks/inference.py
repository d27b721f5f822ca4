"""A whole model: time to first token and its parts, prefill, decode, page sizes, peak memory.

The model is loaded and its logits are checked before anything is timed. Loading and tokenizing
are not in the times of prompts. Random weights and random prompts: speed depends on neither.
"""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from rocmforge import env
from rocmforge.demo import held_out_text
from rocmforge.engine import Engine
from rocmforge.errors import OutOfMemoryError
from rocmforge.gguf.reader import GGUFFile
from rocmforge.kv import PAGE_SIZES
from rocmforge.model.config import ModelConfig
from rocmforge.model.synthetic import cached_model, plan_model
from rocmforge.sampling import Sampler, SamplingParams
from rocmforge.text.tokenizer import Tokenizer
from rocmforge.timing import WARMUP_MOST, collect, seconds_per_call

from .checks import open_engine
from .devices import DEVICES, device_name
from .models import DEMO, MODELS, model_path
from .samples import ROUNDS, track

PROMPTS = (32, 128, 256, 512, 2048)
BATCHES = (1, 4, 8)
CONTEXTS = (1024, 4096)
KV_DTYPES = ("f16", "q8_0")  # q8_0 on GPUs only
SIZES = ("3B-Q4_K_M", "7B-Q4_K_M")  # preset and mix; made at first use
WHOLE = tuple(name for name in MODELS if name != DEMO)  # shapes of real models
PARTS = ("tokenize", "sample")
LONG = 2048  # tokens of a prompt
DECODE_CONTEXT = 64  # tokens in each sequence before the first decode step
DECODE_STEPS = 48  # at most: samples a process
GROWTH = DECODE_STEPS + WARMUP_MOST  # tokens that a measured sequence grows by
BUDGET_S = 2.0  # of sampling, a process
SPARE_BYTES = 2 << 30  # memory and disk that a large model must leave


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
    if kv_dtype == "q8_0" and device == "cpu":
        raise NotImplementedError("q8_0 keys and values: on GPUs only")
    path = large_model(model) if model in SIZES else model_path(model)
    with GGUFFile(path) as file:
        trained = ModelConfig.from_gguf(file).ctx_train
    if ctx > trained:
        raise NotImplementedError(f"{model}: {ctx} tokens, trained for {trained}")
    try:
        return open_engine(
            path, device, ctx, sequences=sequences, kv_dtype=kv_dtype, page_size=page_size
        )
    except OutOfMemoryError as error:
        raise NotImplementedError(f"{model}: {error}") from error


def large_model(model: str) -> Path:
    """Make a model of SIZES at first use; NotImplementedError where disk or memory is too small."""
    preset, mix = model.split("-", 1)
    nbytes = plan_model(preset, mix).nbytes
    wanted = nbytes + SPARE_BYTES
    memory = psutil.virtual_memory().available
    if memory < wanted:
        raise NotImplementedError(
            f"{model}: got {memory / 1e9:.0f} GB of memory, wanted {wanted / 1e9:.0f}"
        )
    folder = env.cache_folder("models")
    disk = shutil.disk_usage(folder).free
    made = any(folder.glob(f"{model}-*.gguf"))
    if disk < wanted and not made:
        raise NotImplementedError(
            f"{model}: got {disk / 1e9:.0f} GB of disk, wanted {wanted / 1e9:.0f}"
        )
    return cached_model(preset, mix)


def prompt_ids(on: Engine, length: int) -> list[int]:
    """Seeded random token ids."""
    random = np.random.default_rng(length)
    return random.integers(0, on.config.vocab_size, length).tolist()


def ttft(on: Engine, length: int) -> float:
    """Seconds from the call of `generate` until the first token is known."""
    generation = on.generate([prompt_ids(on, length)], SamplingParams(max_tokens=1))
    for _ in generation:
        pass
    return generation.stats.ttft


def prefill_seconds(on: Engine, length: int) -> float:
    """Seconds of one `prefill` in a sequence of its own."""
    ids = prompt_ids(on, length)
    sequence = on.add_sequence(length)
    try:
        begin = time.perf_counter()
        on.prefill(sequence, ids)
        return time.perf_counter() - begin
    finally:
        on.remove_sequence(sequence)


def prompt_samples(measure: Callable[[], float], tokens: int) -> list[float]:
    """Repeat a prompt; one that takes ten seconds on a CPU only twice a process."""
    return collect(measure, fewest=4 if tokens < LONG else 2, budget=BUDGET_S)


def decode_seconds(
    on: Engine, batch: int, steps: int = DECODE_STEPS, context: int = DECODE_CONTEXT
) -> list[float]:
    """Seconds of each step in which `batch` sequences grow by a token, with sampling.

    They begin with `context` tokens each. With one sequence these are its inter-token latencies.
    """
    sequences = [on.add_sequence(context + steps + WARMUP_MOST) for _ in range(batch)]
    try:
        ids = [
            int(np.argmax(on.prefill(sequence, prompt_ids(on, context + i)[i:])))
            for i, sequence in enumerate(sequences)
        ]

        def step() -> float:
            nonlocal ids
            begin = time.perf_counter()
            ids = np.argmax(on.decode(sequences, ids), axis=1).tolist()
            return time.perf_counter() - begin

        return collect(step, fewest=8, most=steps, budget=BUDGET_S)
    finally:
        for sequence in sequences:
            on.remove_sequence(sequence)


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
    """One sequence grows after a long context, whose keys and values are f16 or q8_0."""

    params = (WHOLE, CONTEXTS, KV_DTYPES, DEVICES)
    param_names = ("model", "context", "kv", "device")
    timeout = 900

    def setup(self, model: str, context: int, kv: str, device: str) -> None:
        self.engine = engine(model, device, context + GROWTH, 1, kv)

    def track_decode_ms_per_token(
        self, model: str, context: int, kv: str, device: str
    ) -> dict[str, Any]:
        return track([1e3 * s for s in decode_seconds(self.engine, 1, context=context)])

    track_decode_ms_per_token.unit = "ms"
    track_decode_ms_per_token.rounds = ROUNDS


class PageSize:
    """One sequence grows after 1024 tokens, in pages of 16, 32 or 64."""

    params = (WHOLE[:1], PAGE_SIZES, DEVICES)
    param_names = ("model", "page_size", "device")
    timeout = 900

    def setup(self, model: str, page_size: int, device: str) -> None:
        self.engine = engine(model, device, CONTEXTS[0] + GROWTH, 1, page_size=page_size)

    def track_decode_ms_per_token(self, model: str, page_size: int, device: str) -> dict[str, Any]:
        return track([1e3 * s for s in decode_seconds(self.engine, 1, context=CONTEXTS[0])])

    track_decode_ms_per_token.unit = "ms"
    track_decode_ms_per_token.rounds = ROUNDS


class Size:
    """Larger models: a prompt of 128 tokens, and one sequence that grows."""

    params = (SIZES, DEVICES)
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


class FirstToken:
    """The parts of time to first token other than loading (`startup`) and the prompt (`Prompt`).

    They run on the host: turning a text of 512 tokens into ids, and sampling a token from logits.
    """

    params = (MODELS, PARTS)
    param_names = ("model", "part")

    def setup(self, model: str, part: str) -> None:
        tokenizer = Tokenizer.from_gguf(model_path(model))
        if part == "tokenize":
            ids = tokenizer.encode(held_out_text().decode()[:10_000], add_bos=False)[:512]
            self.call = functools.partial(tokenizer.encode, tokenizer.decode(ids))
        else:
            logits = np.random.default_rng(0).standard_normal(tokenizer.vocab_size, np.float32)
            self.call = functools.partial(Sampler(SamplingParams()).sample, logits, [1])

    def track_ms(self, model: str, part: str) -> dict[str, Any]:
        return track([1e3 * s for s in seconds_per_call(self.call)])

    track_ms.unit = "ms"
    track_ms.rounds = ROUNDS


class PeakMemory:
    """Most resident memory of a process that loads a model, reads 256 tokens and writes 16."""

    params = (MODELS, DEVICES)
    param_names = ("model", "device")
    timeout = 900

    def setup(self, model: str, device: str) -> None:
        self.engine = engine(model, device, 256 + 16, 1)

    def peakmem_generate(self, model: str, device: str) -> None:
        ids = prompt_ids(self.engine, 256)
        for _ in self.engine.generate([ids], SamplingParams(max_tokens=16)):
            pass
