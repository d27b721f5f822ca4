"""`HipRuntime` over the stand-in: its devices, its errors, what is missing where it is missing.

What every runtime promises is in test_runtime.py; `make test-hip-versions` runs both under each
supported version of hip-python.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from ctypes import CDLL
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rocmforge.devices import list_devices
from rocmforge.errors import CompileError, DeviceError
from rocmforge.gpu import hip, packages
from rocmforge.gpu.hip import HipRuntime
from rocmforge.gpu.kernel_arguments import Arguments
from rocmforge.hardware import Rocm

SOURCE = """
#include "device.h"
struct Args { int* x; int n; };
KERNEL(increment, Args, 64) {
    const int i = static_cast<int>(block_x() * 64 + thread_x());
    if (i < a.n) a.x[i] += 1;
}
"""


def test_properties_of_the_devices(standin: dict[str, CDLL]) -> None:
    first, second = (HipRuntime(index).properties for index in range(2))
    assert (first.architecture, first.wave_size, first.index) == ("gfx1100", 32, 0)
    assert (second.architecture, second.wave_size, second.index) == ("gfx90a", 64, 1)
    for found in (first, second):
        assert found.name.startswith(f"CPU stand-in of {found.architecture}")
        assert found.compute_units == 4
        assert found.memory_bytes == 4 << 30
        assert found.shared_bytes == 64 << 10
        assert not found.integrated


def test_an_integrated_gpu_is_told(
    standin: dict[str, CDLL], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_DEVICES", "gfx1036:integrated,gfx1201")
    monkeypatch.setenv("STANDIN_MEMORY", "1000000")
    assert hip.count() == 2
    assert HipRuntime(0).properties.integrated
    assert not HipRuntime(1).properties.integrated
    assert HipRuntime(1).properties.memory_bytes == 1_000_000


def test_no_gpu(standin: dict[str, CDLL], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_DEVICES", "")
    assert hip.count() == 0
    with pytest.raises(DeviceError, match=r"hip:0: HIP finds 0 AMD GPUs; rocminfo shows"):
        HipRuntime()


def test_a_device_that_is_not_there(standin: dict[str, CDLL]) -> None:
    assert hip.count() == 2
    for index in (-1, 2):
        with pytest.raises(DeviceError, match=f"hip:{index}: HIP finds 2 AMD GPUs"):
            HipRuntime(index)


def test_without_hip_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hip", None)
    assert hip.count() == 0
    monkeypatch.setattr(packages, "find_rocm", lambda: Rocm("6.4.1-90", "/opt/rocm"))
    with pytest.raises(DeviceError, match=r"needs .* hip-python .*: pip install 'hip-python==6\.4"):
        HipRuntime()
    assert hip.misfit() is None


OF_HIP = {"6.4": 60443484, "7.0": 70051831, "7.1": 70152802, "7.2": 70253211, "10.0": 71526333}


@pytest.mark.parametrize("runtime", OF_HIP)
@pytest.mark.parametrize("binding", OF_HIP)
def test_whether_hip_python_fits_the_runtime(
    standin: dict[str, CDLL], runtime: str, binding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_HIP_VERSION", str(OF_HIP[runtime]))
    monkeypatch.setattr(metadata, "version", lambda name: f"{binding}.1.555.40")
    said = hip.misfit()
    if runtime == binding:
        assert said is None
    else:
        major, minor = divmod(OF_HIP[runtime] // 10**5, 100)
        assert said is not None
        assert said.startswith(f"hip-python {binding}.1.555.40 does not fit HIP {major}.{minor}.")
        assert said.endswith(f"here: pip install 'hip-python=={runtime}.*'")


def test_a_failing_call_says_that_hip_python_does_not_fit(
    standin: dict[str, CDLL], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = HipRuntime()
    monkeypatch.setenv("STANDIN_HIP_VERSION", "60443484")
    monkeypatch.setattr(metadata, "version", lambda name: "7.2.2.562.43")
    with pytest.raises(DeviceError, match=r"hipFree: hipErrorInvalidValue: .*; hip-python 7\.2\.2"):
        runtime.free(4096)


def test_a_runtime_that_is_too_old_is_named(
    standin: dict[str, CDLL], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_HIP_VERSION", "50221153")
    assert hip.version() == (5, 2, 21153)
    assert hip.misfit() == "HIP 5.2.21153 is too old: ROCm 6.4 or later is wanted"


def test_the_architecture_is_the_runtimes(
    standin: dict[str, CDLL], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a gfx1031 under HSA_OVERRIDE_GFX_VERSION=10.3.0 the runtime says gfx1030."""
    monkeypatch.setenv("STANDIN_DEVICES", "gfx1030")
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION", "10.3.0")
    (device,) = (device for device in list_devices() if device.kind == "hip:0")
    assert device.detail.startswith("gfx1030 (HSA_OVERRIDE_GFX_VERSION=10.3.0); 4 compute units")


def test_two_cards_reach_each_others_memory(
    standin: dict[str, CDLL], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_DEVICES", "gfx1100,gfx1100")
    one, other = hip.HipRuntime(0), hip.HipRuntime(1)
    assert one.can_reach(other)
    assert not one.can_reach(one)
    for _ in range(2):  # that it is reached already is no error
        one.reach(other)
    shared = other.allocate_shared(1 << 10)
    event, stream = one.create_event(), one.create_stream()
    assert one.is_done(event)  # nothing was recorded
    one.fill(shared, 1, 1 << 10, stream)
    one.record_event(event, stream)
    assert one.is_done(event)
    one.destroy_event(event)
    with pytest.raises(DeviceError, match="hipEventQuery"):
        one.is_done(event)
    one.destroy_stream(stream)
    other.free(shared)


def test_whom_a_card_reaches_is_listed(
    standin: dict[str, CDLL], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_DEVICES", "gfx1100,gfx1100,gfx1100")
    assert list_devices()[2].detail.endswith("; peer access to hip:0, hip:2")
    monkeypatch.setenv("STANDIN_NO_PEERS", "1")
    assert list_devices()[2].detail.endswith("; peer access to no other GPU")


def test_without_rocm(tmp_path: Path) -> None:
    """In a process of its own: this one has the stand-in."""
    program = """
from rocmforge.errors import DeviceError
from rocmforge.gpu import hip, packages
if hip.count():
    raise SystemExit(77)
for attempt in (hip.HipRuntime, hip.compiler_version):
    try:
        attempt()
    except DeviceError as error:
        print(error)
"""
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    environment["ROCM_PATH"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    if done.returncode == 77:
        pytest.skip("ROCm is installed")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["hipGetDeviceCount", "hiprtcVersion"]
    for line in lines:
        assert "ROCm's libraries are not there" in line
        assert line.count("cannot open shared object file") == line.count(".so:") == 1
        assert "ROCM_PATH/lib" in line
        assert "no ROCm was found" in line


def test_errors_name_the_call_the_error_and_its_meaning(standin: dict[str, CDLL]) -> None:
    runtime = HipRuntime()
    address = runtime.allocate(100)
    array = np.zeros(101, np.uint8)
    for attempt in (
        lambda: runtime.copy_to_device(address, array),
        lambda: runtime.copy_to_host(array, address),
        lambda: runtime.copy_on_device(address, address + 50, 51),
    ):
        with pytest.raises(DeviceError, match=r"^hipMemcpyAsync: hipErrorInvalidValue: invalid "):
            attempt()
    with pytest.raises(DeviceError, match=r"^hipMemsetAsync: hipErrorInvalidValue"):
        runtime.fill(address, 0, 101)
    runtime.free(address)
    with pytest.raises(DeviceError, match=r"^hipFree: hipErrorInvalidValue"):
        runtime.free(address)


@pytest.fixture
def compiled(standin: dict[str, CDLL], repo: Path) -> tuple[HipRuntime, bytes]:
    """Device 0, and this file's kernel for it."""
    runtime = HipRuntime()
    headers = {"device.h": (repo / "kernels" / "device.h").read_text("utf-8")}
    return runtime, runtime.compile(SOURCE, "own.hip", headers, ["-std=c++17", "-DWAVE=32"])


def test_code_for_another_architecture_is_refused(compiled: tuple[HipRuntime, bytes]) -> None:
    with pytest.raises(DeviceError, match=r"hipErrorNoBinaryForGpu: .* for another architecture"):
        HipRuntime(1).load_module(compiled[1])


@pytest.mark.parametrize(
    ("grid", "threads", "layout", "reason"),
    [
        ((2, 1, 1), 32, "Pi", "is for blocks of 64 threads, got 32"),
        ((1, 1, 1), 2048, "Pi", ""),
        ((2, 0, 1), 64, "Pi", ""),
        ((2, 1, 1), 64, "P", "takes 16 bytes of arguments, got 8"),
        ((2, 1, 1), 64, "Piii", "takes 16 bytes of arguments, got 24"),
    ],
)
def test_a_launch_that_does_not_fit_the_kernel_is_refused(
    compiled: tuple[HipRuntime, bytes],
    capfd: pytest.CaptureFixture[str],
    grid: tuple[int, int, int],
    threads: int,
    layout: str,
    reason: str,
) -> None:
    runtime, code = compiled
    module = runtime.load_module(code)
    arguments = Arguments(layout, [0] * len(layout), "hip")
    with pytest.raises(DeviceError, match=r"^hipModuleLaunchKernel of \(.*: hipErrorInvalid"):
        runtime.launch(runtime.function(module, "increment"), grid, threads, arguments)
    assert reason in capfd.readouterr().err
    runtime.unload_module(module)


def test_two_devices_in_one_thread_and_one_in_two(standin: dict[str, CDLL]) -> None:
    first, second = HipRuntime(0), HipRuntime(1)
    total = first.memory_info()[0], second.memory_info()[0]
    addresses: list[int] = []
    for size, runtime in ((100, first), (200, second), (300, first)):
        thread = threading.Thread(target=lambda: addresses.append(runtime.allocate(size)))  # noqa: B023
        thread.start()
        thread.join()
        addresses.append(runtime.allocate(size))
    left = first.memory_info()[0], second.memory_info()[0]
    assert (total[0] - left[0], total[1] - left[1]) == (800, 400)
    for address in addresses:
        first.free(address)


def test_closing_waits_for_what_was_enqueued(standin: dict[str, CDLL]) -> None:
    runtime = HipRuntime()
    stream, pinned = runtime.create_stream(), runtime.allocate_pinned(1)
    address = runtime.allocate(1)
    pinned[:] = 1
    runtime.fill(address, 2, 1, stream)
    runtime.copy_to_host(pinned, address, stream)
    assert pinned[0] == 1
    runtime.close()
    assert pinned[0] == 2


def test_a_compile_error_carries_the_log(standin: dict[str, CDLL]) -> None:
    runtime = HipRuntime()
    with pytest.raises(CompileError, match="no_such_thing") as caught:
        runtime.compile("int x = no_such_thing;\n", "bad.hip", {}, ["-std=c++17", "-DWAVE=32"])
    assert caught.value.file == "bad.hip"
    assert caught.value.architecture == runtime.properties.architecture
    assert {"-std=c++17", "-DWAVE=32"} < set(caught.value.options)


def test_waiting_inside_a_capture_is_an_error(standin: dict[str, CDLL]) -> None:
    runtime = HipRuntime()
    stream = runtime.create_stream()
    runtime.begin_capture(stream)
    with pytest.raises(DeviceError):
        runtime.synchronize(stream)
    with pytest.raises(DeviceError):
        runtime.end_capture(stream)
    runtime.destroy_stream(stream)


def test_threads_that_compile_load_the_compiler_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inside, together = [0], [0]

    def checked(function: object) -> tuple[int, int]:
        inside[0] += 1
        together[0] = max(together[0], inside[0])
        time.sleep(0.02)
        inside[0] -= 1
        return 7, 2

    monkeypatch.setattr(hip, "_bindings", lambda: (None, SimpleNamespace(hiprtcVersion=None)))
    monkeypatch.setattr(hip, "_checked", checked)
    with ThreadPoolExecutor(4) as pool:
        found = {one.result() for one in [pool.submit(hip.compiler_version) for _ in range(8)]}
    assert found == {"hiprtc 7.2 -O3"}
    assert together == [1]
