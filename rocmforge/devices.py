"""The devices of this machine, and the backend for one of them.

This version computes on the CPU; asking for a GPU is an error that says so, never a silent change
of device. It knows no model and no op.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rocmforge import env
from rocmforge.backend import Backend
from rocmforge.cpu.backend import CpuBackend, available_threads, instruction_sets
from rocmforge.errors import DeviceError
from rocmforge.hardware import detect


@dataclass(frozen=True)
class Device:
    """One device that a model could run on.

    Parameters
    ----------
    kind
        "cpu", "hip" or "cuda": what to pass as `device`.
    name
        What its maker calls it.
    detail
        What decides its speed: instruction sets and cores, or architecture and memory.
    usable
        Whether this version of ROCmForge can run on it.
    """

    kind: str
    name: str
    detail: str
    usable: bool


def list_devices() -> list[Device]:
    """Return the devices found on this machine, usable ones first."""
    here = detect()
    detail = f"{available_threads()} cores; {', '.join(instruction_sets())}"
    found = [Device("cpu", here.cpu_name or "unknown CPU", detail, usable=True)]
    if here.gpu_name is not None:
        architecture = here.gpu_architecture or "unknown architecture"
        kind = "cuda" if architecture.startswith("sm_") else "hip"
        found.append(Device(kind, here.gpu_name, f"{architecture}; no GPU backend yet", False))
    return found


def open_backend(device: str | None = None, threads: int | None = None) -> Backend[Any]:
    """Return the backend of a device.

    Parameters
    ----------
    device
        "auto" (the best usable device), "cpu", "hip" or "cuda"; None: `ROCMFORGE_DEVICE`.
    threads
        CPU threads; None: `ROCMFORGE_THREADS`, else the cores that this process may run on.

    Raises
    ------
    ValueError
        `device` is none of these.
    DeviceError
        The device is not there or not supported.
    """
    wanted = env.device() if device is None else device
    if wanted not in env.DEVICES:
        raise ValueError(f"device: got {wanted!r}, wanted one of {', '.join(env.DEVICES)}")
    if wanted in ("auto", "cpu"):
        return CpuBackend(threads)
    raise DeviceError(
        f"device {wanted!r}: this version of ROCmForge has no {wanted} backend; "
        "use device 'cpu' (or 'auto')"
    )
