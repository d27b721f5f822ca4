"""Checks before timing: results of ops and logits of models against the numpy reference.

A wrong result raises MeasurementError: the benchmark fails and records no time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rocmforge.engine import Engine
from rocmforge.errors import MeasurementError
from rocmforge.testing import cached_exact_logits, cached_reference_logits, check_close

from . import recording
from .devices import device_name

CHECK_IDS = tuple(3 + (7 * i * i + 11 * i) % 250 for i in range(67))
CHECK_LENGTHS = (64, 37, 9, 2)  # prompts: beginnings of CHECK_IDS, over one to three pages
CHECK_STEPS = 3  # decode steps of all of them together
CHECK_CTX = 256  # has room for them
LARGE_BYTES = 1 << 30  # of a file: the reference takes 20 s for 3B, minutes for 13B
LOGITS_TOLERANCE = 0.08  # activations rounded to int8 cost 0.02; llama.cpp's own distance is 0.06
EXPERT_MEDIAN = 0.25
"""Most that the median of a mixture's errors may be: where two experts of random weights come to
almost the same score, a rounding chooses the other, and the logits are those of another model."""
EXPERT_SINGLE = 0.9
"""Most that one of them may be: zeros are 1 away, other positions of gpt-oss 1.06 to 1.32."""


def checked(
    what: str, call: Callable[[], np.ndarray], wanted: np.ndarray, tolerance: float
) -> Callable[[], np.ndarray]:
    """Run `call` once, compare with the reference, and return it for timing.

    The error is noted, and the environment of the run counts from here on.

    Raises
    ------
    MeasurementError
        The result is wrong: the benchmark fails and records no time.
    """
    note_error(check_close(what, call(), wanted, tolerance))
    return call


def note_error(value: float) -> None:
    """Note a relative error against the reference; for suites that check in their own way.

    Call it before timing: the environment of the run counts from here on.
    """
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"error: got {value}, wanted a finite number of at least 0")
    recording.note(value)


def wanted_logits(path: Path) -> np.ndarray:
    """Return what a model is to answer to CHECK_IDS: by the reference, a large one by our CPU.

    The CPU's logits are those of exact products. Its kernels are compared with the reference on the
    smaller models.
    """
    if path.stat().st_size < LARGE_BYTES:
        return cached_reference_logits(path, CHECK_IDS)
    return cached_exact_logits(path, CHECK_IDS)


def check_engine(engine: Engine, path: Path) -> None:
    """Compare prompts, and decode steps of them together, with `wanted_logits`.

    Of a mixture of experts, the median error of the prompts and that of all comparisons count.

    Raises
    ------
    MeasurementError
        The logits are wrong.
    """
    wanted = wanted_logits(path)
    experts = engine.config.experts is not None
    tolerance = EXPERT_SINGLE if experts else LOGITS_TOLERANCE
    errors: list[float] = []

    def compare(what: str, got: np.ndarray, n: int) -> None:
        errors.append(check_close(f"logits of {path.name}, {what}", got, wanted[n], tolerance))
        note_error(errors[-1])

    sequences = [engine.add_sequence() for _ in CHECK_LENGTHS]
    try:
        lengths = list(CHECK_LENGTHS)
        for sequence, n in zip(sequences, lengths, strict=True):
            compare(f"prompt of {n}", engine.prefill(sequence, CHECK_IDS[:n]), n - 1)
        for _ in range(CHECK_STEPS):
            step = engine.decode(sequences, [CHECK_IDS[n] for n in lengths])
            for got, n in zip(step, lengths, strict=True):
                compare(f"decode at {n}", got, n)
            lengths = [n + 1 for n in lengths]
    finally:
        for sequence in sequences:
            engine.remove_sequence(sequence)
    for what, some in (("prompts", errors[: len(CHECK_LENGTHS)]), ("prompts and steps", errors)):
        middle = statistics.median_high(some)
        if experts and middle > EXPERT_MEDIAN:
            raise MeasurementError(
                f"logits of {path.name}, {what}: wrong results, not timed: got a median relative "
                f"RMS of {middle:.3g} against the reference, wanted at most {EXPERT_MEDIAN}"
            )


def open_engine(path: Path, device: str, ctx: int, **options: Any) -> Engine:
    """Load a model and check it; NotImplementedError where the device is not there.

    `options` are those of `Engine.from_gguf`.
    """
    name = device_name(device)
    wanted_logits(path)  # before this process holds the weights too
    engine = Engine.from_gguf(path, name, ctx=max(ctx, CHECK_CTX), **options)
    check_engine(engine, path)
    return engine
