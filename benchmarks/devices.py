"""The devices of the benchmarks: `cpu` and `gpu`, their backends, and the clock of each.

A benchmark of a device that is not there raises NotImplementedError, for which asv shows n/a.
"""

from __future__ import annotations

import functools
import time
from typing import Any

from rocmforge import env
from rocmforge.devices import default_device, open_backend
from rocmforge.plan.protocols import Backend

from . import recording

DEVICES = ("cpu", "gpu")


@functools.cache
def device_name(device: str) -> str:
    """Turn a benchmark's parameter into a device of the engine.

    "gpu" is the one that ROCMFORGE_DEVICE names, or else the best.

    Raises
    ------
    NotImplementedError
        "gpu" where no GPU can be used: asv then shows n/a.
    """
    if device == "cpu":
        return "cpu"
    named = env.split_device(env.device())[0] in env.GPU_KINDS
    choice = default_device(None if named else "auto")
    if choice.device is None:
        raise NotImplementedError(choice.reason.removeprefix("the CPU: "))
    name = f"{choice.kind}:{choice.device.index}"
    recording.watch_gpu(name)
    return name


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
    opened = open_backend(device_name(device))
    _opened[device] = opened
    return opened


_opened: dict[str, Backend[Any]] = {}  # asv runs one device a process


def clock() -> float:
    """Seconds for `timer` of benchmarks that call ops: of the GPU where one was opened, else ours.

    A GPU's are the device time of its kernels, between events, without copies from and to the host.
    """
    gpu = _opened.get("gpu")
    return gpu.seconds() if gpu else time.perf_counter()
