"""Conditions from recorded texts of the kernel, and shares computed from made-up counters."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from rocmforge.gpu import hip
from rocmforge.profiling.run_environment import (
    PACKAGES,
    CpuTicks,
    Reading,
    Watch,
    cpu_mhz,
    cpu_ticks,
    environment_between,
    nvidia_driver,
    quota_throttled,
    spread,
    versions,
)

STAT = """\
cpu  1802476 1255950 440435 1712930 105122 5 1709 11339 7 3
cpu0 855556 631937 211400 931602 28201 2 154 5548 4 1
cpu1 946919 624012 229035 781328 76921 3 1555 5791 3 2
intr 117310544 0 0 0
ctxt 298374190
btime 1763624340
"""
OLD_STAT = "cpu  100 0 50 1000\ncpu0 100 0 50 1000\n"
CPUINFO = """\
processor	: 0
vendor_id	: AuthenticAMD
cpu MHz		: 2596.138
cache size	: 1024 KB

processor	: 1
vendor_id	: AuthenticAMD
cpu MHz		: 3701.500

processor	: 2
cpu MHz		: 1500.000
"""
ARM_CPUINFO = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU part\t: 0xd40\n"
CPU_STAT = "usage_usec 6102656\nnr_periods 120\nnr_throttled 7\nthrottled_usec 350000\n"
NVIDIA_OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x@y)\n"
    "GCC version:  gcc version 15.3.0 (GCC)\n"
)
NVIDIA_CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
)

START = Reading(wall=100.0, own=5.0, ticks=CpuTicks(1000.0, 10.0), quota=None, mhz=())


def later(**changes: object) -> Reading:
    """Two seconds of wall time after START."""
    return replace(START, wall=102.0, **changes)  # type: ignore[arg-type]


def test_ticks_are_those_of_the_named_cpus_and_count_guests_once() -> None:
    both, second = cpu_ticks(STAT, (0, 1), 100), cpu_ticks(STAT, (1,), 100)
    assert second == CpuTicks((946919 + 624012 + 229035 + 3 + 1555) / 100, 57.91)
    assert both is not None
    assert both.busy - second.busy == pytest.approx((855556 + 631937 + 211400 + 2 + 154) / 100)
    assert both.stolen == pytest.approx((5548 + 5791) / 100)


def test_ticks_of_an_old_kernel_know_no_stealing() -> None:
    assert cpu_ticks(OLD_STAT, (0,), 100) == CpuTicks(1.5, 0.0)


@pytest.mark.parametrize("text", ["", "cpu  1 2 3 4\n", "cpu0 x\n", STAT.replace("cpu1", "cpu7")])
def test_ticks_that_are_not_there_are_none(text: str) -> None:
    assert cpu_ticks(text, (0, 1), 100) is None


def test_frequencies_are_those_of_the_named_cpus() -> None:
    assert cpu_mhz(CPUINFO, (0, 1)) == (2596.138, 3701.5)
    assert cpu_mhz(ARM_CPUINFO, (0,)) == ()
    assert spread((2000.0, 3000.0, 2500.0)) == (2000.0, 2500.0, 3000.0)
    assert spread(()) is None


def test_quota_and_drivers() -> None:
    assert quota_throttled(CPU_STAT) == pytest.approx(0.35)
    assert quota_throttled("usage_usec 5\n") is None
    assert nvidia_driver(NVIDIA_OPEN) == "580.159.04"
    assert nvidia_driver(NVIDIA_CLOSED) == "535.104.05"
    assert nvidia_driver("") is None


@pytest.mark.parametrize(
    ("own", "busy", "stolen", "share"),
    [
        (2.0, 2.0, 0.0, 0.0),  # we alone
        (2.0, 3.0, 0.0, 0.25),  # 1 s of 2 s × 2 CPUs
        (2.0, 2.0, 1.0, 0.25),  # the hypervisor took as much
        (1.0, 2.0, 1.0, 0.5),
        (0.0, 4.0, 0.0, 1.0),
        (2.0, 1.98, 0.0, 0.0),  # ticks are coarse
        (0.0, 4.1, 0.0, 1.0),
    ],
)
def test_the_share_of_others(own: float, busy: float, stolen: float, share: float) -> None:
    end = later(own=5.0 + own, ticks=CpuTicks(1000.0 + busy, 10.0 + stolen))
    found = environment_between(START, end, 2)
    assert found.others_share == pytest.approx(share)
    assert (found.wall_seconds, found.own_cpu_seconds) == (2.0, own)


def test_counters_that_stand_still_say_nothing() -> None:
    assert environment_between(START, later(own=7.0), 2).others_share is None
    assert environment_between(START, later(own=7.0, ticks=None), 2).others_share is None
    assert environment_between(START, START, 2).others_share is None


def test_a_quota_is_a_share_of_the_time() -> None:
    begin = replace(START, quota=1.0)
    assert environment_between(begin, later(quota=1.4), 2).quota_throttled_share == pytest.approx(
        0.1
    )
    assert environment_between(begin, later(quota=None), 2).quota_throttled_share is None


def tree(root: Path) -> Path:
    """Write a machine of files: as many CPUs as this process may use, of one governor."""
    cpus = sorted(os.sched_getaffinity(0))
    for path, text in {
        "proc/stat": "".join(f"cpu{c} 100 0 50 1000 0 0 0 0 0 0\n" for c in cpus),
        "proc/loadavg": "1.84 1.65 0.91 6/94 8339\n",
        "proc/cpuinfo": ARM_CPUINFO,
        "proc/self/cgroup": "0::/work/unit\n",
        "sys/fs/cgroup/work/unit/cpu.stat": CPU_STAT,
        "opt/rocm/.info/version": "6.4.1-90\n",
        "sys/module/amdgpu/version": "6.12.12\n",
        "proc/driver/nvidia/version": NVIDIA_OPEN,
        **{
            f"sys/devices/system/cpu/cpu{c}/cpufreq/{name}": text
            for c in cpus
            for name, text in (
                ("scaling_cur_freq", "2400000\n"),
                ("scaling_governor", "performance\n"),
            )
        },
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return root


def test_a_watch_reads_the_files_of_the_kernel(tmp_path: Path) -> None:
    root = tree(tmp_path)
    found = Watch(root).end()
    assert found.load_average == 1.84
    assert found.governor == "performance"
    assert found.cpu_mhz == (2400.0, 2400.0, 2400.0)
    assert found.quota_throttled_share == 0.0
    assert found.cpus == len(os.sched_getaffinity(0))
    assert found.versions.items() >= {
        ("amdgpu", "6.12.12"),
        ("nvidia", "580.159.04"),
    }
    assert json.loads(json.dumps(asdict(found)))["cpu_mhz"] == [2400.0, 2400.0, 2400.0]


def test_rocm_is_that_of_an_amd_gpu_or_of_a_machine_without_nvidias(tmp_path: Path) -> None:
    root = tree(tmp_path)
    assert "rocm" not in versions(root)
    node = root / "sys/class/kfd/kfd/topology/nodes/1"
    node.mkdir(parents=True)
    (node / "properties").write_text("simd_count 168\ngfx_target_version 110000\n")
    assert versions(root)["rocm"] == "6.4.1-90"
    (node / "properties").unlink()
    (root / "proc/driver/nvidia/version").unlink()
    assert versions(root)["rocm"] == "6.4.1-90"


def test_an_override_of_the_architecture_is_stored_with_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION", "10.3.0")
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION_2", "")
    assert Watch(tmp_path).end().versions["HSA_OVERRIDE_GFX_VERSION"] == "10.3.0"
    assert "HSA_OVERRIDE_GFX_VERSION_2" not in versions(tmp_path)


def test_hips_version_is_stored_beside_rocms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path)
    (root / "proc/driver/nvidia/version").unlink()
    monkeypatch.setattr(hip, "version", lambda: (6, 4, 43482))
    watch = Watch(root)
    watch.add_gpu("hip:0")
    found = watch.end().versions
    assert (found["rocm"], found["hip"]) == ("6.4.1-90", "6.4.43482")
    assert "hip" not in Watch(root).end().versions  # of the GPU's runtime, which is not loaded


def test_what_is_not_there_is_none(tmp_path: Path) -> None:
    found = Watch(tmp_path).end()
    assert found.others_share is None
    assert found.quota_throttled_share is None
    assert found.cpu_mhz is None
    assert found.load_average is None
    assert found.governor is None
    assert found.gpus == ()
    assert set(versions(tmp_path)) <= {"python", "kernel", *PACKAGES}
    assert {"python", "kernel", "numpy"} <= set(found.versions)


def test_own_time_is_no_others_and_a_restart_forgets_it() -> None:
    watch = Watch()
    begin = time.thread_time()  # other threads of this process may compute too
    while time.thread_time() - begin < 0.3:
        pass
    seen = watch.seconds
    assert seen >= 0.29
    watch.restart()
    assert watch.seconds < seen
    found = watch.end()
    assert found.own_cpu_seconds < 0.2
