"""Every kernel in every form, compiled by clang for six AMD architectures: it fits, nothing spills.

The argument structs are those that Python packs, hot kernels keep to their registers, and what our
reader says of a code object is what pyelftools and msgpack say of it.
"""

from __future__ import annotations

import contextlib
import io
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chosen_builds import builds_of, chosen_builds, each_file_once, rdna_and_cdna, targets
from tool_modules import tool_module

from rocmforge.errors import CompileError, DeviceError
from rocmforge.gpu import cross_compile
from rocmforge.gpu.code_object import read_code_object
from rocmforge.gpu.compiler import Build, wave_size
from rocmforge.gpu.cross_compile import (
    ARCHITECTURES,
    FURTHER,
    CompiledKernel,
    compile_builds,
)

LDS_BYTES = 48 * 1024  # what a block may have on every device that we support
SIMDS = 4  # of a compute unit of gfx9, and of a work-group processor of later ones
MOST_VGPRS = {32: 256, 64: 512}
QUICK = "gfx1100", "gfx942", "gfx1030"
"""`make test` compiles some builds of each file for the first that has it; `make test-all` all."""
TARGETS = [pytest.param(*each, True) for each in each_file_once(*QUICK)] + [
    pytest.param(architecture, file, False, marks=pytest.mark.slow)
    for architecture, file in targets(*ARCHITECTURES)
]

Compiled = Callable[[str, str, bool], list[tuple[Build, CompiledKernel]]]


@pytest.fixture(scope="session")
def compiled(repo: Path) -> Iterator[Compiled]:
    """The kernels of one file for one architecture; each is compiled once for all tests."""
    try:
        cross_compile.clang_version()
    except DeviceError as error:
        pytest.skip(str(error))
    known: dict[tuple[str, str, bool], list[tuple[Build, CompiledKernel]]] = {}

    def compile_file(
        architecture: str, file: str, some: bool
    ) -> list[tuple[Build, CompiledKernel]]:
        key = architecture, file, some
        if key not in known:
            every = builds_of(architecture)[file]
            builds = chosen_builds(file, architecture) if some else every
            wanted = [(build, architecture) for build in builds]
            known[key] = [
                (build, kernel) for build, kernels in compile_builds(wanted) for kernel in kernels
            ]
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROCMFORGE_CACHE", str(repo / "build" / "cross_compile"))
        yield compile_file


def struct_bytes(layout: str) -> int:
    return struct.calcsize(f"@{layout}0P")


@pytest.mark.parametrize(("architecture", "file", "some"), TARGETS)
def test_every_build_has_the_kernels_and_arguments_that_python_launches(
    architecture: str, file: str, some: bool, compiled: Compiled
) -> None:
    rows = compiled(architecture, file, some)
    assert rows
    builds = {id(build): build for build, _ in rows}
    for key, build in builds.items():
        found = {k.resources.name: k.resources for b, k in rows if id(b) == key}
        assert set(found) == set(build.kernels), build.defines
        sizes = {name: kernel.argument_bytes for name, kernel in found.items()}
        wanted = {name: struct_bytes(layout) for name, layout in build.kernels.items()}
        assert sizes == wanted, build.defines


@pytest.mark.parametrize(("architecture", "file", "some"), TARGETS)
def test_every_kernel_fits_a_compute_unit(
    architecture: str, file: str, some: bool, compiled: Compiled
) -> None:
    wave = wave_size(architecture)
    for build, kernel in compiled(architecture, file, some):
        found = kernel.resources
        where = f"{found.name} {build.defines}"
        assert found.wave_size == wave, where
        assert found.lds_bytes <= LDS_BYTES, where
        assert found.vgprs <= MOST_VGPRS[wave], where
        assert found.block_threads % wave == 0, where
        assert kernel.occupancy * SIMDS * wave >= found.block_threads, where


@pytest.mark.parametrize(("architecture", "file", "some"), TARGETS)
def test_no_hot_kernel_spills_or_uses_scratch(
    architecture: str, file: str, some: bool, compiled: Compiled
) -> None:
    spilling = [
        f"{kernel.resources.name} {build.defines}: {kernel.resources.vgpr_spills} VGPRs, "
        f"{kernel.resources.sgpr_spills} SGPRs, {kernel.resources.scratch_bytes} bytes of scratch"
        for build, kernel in compiled(architecture, file, some)
        if build.hot
        and (
            kernel.resources.vgpr_spills
            or kernel.resources.sgpr_spills
            or kernel.resources.scratch_bytes
        )
    ]
    assert spilling == []


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "file"), targets(*FURTHER))
def test_further_architectures_compile_too(
    architecture: str, file: str, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One build of each file: they differ little from those above."""
    (build,) = chosen_builds(file, architecture, alone=True)
    monkeypatch.setenv("ROCMFORGE_CACHE", str(repo / "build" / "cross_compile"))
    try:
        cross_compile.clang_version(cross_compile.clang(architecture))
    except DeviceError as error:
        pytest.skip(str(error))
    kernels = cross_compile.compile_build(build, architecture)
    assert {kernel.resources.name for kernel in kernels} == set(build.kernels)
    for kernel in kernels:
        assert kernel.resources.wave_size == wave_size(architecture)
        assert kernel.resources.argument_bytes == struct_bytes(build.kernels[kernel.resources.name])
        assert not build.hot or not kernel.resources.scratch_bytes
        if file == "matmul_prompt.hip":
            assert kernel.matrix


SPILLING = """#include "device.h"
struct Args {
    const float* x;
    float* out;
    int n;
};
KERNEL(indexed, Args, 1024) {
    float kept[300];
    for (int i = 0; i < 300; ++i) kept[i] = a.x[i * a.n + thread_x()];
    SHARED float shared[512];
    shared[thread_x() % 512] = kept[a.n % 300];
    block_sync();
    a.out[thread_x()] = shared[a.n % 512] + kept[(a.n + 1) % 300];
}
KERNEL(wide, Args, 64) {
    const u32x4 v = load<u32x4>(a.x);
    a.out[thread_x()] = dot4(v.x, v.y, v.z + v.w);
}
"""


@pytest.fixture
def planted(
    compiled: Compiled, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder of kernels with one that must use scratch."""
    (tmp_path / "device.h").write_text((repo / "kernels" / "device.h").read_text())
    (tmp_path / "planted.hip").write_text(SPILLING)
    monkeypatch.setattr(cross_compile, "kernels_folder", lambda: tmp_path)
    monkeypatch.setenv("ROCMFORGE_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("architecture", rdna_and_cdna(ARCHITECTURES))
def test_a_planted_waste_is_seen(architecture: str, planted: Path) -> None:
    first = cross_compile.compile_build(Build("planted.hip", {}), architecture)
    indexed, wide = sorted(first, key=lambda kernel: kernel.resources.name)
    assert indexed.resources.scratch_bytes >= 1200
    assert indexed.resources.lds_bytes == 2048
    assert indexed.resources.block_threads == 1024
    assert indexed.resources.argument_bytes == struct_bytes("PPi") == 24
    assert wide.resources.scratch_bytes == 0
    assert (wide.dot4, wide.matrix) == (1, 0)
    assert wide.resources.code_bytes < indexed.resources.code_bytes
    assert wide.resources.vgprs > 0 < wide.occupancy
    (planted / "planted.hip").write_text(SPILLING.replace("z + v.w", "z - v.w"))
    assert cross_compile.compile_build(Build("planted.hip", {}), architecture) != ()
    assert len(list((planted / "cache" / "kernels").iterdir())) == 2


def test_what_is_kept_is_what_was_compiled(planted: Path) -> None:
    build = Build("planted.hip", {}, {"UNUSED": 1})
    assert cross_compile.compile_build(build, "gfx1100") == cross_compile.compile_build(
        build, "gfx1100"
    )
    assert len(list((planted / "cache" / "kernels").iterdir())) == 1


def test_a_warning_is_an_error_with_its_log(planted: Path) -> None:
    (planted / "planted.hip").write_text(SPILLING.replace("return", "").replace("(v.x", "(v.q"))
    with pytest.raises(CompileError, match=r"planted\.hip.*gfx1200.*\n.*no member named 'q'"):
        cross_compile.compile_build(Build("planted.hip", {}), "gfx1200")


def test_a_missing_clang_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("clang-19", "clang-22"):
        cross_compile.clang_version.cache_clear()
        lld = name.replace("clang", "lld")
        with monkeypatch.context() as patch:
            patch.setenv("PATH", "")
            with pytest.raises(DeviceError, match=rf"^{name} .*apt-get install .*{name} {lld}$"):
                cross_compile.clang_version(name)


@pytest.fixture
def code(planted: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A code object as clang writes it."""
    seen: list[bytes] = []

    def read(content: bytes) -> tuple[object, ...]:
        seen.append(content)
        return ()

    monkeypatch.setattr(cross_compile, "read_code_object", read)
    cross_compile.compile_build(Build("planted.hip", {}), "gfx942")
    return seen[0]


def test_our_reader_agrees_with_pyelftools_and_msgpack(code: bytes) -> None:
    elffile = pytest.importorskip("elftools.elf.elffile")
    msgpack = pytest.importorskip("msgpack")
    elf = elffile.ELFFile(io.BytesIO(code))
    (note,) = [
        note
        for section in elf.iter_sections("SHT_NOTE")
        for note in section.iter_notes()
        if note["n_name"] == "AMDGPU"
    ]
    kernels = msgpack.unpackb(note["n_descdata"])["amdhsa.kernels"]
    symbols = {s.name: s["st_size"] for s in elf.get_section_by_name(".symtab").iter_symbols()}
    ours = read_code_object(code)
    assert len(ours) == len(kernels) == 2
    for mine, theirs in zip(ours, kernels, strict=True):
        assert mine.name == theirs[".name"]
        assert mine.vgprs == theirs[".vgpr_count"]
        assert mine.sgprs == theirs[".sgpr_count"]
        assert mine.scratch_bytes == theirs[".private_segment_fixed_size"]
        assert mine.lds_bytes == theirs[".group_segment_fixed_size"]
        assert mine.wave_size == theirs[".wavefront_size"]
        assert mine.block_threads == theirs[".max_flat_workgroup_size"]
        assert mine.argument_bytes == theirs[".args"][0][".size"]
        assert mine.code_bytes == symbols[mine.name]


def test_a_damaged_code_object_is_an_error_and_never_more(code: bytes) -> None:
    damaged = bytearray(code)
    for at in range(0, len(code), 37):
        with contextlib.suppress(DeviceError):
            read_code_object(code[:at])
        damaged[at] ^= 0xFF
        with contextlib.suppress(DeviceError):
            read_code_object(bytes(damaged))
        damaged[at] ^= 0xFF
    x86 = code[:18] + b"\x3e\0" + code[20:]
    for wrong in (b"", b"no ELF file", x86):
        with pytest.raises(DeviceError, match=f"not an AMD code object of {len(wrong)} bytes"):
            read_code_object(wrong)


@pytest.fixture
def tool() -> Any:
    """tools/kernel_resources.py as a module."""
    return tool_module("kernel_resources")


@pytest.mark.parametrize(("hot", "code"), [(True, 1), (False, 0)])
def test_the_tool_prints_every_kernel_and_fails_on_a_hot_one_that_spills(
    hot: bool,
    code: int,
    planted: Path,
    tool: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    build = Build("planted.hip", {}, {"UNUSED": 1}, hot=hot)
    monkeypatch.setattr(tool, "all_builds", lambda architecture: [build])
    assert tool.main(["--arch", "gfx1100", "--arch", "gfx90a"]) == code
    out, err = capsys.readouterr()
    head, *rows = out.splitlines()
    assert head.split() == list(tool.HEAD)
    assert [row.split()[:4] for row in rows] == [
        ["planted.hip", name, "UNUSED=1", architecture]
        for name in ("indexed", "wide")
        for architecture in ("gfx1100", "gfx90a")
    ]
    assert ("planted.hip indexed UNUSED=1 gfx1100" in err) == hot
    assert "wide" not in err
    assert tool.main(["--json", "--arch", "gfx90a", "--file", "planted.hip"]) == code
    records = json.loads(capsys.readouterr().out)
    assert [record["name"] for record in records] == ["indexed", "wide"]
    assert records[0]["scratch_bytes"] >= 1200
    assert records[1]["dot4"] == 1
    assert records[1]["defines"] == {"UNUSED": 1}


def test_the_tool_says_in_a_log_how_far_it_is(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 0.0, 1.0, 2.5, 2.5, 2.5])
    monkeypatch.setattr(tool.time, "monotonic", lambda: next(clock))
    assert list(tool._shown(range(4), 4)) == [0, 1, 2, 3]
    assert capsys.readouterr() == ("", "compiled 1 of 4\ncompiled 3 of 4\ncompiled 4 of 4\n")


def test_the_tool_names_what_is_missing(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(targets: Any) -> Any:
        raise DeviceError("clang-19 is not installed")

    monkeypatch.setattr(tool, "compile_builds", missing)
    assert tool.main(["--arch", "gfx1100"]) == 2
    assert "error: clang-19 is not installed" in capsys.readouterr().err


def test_the_tool_refuses_a_file_that_is_no_kernel(
    tool: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main(["--arch", "gfx1100", "--file", "rmsnorm"]) == 2
    shown = capsys.readouterr()
    assert "--file: got rmsnorm, wanted one of add_experts.hip" in shown.err
    assert not shown.out
