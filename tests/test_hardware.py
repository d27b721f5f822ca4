"""What a machine is: this one, and made-up trees of /proc, /sys and /opt."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocmforge import env, hardware
from rocmforge.errors import DeviceError
from rocmforge.hardware import Hardware, Rocm, detect, find_hip, find_rocm, hardware_tag

CPUINFO = """\
processor\t: 0
vendor_id\t: {vendor}
cpu family\t: {family}
model\t\t: {model}
model name\t: {name}
flags\t\t: {flags}
power management:

processor\t: 1
model name\t: second
"""
AVX2 = "fpu sse2 avx avx2 fma f16c"
AVX512 = AVX2 + " avx512f avx512dq avx512bw avx512vl avx512_vnni"


class Root:
    """A made-up root directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, text: str) -> None:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def cpu(
        self,
        name: str = "AMD EPYC",
        family: int = 25,
        model: int = 17,
        flags: str = AVX512,
        vendor: str = "AuthenticAMD",
    ) -> None:
        text = CPUINFO.format(vendor=vendor, family=family, model=model, name=name, flags=flags)
        self.write("proc/cpuinfo", text)

    def gpu(self, node: int, target: int, simds: int, minor: int, name: str = "") -> None:
        self.write(
            f"sys/class/kfd/kfd/topology/nodes/{node}/properties",
            f"cpu_cores_count 0\nsimd_count {simds}\ngfx_target_version {target}\n"
            f"vendor_id 4098\ndevice_id 29772\ndrm_render_minor {minor}\n",
        )
        if name:
            self.write(f"sys/class/drm/renderD{minor}/device/product_name", name + "\n")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in ("ROCM_PATH", "ROCM_HOME", *env.gfx_overrides()):
        monkeypatch.delenv(name, raising=False)
    return Root(tmp_path)


def nvidia_smi(root: Root, script: str) -> None:
    root.write("bin/nvidia-smi", f"#!/bin/sh\n{script}\n")
    (root.path / "bin/nvidia-smi").chmod(stat.S_IRWXU)


def test_this_machine() -> None:
    machine = detect()
    assert machine.is_known()
    assert machine.cpu_count == len(os.sched_getaffinity(0))
    assert machine.ram_bytes is None or machine.ram_bytes > 2**20
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", hardware_tag())
    assert hardware_tag() == hardware_tag(detect())


def test_cpu_box(root: Root) -> None:
    root.cpu()
    root.write("proc/meminfo", "MemTotal:       24684096 kB\nMemFree: 1 kB\n")
    machine = detect(root.path)
    assert (machine.cpu_name, machine.cpu_microarchitecture) == ("AMD EPYC", "zen4")
    assert machine.cpu_isa == "avx512"
    assert machine.ram_bytes == 24684096 * 1024
    assert (machine.gpu_name, machine.gpu_architecture, machine.rocm_version) == (None, None, None)
    assert hardware_tag(machine) == f"cpu-amd-epyc-zen4-{machine.cpu_count}c"


def test_empty_root_invents_nothing(root: Root) -> None:
    machine = detect(root.path)
    assert not machine.is_known()
    assert (machine.cpu_name, machine.cpu_isa, machine.ram_bytes) == (None, None, None)
    assert hardware_tag(Hardware()) == "cpu"
    assert hardware_tag(Hardware(cpu_arch="riscv64", cpu_count=8)) == "cpu-riscv64-8c"


@pytest.mark.parametrize(
    ("family", "model", "expected"),
    [
        (23, 1, "zen"),
        (23, 49, "zen2"),
        (25, 33, "zen3"),
        (25, 17, "zen4"),
        (25, 97, "zen4"),
        (26, 2, "zen5"),
        (26, 255, None),
        (21, 1, None),
    ],
)
def test_microarchitecture(root: Root, family: int, model: int, expected: str | None) -> None:
    root.cpu(family=family, model=model)
    assert detect(root.path).cpu_microarchitecture == expected


def test_intel_has_a_name_and_no_zen(root: Root) -> None:
    root.cpu("Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz", 6, 143, AVX2, "GenuineIntel")
    machine = detect(root.path)
    assert machine.cpu_microarchitecture is None
    assert machine.cpu_isa == "avx2"
    expected = f"cpu-intel-xeon-platinum-8480-avx2-{machine.cpu_count}c"
    assert hardware_tag(machine) == expected


@pytest.mark.parametrize(
    ("isa", "tag"), [("avx512", "cpu-zen4-8c"), ("avx2", "cpu-zen4-avx2-8c"), (None, "cpu-zen4-8c")]
)
def test_a_cpu_without_avx512_is_another_kind_of_machine(isa: str | None, tag: str) -> None:
    machine = Hardware(cpu_microarchitecture="zen4", cpu_isa=isa, cpu_count=8)
    assert hardware_tag(machine) == tag


def test_avx512_without_vnni_is_avx2(root: Root) -> None:
    root.cpu(flags=AVX512.replace("avx512_vnni", ""))
    assert detect(root.path).cpu_isa == "avx2"


def test_avx_vnni_counts_where_there_is_no_avx512(root: Root) -> None:
    root.cpu(flags=AVX2 + " avx_vnni")
    assert detect(root.path).cpu_isa == "avxvnni"
    root.cpu(flags=AVX512 + " avx_vnni")
    assert detect(root.path).cpu_isa == "avx512"
    root.cpu(flags="fpu sse2")
    assert detect(root.path).cpu_isa == "portable"


def test_amd_gpu_with_rocm(root: Root) -> None:
    root.cpu("AMD Ryzen 9 7950X 16-Core Processor", 25, 97)
    root.gpu(0, 0, 0, 0)
    root.gpu(1, 100306, 4, 129, "AMD Radeon Graphics")
    root.gpu(10, 110000, 168, 128, "Radeon RX 7900 XT")
    root.write("opt/rocm/.info/version", "6.4.1-90\n")
    machine = detect(root.path)
    assert (machine.gpu_name, machine.gpu_architecture) == ("Radeon RX 7900 XT", "gfx1100")
    assert (machine.driver_version, machine.power_cap_watts) == (None, None)
    assert machine.rocm_version == "6.4.1-90"
    assert machine.identity()["rocm_version"] == "6"
    assert hardware_tag(machine) == "gfx1100-radeon-rx-7900-xt-rocm6"


@pytest.mark.parametrize(
    ("name", "value"),
    [("HSA_OVERRIDE_GFX_VERSION", "10.3.0"), ("HSA_OVERRIDE_GFX_VERSION_1", "10.3.0")],
)
def test_the_architecture_is_the_one_that_the_user_overrides_it_with(
    root: Root, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    root.gpu(1, 100301, 80, 128, "Radeon RX 6700 XT")
    monkeypatch.setenv(name, value)
    machine = detect(root.path)
    assert (machine.gpu_name, machine.gpu_architecture) == ("Radeon RX 6700 XT", "gfx1030")
    assert machine.gfx_override == machine.identity()["gfx_override"] == "10.3.0"
    monkeypatch.setenv(name, "10.3")  # AMD's runtime refuses it, and finds no GPU
    plain = detect(root.path)
    assert (plain.gpu_architecture, plain.gfx_override) == ("gfx1031", None)


def test_an_override_of_one_gpu_goes_before_that_of_all(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.gpu(1, 90010, 440, 128)
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION", "11.0.0")
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION_1", "9.0.10")
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION_2", "9.4.2")
    assert detect(root.path).gpu_architecture == "gfx90a"


def test_rocm_is_found_where_it_is_not_in_opt_rocm(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_rocm(root.path) is None
    root.write("opt/rocm-6.4.1/.info/version", "6.4.1-83\n")
    root.write("opt/rocm-7.1.0/.info/version", "7.1.0-20\n")
    assert find_rocm(root.path) == Rocm("7.1.0-20", "/opt/rocm-7.1.0")
    root.write("opt/rocm/.info/version", "6.4.1-83\n")
    assert find_rocm(root.path) == Rocm("6.4.1-83", "/opt/rocm")
    root.write("home/me/rocm/.info/version", "7.2.0\n")
    monkeypatch.setenv("ROCM_HOME", "/home/me/rocm")
    assert find_rocm(root.path) == Rocm("7.2.0", "/home/me/rocm")
    monkeypatch.setenv("ROCM_PATH", "/opt/rocm-7.1.0")
    assert find_rocm(root.path) == Rocm("7.1.0-20", "/opt/rocm-7.1.0")
    assert detect(root.path).rocm_version == "7.1.0-20"


def test_rocm_from_pip_is_found(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    site = root.path / "site"
    root.write(
        "site/rocm_sdk_core-7.10.0.dist-info/METADATA", "Name: rocm-sdk-core\nVersion: 7.10.0\n"
    )
    monkeypatch.syspath_prepend(site)
    assert find_rocm(root.path) is None  # a placeholder without libraries is on the index
    root.write("site/_rocm_sdk_core/__init__.py", "")
    assert find_rocm(root.path) == Rocm("7.10.0", "pip's rocm-sdk-core")


HIP = "# cmake\nHIP_VERSION_MAJOR={}\nHIP_VERSION_MINOR={}\nHIP_VERSION_PATCH={}\n"


def test_hip_has_a_version_of_its_own(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_hip(root.path) is None
    root.write("usr/lib/x86_64-linux-gnu/libamdhip64.so.5", "")
    assert find_hip(root.path) is None
    root.write("usr/lib/x86_64-linux-gnu/libamdhip64.so.5.2.50203", "")
    assert find_hip(root.path) == "5.2"
    root.write("usr/lib/x86_64-linux-gnu/libamdhip64.so.10.0.50203", "")  # after 5 by number alone
    assert find_hip(root.path) == "10.0"
    root.write("usr/share/hip/version", HIP.format(5, 2, 21153))
    assert find_hip(root.path) == "5.2.21153"
    lines = [f"#define HIP_VERSION_{n} {v}" for n, v in (("MAJOR", 7), ("MINOR", 0), ("PATCH", 3))]
    root.write("opt/rocm-7.0.1/include/hip/hip_version.h", "\n".join(lines))
    assert find_hip(root.path) == "7.0.3"
    root.write("opt/rocm/bin/.hipVersion", HIP.format(6, 4, 43483))
    root.write("opt/rocm/.info/version", "6.4.1-83\n")
    machine = detect(root.path)
    assert (machine.rocm_version, machine.hip_version) == ("6.4.1-83", "6.4.43483")
    root.write("home/me/rocm/share/hip/version", HIP.format(7, 15, 26333))
    monkeypatch.setenv("ROCM_PATH", "/home/me/rocm")
    assert find_hip(root.path) == "7.15.26333"


def test_hip_of_rocm_from_pip(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    root.write("site/_rocm_sdk_core/__init__.py", "")
    root.write("site/_rocm_sdk_core/share/hip/version", HIP.format(7, 15, 1))
    monkeypatch.syspath_prepend(root.path / "site")
    assert find_hip(root.path) == "7.15.1"


def test_another_hip_is_the_same_hardware_and_an_override_is_not() -> None:
    card = Hardware(gpu_name="x", rocm_version="6.4.1")
    assert card.identity() == replace(card, hip_version="6.4.43483").identity()
    assert card.identity() != replace(card, gfx_override="10.3.0").identity()


STATUS = """\
Package: libamd-comgr2
Status: install ok installed
Version: 5.2.3-2

Package: libamdhip64-5
Status: {status}
Priority: optional
Source: rocm-hipamd
Version: 1:5.2.3-8
Depends: libc6

Package: zlib1g
Status: install ok installed
Version: 1.2.13
"""


def test_rocm_of_debian_is_found(root: Root) -> None:
    root.write("var/lib/dpkg/status", STATUS.format(status="deinstall ok config-files"))
    assert find_rocm(root.path) is None
    root.write("var/lib/dpkg/status", STATUS.format(status="install ok installed"))
    assert find_rocm(root.path) == Rocm("5.2.3-8", "package libamdhip64-5")


def test_rocm_of_fedora_is_found(root: Root) -> None:
    root.write("bin/rpm", '#!/bin/sh\n[ "$*" = "-q --qf %{VERSION} rocm-hip" ] && echo 6.3.1\n')
    (root.path / "bin/rpm").chmod(stat.S_IRWXU)
    assert find_rocm(root.path) is None  # rpm is asked only where the library is
    root.write("usr/lib64/libamdhip64.so.6", "")
    assert find_rocm(root.path) == Rocm("6.3.1", "package rocm-hip")
    root.write("bin/rpm", "#!/bin/sh\necho package rocm-hip is not installed; exit 1\n")
    assert find_rocm(root.path) is None


@pytest.mark.parametrize(("cap", "watts"), [("265000000\n", 265), ("n/a", None), ("", None)])
def test_power_cap_and_driver_of_an_amd_gpu(root: Root, cap: str, watts: int | None) -> None:
    root.gpu(1, 110000, 168, 128, "Radeon RX 7900 XT")
    root.write("sys/class/drm/renderD128/device/hwmon/hwmon3/power1_cap", cap)
    root.write("sys/module/amdgpu/version", "6.14.14\n")
    machine = detect(root.path)
    assert (machine.driver_version, machine.power_cap_watts) == ("6.14.14", watts)
    assert machine.identity()["driver_version"] == "6"


@pytest.mark.parametrize(
    ("target", "expected"),
    [(90010, "gfx90a"), (90402, "gfx942"), (100300, "gfx1030"), (120001, "gfx1201")],
)
def test_gfx_of_a_card_without_a_name(root: Root, target: int, expected: str) -> None:
    root.gpu(1, target, 4, 128)
    machine = detect(root.path)
    assert (machine.gpu_name, machine.gpu_architecture) == ("AMD GPU 1002:744c", expected)
    assert hardware_tag(machine) == f"{expected}-amd-gpu-1002-744c"


def test_unreadable_gpu_node_is_no_gpu(root: Root) -> None:
    (root.path / "sys/class/kfd/kfd/topology/nodes/1/properties").mkdir(parents=True)
    assert detect(root.path).gpu_name is None


def test_nvidia_gpu(root: Root) -> None:
    root.write("opt/rocm/.info/version", "6.4.1")
    line = "NVIDIA H200, 9.0, 580.159.04, 699.60"
    nvidia_smi(root, f'echo "{line}"; echo "{line}"')
    machine = detect(root.path)
    assert (machine.gpu_name, machine.gpu_architecture) == ("NVIDIA H200", "sm_90")
    assert (machine.driver_version, machine.power_cap_watts) == ("580.159.04", 700)
    nvidia_smi(root, 'echo "NVIDIA H200, 9.0, [N/A], [Not Supported]"')
    machine = detect(root.path)
    assert (machine.driver_version, machine.power_cap_watts) == (None, None)
    assert hardware_tag(machine) == "sm-90-nvidia-h200"


@pytest.mark.parametrize("script", ["echo 'No devices were found'", "exit 9", "true"])
def test_nvidia_smi_without_a_gpu(root: Root, script: str) -> None:
    nvidia_smi(root, script)
    assert detect(root.path).gpu_name is None


def test_nvidia_smi_that_hangs(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(root, "exec /bin/sleep 5")
    monkeypatch.setattr(hardware, "NVIDIA_SMI_TIMEOUT_S", 0.2)
    with pytest.raises(DeviceError, match="nvidia-smi: no answer"):
        detect(root.path)


def test_packages_of_rocm_are_no_version_of_an_nvidia_machine(root: Root) -> None:
    root.write("var/lib/dpkg/status", STATUS.format(status="install ok installed"))
    root.write("usr/share/hip/version", HIP.format(5, 7, 31921))
    alone = detect(root.path)
    assert (alone.rocm_version, alone.hip_version) == ("5.2.3-8", "5.7.31921")
    nvidia_smi(root, 'echo "NVIDIA H200, 9.0, 580.159.04, 700.00"')
    beside = detect(root.path)
    assert beside.gpu_name == "NVIDIA H200"
    assert (beside.rocm_version, beside.hip_version) == (None, None)
    root.gpu(1, 110000, 168, 128, "Radeon RX 7900 XT")
    both = detect(root.path)
    assert (both.gpu_architecture, both.rocm_version) == ("gfx1100", "5.2.3-8")


def test_rocm_beside_an_nvidia_gpu_makes_no_other_hardware() -> None:
    card = Hardware(gpu_name="NVIDIA H200", gpu_architecture="sm_90", driver_version="580.1")
    beside = replace(card, rocm_version="5.7.1-3")
    assert card.identity() == beside.identity()
    amd = Hardware(gpu_architecture="gfx1100", rocm_version="7.2.0")
    assert amd.identity() != replace(amd, rocm_version="6.4.0").identity()


def test_identity_leaves_out_what_may_change() -> None:
    old = Hardware(cpu_name="x", os="Linux 6.1", python_version="3.10", ram_bytes=1)
    new = Hardware(cpu_name="x", os="Linux 6.9", python_version="3.13", ram_bytes=2)
    assert old.identity() == new.identity()
    assert old.identity() != Hardware(cpu_name="y", os="Linux 6.1").identity()


def test_of_the_driver_the_major_version_counts_and_the_unknown_differs() -> None:
    card = Hardware(gpu_name="x", driver_version="580.159.04", power_cap_watts=700)
    assert card.identity() == replace(card, driver_version="580.1").identity()
    others: tuple[dict[str, Any], ...] = (
        {"driver_version": "590.1"},
        {"driver_version": None},
        {"power_cap_watts": 500},
        {"power_cap_watts": None},
    )
    for change in others:
        assert card.identity() != replace(card, **change).identity()
