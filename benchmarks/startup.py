"""The time before the first prompt: importing, the command line's answer, loading a model.

Every sample is a process of its own. Files lie in the operating system's cache, so that our work is
timed and not the disk's. On a GPU loading includes opening the device; its kernels were compiled
before and come from `ROCMFORGE_CACHE`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

from rocmforge.timing import collect

from .devices import DEVICES, device_name
from .models import MODELS, model_path
from .samples import track

MODULES = ("rocmforge", "rocmforge.cli", "rocmforge.ops", "rocmforge.engine")
FEWEST = 8  # processes
BUDGET_S = 4.0
IMPORT = """
import importlib, sys, time
begin = time.perf_counter()
importlib.import_module(sys.argv[1])
print(time.perf_counter() - begin)
"""
LOAD = """
import sys, time
from rocmforge.engine import Engine
begin = time.perf_counter()
engine = Engine.from_gguf(sys.argv[1], sys.argv[2])
print(time.perf_counter() - begin)
engine.close()
"""


def python(*arguments: str) -> str:
    """Run Python with neither the working directory nor PYTHONPATH; what it printed."""
    done = subprocess.run(
        [sys.executable, "-I", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def milliseconds(*arguments: str) -> dict[str, Any]:
    """Samples of what a program prints: the seconds that it took."""
    samples = collect(lambda: float(python("-c", *arguments)), fewest=FEWEST, budget=BUDGET_S)
    return track([1e3 * s for s in samples])


class Import:
    """`import`, the interpreter's own start left out."""

    params = MODULES
    param_names = ("module",)

    def track_import_ms(self, module: str) -> dict[str, Any]:
        return milliseconds(IMPORT, module)

    track_import_ms.unit = "ms"


class Help:
    """`rocmforge --help`, from starting the process until it has ended."""

    def track_help_ms(self) -> dict[str, Any]:
        def answer() -> float:
            begin = time.perf_counter()
            python("-m", "rocmforge", "--help")
            return 1e3 * (time.perf_counter() - begin)

        return track(collect(answer, fewest=FEWEST, budget=BUDGET_S))

    track_help_ms.unit = "ms"


class Load:
    """`Engine.from_gguf`, from opening the file until the first prompt could come."""

    params = (MODELS, DEVICES)
    param_names = ("model", "device")
    timeout = 900

    def setup(self, model: str, device: str) -> None:
        self.arguments = str(model_path(model)), device_name(device)

    def track_load_ms(self, model: str, device: str) -> dict[str, Any]:
        return milliseconds(LOAD, *self.arguments)

    track_load_ms.unit = "ms"
