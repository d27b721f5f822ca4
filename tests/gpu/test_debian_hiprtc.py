"""Debian's own hiprtc (ROCm 5.2, clang 15) compiles every kernel file, through hip-python.

A real hiprtc needs no GPU. Debian's packages are downloaded and unpacked beside the build, not
installed; where apt cannot do that, the tests skip and say why.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from chosen_builds import chosen_builds, targets

from rocmforge.gpu.cross_compile import all_builds

ARCHITECTURES = ("gfx1030", "gfx90a")  # this hiprtc aborts on newer ones
PACKAGES = ("libamdhip64-5", "libhiprtc-builtins5")
LIBRARIES = Path("usr/lib/x86_64-linux-gnu")
DOWNLOAD_SECONDS = 240


@pytest.fixture(scope="session")
def libraries(repo: Path) -> Path:
    """The folder of Debian's ROCm libraries."""
    pytest.importorskip("hip", reason="hip-python is not installed")
    folder = repo / "build" / "debian-hiprtc"
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for package in missing_packages():
            run("apt-get", "download", package, cwd=folder)
        for archive in sorted(folder.glob("*.deb")):
            run("dpkg", "-x", archive.name, ".", cwd=folder)
            archive.unlink()
        hip = next((folder / LIBRARIES).glob("libamdhip64.so.5"))
        for name in ("libamdhip64.so", "libhiprtc.so"):  # what hip-python asks for
            (hip.parent / name).symlink_to(hip.name)
        (folder / "ready").touch()
    return folder / LIBRARIES


def missing_packages() -> list[str]:
    """PACKAGES and what they depend on, without what is installed."""
    kinds = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
    listed = run(
        "apt-cache", "depends", "--recurse", *(f"--no-{kind}" for kind in kinds), *PACKAGES
    )
    names = {line.strip() for line in listed.splitlines() if not line.startswith((" ", "<"))}
    status = subprocess.run(
        ["dpkg-query", "-W", "-f=${Package} ${db:Status-Abbrev}\n", *names],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    installed = {line.split()[0] for line in status.splitlines() if line.split()[1:] == ["ii"]}
    return sorted(names - installed)


def run(*command: str, cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"Debian's hiprtc cannot be had: {error}")
    if done.returncode:
        pytest.skip(f"Debian's hiprtc cannot be had: {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def compile_builds(builds: list[Any], libraries: Path) -> list[Any]:
    """What debian_hiprtc.py says of each of the builds."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("debian_hiprtc.py"))],
        input=json.dumps(builds),
        env={k: v for k, v in os.environ.items() if not k.startswith(("ROCM_", "HIP_"))}
        | {"LD_LIBRARY_PATH": str(libraries)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"after {len(lines)} of {len(builds)}: {done.stderr[-3000:]}"
    return lines


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "file"), targets(*ARCHITECTURES))
def test_every_kernel_file_compiles(architecture: str, file: str, libraries: Path) -> None:
    builds = chosen_builds(file, architecture)
    wanted = [(file, build.defines, architecture) for build in builds]
    for build, kernels in zip(builds, compile_builds(wanted, libraries), strict=True):
        assert not isinstance(kernels, str), kernels
        assert {kernel["name"]: kernel["argument_bytes"] for kernel in kernels} == {
            name: struct.calcsize(f"@{layout}0P") for name, layout in build.kernels.items()
        }
        assert all(kernel["code_bytes"] > 0 for kernel in kernels)


def test_an_error_carries_the_log(libraries: Path) -> None:
    """A kernel without the macros that it needs."""
    build = next(build for build in all_builds("gfx1030") if build.defines)
    (message,) = compile_builds([(build.file, None, "gfx1030")], libraries)
    assert message.startswith(f"kernel {build.file} did not compile for gfx1030 with ")
    assert "error: " in message
