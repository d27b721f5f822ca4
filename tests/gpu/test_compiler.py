"""Kernels by name: what is compiled, what is kept, and what becomes of a cache that is damaged.

NVRTC is the compiler where it is installed, since it needs no GPU; modules are not loaded.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import re
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from rocmforge.errors import CompileError, DeviceError
from rocmforge.gpu import cuda
from rocmforge.gpu.code_cache import CodeCache, cache_key
from rocmforge.gpu.compiler import (
    Build,
    Kernels,
    compile_options,
    wave_size,
)
from rocmforge.gpu.kernel_files import kernels_folder, read_kernel
from rocmforge.gpu.runtime import DeviceProperties, Runtime

HEADER = "#pragma once\nstruct Args { int* out; int n; };\n"
SOURCE = """#include "outer.h"
extern "C" __global__ void store(const Args a) { a.out[0] = VALUE * a.n; }
"""
LAYOUT = "Pi"
DEFINES = {"VALUE": 3}


class CompileOnly:
    """NVRTC for an architecture; counts what it compiles, and keeps what is "loaded" as it is."""

    platform = "cuda"

    def __init__(self, architecture: str = "sm_90", version: str | None = None) -> None:
        self.properties = DeviceProperties(0, "none", architecture, 32, 1, 0, 0, False)
        self.version = version or cuda.compiler_version()
        self.compiled: list[str] = []
        self.loaded: list[bytes] = []

    def compiler_version(self) -> str:
        return self.version

    def compile(
        self, source: str, name: str, headers: Mapping[str, str], options: Sequence[str]
    ) -> bytes:
        self.compiled.append(name)
        return cuda.compile_cubin(source, name, headers, options, self.properties.architecture)

    def load_module(self, code: bytes) -> bytes:
        self.loaded.append(code)
        return code

    def unload_module(self, module: bytes) -> None:
        self.loaded.remove(module)

    def function(self, module: bytes, name: str) -> tuple[bytes, str]:
        return module, name


@pytest.fixture(autouse=True)
def _needs_nvrtc() -> None:
    try:
        cuda.compiler_version()
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "store.hip").write_text(SOURCE)
    (folder / "outer.h").write_text('#pragma once\n  #  include "inner.h"\n')
    (folder / "inner.h").write_text(HEADER)
    return folder


def kernels(runtime: CompileOnly, sources: Path, cache: Path | None = None) -> Kernels:
    where = sources.parent / "cache" if cache is None else cache
    return Kernels(cast(Runtime, runtime), folder=sources, cache=where)


def compiles(runtime: CompileOnly, sources: Path, defines: dict[str, int | str] = DEFINES) -> bool:
    """Whether a fresh start compiles, rather than finding the kernel on disk."""
    before = len(runtime.compiled)
    kernels(runtime, sources).function("store.hip", "store", defines)
    return len(runtime.compiled) > before


def entry_of(sources: Path) -> Path:
    (entry,) = (sources.parent / "cache").iterdir()
    return entry


def test_a_file_is_compiled_once_in_memory_and_once_on_disk(sources: Path) -> None:
    runtime = CompileOnly()
    first = kernels(runtime, sources)
    code, name = first.function("store.hip", "store", DEFINES)
    assert name == "store"
    assert code.startswith(b"\x7fELF")
    assert first.function("store.hip", "store", dict(DEFINES)) == (code, "store")
    assert len(runtime.loaded) == len(runtime.compiled) == 1
    second = kernels(CompileOnly(), sources)
    assert second.function("store.hip", "store", DEFINES) == (code, "store")
    assert not cast(CompileOnly, second.runtime).compiled
    assert entry_of(sources).name.startswith("store-sm_90-")


def test_whatever_goes_into_a_kernel_is_in_its_key(sources: Path) -> None:
    runtime = CompileOnly()
    assert compiles(runtime, sources)
    assert not compiles(runtime, sources)
    assert compiles(runtime, sources, {"VALUE": 4})
    assert compiles(runtime, sources, {"VALUE": 3, "UNUSED": "int"})
    assert compiles(CompileOnly("sm_80"), sources)
    assert compiles(CompileOnly(version="another"), sources)
    wide = CompileOnly()
    wide.properties = dataclasses.replace(wide.properties, wave_size=64)
    assert compiles(wide, sources)
    (sources / "inner.h").write_text(HEADER + "// a header of a header\n")
    assert compiles(runtime, sources)
    (sources / "store.hip").write_text(SOURCE + "// the source\n")
    assert compiles(runtime, sources)
    assert not compiles(runtime, sources)


@pytest.mark.parametrize("damage", ["empty", "truncated", "one bit", "shorter than its digest"])
def test_a_damaged_entry_is_found_and_made_again(damage: str, sources: Path) -> None:
    runtime = CompileOnly()
    assert compiles(runtime, sources)
    entry = entry_of(sources)
    whole = entry.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    damaged = {
        "empty": b"",
        "truncated": whole[:-1],
        "one bit": bytes(flipped),
        "shorter than its digest": whole[:7],
    }
    entry.write_bytes(damaged[damage])
    assert compiles(runtime, sources)
    assert entry_of(sources).read_bytes() == whole
    assert not compiles(runtime, sources)


def test_a_cache_that_cannot_be_written_is_said_once_and_done_without(sources: Path) -> None:
    in_the_way = sources.parent / "file"
    in_the_way.write_text("no directory")
    runtime = CompileOnly()
    made = kernels(runtime, sources, cache=in_the_way / "kernels")
    with pytest.warns(RuntimeWarning, match="cannot be kept in .*file/kernels .*ROCMFORGE_CACHE"):
        made.function("store.hip", "store", DEFINES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.function("store.hip", "store", {"VALUE": 5})
    assert runtime.compiled == ["store.hip"] * 2


def test_the_cache_lies_where_the_environment_says(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCMFORGE_CACHE", str(sources.parent / "elsewhere"))
    made = Kernels(cast(Runtime, CompileOnly()), folder=sources)
    made.function("store.hip", "store", DEFINES)
    assert len(list((sources.parent / "elsewhere" / "kernels").iterdir())) == 1


def _start(folder: Path, gate: Any, found: Any) -> None:
    gate.wait()
    code, _ = kernels(CompileOnly(), folder).function("store.hip", "store", DEFINES)
    found.put(code)


def test_processes_that_start_together_leave_one_whole_entry(sources: Path) -> None:
    context = multiprocessing.get_context("spawn")
    gate, found = context.Barrier(3), context.Queue()
    started = [context.Process(target=_start, args=(sources, gate, found)) for _ in range(3)]
    for process in started:
        process.start()
    codes = [found.get(timeout=120) for _ in started]
    for process in started:
        process.join()
    assert codes[0] == codes[1] == codes[2]
    assert entry_of(sources).read_bytes().endswith(codes[0])
    assert not compiles(CompileOnly(), sources)


def test_an_interrupted_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(source: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        CodeCache(tmp_path).put("name", b"content")
    assert list(tmp_path.iterdir()) == []


def test_a_compile_error_says_everything(sources: Path) -> None:
    with pytest.raises(CompileError) as raised:
        kernels(CompileOnly("sm_80"), sources).function("store.hip", "store", {"VALUE": "lost"})
    error = raised.value
    assert (error.file, error.architecture) == ("store.hip", "sm_80")
    assert {"-arch=sm_80", "-DVALUE=lost", "-DWAVE=32", "-std=c++17"} <= set(error.options)
    assert 'store.hip(2): error: identifier "lost" is undefined' in error.log
    assert str(error).startswith("kernel store.hip did not compile for sm_80 with -arch=sm_80 ")
    assert error.log in str(error)


def test_an_architecture_that_the_compiler_does_not_know_is_a_compile_error(sources: Path) -> None:
    with pytest.raises(CompileError, match=r"did not compile for sm_12 .*\n.*gpu-architecture"):
        kernels(CompileOnly("sm_12"), sources).function("store.hip", "store", DEFINES)


@pytest.mark.parametrize("missing", ["store.hip", "inner.h"])
def test_a_file_that_is_not_installed_is_named(missing: str, sources: Path) -> None:
    (sources / missing).unlink()
    with pytest.raises(DeviceError, match=f"kernel file {missing}, .* install rocmforge again"):
        kernels(CompileOnly(), sources).function("store.hip", "store", DEFINES)


def test_prepare_compiles_each_once_and_tells_how_far_it_is(sources: Path) -> None:
    builds = [Build("store.hip", {"store": LAYOUT}, {"VALUE": n % 5}) for n in range(10)]
    runtime = CompileOnly()
    made = kernels(runtime, sources)
    made.function("store.hip", "store", {"VALUE": 4})
    told: list[tuple[int, int]] = []
    made.prepare(builds, lambda *at: told.append(at))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert len(runtime.compiled) == len(set(runtime.loaded)) == 5
    made.prepare(builds, lambda *at: told.append(at))
    made.function("store.hip", "store", {"VALUE": 2})
    assert len(told) == 4
    assert len(runtime.loaded) == 5


def test_prepare_ends_with_the_first_failure(sources: Path) -> None:
    builds = [Build("store.hip", {}, {"VALUE": value}) for value in (1, "lost", 2)]
    with pytest.raises(CompileError, match="lost"):
        kernels(CompileOnly(), sources).prepare(builds)


def test_what_is_begun_is_compiled_once_and_waited_for(sources: Path) -> None:
    runtime = CompileOnly()
    made = kernels(runtime, sources)
    made.begin(Build("store.hip", {}, {"VALUE": value}) for value in (1, 2, 2))
    made.begin([Build("store.hip", {}, {"VALUE": 1})])
    made.function("store.hip", "store", {"VALUE": 1})
    assert len(runtime.loaded) == 1
    told: list[tuple[int, int]] = []
    made.prepare([Build("store.hip", {}, {"VALUE": 3})], lambda *at: told.append(at))
    assert told == [(1, 2), (2, 2)]  # 2, begun and not asked for yet, and 3
    assert len(runtime.compiled) == len(set(runtime.loaded)) == 3


def test_what_the_cache_has_is_begun_without_threads(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = [Build("store.hip", {}, {"VALUE": value}) for value in (1, 2)]
    kernels(CompileOnly(), sources).prepare(builds)
    submitted: list[object] = []
    submit = ThreadPoolExecutor.submit

    def watched(self: ThreadPoolExecutor, *arguments: Any) -> Future[Any]:
        submitted.append(arguments)
        return submit(self, *arguments)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", watched)
    runtime = CompileOnly()
    kernels(runtime, sources).prepare(builds)
    assert (submitted, runtime.compiled, len(runtime.loaded)) == ([], [], 2)
    entry, *_ = (sources.parent / "cache").iterdir()
    entry.write_bytes(b"damaged")
    made = kernels(runtime, sources)
    made.prepare(builds)
    assert len(submitted) == len(runtime.compiled) == 1


def test_an_error_of_what_was_begun_comes_where_it_is_needed(sources: Path) -> None:
    made = kernels(CompileOnly(), sources)
    made.begin(Build("store.hip", {}, {"VALUE": value}) for value in ("lost", 1))
    made.function("store.hip", "store", {"VALUE": 1})
    with pytest.raises(CompileError, match="lost"):
        made.function("store.hip", "store", {"VALUE": "lost"})
    made.close()


def test_close_waits_for_compilers_that_run(sources: Path) -> None:
    runtime = CompileOnly()
    made = kernels(runtime, sources)
    made.begin(Build("store.hip", {}, {"VALUE": value}) for value in range(20))
    made.close()
    compiled = len(runtime.compiled)
    time.sleep(0.2)
    assert len(runtime.compiled) == compiled
    assert runtime.loaded == []


def test_a_launch_is_packed_for_the_platform(sources: Path) -> None:
    made = kernels(CompileOnly(), sources)
    launch = made.launch("store.hip", "store", DEFINES, (3, 2, 1), 64, LAYOUT, 256, -1)
    assert (launch.name, launch.grid, launch.threads) == ("store", (3, 2, 1), 64)
    assert launch.function == made.function("store.hip", "store", DEFINES)
    assert launch.arguments.nbytes == 16  # padded to the pointer's alignment


def test_close_unloads_every_module(sources: Path) -> None:
    runtime = CompileOnly()
    made = kernels(runtime, sources)
    for value in range(3):
        made.function("store.hip", "store", {"VALUE": value})
    made.close()
    assert runtime.loaded == []


def test_the_package_holds_the_kernels() -> None:
    source, headers = read_kernel(kernels_folder(), "device.h")
    assert "#define KERNEL" in source
    assert headers == {}


def test_the_options_carry_the_wave_size() -> None:
    assert compile_options(64, {"B": "F16Pages", "A": 1}) == [
        *("-std=c++17", "-DA=1", "-DB=F16Pages", "-DWAVE=64")
    ]
    assert compile_options(32, None) == ["-std=c++17", "-DWAVE=32"]


def test_as_many_files_compile_at_once_as_there_are_cores(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    running: list[str] = []
    most: list[int] = []

    class Slow(CompileOnly):
        def compile(self, source: str, name: str, *_: Any) -> bytes:
            running.append(name)
            most.append(len(running))
            time.sleep(0.1)
            running.remove(name)
            return b"code"

    builds = [Build("store.hip", {"store": LAYOUT}, {"VALUE": value}) for value in range(5)]
    kernels(Slow(), sources).prepare(builds)
    assert len(most) == 5
    assert max(most) == 2


@pytest.mark.parametrize(
    ("architecture", "wanted"),
    [
        ("gfx906", 64),
        ("gfx90a", 64),
        ("gfx942", 64),
        ("gfx1030", 32),
        ("gfx1200", 32),
        ("sm_90", 32),
    ],
)
def test_wave_size(architecture: str, wanted: int) -> None:
    assert wave_size(architecture) == wanted


def test_keys_do_not_run_into_each_other() -> None:
    assert cache_key({"a": "xy", "b": "z"}) != cache_key({"a": "x", "b": "yz"})
    assert cache_key({"a": ["x", "y"]}) != cache_key({"a": ["xy"]})
    assert cache_key({"a": "1", "b": "2"}) == cache_key({"b": "2", "a": "1"})


def test_no_lambda_of_a_kernel_is_a_template(repo: Path) -> None:
    """NVRTC 13.0 refuses it: "considered a host function"."""
    template = re.compile(r"\[[^\[\]]*\]\s*\([^()]*\bauto\b")
    assert template.search("sums.each([&](auto f) { f(1); })")
    files = [path for path in (repo / "kernels").iterdir() if path.suffix in (".hip", ".h")]
    assert not [path.name for path in files if template.search(path.read_text("utf-8"))]
