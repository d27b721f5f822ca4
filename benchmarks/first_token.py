"""The parts of the time to the first token of a prompt of 512, each timed on its own.

The prompt's own part, `prefill`, is the host's time of the whole pass, so that the embedding and
both copies are in it; these three are timed on the device where they are its work.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rocmforge.demo import held_out_text
from rocmforge.engine import Engine
from rocmforge.gpu.executor import LEAST_ROOM
from rocmforge.gpu.input_block import InputBlock
from rocmforge.gpu.lowering import GEMV_ROWS
from rocmforge.gpu.replay import Replay
from rocmforge.gpu.runtime import Runtime
from rocmforge.sampling import Sampler, SamplingParams
from rocmforge.speed.sequences import prefill_seconds, random_ids
from rocmforge.text.tokenizer import Tokenizer
from rocmforge.timing import collect, seconds_per_call

from . import inference
from .devices import DEVICES, device_name
from .models import DEMO, MODELS, model_path
from .samples import ROUNDS, track

TOKENS = 512
SHOWN = (MODELS[0], *(name for name in MODELS[2:] if name != DEMO))  # one size, and the user's
ON_HOST = "the CPU's arrays are the host's: nothing is copied"


def load(model: str, device: str) -> list[float]:
    """Open the device and the file, pack the weights, until a prompt could come."""

    def loaded() -> float:
        begin = time.perf_counter()
        engine = Engine.from_gguf(model_path(model), device_name(device))
        seconds = time.perf_counter() - begin
        engine.close()
        return seconds

    return collect(loaded)


def tokenize(model: str, device: str) -> list[float]:
    """Turn a text into token ids; work of the host."""
    device_name(device)
    tokenizer = Tokenizer.from_gguf(model_path(model))
    ids = tokenizer.encode(held_out_text().decode()[:10_000], add_bos=False)[:TOKENS]
    text = tokenizer.decode(ids)
    return seconds_per_call(lambda: tokenizer.encode(text))


def embedding(model: str, device: str) -> list[float]:
    """Look the tokens up: the step of the pass that does it, fused as in the pass."""
    engine = inference.engine(model, device, TOKENS, 1)
    sequence = engine.add_sequence(TOKENS)
    timed = engine.timed_pass([sequence], [random_ids(engine, TOKENS)])
    try:
        (step,) = (step for step in timed.steps if step.label.startswith("embed"))
        return collect(step.seconds)
    finally:
        timed.close()
        engine.remove_sequence(sequence)


def host_to_device(model: str, device: str) -> list[float]:
    """Copy what describes the batch: one block of tokens, positions, pages."""
    engine, runtime = _on_gpu(model, device)
    pages = -(-engine.ctx // engine.cache.table.page_size)
    block = InputBlock(runtime, pages, LEAST_ROOM, GEMV_ROWS, windowed=False)
    try:
        block.grow(TOKENS, 1)
        return _replayed(runtime, block.send)
    finally:
        block.close()


def prefill(model: str, device: str) -> list[float]:
    """Run the prompt, from the call until its last token's logits are there."""
    engine = inference.engine(model, device, TOKENS, 1)
    return inference.prompt_samples(lambda: prefill_seconds(engine, TOKENS), TOKENS)


def device_to_host(model: str, device: str) -> list[float]:
    """Copy the logits of one token."""
    engine, runtime = _on_gpu(model, device)
    nbytes = 4 * engine.config.vocab_size
    source, target = runtime.allocate(nbytes), runtime.allocate_pinned(nbytes)
    try:
        return _replayed(runtime, lambda stream: runtime.copy_to_host(target, source, stream))
    finally:
        runtime.free(source)
        runtime.free_pinned(target)


def first_token(model: str, device: str) -> list[float]:
    """Choose a token from logits; work of the host."""
    device_name(device)
    vocabulary = Tokenizer.from_gguf(model_path(model)).vocab_size
    logits = np.random.default_rng(0).standard_normal(vocabulary, np.float32)
    sampler = Sampler(SamplingParams())
    return seconds_per_call(lambda: sampler.sample(logits, [1]))


PARTS: dict[str, Callable[[str, str], list[float]]] = {
    part.__name__: part
    for part in (
        load,
        tokenize,
        embedding,
        host_to_device,
        prefill,
        device_to_host,
        first_token,
    )
}
"""Name of a part, and what takes samples of it, in seconds, in the order in which they come."""


@functools.cache
def samples(model: str, part: str, device: str) -> list[float]:
    """Take samples of a part once a process, in seconds; NotImplementedError where it has none."""
    return PARTS[part](model, device)


class FirstToken:
    """One part of the time to the first token."""

    params = (SHOWN, tuple(PARTS), DEVICES)
    param_names = ("model", "part", "device")
    timeout = 900

    def setup(self, model: str, part: str, device: str) -> None:
        samples(model, part, device)

    def track_ms(self, model: str, part: str, device: str) -> dict[str, Any]:
        return track([1e3 * s for s in samples(model, part, device)])

    track_ms.unit = "ms"
    track_ms.rounds = ROUNDS


class _Copy:
    """A copy as a replay takes it."""

    def __init__(self, enqueue: Callable[[Any], None]) -> None:
        self._enqueue = enqueue

    def enqueue(self, runtime: Runtime, stream: Any = None) -> None:
        """Put it on a stream."""
        self._enqueue(stream)


def _replayed(runtime: Runtime, enqueue: Callable[[Any], None]) -> list[float]:
    """Device time of a copy."""
    replay = Replay(runtime, [_Copy(enqueue)], 1)
    try:
        return collect(replay.seconds)
    finally:
        replay.close()


def _on_gpu(model: str, device: str) -> tuple[Engine, Runtime]:
    if device == "cpu":
        raise NotImplementedError(ON_HOST)
    engine = inference.engine(model, device, TOKENS, 1)
    runtime: Runtime = engine.backend.kernels.runtime
    return engine, runtime
