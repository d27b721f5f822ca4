"""A whole model: time to first token, prefill, decode of 1 to 8 sequences, peak memory.

The model is loaded and its logits are checked before anything is timed. Loading and tokenizing
are not in the times. Random weights and random prompts: speed depends on neither.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import numpy as np

from rocmforge.engine import Engine
from rocmforge.gguf.reader import GGUFFile
from rocmforge.model.config import ModelConfig
from rocmforge.sampling import SamplingParams
from rocmforge.timing import collect

from .common import DEVICES, MODELS, ROUNDS, device_name, model_path, open_engine, track

PROMPTS = (32, 128, 256, 512, 2048)
BATCHES = (1, 4, 8)
DECODE_CONTEXT = 64  # tokens in each sequence before the first decode step
DECODE_STEPS = 48  # at most: samples a process
BUDGET_S = 2.0  # of sampling, a process


@functools.cache
def engine(model: str, device: str, ctx: int, sequences: int) -> Engine:
    """Load and check a model once per process; NotImplementedError where it cannot run here."""
    device_name(device)
    with GGUFFile(model_path(model)) as file:
        trained = ModelConfig.from_gguf(file).ctx_train
    if ctx > trained:
        raise NotImplementedError(f"{model}: {ctx} tokens, trained for {trained}")
    return open_engine(model, device, ctx, sequences)


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


def decode_seconds(on: Engine, batch: int, steps: int = DECODE_STEPS) -> list[float]:
    """Seconds of each step in which `batch` sequences grow by a token, the choice included."""
    sequences = [on.add_sequence(DECODE_CONTEXT + steps + 1) for _ in range(batch)]
    try:
        ids = [
            int(np.argmax(on.prefill(sequence, prompt_ids(on, DECODE_CONTEXT + i)[i:])))
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
        samples = collect(lambda: ttft(self.engine, tokens), budget=BUDGET_S)
        return track([1e3 * s for s in samples])

    def track_prefill_ms_per_token(self, model: str, tokens: int, device: str) -> dict[str, Any]:
        samples = collect(lambda: prefill_seconds(self.engine, tokens), budget=BUDGET_S)
        return track([1e3 * s / tokens for s in samples])

    def track_prefill_tokens_per_second(
        self, model: str, tokens: int, device: str
    ) -> dict[str, Any]:
        samples = collect(lambda: prefill_seconds(self.engine, tokens), budget=BUDGET_S)
        return track([tokens / s for s in samples])

    track_ttft_ms.unit = "ms"
    track_ttft_ms.rounds = ROUNDS
    track_prefill_ms_per_token.unit = "ms"
    track_prefill_ms_per_token.rounds = ROUNDS
    track_prefill_tokens_per_second.unit = "tokens/s"
    track_prefill_tokens_per_second.direction = "higher"
    track_prefill_tokens_per_second.rounds = ROUNDS


class Decode:
    """Some sequences grow by a token a step; per token means step time over sequences."""

    params = (MODELS, BATCHES, DEVICES)
    param_names = ("model", "batch", "device")
    timeout = 900

    def setup(self, model: str, batch: int, device: str) -> None:
        self.engine = engine(model, device, DECODE_CONTEXT + DECODE_STEPS + 1, batch)

    def track_decode_ms_per_token(self, model: str, batch: int, device: str) -> dict[str, Any]:
        return track([1e3 * s / batch for s in decode_seconds(self.engine, batch)])

    def track_decode_tokens_per_second(self, model: str, batch: int, device: str) -> dict[str, Any]:
        return track([batch / s for s in decode_seconds(self.engine, batch)])

    track_decode_ms_per_token.unit = "ms"
    track_decode_ms_per_token.rounds = ROUNDS
    track_decode_tokens_per_second.unit = "tokens/s"
    track_decode_tokens_per_second.direction = "higher"
    track_decode_tokens_per_second.rounds = ROUNDS


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
