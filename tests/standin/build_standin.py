"""Builds the stand-in of the HIP runtime with the machine's C++ compiler, and loads it.

The two libraries lie below build/standin, in a folder named by the digest of their sources, so
they are built once. hip-python finds them in place of ROCm's: by ROCM_PATH (10.0), or by their
names, since they are loaded already (6.4, 7.2). This file knows no kernel and no test.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import hip as hip_python

from rocmforge.gpu import hip

SOURCES = Path(__file__).resolve().parent
ROOT = SOURCES.parent.parent / "build" / "standin"
KERNEL_CACHE = ROOT / "kernels"
LIBRARIES = {
    "amdhip64": ("devices.cpp", "memory.cpp", "streams.cpp", "modules.cpp", "fibers.cpp"),
    "hiprtc": ("hiprtc.cpp",),
}
FLAGS = (
    "-std=c++17",
    "-O2",
    "-Wall",
    "-Wextra",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fvisibility=hidden",
    "-ftls-model=initial-exec",  # fibers ask for their thread's at each step
)


def cache_beside(folder: Path) -> Path:
    """Return a folder as a cache of models and tables of its own, with the kernels of all tests."""
    KERNEL_CACHE.mkdir(parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    (folder / "kernels").symlink_to(KERNEL_CACHE)
    return folder


def build(*, asan: bool = False) -> Path:
    """Return the ROCM_PATH of a built stand-in: the folder above `lib`.

    Parameters
    ----------
    asan
        Let it compile kernels with AddressSanitizer, which has to be preloaded into the process.
    """
    flags = [*FLAGS, *(["-DSTANDIN_ASAN"] if asan else [])]
    path = ROOT / f"{'asan' if asan else 'plain'}-{_digest(flags, '*.[ch]*')[:16]}"
    flags.append(f"-DSTANDIN_VERSION=0x{_digest(flags, 'hiprtc.cpp')[:7]}")
    if path.is_dir():
        return path
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    ROOT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        made = Path(folder) / "made"
        (made / "lib").mkdir(parents=True)
        for name, sources in LIBRARIES.items():
            file = f"lib{name}.so"
            command = ["c++", *flags, f"-Wl,-soname,{file}", "-o", made / "lib" / file]
            subprocess.run([*command, *sources, "-ldl"], cwd=SOURCES, env=environment, check=True)
        try:
            made.rename(path)
        except OSError:
            if not path.is_dir():  # no other process was faster
                raise
    return path


def _digest(flags: list[str], pattern: str) -> str:
    digest = hashlib.sha256(" ".join(flags).encode())
    for source in sorted(SOURCES.glob(pattern)):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def load(rocm_path: Path) -> dict[str, ctypes.CDLL]:
    """Load the libraries into this process, and let hip-python open them, which they fit.

    Raises
    ------
    RuntimeError
        hip-python has found others: it comes with ROCm, or has been used before.
    """
    libraries = {
        name: ctypes.CDLL(str(rocm_path / "lib" / f"lib{name}.so"), mode=ctypes.RTLD_GLOBAL)
        for name in LIBRARIES
    }
    os.environ.setdefault("STANDIN_HIP_VERSION", str(hip_python.HIP_VERSION))
    before = os.environ.get("ROCM_PATH")
    os.environ["ROCM_PATH"] = str(rocm_path)
    try:
        hip.count()
        hip.compiler_version()
    finally:
        if before is None:
            del os.environ["ROCM_PATH"]
        else:
            os.environ["ROCM_PATH"] = before
    counts = (
        libraries["amdhip64"].standin_calls(b"hipGetDeviceCount"),
        libraries["hiprtc"].standin_rtc_calls(b"hiprtcVersion"),
    )
    if not all(counts):
        raise RuntimeError("hip-python uses another HIP runtime than the tests' stand-in")
    return libraries
