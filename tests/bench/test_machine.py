"""What asv is told of a machine comes back from its result files unchanged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rocmforge.bench.machine import asv_machine, hardware_from_asv, register_machine
from rocmforge.errors import ResultFileError
from rocmforge.hardware import Hardware, hardware_tag

HOST = Hardware(
    gpu_name="Radeon RX 7900 XT",
    gpu_architecture="gfx1100",
    rocm_version="6.4.1-90",
    cpu_name="AMD Ryzen 9 7950X 16-Core Processor",
    cpu_microarchitecture="zen4",
    cpu_arch="x86_64",
    cpu_isa="avx512",
    cpu_count=32,
    ram_bytes=64 * 2**30,
    os="Linux 6.1.0",
    driver_version="6.14.14",
    power_cap_watts=300,
    hip_version="6.4.43483",
    gfx_override="11.0.0",
)


def test_round_trip() -> None:
    fields = asv_machine(HOST)
    assert fields["machine"] == hardware_tag(HOST)
    assert hardware_from_asv({**fields, "python": "3.11"}) == replace(HOST, python_version="3.11")


def test_what_is_not_there_is_left_out() -> None:
    bare = Hardware(cpu_arch="x86_64")
    assert asv_machine(bare, "box") == {"machine": "box", "arch": "x86_64"}
    assert hardware_from_asv({"machine": "box"}) == Hardware()


def test_nonsense_is_unknown_not_a_number() -> None:
    params = {"num_cpu": "many", "ram": "8GB", "cpu": "", "python": "/usr/bin/python3"}
    assert hardware_from_asv(params) == Hardware()
    assert (
        hardware_from_asv({"ram": "9" * 400, "num_cpu": "\u0664", "cpu": "x" * 300}) == Hardware()
    )


def test_registering_keeps_other_machines_and_renews_this_one(tmp_path: Path) -> None:
    file = tmp_path / "asv-machine.json"
    assert register_machine(file, HOST, "old") == "old"
    tag = register_machine(file, HOST)
    assert register_machine(file, replace(HOST, ram_bytes=1)) == tag == hardware_tag(HOST)
    machines = json.loads(file.read_text())
    assert set(machines) == {"old", tag, "version"}
    assert machines[tag]["ram"] == "1"


def test_registering_leaves_a_broken_file(tmp_path: Path) -> None:
    file = tmp_path / "asv-machine.json"
    file.write_text('{"version": 7}')
    with pytest.raises(ResultFileError, match="version: got 7, wanted 1"):
        register_machine(file, HOST)
    assert file.read_text() == '{"version": 7}'
