"""tools/compare_formats.py on a tiny model: what it measures, writes, draws and refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tool_modules import tool_module

from rocmforge.gguf.formats import FORMATS
from rocmforge.hardware import hardware_tag
from rocmforge.model.synthetic import make_model

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def tool() -> Any:
    """The script as a module."""
    return tool_module("compare_formats")


SOME = ("F16", "Q8_0", "Q4_0", "Q2_K", "IQ4_NL", "MXFP4")


@pytest.fixture
def some(tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few formats: those of grids take seconds to quantize."""
    monkeypatch.setattr(tool, "FORMATS", {name: FORMATS[name] for name in SOME})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "tiny.gguf", "tiny", "F16", layers=1)


@pytest.mark.parametrize("names", [SOME, pytest.param(tuple(FORMATS), marks=pytest.mark.slow)])
def test_every_format_is_measured_against_the_reference(
    tool: Any,
    model: Path,
    tmp_path: Path,
    names: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tool, "FORMATS", {name: FORMATS[name] for name in names})
    json_file, figure = tmp_path / "new" / "formats.json", tmp_path / "new" / "formats.svg"
    options = ["--tokens", "60", "--window", "64", "--rounds", "1"]
    options += ["--json", str(json_file), "--figure", str(figure)]
    assert tool.main(["--reference-model", str(model), *options]) == 0
    report = json.loads(json_file.read_text())
    assert (report["reference"], report["model"]) == ("F16", "tiny.gguf")
    assert (report["tokens"], report["window"]) == (60, 64)
    assert report["hardware_tag"] == hardware_tag()
    rows = report["formats"]
    assert list(rows) == list(names)
    assert rows["F16"]["kl_nats"] == 0
    assert rows["F16"]["top1_agreement"] == 1
    assert rows["Q8_0"]["kl_nats"] < rows["Q4_0"]["kl_nats"] < rows["Q2_K"]["kl_nats"]
    for row in rows.values():
        assert all(math.isfinite(value) and value >= 0 for value in row.values())
        assert min(row["prefill_tokens_per_second"], row["decode_tokens_per_second"]) > 0
    drawn = figure.read_text()
    assert drawn.startswith("<?xml")
    assert all(f"<!-- {name} -->" in drawn for name in names)  # a label each
    assert sorted(p.name for p in json_file.parent.iterdir()) == ["formats.json", "formats.svg"]


@pytest.mark.usefixtures("some")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rounds", "0"], "rounds: got 0, wanted at least 1"),
        (["--rounds", "1", "--window", "3"], "window: got 3, wanted 4 to"),
        (["--reference-model", "missing.gguf"], "missing.gguf"),
    ],
)
def test_what_is_refused(
    tool: Any,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    target = tmp_path / "formats.json"
    assert tool.main(["--reference-model", str(model), "--json", str(target), *options]) == 2
    assert message in capsys.readouterr().err
    assert not target.exists()
