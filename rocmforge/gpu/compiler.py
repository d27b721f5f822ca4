"""Kernels by name: compiled at run time for the open device, kept in memory and on disk.

A kernel file and its `-D` macros make one module; its functions are found by name. The sources are
those of the installed package. `Runtime.compile` is the vendor's compiler.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rocmforge import env
from rocmforge.errors import DeviceError
from rocmforge.gpu.code_cache import CodeCache, cache_key
from rocmforge.gpu.kernel_arguments import Arguments
from rocmforge.gpu.kernel_files import kernels_folder, read_kernel
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.release import release_all
from rocmforge.gpu.runtime import Runtime
from rocmforge.gpu.tuning import UNTUNED, Tuning
from rocmforge.plan.protocols import Progress

if TYPE_CHECKING:
    from importlib.abc import Traversable
    from pathlib import Path

Defines = Mapping[str, int | str]

_Variant = tuple[str, tuple[tuple[str, int | str], ...]]


@dataclass(frozen=True)
class Build:
    """One way in which a kernel file is compiled: what each op's `builds(architecture)` yields.

    Parameters
    ----------
    file
        The kernel file.
    kernels
        All kernels of the file, each with the layout of its argument struct (`Arguments`).
    defines
        The macros that the op passes.
    hot
        Whether it runs for every token or prompt: such a kernel may not spill registers.
    """

    file: str
    kernels: Mapping[str, str]
    defines: Defines | None = None
    hot: bool = True


def wave_size(architecture: str) -> int:
    """Lanes of a wave: 64 on gfx9, 32 on every later AMD architecture and on NVIDIA."""
    return 64 if re.fullmatch(r"gfx9[0-9a-f]{2}", architecture) else 32


def compile_options(wave: int, defines: Defines | None) -> list[str]:
    """Return the options that do not depend on the vendor."""
    macros = {"WAVE": wave, **(defines or {})}
    return ["-std=c++17", *(f"-D{name}={value}" for name, value in sorted(macros.items()))]


class Kernels:
    """The kernels of one open device; made for one thread, like the device itself.

    Parameters
    ----------
    runtime
        The device.
    folder
        Where the kernel files lie; default: in the installed package.
    cache
        Directory of compiled kernels; default: `kernels` in ROCMFORGE_CACHE. Where it cannot be
        written, a warning names it and nothing is kept.
    tuning
        Constants that were measured on the device.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        folder: Traversable | None = None,
        cache: Path | None = None,
        tuning: Tuning = UNTUNED,
    ) -> None:
        self.runtime = runtime
        self.tuning = tuning
        self._folder = kernels_folder() if folder is None else folder
        self._cache = CodeCache(env.cache_dir() / "kernels" if cache is None else cache)
        self._sources: dict[str, tuple[str, dict[str, str], str]] = {}
        self._modules: dict[_Variant, Any] = {}
        self._functions: dict[tuple[_Variant, str], Any] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._begun: dict[_Variant, Future[bytes]] = {}  # and not loaded yet

    def function(self, file: str, name: str, defines: Defines | None = None) -> Any:
        """Return the runtime's handle of a kernel, compiling its file where that is not yet done.

        Parameters
        ----------
        file
            The kernel file, as "rmsnorm.hip".
        name
            The kernel in it.
        defines
            Macros, without WAVE, which is the device's.

        Raises
        ------
        CompileError
            The compiler refuses; it holds what the compiler said.
        DeviceError
            The file is missing, or the device does not take the code.
        """
        variant = _variant(file, defines)
        function = self._functions.get((variant, name))
        if function is None:
            if variant not in self._modules:
                begun = self._begun.pop(variant, None)
                code = self._kept(file, defines) if begun is None else begun.result()
                if code is None:
                    code = self._compile(file, defines)
                self._modules[variant] = self.runtime.load_module(code)
            function = self.runtime.function(self._modules[variant], name)
            self._functions[variant, name] = function
        return function

    def launch(
        self,
        file: str,
        name: str,
        defines: Defines | None,
        grid: tuple[int, int, int],
        threads: int,
        layout: str,
        *values: int | float,
        lds_bytes: int = 0,
    ) -> Launch:
        """Return a kernel with a grid and packed arguments; parameters as `function`, `Launch`."""
        function = self.function(file, name, defines)
        if lds_bytes:
            self.runtime.allow_lds(function, lds_bytes)
        arguments = Arguments(layout, values, self.runtime.platform)
        return Launch(name, function, grid, threads, arguments, file, lds_bytes=lds_bytes)

    def begin(self, builds: Iterable[Build]) -> None:
        """Read what the cache has of many files, start compiling the others at once, and return.

        Threads that only read the cache would take turns with the caller for Python's lock.
        Compilers that give it up (NVRTC, hip-python 10) run side by side, and beside what the
        caller does next. `function` and `prepare` wait for what they need of it, and raise its
        errors.

        Parameters
        ----------
        builds
            What will be needed; what is there or begun already costs nothing.
        """
        wanted = {_variant(build.file, build.defines): build for build in builds}
        missing = []
        for variant, build in wanted.items():
            if variant in self._modules or variant in self._begun:
                continue
            code = self._kept(build.file, build.defines)
            if code is None:
                missing.append((variant, build))
            else:
                self._begun[variant] = Future()
                self._begun[variant].set_result(code)
        if not missing:
            return
        pool = self._pool = self._pool or ThreadPoolExecutor(len(os.sched_getaffinity(0)))
        for variant, build in missing:
            self._begun[variant] = pool.submit(self._compile, build.file, build.defines)

    def settle(self) -> None:
        """Wait until no compiler runs; what failed is said where it is asked for."""
        wait(self._begun.values())

    def prepare(self, builds: Iterable[Build], progress: Progress | None = None) -> None:
        """Begin with more files, and wait until the ops find ready what has been begun.

        Parameters
        ----------
        builds
            What will be needed; what is there already costs nothing.
        progress
            Told after each file how many are done, and of how many.

        Raises
        ------
        CompileError, DeviceError
            As `function`; the first failure ends it.
        """
        try:
            self.begin(builds)
            begun = len(self._begun)
            for done, variant in enumerate(list(self._begun), 1):
                code = self._begun.pop(variant).result()
                self._modules[variant] = self.runtime.load_module(code)
                if progress is not None:
                    progress(done, begun)
        finally:
            self._end()

    def close(self) -> None:
        """Unload everything; no launch of these kernels may run any more."""
        self._end()
        self._functions.clear()
        modules = [self._modules.popitem()[1] for _ in range(len(self._modules))]
        release_all(*(partial(self.runtime.unload_module, module) for module in modules))

    def _end(self) -> None:
        """Wait for compilers that run; what they were to compile is compiled when asked for."""
        pool, self._pool, self._begun = self._pool, None, {}
        if pool is not None:
            pool.shutdown(cancel_futures=True)

    def _kept(self, file: str, defines: Defines | None) -> bytes | None:
        """Return what the cache has of a file; None where it has nothing, or `_compile` fails."""
        with suppress(DeviceError):
            return self._cache.get(self._cache_name(file, defines))
        return None

    def _compile(self, file: str, defines: Defines | None) -> bytes:
        source, headers, _ = self._source(file)
        code = self.runtime.compile(source, file, headers, self._options(defines))
        self._cache.put(self._cache_name(file, defines), code)
        return code

    def _cache_name(self, file: str, defines: Defines | None) -> str:
        architecture = self.runtime.properties.architecture
        *_, digest = self._source(file)
        key = cache_key(
            {
                "platform": self.runtime.platform,
                "architecture": architecture,
                "compiler": self.runtime.compiler_version(),
                "options": self._options(defines),
                "file": file,
                "sources": digest,
            }
        )
        return f"{file.removesuffix('.hip')}-{architecture}-{key}"

    def _options(self, defines: Defines | None) -> list[str]:
        return compile_options(self.runtime.properties.wave_size, defines)

    def _source(self, file: str) -> tuple[str, dict[str, str], str]:
        """Return a file's text, its headers, and a digest of both."""
        if file not in self._sources:
            source, headers = read_kernel(self._folder, file)
            digest = cache_key({"source": source, "headers": headers})
            self._sources[file] = source, headers, digest
        return self._sources[file]


class BuildRecorder:
    """Stands where `Kernels` do and only notes what would be compiled.

    Parameters
    ----------
    runtime
        The device.
    tuning
        As of `Kernels`.

    Attributes
    ----------
    builds : list of Build
        What was asked for.
    """

    def __init__(self, runtime: Runtime, tuning: Tuning = UNTUNED) -> None:
        self.runtime = runtime
        self.tuning = tuning
        self.builds: list[Build] = []

    def launch(
        self,
        file: str,
        name: str,
        defines: Mapping[str, int | str] | None,
        grid: tuple[int, int, int],
        threads: int,
        layout: str,
        *values: int | float,
        lds_bytes: int = 0,
    ) -> Launch:
        """Note the kernel; the launch that comes back cannot run."""
        self.builds.append(Build(file, {name: layout}, defines))
        arguments = Arguments(layout, values, self.runtime.platform)
        return Launch(name, None, grid, threads, arguments, lds_bytes=lds_bytes)


def _variant(file: str, defines: Defines | None) -> _Variant:
    return file, tuple(sorted((defines or {}).items()))
