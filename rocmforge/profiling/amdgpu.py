"""Samples of an AMD GPU: from amdsmi, where that is installed, and from files of the kernel driver.

What amdsmi does not tell is read from the files. It alone says why the GPU throttles.
"""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rocmforge.profiling import gpu_environment
from rocmforge.profiling.gpu_environment import GpuSample
from rocmforge.profiling.polling import Poller

# amdgpu_smu.h of Linux, SMU_THROTTLER_*: first bit of each group of 16
_REASONS = ((0, "power cap"), (16, "current"), (32, "temperature"), (48, "firmware"))
_READINGS = {
    "clock_mhz": ("current_gfxclk", "current_gfxclks"),
    "memory_clock_mhz": ("current_uclk",),
    "power_watts": ("current_socket_power", "average_socket_power"),
    "temperature_celsius": ("temperature_hotspot", "temperature_edge"),
    "utilization": ("average_gfx_activity",),
}
"""Fields of a sample, and amdsmi's names for them, the first that is told."""
_LACKING = (2**16 - 1, 2**32 - 1, 2**64 - 1)
_RESIDENCIES = {
    "ppt_residency_acc": "power cap",
    "prochot_residency_acc": "hardware temperature",
    "socket_thm_residency_acc": "temperature",
    "vr_thm_residency_acc": "temperature",
    "hbm_thm_residency_acc": "temperature",
}


class Amdgpu:
    """The driver's files of a card, and amdsmi's metrics where that is installed.

    Parameters
    ----------
    folder, node
        From `amdgpu_folder`.
    root
        Directory under which ``sys`` is looked up.
    """

    def __init__(self, folder: Path, node: Path, root: Path) -> None:
        self._folder, self._node, self._root = folder, node, root
        self._metrics = _amdsmi_metrics(folder.resolve().name)
        self.name = "sysfs, amdsmi" if self._metrics else "sysfs"
        self._first: list[GpuSample] = []
        self._poller: Poller[GpuSample] | None = None

    def samples(self) -> list[GpuSample]:
        """Look once."""
        return [self._sample()]

    def end(self) -> None:
        """Nothing to do: files are open only while they are read."""

    def before(self) -> tuple[float | None, int | None]:
        """Return utilization and number of processes, and begin to watch."""
        others = kfd_processes(self._root, self._node)
        busy = gpu_environment.settled(lambda: amdgpu_sample(self._folder).utilization)
        self._first = self.samples()
        self._poller = Poller(lambda: self, gpu_environment.PERIOD_S, at_once=False)
        return busy, others

    def take(self) -> list[GpuSample]:
        """Return the samples since the last call; the next ones begin with one of this moment.

        Counters are compared with those of the first sample, however short the watch is.
        """
        first, self._first = self._first, self.samples()
        return first + (self._poller.take() if self._poller else [])

    def close(self) -> list[GpuSample]:
        """Stop watching; return the samples since the last `take` and one of this moment."""
        if self._poller:
            self._poller.close()
        return self._first + (self._poller.take() if self._poller else [])

    def _sample(self) -> GpuSample:
        read = amdgpu_sample(self._folder)
        found = {} if self._metrics is None else amdsmi_readings(self._metrics())
        return dataclasses.replace(read, **found, at=time.perf_counter())


def amdgpu_sample(folder: Path) -> GpuSample:
    """Read the files of an AMD GPU's device folder.

    Source: the kernel's documentation of amdgpu, "Thermal Controls" and "hwmon interfaces".
    """
    hwmon = next(iter(sorted(folder.glob("hwmon/hwmon*"))), folder / "hwmon")
    busy = _integer(folder / "gpu_busy_percent")
    power = _first(hwmon, ("power1_average", "power1_input"))  # µW
    temperature = _first(hwmon, ("temp2_input", "temp1_input"))  # junction, edge; m°C
    clock, memory_clock = (_integer(hwmon / f"freq{i}_input") for i in (1, 2))  # Hz
    return GpuSample(
        clock_mhz=None if clock is None else clock / 1e6,
        memory_clock_mhz=None if memory_clock is None else memory_clock / 1e6,
        power_watts=None if power is None else power / 1e6,
        temperature_celsius=None if temperature is None else temperature / 1e3,
        utilization=None if busy is None else busy / 100,
        memory_used_bytes=_integer(folder / "mem_info_vram_used"),
    )


def amdsmi_readings(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Read amdsmi_get_gpu_metrics_info, as fields of `GpuSample`; what it lacks is left out.

    Clocks are MHz, power W, temperature °C, activity %. An MI300 has a clock for each of its dies,
    of which the highest is taken. A field that a card lacks is ``"N/A"``, or all ones.
    """
    found: dict[str, Any] = {
        name: value
        for name, keys in _READINGS.items()
        if (value := next((v for k in keys if (v := _told(metrics.get(k))) is not None), None))
        is not None
    }
    if "utilization" in found:
        found["utilization"] /= 100
    reasons, counters = amd_throttle(metrics)
    if reasons is not None:
        found["throttle"] = reasons
    return found | ({"residencies": counters} if counters else {})


def _told(value: object) -> float | None:
    """Return a reading, the highest of several; None where the card lacks it."""
    several = value if isinstance(value, list | tuple) else [value]
    known = [
        float(v)
        for v in several
        if isinstance(v, int | float) and not isinstance(v, bool) and v >= 0 and v not in _LACKING
    ]
    return max(known, default=None)


def amd_throttle(metrics: Mapping[str, Any]) -> tuple[frozenset[str] | None, dict[str, int]]:
    """Read amdsmi_get_gpu_metrics_info: reasons at this moment, and counters by reason.

    Radeon and MI200 give ``indep_throttle_status``, a mask; MI300 counters that grow while it
    throttles. A field that a card lacks is ``"N/A"``, or all ones.
    """
    mask = metrics.get("indep_throttle_status")
    reasons = None
    if isinstance(mask, int) and 0 <= mask < 2**64 - 1:
        reasons = frozenset(name for bit, name in _REASONS if mask >> bit & 0xFFFF)
    counters: dict[str, int] = {}
    for key, reason in _RESIDENCIES.items():
        value = metrics.get(key)
        if isinstance(value, int) and 0 <= value < 2**64 - 1:
            counters[reason] = counters.get(reason, 0) + value
    return reasons, counters


def kfd_processes(root: Path, node: Path) -> int | None:
    """Count the other processes that hold memory of the GPU of a topology node of the driver."""
    gpu, listed = _integer(node / "gpu_id"), root / "sys/class/kfd/kfd/proc"
    if gpu is None or not listed.is_dir():
        return None
    held = {p.parent.name: _integer(p) for p in listed.glob(f"*/vram_{gpu}")}
    return sum(1 for pid, used in held.items() if used and pid != str(os.getpid()))


def amdgpu_folder(root: Path, number: int) -> tuple[Path, Path] | None:
    """Device folder and topology node of the runtime's GPU of that number; None: there is none.

    The runtime numbers GPUs in the order of the driver's topology, by the nodes that this process
    may read. The folder is the one at the node's PCI address: a partition of a card, which has a
    node and a render device of its own, has its clocks and counters there too.
    """
    nodes = (root / "sys/class/kfd/kfd/topology/nodes").glob("[0-9]*")
    gpus = []
    for node in sorted(nodes, key=lambda path: int(path.name)):
        text = _text(node / "properties")
        location = re.search(r"^location_id (\d+)$", text, re.M)
        domain = re.search(r"^domain (\d+)$", text, re.M)  # older kernels have none
        if location and re.search(r"^gfx_target_version [1-9]", text, re.M):
            gpus.append((int(domain[1]) if domain else 0, int(location[1]), node))
    if number >= len(gpus):
        return None
    folder = root / "sys/bus/pci/devices" / _pci_address(*gpus[number][:2])
    return (folder if folder.is_dir() else folder.with_suffix(".0")), gpus[number][2]


def _pci_address(domain: int, location: int) -> str:
    """``0000:03:00.0``: bus, device and function are bits 15–8, 7–3 and 2–0 of a location_id.

    Of a partition some kernels put its number into the function; the card is function 0.
    """
    return f"{domain:04x}:{location >> 8 & 255:02x}:{location >> 3 & 31:02x}.{location & 7:x}"


def _amdsmi_metrics(address: str) -> Callable[[], Mapping[str, Any]] | None:
    """Return a call for the metrics of the GPU at that PCI address; None without amdsmi."""
    try:
        import amdsmi
    except (ImportError, OSError, KeyError):  # its library is looked up at import
        return None
    try:
        amdsmi.amdsmi_init()
        for handle in amdsmi.amdsmi_get_processor_handles():
            if amdsmi.amdsmi_get_gpu_device_bdf(handle).lower() == address.lower():
                break
        else:
            return None
    except amdsmi.AmdSmiException:
        return None

    def metrics() -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = amdsmi.amdsmi_get_gpu_metrics_info(handle)
        except amdsmi.AmdSmiException:
            return {}
        return found

    return metrics


def _first(folder: Path, names: Iterable[str]) -> int | None:
    found = (_integer(folder / name) for name in names)
    return next((value for value in found if value is not None), None)


def _integer(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
