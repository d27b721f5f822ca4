"""What GPUs say: recorded lines of nvidia-smi, files of amdgpu, metrics of amdsmi."""

from __future__ import annotations

import itertools
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
from fake_cards import card, smi

from rocmforge.gpu import cuda
from rocmforge.profiling import gpu_environment as module
from rocmforge.profiling.amdgpu import amd_throttle, amdgpu_folder, amdgpu_sample, kfd_processes
from rocmforge.profiling.gpu_environment import GpuSample, gpu_environment, settled
from rocmforge.profiling.gpu_watch import GpuWatch
from rocmforge.profiling.nvidia_smi import nvidia_processes, nvidia_samples

H200 = """\
345, 3201, 79.83, 36, 0, 0, 0x0000000000000001
1980, 3201, 512.25, 51, 98, 8123, 0x0000000000000004
1410, 3201, 698.40, 84, 100, 8123, 0x0000000000000024
"""
GEFORCE = "[Not Supported], 405, [N/A], 40, [N/A], 512, [Not Supported]\n"
RTX_HW = "1200, 7000, 300.00, 90, 100, 100, 0x00000000000000c8\n"


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE_S", 0.0)


def test_lines_of_nvidia_smi() -> None:
    idle, busy, hot = nvidia_samples(H200)
    assert idle == GpuSample(345.0, 3201.0, 79.83, 36.0, 0.0, 0, frozenset())
    assert busy.utilization == 0.98
    assert busy.memory_used_bytes == 8123 << 20
    assert busy.throttle == {"power cap"}
    assert hot.throttle == {"power cap", "temperature"}
    assert nvidia_samples(RTX_HW)[0].throttle == {
        "hardware slowdown",
        "hardware temperature",
        "power brake",
    }


def test_what_a_card_does_not_tell_is_none() -> None:
    (sample,) = nvidia_samples(GEFORCE)
    assert (sample.clock_mhz, sample.power_watts, sample.utilization) == (None, None, None)
    assert (sample.memory_clock_mhz, sample.temperature_celsius) == (405.0, 40.0)
    assert sample.throttle is None


@pytest.mark.parametrize("text", ["", "No devices were found\n", "345, 3201, 79", H200[-20:-1]])
def test_lines_of_another_form_are_no_samples(text: str) -> None:
    assert nvidia_samples(text) == []


def test_a_line_that_is_not_whole_has_no_mask() -> None:
    assert nvidia_samples("345, 3201, 79.83, 36, 0, 0, 0x00000000000")[0].throttle is None


def test_processes_of_nvidia_smi() -> None:
    assert nvidia_processes("12345\n6789\n12345\n") == 2
    assert nvidia_processes("") == 0
    assert nvidia_processes("No running processes found\n") == 0


def test_a_summary_of_samples() -> None:
    found = gpu_environment("cuda:0", "nvidia-smi", nvidia_samples(H200), other_processes=0)
    assert found.samples == 3
    assert found.clock_mhz == (345.0, pytest.approx(1245.0), 1980.0)
    assert found.temperature_celsius is not None
    assert found.temperature_celsius.max == 84.0
    assert found.utilization == (0.0, pytest.approx(0.66), 1.0)
    assert found.memory_used_bytes == 8123 << 20
    assert found.throttle == ("power cap", "temperature")
    assert found.utilization_before is None
    nothing = gpu_environment("cuda:0", "nvidia-smi", [])
    assert (nothing.samples, nothing.clock_mhz, nothing.throttle) == (0, None, None)
    assert nothing.memory_used_bytes is None


@pytest.mark.parametrize(
    ("mask", "reasons"),
    [
        (0, set()),
        (1 << 1, {"power cap"}),
        (1 << 36 | 1 << 3, {"temperature", "power cap"}),
        (1 << 16, {"current"}),
        (1 << 57, {"firmware"}),
    ],
)
def test_masks_of_amdsmi(mask: int, reasons: set[str]) -> None:
    assert amd_throttle({"indep_throttle_status": mask}) == (reasons, {})


def test_metrics_that_a_card_lacks() -> None:
    lacking = {"indep_throttle_status": "N/A", "ppt_residency_acc": "N/A"}
    assert amd_throttle(lacking) == (None, {})
    assert amd_throttle({"indep_throttle_status": 2**64 - 1}) == (None, {})
    assert amd_throttle({}) == (None, {})


def test_counters_of_an_mi300_count_where_they_grow() -> None:
    first = amd_throttle({"ppt_residency_acc": 100, "socket_thm_residency_acc": 7})
    last = amd_throttle({"ppt_residency_acc": 100, "socket_thm_residency_acc": 9})
    samples = [GpuSample(throttle=r, residencies=c) for r, c in (first, last)]
    assert gpu_environment("hip:0", "x", samples).throttle == ("temperature",)
    assert gpu_environment("hip:0", "x", samples[:1] * 2).throttle == ()


def test_counters_looked_at_once_say_nothing() -> None:
    once = GpuSample(residencies={"temperature": 7})
    assert gpu_environment("hip:0", "x", [once]).throttle is None
    assert gpu_environment("hip:0", "x", [GpuSample(), once, GpuSample()]).throttle is None
    masked = GpuSample(throttle=frozenset(), residencies={"temperature": 7})
    assert gpu_environment("hip:0", "x", [masked]).throttle == ()


def test_a_utilization_that_ends_was_of_a_process_before() -> None:
    def of(*answers: float | None) -> float | None:
        coming = iter(answers)
        return settled(lambda: next(coming))

    assert of(0.0) == 0.0
    assert of(0.2) == 0.2
    assert of(None) is None
    assert of(0.9, 0.0) == 0.0
    assert of(0.9, 0.95) == 0.9
    assert of(0.9, None) == 0.9


WANTED = GpuSample(2371.0, 1249.0, 287.0, 83.0, 0.97, 8 << 30)


def test_files_of_amdgpu(tmp_path: Path) -> None:
    device = card(tmp_path)
    assert amdgpu_sample(device) == WANTED
    assert kfd_processes(tmp_path, tmp_path / "sys/class/kfd/kfd/topology/nodes/1") == 1
    hwmon = device / "hwmon/hwmon3"
    (hwmon / "temp2_input").unlink()
    (hwmon / "power1_average").rename(hwmon / "power1_input")
    assert amdgpu_sample(device).temperature_celsius == 61.0
    assert amdgpu_sample(device).power_watts == 287.0
    assert amdgpu_sample(tmp_path) == GpuSample()
    assert kfd_processes(tmp_path / "nowhere", tmp_path) is None


def test_a_watch_of_an_amd_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PERIOD_S", 0.01)
    monkeypatch.setitem(sys.modules, "amdsmi", None)  # not installed
    card(tmp_path)
    watch = GpuWatch("hip:0", tmp_path)
    time.sleep(0.1)
    found = watch.end()
    assert found.samples > 1
    assert found.source == "sysfs"
    assert found.clock_mhz == (2371.0, pytest.approx(2371.0), 2371.0)
    assert found.throttle is None
    assert (found.utilization_before, found.other_processes) == (0.97, 1)


def test_a_watch_shorter_than_a_period_looks_when_it_begins_and_when_it_ends(
    tmp_path: Path,
) -> None:
    card(tmp_path)
    assert GpuWatch("hip:0", tmp_path).end().samples == 2
    watch = GpuWatch("hip:0", tmp_path)
    watch.restart()
    assert watch.end().samples == 2


@pytest.mark.parametrize(
    ("properties", "address"),
    [
        ("location_id 768\ndomain 0", "0000:03:00.0"),
        ("location_id 768", "0000:03:00.0"),  # of an older kernel
        ("location_id 50698\ndomain 1", "0001:c6:01.2"),
        ("location_id 536871680\ndomain 0", "0000:03:00.0"),  # partition 2
        ("location_id 770\ndomain 0", "0000:03:00.0"),  # partition 2, of an older kernel
    ],
)
def test_a_card_is_found_by_its_address(tmp_path: Path, properties: str, address: str) -> None:
    nodes, devices = tmp_path / "sys/class/kfd/kfd/topology/nodes", tmp_path / "sys/bus/pci/devices"
    for node, text in {
        "0": "gfx_target_version 0\nlocation_id 0\n",
        "2": "gfx_target_version 90402\nlocation_id 1024\ndomain 0\n",
        "3": "",  # of a card that this container may not use
        "10": f"gfx_target_version 90402\n{properties}\n",
    }.items():
        (nodes / node).mkdir(parents=True)
        (nodes / node / "properties").write_text(text, encoding="utf-8")
    for name in ("0000:03:00.0", "0000:04:00.0", "0001:c6:01.2"):
        (devices / name).mkdir(parents=True)
    assert amdgpu_folder(tmp_path, 0) == (devices / "0000:04:00.0", nodes / "2")
    assert amdgpu_folder(tmp_path, 1) == (devices / address, nodes / "10")
    assert amdgpu_folder(tmp_path, 2) is None


def test_amdsmi_says_why_it_throttles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class AmdSmiException(Exception):  # noqa: N818
        pass

    def refuse(handle: str) -> None:
        raise AmdSmiException

    address = (card(tmp_path)).resolve().name
    fake: Any = types.ModuleType("amdsmi")
    fake.AmdSmiException = AmdSmiException
    fake.amdsmi_init = lambda: None
    fake.amdsmi_get_processor_handles = lambda: ["other", "mine"]
    fake.amdsmi_get_gpu_device_bdf = {"other": "0000:04:00.0", "mine": address}.get
    fake.amdsmi_get_gpu_metrics_info = lambda handle: {"indep_throttle_status": 1 << 36}
    monkeypatch.setitem(sys.modules, "amdsmi", fake)
    found = GpuWatch("hip:0", tmp_path).end()
    assert (found.source, found.throttle) == ("sysfs, amdsmi", ("temperature",))
    grows = itertools.count(100)
    fake.amdsmi_get_gpu_metrics_info = lambda handle: {
        "ppt_residency_acc": 5,
        "socket_thm_residency_acc": next(grows),
    }
    assert GpuWatch("hip:0", tmp_path).end().throttle == ("temperature",)
    watch = GpuWatch("hip:0", tmp_path)
    watch.restart()
    assert watch.end().throttle == ("temperature",)  # of that moment alone
    fake.amdsmi_get_gpu_metrics_info = lambda handle: {"ppt_residency_acc": 5}
    assert GpuWatch("hip:0", tmp_path).end().throttle == ()
    fake.amdsmi_get_gpu_metrics_info = refuse
    assert GpuWatch("hip:0", tmp_path).end().throttle is None
    fake.amdsmi_get_processor_handles = lambda: ["other"]
    assert GpuWatch("hip:0", tmp_path).end().source == "sysfs"
    fake.amdsmi_init = lambda: refuse("")
    assert GpuWatch("hip:0", tmp_path).end().source == "sysfs"


def test_a_card_that_is_not_there_is_not_watched(tmp_path: Path) -> None:
    card(tmp_path)
    for device in ("hip:1", "hip:7"):
        found = GpuWatch(device, tmp_path).end()
        assert (found.source, found.samples, found.utilization_before) == ("none", 0, None)


def test_a_watch_of_an_nvidia_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch)
    watch = GpuWatch("cuda:1", tmp_path)
    time.sleep(0.3)
    watch.restart()
    time.sleep(0.3)
    found = watch.end()
    assert 1 <= found.samples <= 8
    assert found.throttle == ("hardware temperature",)
    assert (found.utilization_before, found.other_processes) == (0.4, 1)
    calls = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    assert all(line.startswith("-i 0000:19:00.0 ") for line in calls)


def test_an_nvidia_smi_that_fails_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(tmp_path, monkeypatch)
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n", encoding="utf-8")
    found = GpuWatch("cuda:1", tmp_path).end()
    assert (found.source, found.samples, found.throttle) == ("nvidia-smi", 0, None)
    assert (found.clock_mhz, found.utilization_before, found.other_processes) == (None, None, None)


def test_a_gpu_that_cuda_does_not_have_is_not_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(tmp_path, monkeypatch)
    assert GpuWatch("cuda:0", tmp_path).end().source == "none"
    assert not (tmp_path / "calls").exists()


def test_without_nvidia_smi_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "pci_address", {0: "0000:19:00.0"}.get)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert GpuWatch("cuda:0", tmp_path).end().source == "none"
