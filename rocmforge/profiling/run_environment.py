"""The environment of a run: other load, clocks, throttling, versions, from its start to its end.

A `Watch` reads counters of the kernel when it begins and when it ends, and nothing in between: it
costs a measurement no time. What cannot be read is None, never a guess.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from rocmforge import env
from rocmforge.gpu import hip
from rocmforge.hardware import find_rocm, has_amd_gpu
from rocmforge.profiling.gpu_environment import GpuEnvironment, Spread, spread
from rocmforge.profiling.gpu_watch import GpuWatch

PACKAGES = ("numpy", "hip-python", "rocm-bindings-hip", "cuda-bindings", "nvidia-cuda-nvrtc")
_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class CpuTicks:
    """Seconds that some CPUs have spent since the machine started.

    Parameters
    ----------
    busy
        At work for anyone, this process included.
    stolen
        Wanted to work, while the hypervisor ran something else.
    """

    busy: float
    stolen: float


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters at one moment; None where the kernel does not show them."""

    wall: float
    own: float
    ticks: CpuTicks | None
    quota: float | None
    mhz: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RunEnvironment:
    """The environment of a run. None: this machine does not show it.

    Parameters
    ----------
    wall_seconds, own_cpu_seconds
        From start to end; the CPU time of this process and of children that have ended.
    cpus
        Logical CPUs that this process may run on.
    others_share
        CPU time of everything else on those CPUs, time stolen by the hypervisor included, as a
        share of wall time × CPUs: 0 … 1.
    quota_throttled_share
        Share of the wall time for which a CPU quota of the control group held this process back.
    cpu_mhz
        Frequencies of those CPUs when it began and when it ended.
    load_average
        Of the last minute, when it ended.
    governor
        Of the frequencies, e.g. ``"performance"``; several are joined by commas.
    gpus
        One entry for each GPU that was used.
    versions
        Of Python, kernel, drivers, ROCm, the HIP runtime that was used, and packages; those that
        are not there are left out. Under its own name also HSA_OVERRIDE_GFX_VERSION.
    """

    wall_seconds: float
    own_cpu_seconds: float
    cpus: int
    others_share: float | None
    quota_throttled_share: float | None
    cpu_mhz: Spread | None
    load_average: float | None
    governor: str | None
    gpus: tuple[GpuEnvironment, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)


BUSY = 0.1
"""Share of the CPUs that other processes may use before a measurement is doubtful."""


class Watch:
    """Looks at the machine now, and again when `end` is called.

    Parameters
    ----------
    root
        Directory under which ``proc``, ``sys`` and ``opt`` are looked up.
    """

    def __init__(self, root: Path = _ROOT) -> None:
        self._root = root
        self._cpus = tuple(sorted(os.sched_getaffinity(0)))
        self._gpus: dict[str, GpuWatch] = {}
        self.restart()

    def restart(self) -> None:
        """Begin anew: what went before does not count. GPUs stay watched."""
        self._begin = _reading(self._root, self._cpus)
        for gpu in self._gpus.values():
            gpu.restart()

    @property
    def seconds(self) -> float:
        """Wall time since the start."""
        return time.perf_counter() - self._begin.wall

    def add_gpu(self, device: str) -> None:
        """Watch a GPU too, ``"hip:0"`` or ``"cuda:1"``; call it before its first use."""
        if device not in self._gpus:
            self._gpus[device] = GpuWatch(device, self._root)

    def end(self) -> RunEnvironment:
        """Read the counters again and return what they say; GPUs are no longer watched."""
        end = _reading(self._root, self._cpus)
        gpus = tuple(gpu.end() for gpu in self._gpus.values())
        found = versions(self._root)
        if any(device.startswith("hip") for device in self._gpus) and (of_hip := hip.version()):
            found["hip"] = ".".join(map(str, of_hip))
        self._gpus = {}
        return environment_between(
            self._begin,
            end,
            len(self._cpus),
            load=load_average(self._root),
            governor=_governor(self._root, self._cpus),
            gpus=gpus,
            versions=found,
        )


def environment_between(
    begin: Reading,
    end: Reading,
    cpus: int,
    *,
    load: float | None = None,
    governor: str | None = None,
    gpus: Sequence[GpuEnvironment] = (),
    versions: Mapping[str, str] | None = None,
) -> RunEnvironment:
    """Conclude from two readings.

    Others' time is the busy time less our own plus what was stolen. The kernel counts in ticks of
    10 ms, so that over a few tenths of a second the share is good to some percent.
    """
    wall, own = end.wall - begin.wall, end.own - begin.own
    others = None
    if begin.ticks and end.ticks and wall > 0:
        busy = end.ticks.busy - begin.ticks.busy
        stolen = end.ticks.stolen - begin.ticks.stolen
        if busy > 0 or own < 0.05:  # counters that stand still are no counters
            others = min(max((busy - own + stolen) / (wall * cpus), 0.0), 1.0)
    quota = None
    if begin.quota is not None and end.quota is not None and wall > 0:
        quota = max((end.quota - begin.quota) / (wall * cpus), 0.0)
    return RunEnvironment(
        wall_seconds=wall,
        own_cpu_seconds=own,
        cpus=cpus,
        others_share=others,
        quota_throttled_share=quota,
        cpu_mhz=spread((*begin.mhz, *end.mhz)),
        load_average=load,
        governor=governor,
        gpus=tuple(gpus),
        versions=dict(versions or {}),
    )


def cpu_ticks(stat: str, cpus: Iterable[int], ticks_per_second: float) -> CpuTicks | None:
    """Add up what /proc/stat says of some CPUs; None where it lacks one of them.

    A line is ``cpu1 user nice system idle iowait irq softirq steal guest guest_nice`` in ticks;
    guests are counted in user and nice already. Source: proc_stat(5).
    """
    lines = re.findall(r"^cpu(\d+)((?: +\d+){4,})", stat, re.M)
    found = {int(number): [int(v) for v in values.split()] for number, values in lines}
    busy = stolen = 0
    for cpu in cpus:
        if cpu not in found:
            return None
        user, nice, system, _idle, _wait, irq, soft, steal = (*found[cpu], 0, 0, 0, 0)[:8]
        busy += user + nice + system + irq + soft
        stolen += steal
    return CpuTicks(busy / ticks_per_second, stolen / ticks_per_second)


def cpu_mhz(cpuinfo: str, cpus: Collection[int]) -> tuple[float, ...]:
    """Frequencies that /proc/cpuinfo gives for some CPUs; empty where it gives none (ARM)."""
    found = []
    for block in cpuinfo.split("\n\n"):
        number = re.search(r"^processor\s*:\s*(\d+)$", block, re.M)
        mhz = re.search(r"^cpu MHz\s*:\s*([\d.]+)$", block, re.M)
        if number and mhz and int(number[1]) in cpus:
            found.append(float(mhz[1]))
    return tuple(found)


def quota_throttled(cpu_stat: str) -> float | None:
    """Seconds that a control group's CPUs were held back by its quota, of its cpu.stat (v2)."""
    found = re.search(r"^throttled_usec (\d+)$", cpu_stat, re.M)
    return int(found[1]) / 1e6 if found else None


def nvidia_driver(version: str) -> str | None:
    """Version that /proc/driver/nvidia/version names: ``580.159.04``."""
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", version)
    return found[1] if found else None


def versions(root: Path = _ROOT) -> dict[str, str]:
    """Versions of what a measurement depends on; what is not there is left out."""
    nvidia = nvidia_driver(_read(root / "proc/driver/nvidia/version"))
    # beside an NVIDIA GPU alone, packages of ROCm are there for something else
    rocm = find_rocm(root) if nvidia is None or has_amd_gpu(root) else None
    found = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "rocm": rocm.version if rocm else "",
        "amdgpu": _read(root / "sys/module/amdgpu/version").strip(),
        "nvidia": nvidia,
    }
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return {name: version for name, version in found.items() if version} | env.gfx_overrides()


def _reading(root: Path, cpus: Collection[int]) -> Reading:
    own = os.times()
    group = re.search(r"^0::/(.*)$", _read(root / "proc/self/cgroup"), re.M)
    cpu_stat = _read(root / "sys/fs/cgroup" / group[1] / "cpu.stat") if group else ""
    return Reading(
        wall=time.perf_counter(),
        own=own.user + own.system + own.children_user + own.children_system,
        ticks=read_ticks(root, cpus),
        quota=quota_throttled(cpu_stat),
        mhz=read_mhz(root, cpus),
    )


def read_ticks(root: Path, cpus: Collection[int]) -> CpuTicks | None:
    """Read what some CPUs have spent until now; None where ``proc`` under `root` lacks it."""
    return cpu_ticks(_read(root / "proc/stat"), cpus, os.sysconf("SC_CLK_TCK"))


def read_mhz(root: Path, cpus: Collection[int]) -> tuple[float, ...]:
    """Read the frequencies of some CPUs; empty where neither ``proc`` nor ``sys`` shows them."""
    return cpu_mhz(_read(root / "proc/cpuinfo"), cpus) or _scaling_mhz(root, cpus)


def _scaling_mhz(root: Path, cpus: Iterable[int]) -> tuple[float, ...]:
    texts = (_read(_cpufreq(root, cpu) / "scaling_cur_freq").strip() for cpu in cpus)
    return tuple(int(text) / 1e3 for text in texts if text.isdecimal())


def _governor(root: Path, cpus: Iterable[int]) -> str | None:
    names = {_read(_cpufreq(root, cpu) / "scaling_governor").strip() for cpu in cpus}
    return ",".join(sorted(names - {""})) or None


def _cpufreq(root: Path, cpu: int) -> Path:
    return root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq"


def load_average(root: Path = _ROOT) -> float | None:
    """Return the load average of the last minute; None where ``proc`` under `root` lacks it."""
    found = re.match(r"\d+\.\d+", _read(root / "proc/loadavg"))
    return float(found[0]) if found else None


def _read(path: Path) -> str:
    """Text of a file of the kernel; empty where it is absent or unreadable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
