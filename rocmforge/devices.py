"""The devices of this machine, and the backend for one of them.

A device that was asked for and cannot be had is an error that says why, never a silent change to
another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rocmforge import env
from rocmforge.cpu.backend import CpuBackend, available_threads, instruction_sets
from rocmforge.errors import DeviceError, RocmforgeError
from rocmforge.gpu import cuda, hip
from rocmforge.gpu.choose_device import Choice as Choice
from rocmforge.gpu.choose_device import choose_device, why_unsupported
from rocmforge.gpu.context_ahead import opened_ahead
from rocmforge.gpu.packages import NVIDIA_DRIVER, has_amd_driver, has_nvidia_driver
from rocmforge.gpu.peers import MOST_RANKS, Way
from rocmforge.gpu.runtime import DeviceProperties, Runtime
from rocmforge.hardware import detect
from rocmforge.plan.protocols import Backend

if TYPE_CHECKING:  # 70 modules, which a start without a GPU need not wait for
    from rocmforge.gpu.compiler import Kernels

_LISTS: MappingProxyType[str, Callable[[], list[DeviceProperties]]] = MappingProxyType(
    {"hip": hip.devices, "cuda": cuda.devices}
)
_REACHES: MappingProxyType[str, Callable[[int, int], bool]] = MappingProxyType(
    {"hip": hip.reaches, "cuda": cuda.reaches}
)
_DRIVERS: MappingProxyType[str, Callable[[], bool]] = MappingProxyType(
    {"hip": has_amd_driver, "cuda": has_nvidia_driver}
)
_NO_DRIVER = MappingProxyType(
    {
        "hip": "no AMD GPU driver: neither /dev/kfd nor /dev/dxg is there",
        "cuda": f"no NVIDIA driver: {NVIDIA_DRIVER} is not there",
    }
)
_RUNTIMES: MappingProxyType[str, Callable[[int], Runtime]] = MappingProxyType(
    {"hip": hip.HipRuntime, "cuda": cuda.CudaRuntime}
)


@dataclass(frozen=True)
class Device:
    """One device that a model could run on.

    Parameters
    ----------
    kind
        What to pass as `device`: "cpu", "hip:0", "cuda:1" …
    name
        What its maker calls it.
    detail
        What decides its speed: instruction sets and cores, or architecture and memory.
    usable
        Whether ROCmForge can run on it as things are.
    """

    kind: str
    name: str
    detail: str
    usable: bool


@dataclass(frozen=True)
class Sums:
    """How fast GPUs sum what each has, as split mode tensor does for each token.

    Parameters
    ----------
    devices
        Their names; they are alike.
    seconds
        Of a sum of `exchange_time.TOKEN` float32, by each way that they can take.
    why_not
        Why nothing was measured; None where something was.
    """

    devices: tuple[str, ...]
    seconds: Mapping[Way, float]
    why_not: str | None = None


def likeness(kind: str, gpu: DeviceProperties) -> str:
    """Say what GPUs that are alike have in common: kernels and their grids follow from it."""
    return f"{kind} {gpu.name} ({gpu.architecture}, {gpu.compute_units} compute units)"


def alike_gpus() -> list[tuple[str, ...]]:
    """Return the names of usable GPUs that are alike, two and more together."""
    found: dict[str, list[str]] = {}
    for kind, gpus in _LISTS.items():
        for gpu in gpus():
            if why_unsupported(kind, gpu.architecture) is None:
                found.setdefault(likeness(kind, gpu), []).append(f"{kind}:{gpu.index}")
    return [tuple(names) for names in found.values() if len(names) > 1]


def measured_sums() -> list[Sums]:
    """Measure how fast GPUs that are alike sum what each has, up to `MOST_RANKS` of each kind."""
    return [_sums(names[:MOST_RANKS]) for names in alike_gpus()]


def _sums(names: tuple[str, ...]) -> Sums:
    from rocmforge.gpu.exchange_time import exchange_seconds

    try:
        with ExitStack() as resources:
            return Sums(names, exchange_seconds(open_kernels(names, resources)))
    except RocmforgeError as error:
        return Sums(names, {}, str(error))


def list_devices() -> list[Device]:
    """Return the devices found on this machine, usable ones first.

    Where there is no GPU, or none that a runtime finds, a line for each kind says why.
    """
    here = detect()
    sets, wanted = ", ".join(instruction_sets()), env.cpu_isa()
    chosen = f"{wanted} (ROCMFORGE_CPU_ISA) of " if wanted else ""
    detail = f"{available_threads()} cores; {chosen}{sets}"
    found = [Device("cpu", here.cpu_name or "unknown CPU", detail, usable=True)]
    for kind, gpus in _LISTS.items():
        own = gpus()
        found += [_listed(kind, gpu, own) for gpu in own]
    if len(found) == 1:
        card = here.gpu_name is not None or here.gpu_architecture is not None
        architecture = here.gpu_architecture or "unknown architecture"
        its_kind = "cuda" if architecture.startswith("sm_") else "hip"
        for kind in _LISTS:
            name, why = "none found", _why_none(kind)
            if card and kind == its_kind:
                name, why = here.gpu_name or "unknown GPU", f"{architecture}; {why}"
            found.append(Device(kind, name, why, usable=False))
    return sorted(found, key=lambda device: not device.usable)


def default_device(device: str | None = None) -> Choice:
    """Say which device a name means, and why.

    Parameters
    ----------
    device
        "auto", "cpu", "hip", "cuda", or a GPU with its number, as "hip:1"; None:
        `ROCMFORGE_DEVICE`. "auto" is the best GPU that the kernels support, else the CPU.

    Raises
    ------
    ValueError
        `device` is none of these.
    DeviceError
        The GPU that was asked for is not there or not supported.
    """
    wanted = env.device() if device is None else device
    kind, index = env.split_device(wanted)
    if kind == "auto":  # vendors' packages are loaded only where they could find something
        kinds = [name for name in _LISTS if _DRIVERS[name]()]
    else:
        kinds = [name for name in _LISTS if name == kind]
    found = {name: _LISTS[name]() for name in kinds}
    if kind in found and not found[kind]:
        raise DeviceError(f"device {wanted!r}: {_why_none(kind)}")
    choice = choose_device(found, kind, index)
    if kind == "auto" and choice.device is None:  # a driver without its runtime or package
        why = "; ".join(_why_missing(name) for name in kinds if not found[name])
        return replace(choice, reason=f"{choice.reason}: {why}") if why else choice
    return choice


def chosen_devices(device: str | Sequence[str] | None = None) -> list[Choice]:
    """Say which devices a model is to lie on, first layers first.

    Parameters
    ----------
    device
        As in `default_device`; or several different GPUs, as "hip:0,hip:1" or ["hip:0", "hip:1"].

    Raises
    ------
    ValueError
        One is none of these, or of several one is no GPU, or is there twice.
    DeviceError
        A GPU that was asked for is not there or not supported.
    """
    names = env.split_devices(device) if isinstance(device, str) else device
    if names is None or len(names) == 1:
        return [default_device(names[0] if names else None)]
    if not names:
        raise ValueError("device: got no name, wanted at least one")
    for name in names:
        if env.split_device(name)[0] not in env.GPU_KINDS:
            raise ValueError(
                f"device: got {name!r} of {len(names)} devices, wanted GPUs, as hip:0,hip:1; "
                "gpu_layers (--gpu-layers) puts layers on the CPU beside them"
            )
    found = [default_device(name) for name in names]
    given = [choice.name for choice in found]
    twice = [name for at, name in enumerate(given) if name in given[:at]]
    if twice:
        raise ValueError(f"device: got {twice[0]} twice, wanted different GPUs")
    return found


def open_backend(device: str | None = None, threads: int | None = None) -> Backend[Any]:
    """Return the backend of a device.

    Parameters
    ----------
    device
        As in `default_device`.
    threads
        CPU threads; None: `ROCMFORGE_THREADS`, else the cores that this process may run on.

    Raises
    ------
    ValueError
        `device` is none of these.
    DeviceError
        The device is not there or not supported.
    """
    return open_chosen(default_device(device), threads)


def open_chosen(choice: Choice, threads: int | None = None) -> Backend[Any]:
    """Return the backend of a device that was chosen; see `open_backend`."""
    if choice.device is None:
        with opened_ahead():  # a GPU that was opened for nothing
            return CpuBackend(threads)
    from rocmforge.gpu.backend import GpuBackend
    from rocmforge.gpu.compiler import Kernels
    from rocmforge.gpu.tuning import load_tuning

    with opened_ahead():
        runtime = _RUNTIMES[choice.kind](choice.device.index)
    try:
        return GpuBackend(Kernels(runtime, tuning=load_tuning(choice.device)))
    except BaseException:  # Ctrl-C too
        runtime.close()
        raise


def open_kernels(names: Sequence[str], resources: ExitStack) -> list[Kernels]:
    """Open GPUs by their names, until `resources` end; errors as of `open_backend`."""
    from rocmforge.gpu.backend import GpuBackend

    kernels = []
    for name in names:
        backend = open_backend(name)
        resources.callback(backend.close)
        if isinstance(backend, GpuBackend):
            kernels.append(backend.kernels)
    return kernels


def _listed(kind: str, gpu: DeviceProperties, gpus: Sequence[DeviceProperties]) -> Device:
    from rocmforge.gpu.tuning import load_tuning

    memory = f"{gpu.memory_bytes / 2**30:.0f} GiB"
    unfit = None
    architecture = gpu.architecture
    if kind == "hip":
        unfit = hip.misfit()
        overrides = ", ".join(f"{name}={value}" for name, value in env.gfx_overrides().items())
        architecture += f" ({overrides})" if overrides else ""
    details = [architecture, f"{gpu.compute_units} compute units", memory]
    if gpu.integrated:
        details.append("integrated")
    others = [other.index for other in gpus if other.index != gpu.index]
    reached = [f"{kind}:{other}" for other in others if _REACHES[kind](gpu.index, other)]
    if others:
        details.append(f"peer access to {', '.join(reached) or 'no other GPU'}")
    if unfit:
        details.append(unfit)
    tuned = load_tuning(gpu).date
    if tuned:
        details.append(f"tuned {tuned[:10]}")
    why_not = why_unsupported(kind, gpu.architecture)
    if why_not:
        details.append(f"architecture {why_not}")
    return Device(f"{kind}:{gpu.index}", gpu.name, "; ".join(details), usable=why_not is None)


def _why_none(kind: str) -> str:
    """`_why_missing` for a line that names the kind already."""
    return re.sub(r"^device '\w+':? ", "", _why_missing(kind))


def _why_missing(kind: str) -> str:
    """What stands between this machine and a GPU of a kind."""
    if not _DRIVERS[kind]():  # what a runtime would say of its packages would not help
        return _NO_DRIVER[kind]
    try:
        _RUNTIMES[kind](0).close()
    except DeviceError as error:
        return str(error)
    return f"no {kind} device was found"
