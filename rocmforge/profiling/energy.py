"""The energy that a GPU takes while some work runs, with a reason wherever it is not sure.

From the driver's counter where nvidia-ml-py is installed, else from the power that the card reports
twice a second. It is the energy of the whole card, idle power included.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rocmforge.profiling.gpu_environment import GpuEnvironment
from rocmforge.profiling.gpu_watch import GpuWatch
from rocmforge.profiling.nvml import open_nvml

LEAST_S = 2.0
"""Seconds that work must last: a counter moves ten times a second, power is a mean of up to one."""
LEAST_SAMPLES = 4
"""Looks at the power that are enough without a counter."""
_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Energy:
    """What some work took.

    Parameters
    ----------
    joules
        None where `reason` says why it is not known well enough.
    source
        "counter", "power" or "none".
    reason
        Why the energy is not valid; None: it is.
    gpu
        The card during that time: clocks, power, temperature, utilization.
    """

    joules: float | None
    source: str
    reason: str | None
    gpu: GpuEnvironment


class EnergyMeter:
    """Measures the energy of a GPU; to be made before the GPU's first use by this process.

    Parameters
    ----------
    device
        ``"hip:0"`` or ``"cuda:1"``, by the runtime's number.
    root
        Directory under which ``sys`` is looked up.
    """

    def __init__(self, device: str, root: Path = _ROOT) -> None:
        self._watch = GpuWatch(device, root)
        card = open_nvml(device)
        self._card = None if card is None or card.joules() is None else card
        self._begin: float | None = None

    def begin(self) -> None:
        """Measure from now on."""
        self._watch.restart()
        self._begin = self._card.joules() if self._card else None

    def end(self, seconds: float) -> Energy:
        """Return the energy since `begin`, which was so long ago; the meter is done."""
        now = self._card.joules() if self._card else None
        gpu = self._watch.end()
        source = "none"
        joules = None
        if now is not None and self._begin is not None:
            source, joules = "counter", now - self._begin
        elif gpu.power_watts is not None:
            source, joules = "power", gpu.power_watts.mean * seconds
        reason = _why_not(joules, source, seconds, gpu)
        return Energy(None if reason else joules, source, reason, gpu)


def _why_not(joules: float | None, source: str, seconds: float, gpu: GpuEnvironment) -> str | None:
    """Why a figure is not valid; None: it is."""
    if joules is None:
        return f"{gpu.device} reports neither energy nor power"
    if not joules > 0:
        return f"{gpu.device}: got {joules:g} J from its {source}, wanted more than 0"
    if seconds < LEAST_S:
        return f"got {seconds:.1f} s of work, wanted {LEAST_S:.0f} s or more"
    if source == "power" and gpu.samples < LEAST_SAMPLES:
        return f"got {gpu.samples} samples of the power, wanted {LEAST_SAMPLES} or more"
    if gpu.other_processes:
        return f"got {gpu.other_processes} other processes on {gpu.device}, wanted none"
    return None
