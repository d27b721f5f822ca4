"""Which packages pip has to install for the GPUs of a machine: hip-python or cuda-bindings.

It imports nothing beyond the standard library and needs no compiled module, so that
tools/install_gpu_packages.py can ask it with the Python of any environment.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from types import MappingProxyType

from rocmforge import env
from rocmforge.hardware import find_rocm

TESTED_HIP = MappingProxyType(
    {(6, 4): (6, 4), (7, 0): (7, 0), (7, 1): (7, 1), (7, 2): (7, 2), (10, 0): (7, 15)}
)
"""Versions of hip-python that are tested, which are ROCm's, and that of HIP in each: no longer the
same since ROCm 10. tools/test_hip_versions.sh runs the tests with them."""

CUDA_REQUIREMENTS = ("cuda-bindings>=13", "nvidia-cuda-nvrtc>=13")
"""What pip installs for NVIDIA GPUs, as in the extra `cuda`."""

NVIDIA_DRIVER = "libcuda.so.1"
_AMD_NODES = ("/dev/kfd", "/dev/dxg")


def has_amd_driver() -> bool:
    """Whether there is a way to an AMD GPU: the device file of Linux's driver, or of WSL."""
    return any(Path(node).exists() for node in _AMD_NODES)


def has_nvidia_driver() -> bool:
    """Whether NVIDIA's driver is installed, by its library, which cuda-bindings loads likewise."""
    try:
        ctypes.CDLL(NVIDIA_DRIVER)
    except OSError:
        return False
    return True


def hip_requirement() -> str:
    """Say which hip-python to install: the one for the ROCm that is here, else the newest."""
    rocm = find_rocm()
    here = re.match(r"(\d+)\.(\d+)", rocm.version) if rocm else None
    major, minor = nearest_hip((int(here[1]), int(here[2]))) if here else max(TESTED_HIP)
    return f"hip-python=={major}.{minor}.*"


def nearest_hip(rocm: tuple[int, int]) -> tuple[int, int]:
    """Return the newest tested version that is not newer; of older ones than all, the oldest."""
    return max((tested for tested in TESTED_HIP if tested <= rocm), default=min(TESTED_HIP))


def missing_packages(keep: bool = False) -> list[str]:
    """Return what pip has to install into this environment for the GPUs of this machine.

    These are the packages that ROCMFORGE_GPU_PACKAGES names. Where it is not set, they follow from
    the machine: a GPU is taken to be here by its driver, an AMD GPU also by ROCm where there is no
    other GPU.

    Parameters
    ----------
    keep
        Take a package that is there for the right one whatever its version, unless
        ROCMFORGE_GPU_PACKAGES names it: someone may have chosen it.

    Raises
    ------
    ValueError
        ROCMFORGE_GPU_PACKAGES is no list of packages.
    """
    named = env.gpu_packages()
    wanted: list[str] = []
    if named is not None:
        wanted += named
    else:
        nvidia = has_nvidia_driver()
        # Beside NVIDIA's driver, ROCm's runtime alone is there for something else.
        if has_amd_driver() or (find_rocm() and not nvidia):
            wanted += [hip_requirement()]
        if nvidia:
            wanted += CUDA_REQUIREMENTS
    any_version = keep and named is None
    return [name for name in wanted if not _is_installed(name, any_version)]


def _is_installed(requirement: str, any_version: bool) -> bool:
    """Whether a requirement is met; False also where only pip could say that: NAME[EXTRA], URLs."""
    read = re.fullmatch(r"([\w.-]+)(?:==([\d.]+)\.\*|>=(\d+))?", requirement)
    if read is None:
        return False
    from importlib import metadata  # 15 ms, and nothing else here needs it

    name, same, least = read.groups()
    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    if any_version or not (same or least):
        return True
    if same:
        return installed.startswith(f"{same}.")
    return int(installed.partition(".")[0]) >= int(least)
