"""`rocmforge info`, `devices` and `--help`, as a person or a script reads them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from model.gguf_files import write_gguf

from rocmforge.cli import main
from rocmforge.gpu.runtime import DeviceProperties
from rocmforge.hardware import Hardware
from rocmforge.model.synthetic import make_model


def test_info_is_for_people(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", model]) == 0
    lines = capsys.readouterr().out.splitlines()
    facts = dict(
        re.split(r"  +|(?<=weight) |(?<=context) ", line, maxsplit=1) for line in lines[:12]
    )
    assert facts["architecture"] == "llama"
    assert facts["runs here"] == "yes"
    assert facts["bits per weight"] == "8.52"
    assert facts["KV per token"] == "1.0 KiB (f16)"
    assert facts["vocabulary"] == "1024 tokens, llama"
    assert facts["chat template"] == "yes"
    assert any(re.fullmatch(r"Q8_0 +16 +1\.\d\d M +1\.\d MiB", line) for line in lines)
    assert any(re.fullmatch(r"2048 +2\.0 MiB +\d\.\d MiB", line) for line in lines)


@pytest.mark.parametrize(
    ("scaling", "factor", "shown"),
    [
        ({"type": "linear", "factor": 4.0}, None, "linear × 4"),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 512},
            8.0,
            "yarn × 4 from 512 tokens, with frequency factors",
        ),
    ],
)
def test_info_names_rope_scaling(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    scaling: dict[str, str | float | int],
    factor: float | None,
    shown: str,
) -> None:
    path = tmp_path / "m.gguf"
    make_model(path, "tiny", "Q8_0", layers=1, rope_scaling=scaling, rope_factor=factor)
    assert main(["info", str(path)]) == 0
    assert re.search(rf"^rope scaling +{shown}$", capsys.readouterr().out, re.M)


def test_info_of_what_cannot_be_run_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    general = {"general.name": "\x1b[2Jevil"}
    path = write_gguf(tmp_path / "m.gguf", architecture="mamba", general=general)
    assert main(["info", str(path)]) == 0
    out = capsys.readouterr().out
    assert "runs here       no\n                - architecture 'mamba' is not supported" in out
    assert "name            \ufffd[2Jevil\n" in out
    assert main(["info", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["supported"] is False


def test_devices(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocmforge.devices.detect", lambda: Hardware(cpu_name="CPU X"))
    radeon = DeviceProperties(0, "RX", "gfx1100", 32, 84, 20 << 30, 65536, False)
    monkeypatch.setattr("rocmforge.devices._LISTS", {"hip": lambda: [radeon]})
    monkeypatch.setattr("rocmforge.devices._DRIVERS", {"hip": lambda: True})
    monkeypatch.delenv("ROCMFORGE_DEVICE", raising=False)
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^cpu +yes +CPU X +1?\d+ cores;", out, re.M)
    assert re.search(r"^hip:0 +yes +RX +gfx1100; 84 compute units; 20 GiB$", out, re.M)
    assert "\nauto is hip:0 RX (gfx1100" in out
    monkeypatch.setenv("ROCMFORGE_CPU_ISA", "portable")
    assert main(["devices"]) == 0
    assert "cores; portable (ROCMFORGE_CPU_ISA) of " in capsys.readouterr().out
    monkeypatch.setenv("ROCMFORGE_DEVICE", "cpu")
    assert main(["devices"]) == 0
    assert "ROCMFORGE_DEVICE=cpu, which is the CPU" in capsys.readouterr().out
    monkeypatch.setenv("ROCMFORGE_DEVICE", "hip:3")
    assert main(["devices"]) == 0
    assert "ROCMFORGE_DEVICE=hip:3, which is not usable: " in capsys.readouterr().out
    assert main(["devices", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["auto"] == "hip"
    assert [d["kind"] for d in document["devices"]] == ["cpu", "hip:0"]


def test_devices_without_a_gpu_says_why_for_each_kind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocmforge.devices.detect", lambda: Hardware(cpu_name="CPU X"))
    monkeypatch.setattr("rocmforge.devices._LISTS", {"hip": list, "cuda": list})
    no_driver = {"hip": lambda: False, "cuda": lambda: False}
    monkeypatch.setattr("rocmforge.devices._DRIVERS", no_driver)
    monkeypatch.delenv("ROCMFORGE_DEVICE", raising=False)
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^hip +no +none found +no AMD GPU driver: neither /dev/kfd", out, re.M)
    assert re.search(r"^cuda +no +none found +no NVIDIA driver: libcuda", out, re.M)


def test_profile_says_which_models_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["profile", "--help"])
    assert "on one device, unless --with TOOL is given" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["generate", "chat", "info", "devices"])
def test_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([command, "--help"])
    assert exit_.value.code == 0
    assert f"examples:\n  rocmforge {command}" in capsys.readouterr().out
