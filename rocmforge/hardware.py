"""What this machine is: CPU, memory, GPU, driver, ROCm, and a short tag that names its kind.

Read from /proc, /sys and ROCm's folder or package, and for an NVIDIA GPU from nvidia-smi. What is
not there is None, never a guess. No GPU runtime is loaded: `rocmforge devices` says whether the
engine can use the device.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rocmforge import env
from rocmforge.errors import DeviceError

NVIDIA_SMI_TIMEOUT_S = 30.0
_NVIDIA_FIELDS = "name,compute_cap,driver_version,power.limit"

# (family, first model, last model) -> name; source: arch/x86/kernel/cpu/amd.c of Linux 6.12
_ZEN_MODELS = (
    (0x17, 0x00, 0x2F, "zen"),
    (0x17, 0x50, 0x5F, "zen"),
    (0x17, 0x30, 0x4F, "zen2"),
    (0x17, 0x60, 0x7F, "zen2"),
    (0x17, 0x90, 0x91, "zen2"),
    (0x17, 0xA0, 0xAF, "zen2"),
    (0x19, 0x00, 0x0F, "zen3"),
    (0x19, 0x20, 0x5F, "zen3"),
    (0x19, 0x10, 0x1F, "zen4"),
    (0x19, 0x60, 0xAF, "zen4"),
    (0x1A, 0x00, 0x2F, "zen5"),
    (0x1A, 0x40, 0x4F, "zen5"),
    (0x1A, 0x60, 0x7F, "zen5"),
)
_AVX2_FLAGS = frozenset({"avx2", "fma", "f16c"})
_AVXVNNI_FLAGS = _AVX2_FLAGS | {"avx_vnni"}
_AVX512_FLAGS = _AVX2_FLAGS | {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}


@dataclass(frozen=True)
class Hardware:
    """One machine, as far as it decides whether two measurements may be compared.

    Parameters
    ----------
    gpu_name, gpu_architecture
        Product name and ``gfx…`` or ``sm_…`` of the GPU with the most compute units; None: no GPU.
        The architecture is the one that HSA_OVERRIDE_GFX_VERSION makes AMD's runtime take it for.
    driver_version
        Of the GPU's kernel driver, e.g. ``"580.159.04"``; None without a GPU, and for the amdgpu
        that comes with the kernel, which has no version of its own.
    power_cap_watts
        What the GPU may draw at most as it is set, in whole watts; None where it does not say.
    rocm_version
        As ROCm's version file or its package has it, e.g. ``"6.4.1-90"``; None where ROCm is not
        installed, and where the GPU is NVIDIA's, beside which it is there for something else.
    hip_version
        Of HIP, the part of ROCm that has a version of its own, e.g. ``"6.4.43483"``; None where it
        is not installed or does not say, and where ROCm is None.
    gfx_override
        Value of HSA_OVERRIDE_GFX_VERSION for this GPU, e.g. ``"10.3.0"``; None: not overridden.
    cpu_name, cpu_microarchitecture
        The kernel's model name, and ``zen`` … ``zen5`` where family and model say so, else None.
    cpu_arch
        ``x86_64``, ``aarch64`` …
    cpu_isa
        ``avx512`` (with VNNI), ``avxvnni``, ``avx2`` or ``portable``: the best that the CPU backend
        could use; None where unknown.
    cpu_count
        Logical CPUs that this process may run on.
    ram_bytes
        Main memory in bytes.
    os, python_version
        ``"Linux 6.1.0"`` and ``"3.11.7"``.
    """

    gpu_name: str | None = None
    gpu_architecture: str | None = None
    rocm_version: str | None = None
    cpu_name: str | None = None
    cpu_microarchitecture: str | None = None
    cpu_arch: str | None = None
    cpu_isa: str | None = None
    cpu_count: int | None = None
    ram_bytes: int | None = None
    os: str | None = None
    python_version: str | None = None
    driver_version: str | None = None
    power_cap_watts: int | None = None
    hip_version: str | None = None
    gfx_override: str | None = None

    def is_known(self) -> bool:
        """Whether at least the CPU or the GPU is named."""
        return bool(self.cpu_name or self.gpu_name or self.gpu_architecture)

    def identity(self) -> dict[str, str | int | None]:
        """Return the values that must be equal before two measurements may be compared.

        Of ROCm and the driver only the major version counts, of the operating system only its
        name; memory size and the versions of Python and HIP do not count, and each ROCm has one
        HIP. Beside an NVIDIA GPU no ROCm counts. None is a value like any other: what is unknown on
        one side alone differs.
        """
        return {
            "gpu_name": self.gpu_name,
            "gpu_architecture": self.gpu_architecture,
            "gfx_override": self.gfx_override,
            "rocm_version": None if _is_nvidia(self) else _major(self.rocm_version),
            "driver_version": _major(self.driver_version),
            "power_cap_watts": self.power_cap_watts,
            "cpu_name": self.cpu_name,
            "cpu_microarchitecture": self.cpu_microarchitecture,
            "cpu_arch": self.cpu_arch,
            "cpu_isa": self.cpu_isa,
            "cpu_count": self.cpu_count,
            "os": self.os.split()[0] if self.os else None,
        }


def oversubscription(threads: int, cpus: int) -> str | None:
    """Say that more threads run than CPUs may be used; None where it is not so."""
    if threads <= cpus:
        return None
    return f"{threads} threads on {cpus} usable core{'s' if cpus > 1 else ''} wait for each other"


def detect(root: Path = Path("/")) -> Hardware:
    """Describe this machine.

    Parameters
    ----------
    root
        Directory under which ``proc``, ``sys``, ``opt`` and the like are looked up.

    Raises
    ------
    DeviceError
        nvidia-smi is installed and does not answer.
    """
    cpu, amd = _first_cpu(root), _amd_gpu(root)
    nvidia = None if amd else _nvidia_gpu()
    rocm = None if nvidia else find_rocm(root)
    gpu = amd or nvidia or _Gpu(None, None, None, None, None)
    return Hardware(
        gpu_name=gpu.name,
        gpu_architecture=gpu.architecture,
        rocm_version=rocm.version if rocm else None,
        cpu_name=cpu.get("model name"),
        cpu_microarchitecture=_microarchitecture(cpu),
        cpu_arch=platform.machine() or None,
        cpu_isa=_isa(cpu),
        cpu_count=len(os.sched_getaffinity(0)),
        ram_bytes=_ram_bytes(root),
        os=f"{platform.system()} {platform.release()}",
        python_version=platform.python_version(),
        driver_version=gpu.driver_version,
        power_cap_watts=gpu.power_cap_watts,
        hip_version=None if nvidia else find_hip(root),
        gfx_override=gpu.override,
    )


class Rocm(NamedTuple):
    """An installed ROCm: its version, e.g. ``"6.4.1-90"``, and the folder or package it is of."""

    version: str
    source: str


def find_rocm(root: Path = Path("/")) -> Rocm | None:
    """Find ROCm: pip's, that of ROCM_PATH or ROCM_HOME, in /opt, or the distribution's.

    They are looked for in hip-python's order.

    Parameters
    ----------
    root
        Directory under which all but pip's is looked up.
    """
    return _rocm_of_pip() or _rocm_of_folder(root) or _rocm_of_distribution(root)


def find_hip(root: Path = Path("/")) -> str | None:
    """Find the version of the installed HIP, in the places and the order of `find_rocm`.

    HIP's own files say it. Where only its library is installed, that file's name has the first two
    numbers; the third one there is ROCm's.

    Parameters
    ----------
    root
        Directory under which all but pip's is looked up.
    """
    for folder in (*_folders_of_pip(), *_rocm_folders(root), root / "usr"):
        version = _hip_of(folder)
        if version:
            return version
    return None


def hardware_tag(hardware: Hardware | None = None) -> str:
    """Name a kind of machine: stable over time, safe as a file name.

    Parameters
    ----------
    hardware
        The machine; default: this one.

    Returns
    -------
    str
        ``cpu-amd-epyc-zen4-2c`` without a GPU, ``gfx1100-radeon-rx-7900-xt-rocm6`` with one. A CPU
        without AVX-512 has its instruction set in it, ``cpu-amd-epyc-zen4-avx2-2c``: that decides
        its speed, and a virtual machine may hide what the name of a CPU promises.
    """
    machine = detect() if hardware is None else hardware
    if machine.gpu_name or machine.gpu_architecture:
        major = _major(machine.rocm_version)
        parts = [
            machine.gpu_architecture,
            machine.gpu_name,
            f"rocm{major}" if major and not _is_nvidia(machine) else None,
        ]
    else:
        parts = [
            "cpu",
            _short_cpu_name(machine.cpu_name) or machine.cpu_arch,
            machine.cpu_microarchitecture,
            machine.cpu_isa if machine.cpu_isa != "avx512" else None,
            f"{machine.cpu_count}c" if machine.cpu_count else None,
        ]
    return _slug("-".join(part for part in parts if part)) or "unknown"


def _is_nvidia(machine: Hardware) -> bool:
    return (machine.gpu_architecture or "").startswith("sm_")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _short_cpu_name(name: str | None) -> str:
    short = re.sub(r"\((r|tm)\)|@.*|\b(cpu|processor|\d+-core)\b", " ", name or "", flags=re.I)
    return " ".join(short.split())


def _major(version: str | None) -> str | None:
    return version.split(".")[0] if version else None


def _read(path: Path) -> str | None:
    """Text of a file of the kernel or of ROCm; None where it is absent, unreadable or empty."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _first_cpu(root: Path) -> dict[str, str]:
    first = (_read(root / "proc/cpuinfo") or "").split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, colon, value in pairs if colon and value.strip()}


def _microarchitecture(cpu: Mapping[str, str]) -> str | None:
    family, model = cpu.get("cpu family", ""), cpu.get("model", "")
    if cpu.get("vendor_id") != "AuthenticAMD" or not (family.isdigit() and model.isdigit()):
        return None
    for zen_family, first, last, name in _ZEN_MODELS:
        if int(family) == zen_family and first <= int(model) <= last:
            return name
    return None


def _isa(cpu: Mapping[str, str]) -> str | None:
    if not cpu:
        return None
    flags = set(cpu.get("flags", "").split())
    if flags >= _AVX512_FLAGS:
        return "avx512"
    if flags >= _AVXVNNI_FLAGS:
        return "avxvnni"
    return "avx2" if flags >= _AVX2_FLAGS else "portable"


def _ram_bytes(root: Path) -> int | None:
    found = re.search(r"^MemTotal:\s+(\d+) kB", _read(root / "proc/meminfo") or "", re.M)
    return int(found[1]) * 1024 if found else None


def _rocm_of_pip() -> Rocm | None:
    """ROCm's own wheels; the index has empty ones of the same name."""
    if not _folders_of_pip():
        return None
    from importlib import metadata  # 15 ms, and nothing else here needs it

    try:
        return Rocm(metadata.version("rocm-sdk-core"), "pip's rocm-sdk-core")
    except metadata.PackageNotFoundError:
        return None


def _folders_of_pip() -> list[Path]:
    spec = importlib.util.find_spec("_rocm_sdk_core")
    return [Path(place) for place in (spec and spec.submodule_search_locations) or ()]


def _rocm_of_folder(root: Path) -> Rocm | None:
    for folder in _rocm_folders(root):
        version = _read(folder / ".info/version")
        if version:
            return Rocm(version, f"/{folder.relative_to(root)}")
    return None


def _rocm_folders(root: Path) -> list[Path]:
    named = [path.relative_to("/") for path in env.rocm_folders() if path.is_absolute()]
    versioned = sorted((root / "opt").glob("rocm-*"), key=_numbers, reverse=True)
    return [*(root / path for path in named), root / "opt/rocm", *versioned]


def _hip_of(folder: Path) -> str | None:
    """Version of the HIP in a folder of ROCm; its file has moved over the years."""
    for name in ("share/hip/version", "bin/.hipVersion", "include/hip/hip_version.h"):
        text = _read(folder / name) or ""
        found = dict(re.findall(r"\bHIP_VERSION_(MAJOR|MINOR|PATCH)[= ]+(\d+)", text))
        if len(found) == 3:
            return f"{found['MAJOR']}.{found['MINOR']}.{found['PATCH']}"
    for pattern in ("lib/libamdhip64.so.*", "lib64/libamdhip64.so.*", "lib/*/libamdhip64.so.*"):
        for library in sorted(folder.glob(pattern), key=_numbers, reverse=True):
            numbers = re.search(r"\.so\.(\d+\.\d+)\.", library.name)
            if numbers:
                return numbers[1]
    return None


def _numbers(folder: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", folder.name)]


def _rocm_of_distribution(root: Path) -> Rocm | None:
    """Version of the package that holds the HIP runtime: of Debian and Ubuntu, or of Fedora."""
    found = re.search(
        r"^Package: (libamdhip64-\d+)\nStatus: install ok installed\n(?:.+\n)*?"
        r"Version: (?:\d+:)?(\S+)$",
        _read(root / "var/lib/dpkg/status") or "",
        re.M,
    )
    if found:
        return Rocm(found[2], f"package {found[1]}")
    rpm = shutil.which("rpm")
    if rpm is None or next((root / "usr/lib64").glob("libamdhip64.so.*"), None) is None:
        return None
    command = [rpm, "-q", "--qf", "%{VERSION}", "rocm-hip"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Rocm(done.stdout.strip(), "package rocm-hip") if done.returncode == 0 else None


def has_amd_gpu(root: Path = Path("/")) -> bool:
    """Whether the kernel driver shows an AMD GPU."""
    return _amd_gpu(root) is not None


class _Gpu(NamedTuple):
    name: str | None
    architecture: str | None
    driver_version: str | None
    power_cap_watts: int | None
    override: str | None


def amd_architectures(root: Path = Path("/")) -> list[str]:
    """Return the architecture of each AMD GPU, in the order of ROCR_VISIBLE_DEVICES."""
    nodes = _amd_nodes(root)
    return [_gfx((_override(node) or ("", gpu["gfx_target_version"]))[1]) for gpu, node in nodes]


def _amd_nodes(root: Path) -> list[tuple[dict[str, int], str]]:
    """Properties and number of each node of the kernel driver that is a GPU, in their order."""
    nodes = sorted(
        (root / "sys/class/kfd/kfd/topology/nodes").glob("[0-9]*"), key=lambda p: int(p.name)
    )
    gpus = []
    for node in nodes:
        text = _read(node / "properties") or ""
        pairs = re.findall(r"^(\w+) (\d+)$", text, re.M)
        properties = {key: int(value) for key, value in pairs}
        if properties.get("gfx_target_version"):
            gpus.append((properties, node.name))
    return gpus


def _amd_gpu(root: Path) -> _Gpu | None:
    """Largest AMD GPU that the kernel driver shows, or None."""
    gpus = _amd_nodes(root)
    if not gpus:
        return None
    gpu, node_number = max(gpus, key=lambda at: at[0].get("simd_count", 0))
    minor = gpu.get("drm_render_minor", 0)
    device = root / f"sys/class/drm/renderD{minor}/device"
    override, target = _override(node_number) or (None, gpu["gfx_target_version"])
    ids = f"AMD GPU {gpu.get('vendor_id', 0):04x}:{gpu.get('device_id', 0):04x}"
    return _Gpu(
        name=_read(device / "product_name") or ids,
        architecture=_gfx(target),
        driver_version=_read(root / "sys/module/amdgpu/version"),
        power_cap_watts=_amd_power_cap(device),
        override=override,
    )


def _amd_power_cap(device: Path) -> int | None:
    """Whole watts of the driver's power1_cap, which is in µW; None where there is none."""
    for file in sorted(device.glob("hwmon/hwmon*/power1_cap")):
        microwatts = _read(file) or ""
        if microwatts.isdecimal():
            return round(int(microwatts) / 1e6)
    return None


def _override(node: str) -> tuple[str, int] | None:
    """HSA_OVERRIDE_GFX_VERSION of a GPU, and the target that it names, ``10.3.0`` as 100300.

    Source: libhsakmt of ROCR-Runtime, topology.c.
    """
    values = env.gfx_overrides()
    value = values.get(f"{env.GFX_OVERRIDE}_{node}", values.get(env.GFX_OVERRIDE, ""))
    found = re.fullmatch(r"(\d{1,2})\.(\d{1,2})\.(\d{1,2})", value)
    return (value, int(found[1]) * 10000 + int(found[2]) * 100 + int(found[3])) if found else None


def _gfx(target_version: int) -> str:
    """Spell a target, e.g. 110000 → gfx1100, 90010 → gfx90a: minor and stepping are hex digits."""
    major, rest = divmod(target_version, 10000)
    minor, stepping = divmod(rest, 100)
    return f"gfx{major}{minor:x}{stepping:x}"


def _nvidia_gpu() -> _Gpu | None:
    """First NVIDIA GPU, or None where there is no working driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, f"--query-gpu={_NVIDIA_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"{program}: no answer within {NVIDIA_SMI_TIMEOUT_S:.0f} s") from error
    first = done.stdout.strip().split("\n")[0]
    found = re.match(r"(.+), (\d+)\.(\d+), ([^,]*), ([^,]*)$", first)
    if done.returncode != 0 or found is None:
        return None
    driver, watts = found[4].strip(), found[5].strip()  # "[N/A]" where it does not say
    return _Gpu(
        name=found[1],
        architecture=f"sm_{found[2]}{found[3]}",
        driver_version=driver if driver[:1].isdecimal() else None,
        power_cap_watts=round(float(watts)) if re.fullmatch(r"\d+(\.\d+)?", watts) else None,
        override=None,
    )
