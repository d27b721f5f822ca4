"""The models that benchmarks run: generated ones, the demo model, and the user's own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psutil

from rocmforge import env
from rocmforge.demo import demo_model
from rocmforge.model.synthetic import cached_model, plan_model

GENERATED = {
    "0.5B-Q4_K_M": ("0.5B", "Q4_K_M"),
    "1.1B-Q4_K_M": ("1.1B", "Q4_K_M"),
    "tiny-Q4_K_M": ("tiny", "Q4_K_M"),
    "tiny-moe-Q4_K_M": ("tiny-moe", "Q4_K_M"),
}
"""Models that the suite makes for itself: name → preset and mix. Tiny ones are for the tests."""

LARGE = ("3B-Q4_K_M", "7B-Q4_K_M", "8B-Q4_K_M", "13B-Q4_K_M")
"""Preset and mix of models that are made at first use, where memory and disk allow."""

EXPERTS = {
    "30B-A3B-4L-Q4_K_M": ("30B-A3B", "Q4_K_M", 4),
    "gpt-oss-20B-4L-MXFP4": ("gpt-oss-20B", "MXFP4", 4),
}
"""Mixtures of experts of 2 and 3 GB, made at first use: name → preset, mix and layers."""

WHOLE_EXPERTS = {
    "30B-A3B-Q4_K_M": ("30B-A3B", "Q4_K_M", None),
    "gpt-oss-20B-MXFP4": ("gpt-oss-20B", "MXFP4", None),
}
"""The same with all layers, of 12 and 19 GB."""

WINDOWED = {"gemma3-1B-Q4_K_M": ("gemma3-1B", "Q4_K_M", None)}
"""A model with attention windows, of 0.8 GB, made at first use."""

GRIDS = {"1.1B-IQ3_S": ("1.1B", "IQ3_S", None)}
"""A model in a format of grids, of 0.5 GB, made at first use."""

_MADE: dict[str, tuple[str, str, int | None]] = {**EXPERTS, **WHOLE_EXPERTS, **WINDOWED, **GRIDS}

USER_MODEL = env.test_model()
DEMO = "demo-Q8_0"  # the trained model that comes with the package
MODELS = tuple(
    dict.fromkeys(["0.5B-Q4_K_M", "1.1B-Q4_K_M", DEMO, *([USER_MODEL.stem] if USER_MODEL else [])])
)
"""What `inference` runs; the user's own model is one more value, named after its file."""

SPARE_BYTES = 2 << 30  # memory and disk that a large model must leave
BYTES_PER_CORE = 2.6e9  # of weights that a CPU multiplies in a second or so


def model_path(name: str) -> Path:
    """Return a model's file, making it at first use; NotImplementedError where it is not there."""
    if USER_MODEL is not None and name == USER_MODEL.stem:
        if not USER_MODEL.is_file():
            raise NotImplementedError(f"{env.test_model_name()}: {USER_MODEL} is not a file")
        return USER_MODEL
    if name == DEMO:
        return demo_model()
    if name in (*LARGE, *_MADE):
        return large_model(name)
    preset, mix = GENERATED[name]
    return cached_model(preset, mix)


def large_model(name: str) -> Path:
    """Make a large model at first use; NotImplementedError where disk or memory is too small."""
    preset, mix, layers = _MADE.get(name) or (*name.split("-", 1), None)
    wanted = plan_model(preset, mix, layers=layers).nbytes + SPARE_BYTES
    memory = psutil.virtual_memory().available
    if memory < wanted:
        raise NotImplementedError(
            f"{name}: got {memory / 1e9:.0f} GB of memory, wanted {wanted / 1e9:.0f}"
        )
    folder = env.cache_folder("models")
    disk = shutil.disk_usage(folder).free
    made = any(folder.glob(f"{name}-*.gguf"))
    if disk < wanted and not made:
        raise NotImplementedError(
            f"{name}: got {disk / 1e9:.0f} GB of disk, wanted {wanted / 1e9:.0f}"
        )
    return cached_model(preset, mix, layers=layers)


def refuse_slow(name: str, device: str) -> None:
    """Raise NotImplementedError for a model of LARGE that takes minutes on this CPU."""
    cores = len(os.sched_getaffinity(0))
    if device == "cpu" and name in LARGE:
        nbytes = plan_model(*name.split("-", 1)).nbytes
        if nbytes > cores * BYTES_PER_CORE:
            raise NotImplementedError(
                f"{name}: got {cores} cores, wanted {-(-nbytes // int(BYTES_PER_CORE))}: "
                "it would take minutes"
            )
