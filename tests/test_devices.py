"""Devices: what is listed, what `auto` is, and that a device which is not there is an error."""

from __future__ import annotations

import pytest

from rocmforge.cpu.backend import CpuBackend, available_threads
from rocmforge.devices import Device, list_devices, open_backend
from rocmforge.errors import DeviceError
from rocmforge.hardware import Hardware


def test_the_cpu_is_listed_first_and_usable() -> None:
    first = list_devices()[0]
    assert (first.kind, first.usable) == ("cpu", True)
    assert first.name
    assert f"{available_threads()} cores" in first.detail
    assert "portable" in first.detail


def test_a_gpu_is_listed_as_not_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Hardware(cpu_name="CPU", gpu_name="RX 7900 XT", gpu_architecture="gfx1100")
    monkeypatch.setattr("rocmforge.devices.detect", lambda: machine)
    cpu, gpu = list_devices()
    assert cpu.name == "CPU"
    assert gpu == Device("hip", "RX 7900 XT", "gfx1100; no GPU backend yet", usable=False)


def test_what_is_unknown_is_called_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocmforge.devices.detect", lambda: Hardware(gpu_name="X"))
    cpu, gpu = list_devices()
    assert cpu.name == "unknown CPU"
    assert gpu.detail.startswith("unknown architecture")


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_auto_and_cpu_open_the_cpu(device: str) -> None:
    backend = open_backend(device, threads=1)
    assert isinstance(backend, CpuBackend)
    assert (backend.name, backend.threads) == ("cpu", 1)


def test_the_environment_names_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCMFORGE_DEVICE", "hip")
    with pytest.raises(DeviceError, match="no hip backend"):
        open_backend()
    assert open_backend("cpu", 1).name == "cpu"
    monkeypatch.setenv("ROCMFORGE_DEVICE", "")
    monkeypatch.setenv("ROCMFORGE_THREADS", "1")
    backend = open_backend()
    assert isinstance(backend, CpuBackend)
    assert backend.threads == 1


@pytest.mark.parametrize("device", ["hip", "cuda"])
def test_a_missing_device_is_an_error_not_another_device(device: str) -> None:
    with pytest.raises(DeviceError, match=f"no {device} backend; use device 'cpu'"):
        open_backend(device)


def test_an_unknown_device_names_the_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="got 'gpu', wanted one of auto, cpu, hip, cuda"):
        open_backend("gpu")
    monkeypatch.setenv("ROCMFORGE_DEVICE", "gpu")
    with pytest.raises(ValueError, match="ROCMFORGE_DEVICE: got 'gpu'"):
        open_backend()


def test_no_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="threads: got 0, wanted 1 to 1024"):
        open_backend("cpu", 0)
