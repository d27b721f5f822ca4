"""Readings of an NVIDIA GPU through nvidia-ml-py, where that is installed."""

from __future__ import annotations

import importlib
import time
from typing import Any

from rocmforge import env
from rocmforge.gpu import cuda
from rocmforge.profiling.gpu_environment import GpuSample
from rocmforge.profiling.nvidia_smi import throttle_reasons


class Nvml:
    """One card.

    Parameters
    ----------
    nvml
        The module ``pynvml``.
    card
        Its handle.
    """

    name = "nvidia-ml-py"

    def __init__(self, nvml: Any, card: Any) -> None:
        self._nvml = nvml
        self._card = card

    def samples(self) -> list[GpuSample]:
        """Look once; what the card or the package does not tell is None."""
        clock = self._ask("nvmlDeviceGetClockInfo", 1)  # NVML_CLOCK_SM
        memory_clock = self._ask("nvmlDeviceGetClockInfo", 2)  # NVML_CLOCK_MEM
        power = self._ask("nvmlDeviceGetPowerUsage")  # mW
        busy = self._ask("nvmlDeviceGetUtilizationRates")  # %
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        mask = self._newest(
            "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
        )
        celsius = self._newest("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature", of=(0,))
        return [
            GpuSample(
                clock_mhz=clock,
                memory_clock_mhz=memory_clock,
                power_watts=None if power is None else power / 1e3,
                temperature_celsius=celsius,
                utilization=None if busy is None else busy.gpu / 100,
                memory_used_bytes=None if memory is None else memory.used,
                throttle=None if mask is None else throttle_reasons(mask),
                at=time.perf_counter(),
            )
        ]

    def end(self) -> None:
        """Nothing to do: others may be using the library in this process."""

    def joules(self) -> float | None:
        """Energy since the driver was loaded; None: the card has no such counter."""
        energy = self._ask("nvmlDeviceGetTotalEnergyConsumption")  # mJ
        return None if energy is None else float(energy) / 1e3

    def _newest(self, new: str, old: str, of: tuple[int, ...] = ()) -> Any:
        """Ask by a call's name of today, else by that of older ones, which CUDA 14 removes."""
        found = self._ask(new, *of)
        return self._ask(old, *of) if found is None else found

    def _ask(self, call: str, *arguments: int) -> Any:
        function = getattr(self._nvml, call, None)
        if function is None:
            return None
        try:
            return function(self._card, *arguments)
        except self._nvml.NVMLError:
            return None


def open_nvml(device: str) -> Nvml | None:
    """Return a card by the engine's name, ``"cuda:0"``; None without it, or without the package."""
    kind, index = env.split_device(device)
    address = cuda.pci_address(index or 0) if kind == "cuda" else None
    if address is None:
        return None
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        return Nvml(nvml, nvml.nvmlDeviceGetHandleByPciBusId(address.encode()))
    except nvml.NVMLError:
        return None
