"""The energy of work on a GPU: from a counter or from power, and when it is not valid."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from rocmforge.gpu import cuda
from rocmforge.profiling import energy as module
from rocmforge.profiling.energy import EnergyMeter
from rocmforge.profiling.gpu_environment import GpuEnvironment, GpuSample, gpu_environment

LOOKS = [GpuSample(power_watts=watts, utilization=0.9) for watts in (380.0, 400.0, 410.0, 410.0)]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a stand-in for the watch of a card sees, to be changed by a test."""
    seen: dict[str, Any] = {"samples": LOOKS, "other_processes": 0, "restarts": 0}

    class Watch:
        def __init__(self, device: str, root: Path) -> None:
            self.device = device

        def restart(self) -> None:
            seen["restarts"] += 1

        def end(self) -> GpuEnvironment:
            others = seen["other_processes"]
            return gpu_environment(self.device, "x", seen["samples"], other_processes=others)

    monkeypatch.setattr(module, "GpuWatch", Watch)
    return seen


def measured(seconds: float = 2.5, device: str = "hip:0") -> module.Energy:
    meter = EnergyMeter(device)
    meter.begin()
    return meter.end(seconds)


def test_power_times_seconds(watched: dict[str, Any]) -> None:
    found = measured()
    assert (found.joules, found.source, found.reason) == (1000.0, "power", None)
    assert found.gpu.utilization == (0.9, pytest.approx(0.9), 0.9)
    assert watched["restarts"] == 1


@pytest.mark.parametrize(
    ("changed", "seconds", "reason"),
    [
        ({}, 1.9, "got 1.9 s of work, wanted 2 s or more"),
        ({"samples": LOOKS[:3]}, 2.5, "got 3 samples of the power, wanted 4 or more"),
        ({"samples": []}, 2.5, "hip:0 reports neither energy nor power"),
        ({"samples": [GpuSample()] * 5}, 2.5, "hip:0 reports neither energy nor power"),
        ({"samples": [GpuSample(power_watts=0.0)] * 5}, 2.5, "got 0 J from its power"),
        ({"other_processes": 2}, 2.5, "got 2 other processes on hip:0, wanted none"),
    ],
)
def test_what_is_not_sure_is_not_valid(
    watched: dict[str, Any], changed: dict[str, Any], seconds: float, reason: str
) -> None:
    watched.update(changed)
    found = measured(seconds)
    assert found.joules is None
    assert found.reason is not None
    assert reason in found.reason


def nvml(monkeypatch: pytest.MonkeyPatch, readings: list[int]) -> types.SimpleNamespace:
    """Put a stand-in for nvidia-ml-py into the process; the counter is asked once when found."""
    monkeypatch.setattr(cuda, "pci_address", {1: "0000:19:00.0"}.get)
    fake = types.SimpleNamespace(NVMLError=type("NVMLError", (Exception,), {}))
    fake.nvmlInit = lambda: None
    fake.nvmlDeviceGetHandleByPciBusId = {b"0000:19:00.0": "card"}.__getitem__
    fake.nvmlDeviceGetTotalEnergyConsumption = lambda card: readings.pop(0)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_the_counter_comes_first_and_needs_no_samples(
    watched: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched["samples"] = []
    nvml(monkeypatch, [0, 5_000, 905_000])
    found = measured(device="cuda:1")
    assert (found.joules, found.source, found.reason) == (900.0, "counter", None)


def test_a_card_without_a_counter_is_measured_by_its_power(
    watched: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = nvml(monkeypatch, [])

    def refuse(card: str) -> int:
        raise fake.NVMLError("not supported")

    fake.nvmlDeviceGetTotalEnergyConsumption = refuse
    assert measured(device="cuda:1").source == "power"
    assert measured(device="cuda:0").source == "power"  # a card that CUDA does not have
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert measured(device="cuda:1").source == "power"
