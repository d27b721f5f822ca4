"""tools/two_gpus.py, and the table of what it wrote: on two of the stand-in's devices."""

from __future__ import annotations

import json
from ctypes import CDLL
from pathlib import Path
from typing import Any

import pytest
from tool_modules import tool_module

from rocmforge.speed.measure import speed_tests


@pytest.fixture
def tool(standin: dict[str, CDLL], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, with few bytes and short tests."""
    monkeypatch.setenv("STANDIN_DEVICES", "gfx1100,gfx1100")
    monkeypatch.setattr("rocmforge.speed.measure.measured_peaks", lambda *work: None)
    module = tool_module("two_gpus")
    monkeypatch.setattr(module, "SIZES", (1 << 12,))
    monkeypatch.setattr(module, "ROUNDS", 1)
    monkeypatch.setattr(module, "TESTS", speed_tests([8], [4], [0], [1]))
    return module


def test_sums_and_models_are_measured_and_shown(tool: Any, tmp_path: Path) -> None:
    out = tmp_path / "two.json"
    options = ["--device", "hip:0,hip:1", "--models", "tiny:Q4_0:2", "--json", str(out)]
    assert tool.main([*options, "--commit", "a" * 40]) == 0
    report = json.loads(out.read_text())
    assert [row["way"] for row in report["sums"]] == ["peer access", "host memory"]
    assert [row["split_mode"] for row in report["models"]] == [
        *(None, None, "layer", "layer", "tensor", "tensor")
    ]
    text = tool_module("gpu_tables").two_gpus_tables(report)
    assert "| bytes | peer access | host memory |" in text
    assert "| model | test | 1 GPU | 2 GPUs, layer | 2 GPUs, tensor |" in text
    assert text.count("| tiny:Q4_0:2 |") == 2
    assert "n/a" not in text


def test_one_gpu_is_refused(tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["--device", "hip:0", "--json", str(tmp_path / "two.json")]) == tool.BROKEN
    assert "got hip:0, wanted two GPUs" in capsys.readouterr().err
