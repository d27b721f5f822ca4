"""studies/compare_detectors.py: what is planted is counted, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tool_modules import tool_module

SPREAD = (1.0, 1.01, 0.99, 1.02, 0.98)


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, with short histories."""
    pytest.importorskip("asv")
    pytest.importorskip("scipy")
    module = tool_module("compare_detectors", "studies")
    monkeypatch.setattr(module, "LENGTHS", (40,))
    monkeypatch.setattr(module, "QUIET", 1)
    return module


def noise(path: Path, **medians: tuple[float, ...]) -> Path:
    entries = {
        name: {"unit": "x/s" if name == "rate" else "s", "medians": list(kept), "marked": 0}
        for name, kept in medians.items()
    }
    path.write_text(json.dumps({"version": 1, "hardware_tag": "box", "benchmarks": entries}))
    return path


def test_large_steps_in_little_noise_are_found_by_every_detector(
    tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = noise(
        tmp_path / "noise.json", time=SPREAD, rate=SPREAD, even=(1.0, 1.0), none=(0.0, 1.0)
    )
    out = tmp_path / "new" / "detectors.json"
    assert tool.main([str(path), "--repeats", "2", "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert (report["benchmarks"], report["hardware_tag"]) == (2, "box")  # two have no noise
    assert set(report["detectors"]) == {"asv", "E-divisive, permutations", "E-divisive, t-test"}
    for row in report["detectors"].values():
        assert row["40"]["false steps per 1000 commits"] == 0
        assert row["40"]["step of 25 %, within ±1, %"] == 100
        assert row["40"]["step of 5 %, within ±1, %"] == 0  # below the threshold
    planted = report["drifts"]["40"]
    assert planted["nothing"]["none"] == 100
    assert planted["step of 25 %"]["one step"] == 100
    assert planted["step of 25 %"]["of them: range holds it"] == 100
    assert planted["15 commits of 2 %"]["drift"] == 100
    shown = capsys.readouterr().out
    assert "step of 25 %, within ±1, %" in shown
    assert "15 commits of 2 %" in shown


def test_the_same_seed_gives_the_same_figures(tool: Any) -> None:
    pools = [np.log(SPREAD)]
    one, other, third = (tool._histories(pools, 40, 1, seed)[0] for seed in (0, 0, 1))
    assert np.array_equal(one, other)
    assert not np.array_equal(one, third)


def test_blocks_keep_the_order_of_the_runs(tool: Any) -> None:
    (values,) = tool._histories([np.arange(10.0)], 9, 1, 0, 3)
    assert set(np.diff(values.reshape(3, 3)).ravel() % 10) == {1.0}


def test_nothing_to_draw_from_is_refused(
    tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main([str(noise(tmp_path / "noise.json", even=(1.0, 1.0)))]) == 2
    assert "got 10 repeats of 0 noisy benchmarks" in capsys.readouterr().err
    assert tool.main([str(tmp_path / "nowhere.json")]) == 2
    path = noise(tmp_path / "noise.json", time=SPREAD)
    assert tool.main([str(path), "--repeats", "0"]) == 2
