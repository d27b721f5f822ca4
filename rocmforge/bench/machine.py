"""Tells asv what machine it runs on, and reads that back from its result files.

asv has six fields of its own and keeps any other field that it finds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocmforge.bench.files import read_versioned_json, write_json
from rocmforge.hardware import Hardware, detect, hardware_tag

MACHINE_VERSION = 1
LARGEST = 10**18
"""No count of a machine reaches it."""
LONGEST = 100
"""No name of hardware is longer; those of a GPU and a CPU are part of folders' names."""


def hardware_from_asv(params: Mapping[str, Any]) -> Hardware:
    """Read the machine that a result file names, standard fields and those of `asv_machine`."""

    def text(key: str) -> str | None:
        value = params.get(key)
        return str(value) if value not in (None, "") and len(str(value)) <= LONGEST else None

    def count(key: str) -> int | None:
        value = text(key)
        return int(value) if value and re.fullmatch("[0-9]{1,18}", value) else None

    python = text("python")
    return Hardware(
        gpu_name=text("gpu"),
        gpu_architecture=text("gfx"),
        rocm_version=text("rocm"),
        cpu_name=text("cpu"),
        cpu_microarchitecture=text("cpu_microarchitecture"),
        cpu_arch=text("arch"),
        cpu_isa=text("cpu_isa"),
        cpu_count=count("num_cpu"),
        ram_bytes=count("ram"),
        os=text("os"),
        python_version=python if python and re.fullmatch(r"\d+(\.\w+)+", python) else None,
        driver_version=text("driver"),
        power_cap_watts=count("power_cap_watts"),
        hip_version=text("hip"),
        gfx_override=text("gfx_override"),
    )


def asv_machine(hardware: Hardware, name: str | None = None) -> dict[str, str]:
    """Spell a machine as an entry of asv's machine file; `hardware_from_asv` reads it back.

    Parameters
    ----------
    hardware
        The machine.
    name
        Folder below asv's results; default: the hardware tag.
    """
    fields = {
        "machine": name or hardware_tag(hardware),
        "os": hardware.os,
        "arch": hardware.cpu_arch,
        "cpu": hardware.cpu_name,
        "num_cpu": hardware.cpu_count,
        "ram": hardware.ram_bytes,
        "cpu_microarchitecture": hardware.cpu_microarchitecture,
        "cpu_isa": hardware.cpu_isa,
        "gpu": hardware.gpu_name,
        "gfx": hardware.gpu_architecture,
        "rocm": hardware.rocm_version,
        "driver": hardware.driver_version,
        "power_cap_watts": hardware.power_cap_watts,
        "hip": hardware.hip_version,
        "gfx_override": hardware.gfx_override,
    }
    return {key: str(value) for key, value in fields.items() if value is not None}


def register_machine(path: Path, hardware: Hardware, name: str | None = None) -> str:
    """Enter a machine in asv's machine file (``~/.asv-machine.json``), keeping the others.

    Returns
    -------
    str
        The machine's name, for ``asv run --machine``.

    Raises
    ------
    ResultFileError
        The file exists and is broken; it is left as it is.
    """
    machines = read_versioned_json(path, MACHINE_VERSION) if path.exists() else {}
    entry = asv_machine(hardware, name)
    write_json(path, {**machines, entry["machine"]: entry, "version": MACHINE_VERSION})
    return entry["machine"]


def register_here() -> str:
    """Enter this machine in asv's own machine file; return its name."""
    return register_machine(Path.home() / ".asv-machine.json", detect())
