"""What all suites share: devices, the check before timing, sampling, the models of `inference`.

asv runs every combination of parameters in a process of its own and calls `setup` before every
timed call: whatever is heavy is made once per process by functions under `functools.cache`. Holds
no benchmark itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rocmforge import env
from rocmforge.backend import Backend
from rocmforge.demo import demo_model
from rocmforge.devices import list_devices, open_backend
from rocmforge.engine import Engine
from rocmforge.model.synthetic import cached_model
from rocmforge.testing import cached_reference_logits, check_close

DEVICES = ("cpu", "gpu")
GPU_KINDS = ("hip", "cuda")
ROUNDS = 2  # fresh processes whose samples are pooled
REPEAT = (4, 20, 1.0)  # of time_ benchmarks: fewest and most samples a process, seconds

GENERATED = {
    "0.5B-Q4_K_M": ("0.5B", "Q4_K_M"),
    "1.1B-Q4_K_M": ("1.1B", "Q4_K_M"),
    "tiny-Q4_K_M": ("tiny", "Q4_K_M"),
}
"""Models that the suite makes for itself: name → preset and mix. `tiny` is for the tests."""

USER_MODEL = env.test_model()
DEMO = "demo-Q8_0"  # the trained model that comes with the package
MODELS = tuple(
    dict.fromkeys(["0.5B-Q4_K_M", "1.1B-Q4_K_M", DEMO, *([USER_MODEL.stem] if USER_MODEL else [])])
)
"""What `inference` runs; the user's own model is one more value, named after its file."""

CHECK_IDS = tuple(3 + (7 * i * i + 11 * i) % 250 for i in range(67))
CHECK_LENGTHS = (64, 37, 9, 2)  # prompts: beginnings of CHECK_IDS, over one to three pages
CHECK_STEPS = 3  # decode steps of all of them together
CHECK_CTX = 256  # has room for them
LOGITS_TOLERANCE = 0.08  # activations rounded to int8 cost 0.02; llama.cpp's own distance is 0.06


@functools.cache
def device_name(device: str) -> str:
    """Turn a benchmark's parameter into a device of the engine.

    Raises
    ------
    NotImplementedError
        "gpu" where no GPU can be used: asv then shows n/a.
    """
    if device == "cpu":
        return "cpu"
    usable = {found.kind for found in list_devices() if found.usable}
    for kind in GPU_KINDS:
        if kind in usable:
            return kind
    raise NotImplementedError("no GPU that this version of ROCmForge can use")


def has_device(device: str) -> bool:
    """Whether benchmarks of that device run here rather than show n/a."""
    try:
        device_name(device)
    except NotImplementedError:
        return False
    return True


@functools.cache
def backend(device: str) -> Backend[Any]:
    """Return the backend of a device; NotImplementedError as `device_name`."""
    return open_backend(device_name(device))


def checked(
    what: str, call: Callable[[], np.ndarray], wanted: np.ndarray, tolerance: float
) -> Callable[[], np.ndarray]:
    """Run `call` once, compare with the reference, and return it for timing.

    Raises
    ------
    MeasurementError
        The result is wrong: the benchmark fails and records no time.
    """
    check_close(what, call(), wanted, tolerance)
    return call


def track(samples: list[float]) -> dict[str, Any]:
    """Hand samples of our own to asv, which stores them with median and 99 % interval."""
    return {"samples": samples, "number": 1}


def model_path(name: str) -> Path:
    """Return a model's file, making it at first use; NotImplementedError where it is not there."""
    if USER_MODEL is not None and name == USER_MODEL.stem:
        if not USER_MODEL.is_file():
            raise NotImplementedError(f"ROCFORGE_TEST_MODEL: {USER_MODEL} is not a file")
        return USER_MODEL
    if name == DEMO:
        return demo_model()
    preset, mix = GENERATED[name]
    return cached_model(preset, mix)


def check_engine(engine: Engine, path: Path) -> None:
    """Compare prompts, and decode steps of them together, with the numpy reference.

    Raises
    ------
    MeasurementError
        The logits are wrong.
    """
    wanted = cached_reference_logits(path, CHECK_IDS)
    sequences = [engine.add_sequence() for _ in CHECK_LENGTHS]
    try:
        lengths = list(CHECK_LENGTHS)
        for sequence, n in zip(sequences, lengths, strict=True):
            got = engine.prefill(sequence, CHECK_IDS[:n])
            check_close(
                f"logits of {path.name}, prompt of {n}", got, wanted[n - 1], LOGITS_TOLERANCE
            )
        for _ in range(CHECK_STEPS):
            step = engine.decode(sequences, [CHECK_IDS[n] for n in lengths])
            for got, n in zip(step, lengths, strict=True):
                check_close(
                    f"logits of {path.name}, decode at {n}", got, wanted[n], LOGITS_TOLERANCE
                )
            lengths = [n + 1 for n in lengths]
    finally:
        for sequence in sequences:
            engine.remove_sequence(sequence)


def open_engine(model: str, device: str, ctx: int, sequences: int = 1) -> Engine:
    """Load a model and check it; NotImplementedError where model or device is not there."""
    name = device_name(device)
    path = model_path(model)
    engine = Engine.from_gguf(path, name, ctx=max(ctx, CHECK_CTX), sequences=sequences)
    check_engine(engine, path)
    return engine
