"""Compiles kernels by clang for AMD GPUs that are not here, and says what the code needs.

clang needs neither ROCm nor a GPU: clang 19, and clang 22 for architectures that 19 does not know.
It writes the assembly, from which instructions are counted, and assembles it into the code object,
which says what registers and memory a kernel takes. Each op module under `gpu/ops` lists its own
builds.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import os
import pkgutil
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import rocmforge.gpu.ops
from rocmforge import env
from rocmforge.errors import CompileError, DeviceError
from rocmforge.gpu.choose_device import check_architecture
from rocmforge.gpu.code_cache import CodeCache, cache_key
from rocmforge.gpu.code_object import KernelResources, read_code_object
from rocmforge.gpu.compiler import Build, compile_options, wave_size
from rocmforge.gpu.kernel_files import kernels_folder, read_kernel

CLANG = "clang-19"
ARCHITECTURES = ("gfx1030", "gfx1100", "gfx1151", "gfx1200", "gfx90a", "gfx942")
"""RDNA2, RDNA3, its APUs, RDNA4, CDNA2 and CDNA3."""

NEWER_CLANG = "clang-22"
NEWER_ARCHITECTURES = ("gfx950", "gfx1153")
"""CDNA4 and a later APU, which clang 19 does not know."""

FURTHER = ("gfx1201", *NEWER_ARCHITECTURES)
"""Kin of ARCHITECTURES, for which the tests compile less."""

_OPTIONS = (
    *("-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib"),
    *("-fdeclspec", "-O3", "-Wall", "-Werror"),
)
_COUNTED = {
    "matrix": re.compile(r"v_(s?wmma|swmmac|mfma|smfmac)_"),
    "dot4": re.compile(r"v_dot4"),
    "loads_128": re.compile(r"(global|flat)_load_(b128|dwordx4)"),
    "lds_loads_128": re.compile(r"ds_(read|load)_b128"),
}
# Not buffer_load: with it gfx9 and gfx10 read spilled registers.
_LOAD = re.compile(r"(?:global|flat)_load_(?:lds_|tr_|d16_|hi_)*(\w+?)(?:_d16)?(?:_hi)?")
_LOAD_BYTES = {
    **dict.fromkeys(("ubyte", "sbyte", "u8", "i8"), 1),
    **dict.fromkeys(("ushort", "sshort", "short", "u16", "i16", "b16"), 2),
    **dict.fromkeys(("dword", "b32"), 4),
    **dict.fromkeys(("dwordx2", "b64"), 8),
    **dict.fromkeys(("dwordx3", "b96"), 12),
    **dict.fromkeys(("dwordx4", "b128"), 16),
}
"""What a lane gets from memory, by how gfx9 and gfx10, and later architectures, call it."""
_OCCUPANCY = re.compile(r"^; Occupancy: (\d+)", re.MULTILINE)
_FIRST_WORD = re.compile(r"^\t([a-z]\w+)", re.MULTILINE)


@dataclass(frozen=True)
class CompiledKernel:
    """One kernel of one build for one architecture.

    Parameters
    ----------
    architecture
        ``gfx…``.
    resources
        As the code object has it.
    occupancy
        Waves that one SIMD unit can hold at once.
    matrix, dot4, loads_128, lds_loads_128
        Instructions in the code: of the matrix units, dot products of four bytes, and loads of 16
        bytes a lane from memory and from LDS.
    loads, loaded_bytes
        Instructions that load from memory, however wide, and the bytes that they give a lane.
    """

    architecture: str
    resources: KernelResources
    occupancy: int
    matrix: int
    dot4: int
    loads_128: int
    lds_loads_128: int
    loads: int
    loaded_bytes: int


def all_builds(architecture: str) -> Iterator[Build]:
    """Yield every build of every op for an architecture."""
    for module in pkgutil.iter_modules(rocmforge.gpu.ops.__path__):
        op = importlib.import_module(f"rocmforge.gpu.ops.{module.name}")
        if hasattr(op, "builds"):
            yield from op.builds(architecture)


def bytes_per_load(kernels: Iterable[CompiledKernel]) -> float | None:
    """Return the bytes that a lane gets from memory with one instruction, on average.

    It is at most 16. Each instruction in the code counts once, however often it runs. None: nothing
    is loaded.
    """
    found = [*kernels]
    loads = sum(kernel.loads for kernel in found)
    return sum(kernel.loaded_bytes for kernel in found) / loads if loads else None


def compile_build(build: Build, architecture: str) -> tuple[CompiledKernel, ...]:
    """Compile one build and look at its kernels; results are kept in the cache of kernels.

    Raises
    ------
    CompileError
        clang refuses or warns; it holds what clang said.
    DeviceError
        clang is not installed, or the kernels are not for this architecture.
    """
    check_architecture("hip", architecture)
    source, headers = read_kernel(kernels_folder(), build.file)
    options = [
        *_OPTIONS,
        *compile_options(wave_size(architecture), build.defines),
        f"--offload-arch={architecture}",
    ]
    cache = CodeCache(env.cache_dir() / "kernels")
    key = cache_key(
        {
            "compiler": clang_version(clang(architecture)),
            "options": options,
            "file": build.file,
            "source": source,
            "headers": headers,
            "fields": [field.name for field in dataclasses.fields(CompiledKernel)],
        }
    )
    kept = cache.get(f"resources-{key}")
    if kept is None:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {build.file: source, **headers}.items():
                (Path(folder) / name).write_text(text, "utf-8")
            assembly = _run(Path(folder), build.file, architecture, [*options, "-S"])
            (Path(folder) / "kernel.s").write_text(assembly, "utf-8")
            target = ["-x", "assembler", "--target=amdgcn-amd-amdhsa", f"-mcpu={architecture}"]
            _run(Path(folder), "kernel.s", architecture, target, "kernel.co")
            resources = read_code_object((Path(folder) / "kernel.co").read_bytes())
        kernels = tuple(_compiled(architecture, kernel, assembly) for kernel in resources)
        kept = json.dumps([dataclasses.asdict(kernel) for kernel in kernels]).encode()
        cache.put(f"resources-{key}", kept)
    return tuple(
        CompiledKernel(**{**kernel, "resources": KernelResources(**kernel["resources"])})
        for kernel in json.loads(kept)
    )


def compile_builds(
    targets: Iterable[tuple[Build, str]],
) -> Iterator[tuple[Build, tuple[CompiledKernel, ...]]]:
    """Compile many pairs of build and architecture on all cores; in their order, as they come.

    Raises
    ------
    CompileError, DeviceError
        As `compile_build`.
    """
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        try:
            yield from pool.map(lambda target: (target[0], compile_build(*target)), targets)
        finally:
            pool.shutdown(cancel_futures=True)


def clang(architecture: str) -> str:
    """Return the clang that compiles for an architecture."""
    return NEWER_CLANG if architecture in NEWER_ARCHITECTURES else CLANG


@functools.cache
def clang_version(name: str = CLANG) -> str:
    """Return what a clang calls itself.

    Raises
    ------
    DeviceError
        It is not installed.
    """
    lld = name.replace("clang", "lld")
    if shutil.which(name) is None or shutil.which(f"ld.{lld}") is None:
        raise DeviceError(
            f"{name} or {lld} is not installed: "
            f"apt-get install --no-install-recommends {name} {lld}"
        )
    command = [name, "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _run(folder: Path, file: str, architecture: str, options: list[str], output: str = "-") -> str:
    done = subprocess.run(
        [clang(architecture), *options, file, "-o", output],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CompileError(file, architecture, options, done.stderr)
    return done.stdout


def _compiled(architecture: str, resources: KernelResources, assembly: str) -> CompiledKernel:
    """Count instructions between a kernel's label and the facts that clang writes after it."""
    start = assembly.index(f"\n{resources.name}:")
    occupancy = _OCCUPANCY.search(assembly, start)
    if occupancy is None:
        raise DeviceError(f"clang's assembly of {resources.name} does not tell its occupancy")
    words = _FIRST_WORD.findall(assembly, start, occupancy.start())
    counts = {name: sum(map(bool, map(p.match, words))) for name, p in _COUNTED.items()}
    widths = [width for width in map(_load_width, words) if width]
    return CompiledKernel(
        architecture,
        resources,
        int(occupancy[1]),
        **counts,
        loads=len(widths),
        loaded_bytes=sum(widths),
    )


def _load_width(instruction: str) -> int:
    """Bytes that a lane gets from memory; 0: it is no such load."""
    load = _LOAD.fullmatch(instruction)
    if load is None:
        return 0
    if load[1] not in _LOAD_BYTES:
        raise DeviceError(f"clang's assembly: got {instruction}, wanted a load of known width")
    return _LOAD_BYTES[load[1]]
