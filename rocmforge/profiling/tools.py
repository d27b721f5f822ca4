"""The profilers and card tools of this machine: which are there, which version, how to get others.

A tool is found on the PATH, in ROCm's folder or in CUDA's, and asked for its version under a time
limit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rocmforge.errors import one_line

LIMIT_SECONDS = 20.0
"""For a tool to tell its version: the Python ones load much."""

FOLDERS = ("/opt/rocm/bin", "/usr/local/cuda/bin")

_VERSION = re.compile(r"\d+\.\d+[\w.+-]*")
_CUDA = {"with NVIDIA's repository": "sudo apt (dnf, zypper) install cuda-toolkit"}


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, there or not.

    Parameters
    ----------
    name
        As it is called.
    path
        Where it is; None: it is missing.
    version
        As it says; None: it is missing, or did not say.
    purpose
        What it is for, in a few words.
    remark
        What a user should know; empty: nothing.
    install
        How to get it, by distribution.
    """

    name: str
    path: str | None
    version: str | None
    purpose: str
    remark: str
    install: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Kind:
    purpose: str
    ask: tuple[str, ...]
    install: Mapping[str, str]
    remark: str = ""


def _rocm_package(package: str) -> dict[str, str]:
    """AMD calls its packages the same on Debian, Ubuntu, RHEL and SLES."""
    return {"with AMD's ROCm repository": f"sudo apt (dnf, zypper) install {package}"}


_KINDS = {
    "rocprofv3": _Kind(
        "AMD: kernels, copies, counters", ("--version",), _rocm_package("rocprofiler-sdk")
    ),
    "rocprof": _Kind(
        "AMD: kernels, counters, on older ROCm",
        ("--version",),
        _rocm_package("rocprofiler"),
        "its support ended in mid-2026; use rocprofv3",
    ),
    "rocprof-compute": _Kind(
        "AMD: one kernel in depth, on Instinct and gfx115x",
        ("--version",),
        _rocm_package("rocprofiler-compute"),
    ),
    "amd-smi": _Kind(
        "AMD: clocks, power, performance level", ("version",), _rocm_package("amd-smi-lib")
    ),
    "rocm-smi": _Kind(
        "AMD: the same, on older ROCm",
        ("--version",),
        _rocm_package("rocm-smi-lib"),
        "amd-smi takes its place",
    ),
    "perf": _Kind(
        "CPU: where the host's time goes",
        ("--version",),
        {
            "Debian": "sudo apt install linux-perf",
            "Ubuntu": "sudo apt install linux-tools-$(uname -r)",
            "Fedora, RHEL": "sudo dnf install perf",
            "SLES": "sudo zypper install perf",
            "Arch": "sudo pacman -S perf",
        },
    ),
    "nsys": _Kind("NVIDIA: kernels, copies, API calls over time", ("--version",), _CUDA),
    "ncu": _Kind("NVIDIA: one kernel in depth", ("--version",), _CUDA),
}

_OTHER_NAMES = {
    "rocperf": (
        "there is no tool called rocperf; rocprofv3 profiles kernels, rocprof-compute looks into "
        "one of them, and perf profiles the CPU"
    ),
    "omniperf": "omniperf is called rocprof-compute since ROCm 6.3",
    "omnitrace": "omnitrace is called rocprof-sys since ROCm 6.3; rocprofv3 records kernels too",
    "rocprofv2": "rocprofv2 is no longer developed; rocprofv3 takes its place",
    "roctracer": "roctracer is a library that is no longer developed; rocprofv3 takes its place",
    "nvprof": "nvprof does not know today's GPUs; nsys and ncu take its place",
}


def answer(name: str) -> str | None:
    """Say what a tool of an old or wrong name is called today; None: nothing is known of it."""
    return _OTHER_NAMES.get(name.casefold())


def find_tools() -> list[Tool]:
    """Return every tool that is of use here, those that are missing too."""
    return [_asked(name, kind) for name, kind in _KINDS.items()]


def find_tool(name: str) -> Tool:
    """Return one tool.

    Raises
    ------
    ValueError
        It is none of those that are known; the error says what it is called today.
    """
    if name not in _KINDS:
        said = answer(name)
        raise ValueError(
            f"tool: {said}" if said else f"tool: got {one_line(name, 60)!r}, wanted {_names()}"
        )
    return _asked(name, _KINDS[name])


def help_text(tool: Tool, *words: str) -> str:
    """Return what a tool prints on its options; empty where it does not answer in time."""
    said, _ = _said([tool.path or tool.name, *words, "--help"])
    return said


def where(name: str) -> str | None:
    """Return a tool's path; None: it is missing."""
    path = os.pathsep.join([*os.get_exec_path(), *FOLDERS])
    return shutil.which(name, path=path)


def _names() -> str:
    return ", ".join(_KINDS)


def _asked(name: str, kind: _Kind) -> Tool:
    path = where(name)
    if path is None:
        return Tool(name, None, None, kind.purpose, kind.remark, kind.install)
    said, problem = _said([path, *kind.ask])
    version = _VERSION.search(said)
    remarks = [kind.remark] if kind.remark else []
    if version is None:
        remarks.append(f"it did not say its version: {problem or one_line(said, 120) or 'nothing'}")
    return Tool(
        name, path, version[0] if version else None, kind.purpose, "; ".join(remarks), kind.install
    )


def _said(words: list[str]) -> tuple[str, str]:
    """Return what a program prints, and what went wrong."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_SECONDS,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer within {LIMIT_SECONDS:g} s"
    except OSError as error:
        return "", error.strerror or str(error)
    said = done.stdout.decode("utf-8", "replace")
    told = done.stderr.decode("utf-8", "replace")
    problem = f"exit code {done.returncode}: {one_line(told, 120)}" if done.returncode else ""
    return said or told, problem
