"""The wheel: what it holds and what it leaves out."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

COMPILED = "rocmforge/cpu/_cpu."
SOURCES = (".cpp", ".h")


def build_wheel(repo: Path, folder: Path, *settings: str) -> list[str]:
    """Build a wheel in `folder`, touching nothing else, and return the names of its files."""
    options = [f"--config-settings={s}" for s in (f"build-dir={folder / 'build'}", *settings)]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", str(repo), "--no-deps", "--no-build-isolation"),
            *("--wheel-dir", str(folder), *options),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("rocmforge-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def files_below(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }


def check(names: list[str], repo: Path) -> None:
    """The package without C++ sources, all of kernels/, the licence and the command."""
    package = {name.removeprefix("rocmforge/") for name in names if name.startswith("rocmforge/")}
    kernels = {name for name in package if name.startswith("kernels/")}
    assert kernels == {f"kernels/{name}" for name in files_below(repo / "kernels")}
    assert kernels
    wanted = {n for n in files_below(repo / "rocmforge") if not n.endswith(SOURCES)}
    assert {
        n for n in package - kernels if not n.startswith("cpu/_cpu.") or n.endswith(".pyi")
    } == (wanted)
    assert not [name for name in package - kernels if name.endswith(SOURCES)]
    others = {name.split("/")[-1] for name in names if not name.startswith("rocmforge/")}
    assert others == {"METADATA", "WHEEL", "RECORD", "LICENSE", "entry_points.txt"}


def test_what_a_wheel_holds(repo: Path, tmp_path: Path) -> None:
    names = build_wheel(repo, tmp_path, "wheel.cmake=false")
    check(names, repo)
    assert not [name for name in names if name.startswith(COMPILED) and name.endswith(".so")]


@pytest.mark.slow
def test_a_wheel_is_built_with_its_kernels(repo: Path, tmp_path: Path) -> None:
    """The compiled module beside the rest; unoptimized, which takes half the time."""
    names = build_wheel(repo, tmp_path, "cmake.build-type=Debug")
    check(names, repo)
    (compiled,) = [name for name in names if name.startswith(COMPILED) and name.endswith(".so")]
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        archive.extract(compiled, tmp_path / "out")
    code = "import _cpu; print(_cpu.instruction_sets()[-1])"
    folder = (tmp_path / "out" / compiled).parent
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout == "portable\n"
