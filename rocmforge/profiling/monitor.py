"""Watches a device while something runs: clocks, power, temperature, utilization, memory.

    with DeviceMonitor("hip:0") as monitor:
        engine.prefill(sequence, ids)
    print(monitor.result().summary["power_watts"])
    monitor.write_csv(Path("monitor.csv"))

An AMD GPU is read through amdsmi where that is installed, and the driver's files; an NVIDIA GPU
through nvidia-ml-py, or the program nvidia-smi; a CPU through /proc. A thread does so; what fails
or hangs there becomes a remark.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from types import TracebackType

from rocmforge import env
from rocmforge.atomic import whole_file
from rocmforge.profiling.cpu_readings import CpuReadings, CpuSample
from rocmforge.profiling.gpu_environment import GpuSample, Spread, gpu_environment, spread
from rocmforge.profiling.gpu_watch import open_amdgpu, open_nvidia_smi
from rocmforge.profiling.nvml import open_nvml
from rocmforge.profiling.polling import Poller, Source

PERIOD_S = 0.1
SHORTEST_S = 0.01
"""Of a period: a look at a GPU takes some milliseconds."""
_ROOT = Path("/")
Sample = GpuSample | CpuSample
WANTED = {
    "cpu": "/proc",
    "hip": "the card in /sys/class/kfd and /sys/bus/pci",
    "cuda": "the package nvidia-ml-py, or nvidia-smi",
}
"""Sources, by the kind of the device."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a device; None: it is not shown.

    Parameters
    ----------
    seconds
        Since the monitor began.
    clock_mhz, memory_clock_mhz
        Of the compute units or multiprocessors, and of the memory; of a CPU the cores' mean.
    power_watts, temperature_celsius
        Of the whole card, and of its hottest place where that is told.
    utilization
        0 … 1: of a GPU the share of the last moments in which a kernel ran, of a CPU the share of
        its cores' time that was busy since the last look.
    memory_used_bytes
        Of a GPU all that is in use; of a CPU the resident memory of this process.
    load_average
        Of the machine in the last minute; of a CPU.
    throttle
        Why clocks are held down at this moment; of a GPU.
    """

    seconds: float
    clock_mhz: float | None
    memory_clock_mhz: float | None
    power_watts: float | None
    temperature_celsius: float | None
    utilization: float | None
    memory_used_bytes: int | None
    load_average: float | None
    throttle: tuple[str, ...] | None


COLUMNS = tuple(field.name for field in fields(Look))
SERIES = COLUMNS[1:-1]
"""What is summed up."""


@dataclass(frozen=True, slots=True)
class Monitored:
    """What a monitor has seen.

    Parameters
    ----------
    device
        As the engine names it.
    source
        "sysfs", "sysfs, amdsmi", "nvidia-ml-py", "nvidia-smi", "/proc", or "none".
    period_seconds
        That was wanted between two looks.
    samples
        In order.
    summary
        Minimum, mean and maximum over the samples, for each of `SERIES`; None: never shown.
    throttle
        Every reason seen; None: the device does not say.
    cpu_seconds
        CPU time that looking took from this process.
    remarks
        What went wrong.
    """

    device: str
    source: str
    period_seconds: float
    samples: tuple[Look, ...]
    summary: dict[str, Spread | None]
    throttle: tuple[str, ...] | None
    cpu_seconds: float
    remarks: tuple[str, ...]


class DeviceMonitor:
    """Watches a device in a `with` block, once.

    Parameters
    ----------
    device
        "cpu", or a GPU with the runtime's number, as "hip:0" or "cuda:1".
    period_seconds
        Between two looks, 0.01 or more. Cards renew their readings 1 to 50 times a second.
    root
        Directory under which ``proc`` and ``sys`` are looked up.

    Attributes
    ----------
    began : float
        When the block began, by `time.perf_counter`; 0 before.

    Raises
    ------
    ValueError
        The device's name is none, or the period too short; the monitor is used twice, or asked
        before it began. A device that is not there, or tells nothing, is a remark of the result.
    """

    def __init__(self, device: str, period_seconds: float = PERIOD_S, root: Path = _ROOT) -> None:
        kind, _ = env.split_device(device)
        if kind == "auto":
            raise ValueError(f"monitor: got device {device!r}, wanted cpu, hip:0, cuda:0 …")
        if not period_seconds >= SHORTEST_S:
            raise ValueError(
                f"monitor: got a period of {period_seconds:g} s, wanted {SHORTEST_S:g} or more"
            )
        self.began = 0.0
        self._device = device
        self._period = period_seconds
        self._root = root
        self._poller: Poller[Sample] | None = None

    def __enter__(self) -> DeviceMonitor:
        """Begin to watch, without waiting for the first look."""
        if self._poller is not None:
            raise ValueError(f"monitor of {self._device}: got a second block, wanted one")
        self.began = time.perf_counter()
        self._poller = Poller(self._find, self._period)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop watching, with a last look."""
        self._begun().close()

    def result(self) -> Monitored:
        """Return what was seen until now.

        Raises
        ------
        ValueError
            The monitor has not begun.
        """
        poller = self._begun()
        seen, remarks = poller.samples(), list(poller.remarks())
        looks = tuple(_look(sample, self.began) for sample in seen)
        if not looks and not remarks:
            wanted = f"no source of readings, wanted {WANTED[env.split_device(self._device)[0]]}"
            remarks.append(f"{poller.name} told nothing" if poller.name else wanted)
        return Monitored(
            device=self._device,
            source=poller.name or "none",
            period_seconds=self._period,
            samples=looks,
            summary={name: _spread(looks, name) for name in SERIES},
            throttle=gpu_environment(
                self._device, "", [sample for sample in seen if isinstance(sample, GpuSample)]
            ).throttle,
            cpu_seconds=poller.cpu_seconds,
            remarks=tuple(remarks),
        )

    def write_csv(self, path: Path) -> None:
        """Write all samples so far, whole or not at all; folders are made.

        The columns are those of `Look`, in its units; what is not shown is empty, and several
        reasons to throttle are joined by semicolons.

        Raises
        ------
        ValueError
            The monitor has not begun.
        OSError
            The file cannot be written.
        """
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(COLUMNS)
        for look in self.result().samples:
            *values, throttle = astuple(look)
            lines.writerow([*values, ";".join(throttle or ())])
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(text.getvalue().encode())

    def _find(self) -> Source[Sample] | None:
        kind, _ = env.split_device(self._device)
        if kind == "cpu":
            return CpuReadings(self._root)
        if kind == "hip":
            return open_amdgpu(self._device, self._root)
        if card := open_nvml(self._device):
            return card
        if program := open_nvidia_smi(self._device):
            program.begin(self._period)
        return program

    def _begun(self) -> Poller[Sample]:
        if self._poller is None:
            raise ValueError(f"monitor of {self._device}: got no `with` block yet, wanted one")
        return self._poller


def _look(sample: Sample, began: float) -> Look:
    of_gpu = sample if isinstance(sample, GpuSample) else GpuSample()
    throttle = of_gpu.throttle
    return Look(
        seconds=sample.at - began,
        clock_mhz=sample.clock_mhz,
        memory_clock_mhz=of_gpu.memory_clock_mhz,
        power_watts=of_gpu.power_watts,
        temperature_celsius=of_gpu.temperature_celsius,
        utilization=sample.utilization,
        memory_used_bytes=sample.memory_used_bytes,
        load_average=sample.load_average if isinstance(sample, CpuSample) else None,
        throttle=None if throttle is None else tuple(sorted(throttle)),
    )


def _spread(looks: Sequence[Look], name: str) -> Spread | None:
    return spread([value for look in looks if (value := getattr(look, name)) is not None])
