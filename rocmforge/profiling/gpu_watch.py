"""Watches one GPU from its first use to the end of a measurement, by its vendor's tools.

The runtime numbers GPUs differently from the vendor's tools: it is asked for the PCI address.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from rocmforge import env
from rocmforge.gpu import cuda
from rocmforge.profiling.amdgpu import Amdgpu, amdgpu_folder
from rocmforge.profiling.gpu_environment import GpuEnvironment, gpu_environment
from rocmforge.profiling.nvidia_smi import NvidiaSmi


def open_nvidia_smi(device: str) -> NvidiaSmi | None:
    """Return what reads an NVIDIA GPU; None without the program, or without the GPU."""
    _, index = env.split_device(device)
    program, address = shutil.which("nvidia-smi"), cuda.pci_address(index or 0)
    return NvidiaSmi(program, address) if program and address else None


def open_amdgpu(device: str, root: Path) -> Amdgpu | None:
    """Return what reads an AMD GPU; None where the driver shows none of that number."""
    _, index = env.split_device(device)
    number = env.visible_gpu(index or 0)
    folder = amdgpu_folder(root, int(number)) if number.isdecimal() else None
    return Amdgpu(*folder, root) if folder else None


class GpuWatch:
    """Watches one GPU from now until `end`.

    Parameters
    ----------
    device
        ``"hip:0"`` or ``"cuda:1"``, by the runtime's number.
    root
        Directory under which ``sys`` is looked up.
    """

    def __init__(self, device: str, root: Path) -> None:
        self._device = device
        kind, _ = env.split_device(device)
        self._source: NvidiaSmi | Amdgpu | None = (
            open_nvidia_smi(device) if kind == "cuda" else open_amdgpu(device, root)
        )
        self._before, self._others = self._source.before() if self._source else (None, None)

    def restart(self) -> None:
        """Forget what was seen until now, but for the moment before the first use."""
        if self._source:
            self._source.take()

    def end(self) -> GpuEnvironment:
        """Stop watching and return what was seen."""
        samples = self._source.close() if self._source else []
        return gpu_environment(
            self._device,
            self._source.name if self._source else "none",
            samples,
            utilization_before=self._before,
            other_processes=self._others,
        )
