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
        kind, index = env.split_device(device)
        self._source: NvidiaSmi | Amdgpu | None = None
        if kind == "cuda":
            program, address = shutil.which("nvidia-smi"), cuda.pci_address(index or 0)
            self._source = NvidiaSmi(program, address) if program and address else None
        elif (number := env.visible_gpu(index or 0)).isdecimal():
            folder = amdgpu_folder(root, int(number))
            self._source = Amdgpu(*folder, root) if folder else None
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
