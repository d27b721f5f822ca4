"""Devices: what is listed, what `auto` is, and that a device which is not there is an error."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rocmforge import devices
from rocmforge.cpu.backend import CpuBackend, available_threads
from rocmforge.devices import Device, default_device, list_devices, open_backend
from rocmforge.errors import DeviceError
from rocmforge.gpu.packages import has_amd_driver, has_nvidia_driver
from rocmforge.gpu.runtime import DeviceProperties, Runtime
from rocmforge.hardware import Hardware


def test_the_cpu_is_listed_first_and_usable() -> None:
    first = list_devices()[0]
    assert (first.kind, first.usable) == ("cpu", True)
    assert first.name
    assert f"{available_threads()} cores" in first.detail
    assert "portable" in first.detail


RADEON = DeviceProperties(1, "RX 7900 XT", "gfx1100", 32, 84, 20 << 30, 65536, False)
OLD = DeviceProperties(0, "RX 480", "gfx803", 64, 36, 8 << 30, 65536, False)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_LISTS", {"hip": list, "cuda": list})


def test_gpus_are_listed_with_whether_they_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_LISTS", {"hip": lambda: [OLD, RADEON], "cuda": list})
    monkeypatch.setattr(devices, "_REACHES", {"hip": lambda index, other: index > other})
    cpu, radeon, old = list_devices()
    assert cpu.kind == "cpu"
    detail = "gfx1100; 84 compute units; 20 GiB; peer access to hip:0"
    assert radeon == Device("hip:1", "RX 7900 XT", detail, usable=True)
    assert "; peer access to no other GPU; " in old.detail
    assert (old.kind, old.usable) == ("hip:0", False)
    assert "; architecture not supported, wanted gfx906 to gfx950" in old.detail


@pytest.mark.usefixtures("no_gpu")
def test_a_card_without_its_runtime_is_listed_as_not_usable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(index: int) -> Runtime:
        raise DeviceError("ROCm is not installed")

    monkeypatch.setattr(devices, "_RUNTIMES", {"hip": refuse})
    monkeypatch.setattr(devices, "_DRIVERS", {"hip": lambda: True, "cuda": lambda: False})
    machine = Hardware(cpu_name="CPU", gpu_name="RX 7900 XT", gpu_architecture="gfx1100")
    monkeypatch.setattr(devices, "detect", lambda: machine)
    cpu, gpu, cuda = list_devices()
    assert cpu.name == "CPU"
    assert (cuda.kind, cuda.name, cuda.usable) == ("cuda", "none found", False)
    assert cuda.detail.startswith("no NVIDIA driver")
    assert gpu == Device("hip", "RX 7900 XT", "gfx1100; ROCm is not installed", usable=False)


@pytest.mark.usefixtures("no_gpu")
def test_what_is_unknown_is_called_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "detect", lambda: Hardware(gpu_name="X"))
    cpu, gpu, _ = list_devices()
    assert cpu.name == "unknown CPU"
    assert gpu.detail.startswith("unknown architecture")


@pytest.mark.parametrize("present", [False, True])
def test_auto_looks_only_where_there_is_a_driver_and_a_name_always(
    present: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_LISTS", {"hip": lambda: [RADEON]})
    monkeypatch.setattr(devices, "_DRIVERS", {"hip": lambda: present})
    assert default_device("auto").kind == ("hip" if present else "cpu")
    assert default_device("hip").device == default_device("hip:1").device == RADEON


def test_auto_loads_no_vendors_package_where_there_is_no_driver() -> None:
    if has_amd_driver() or has_nvidia_driver():
        pytest.skip("this machine has a GPU's driver")
    code = """
import sys
from rocmforge.devices import default_device
print(default_device("auto").kind, [name for name in sys.modules if name in ("hip", "cuda")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "cpu []\n"


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_each_kind_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(index: int) -> Runtime:
        raise DeviceError("device 'cuda' needs the package cuda-bindings (No module named 'cuda')")

    monkeypatch.setattr(devices, "_RUNTIMES", {"cuda": refuse})
    monkeypatch.setattr(devices, "_DRIVERS", {"hip": lambda: False, "cuda": lambda: True})
    monkeypatch.setattr(devices, "detect", lambda: Hardware(cpu_name="CPU"))
    none = {"name": "none found", "usable": False}
    assert list_devices()[1:] == [
        Device("hip", detail=devices._NO_DRIVER["hip"], **none),
        Device("cuda", detail="needs the package cuda-bindings (No module named 'cuda')", **none),
    ]


@pytest.mark.parametrize("failure", [DeviceError("no event"), KeyboardInterrupt("no event")])
def test_a_gpu_that_cannot_be_used_after_all_is_let_go(
    failure: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    class Failing:
        platform = "hip"

        def __init__(self, index: int) -> None:
            self.index = index

        def create_event(self) -> None:
            raise failure

        def close(self) -> None:
            closed.append(self.index)

    monkeypatch.setattr(devices, "_LISTS", {"hip": lambda: [RADEON]})
    monkeypatch.setattr(devices, "_RUNTIMES", {"hip": Failing})
    with pytest.raises(type(failure), match="no event"):
        open_backend("hip")
    assert closed == [RADEON.index]


@pytest.mark.usefixtures("no_gpu")
def test_auto_on_the_cpu_says_what_a_gpu_that_has_a_driver_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(index: int) -> Runtime:
        raise DeviceError("device 'hip' needs the package hip-python")

    monkeypatch.setattr(devices, "_RUNTIMES", {"hip": refuse})
    monkeypatch.setattr(devices, "_DRIVERS", {"hip": lambda: True, "cuda": lambda: False})
    said = default_device("auto").reason
    assert said == "the CPU: no GPU was found: device 'hip' needs the package hip-python"
    monkeypatch.setattr(devices, "_DRIVERS", dict.fromkeys(("hip", "cuda"), lambda: False))
    assert default_device("auto").reason == "the CPU: no GPU was found"


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_auto_and_cpu_open_the_cpu(device: str) -> None:
    backend = open_backend(device, threads=1)
    assert isinstance(backend, CpuBackend)
    assert (backend.name, backend.threads) == ("cpu", 1)


@pytest.mark.usefixtures("no_gpu")
def test_the_environment_names_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCMFORGE_DEVICE", "hip")
    with pytest.raises(DeviceError, match="device 'hip'"):
        open_backend()
    assert open_backend("cpu", 1).name == "cpu"
    monkeypatch.setenv("ROCMFORGE_DEVICE", "")
    monkeypatch.setenv("ROCMFORGE_THREADS", "1")
    backend = open_backend()
    assert isinstance(backend, CpuBackend)
    assert backend.threads == 1


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("device", ["hip", "cuda"])
def test_a_missing_device_is_an_error_not_another_device(device: str) -> None:
    with pytest.raises(DeviceError, match=f"device '{device}'"):
        open_backend(device)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("driver", [False, True])
@pytest.mark.parametrize("device", ["hip", "cuda"])
def test_a_missing_device_is_told_as_the_list_tells_it(
    device: str, driver: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(index: int) -> Runtime:
        raise DeviceError(f"device '{device}' needs a package: pip install it")

    kinds = ("hip", "cuda")
    monkeypatch.setattr(devices, "_RUNTIMES", dict.fromkeys(kinds, refuse))
    monkeypatch.setattr(devices, "_DRIVERS", dict.fromkeys(kinds, lambda: driver))
    monkeypatch.setattr(devices, "detect", lambda: Hardware(cpu_name="CPU"))
    (listed,) = (one for one in list_devices() if one.kind == device)
    with pytest.raises(DeviceError) as caught:
        default_device(device)
    assert str(caught.value) == f"device '{device}': {listed.detail}"
    assert ("pip install" in listed.detail) == driver


def test_an_unknown_device_names_the_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="got 'gpu', wanted one of auto, cpu, hip, cuda"):
        open_backend("gpu")
    monkeypatch.setenv("ROCMFORGE_DEVICE", "gpu")
    with pytest.raises(ValueError, match="ROCMFORGE_DEVICE: got 'gpu'"):
        open_backend()


def test_no_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="threads: got 0, wanted 1 to 1024"):
        open_backend("cpu", 0)
