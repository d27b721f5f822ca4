"""tools/render_tables.py: the committed tables are what the files say; stale ones show."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tool_modules import tool_module


@pytest.fixture
def tool(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, over a copy of the files that it reads and writes."""
    module = tool_module("render_tables")
    shutil.copytree(repo / "baselines", tmp_path / "baselines")
    shutil.copytree(repo / "docs", tmp_path / "docs")
    shutil.copy(repo / "README.md", tmp_path)
    monkeypatch.setattr(module, "REPO", tmp_path)
    return module


def test_the_committed_tables_are_current(tool: Any) -> None:
    assert tool.main(["--check"]) == 0


def test_a_changed_measurement_changes_its_row_alone(
    tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = (tmp_path / "baselines").glob("*/formats.json")
    report = json.loads(path.read_text())
    report["formats"]["Q4_K"]["kl_nats"] = 7.25
    path.write_text(json.dumps(report))
    page = tmp_path / "docs" / "PERFORMANCE.md"
    before = page.read_text()
    assert tool.main(["--check"]) == 1
    assert "PERFORMANCE.md: stale" in capsys.readouterr().out
    assert page.read_text() == before
    assert tool.main([]) == 0
    lines = zip(before.splitlines(), page.read_text().splitlines(), strict=True)
    ((old, new),) = [(a, b) for a, b in lines if a != b]
    assert old.startswith("| Q4_K | 4.50 |")
    assert "| 7.2500 |" in new
    assert tool.main(["--check"]) == 0


def test_the_header_names_the_reference(tool: Any, tmp_path: Path) -> None:
    (path,) = (tmp_path / "baselines").glob("*/formats.json")
    report = json.loads(path.read_text())
    assert f"KL to {report['reference']}, nats" in (tmp_path / "docs/PERFORMANCE.md").read_text()


def test_a_page_without_the_place_is_refused(tool: Any, tmp_path: Path) -> None:
    page = tmp_path / "docs" / "PERFORMANCE.md"
    page.write_text(page.read_text().replace("<!-- formats:begin -->", ""))
    with pytest.raises(SystemExit, match="no place for the table 'formats'"):
        tool.main([])


def test_feed_forward_parts_are_shown_where_they_were_measured(tool: Any, tmp_path: Path) -> None:
    (path,) = (tmp_path / "baselines").glob("*/gpu_speed.json")
    page = tmp_path / "docs" / "PERFORMANCE.md"
    report = json.loads(path.read_text())
    ways = {("7B", "a, b"): 31.25, ("1.1B", "a, b"): 9.0, ("7B", "c"): 30.0, ("1.1B", "c"): 8.0}
    report["feed_forward"] = [
        {"model": model, "way": way, "microseconds": us} for (model, way), us in ways.items()
    ]
    path.write_text(json.dumps(report))
    assert tool.main([]) == 0
    shown = page.read_text()
    assert "| kernels | 7B | 1.1B |" in shown
    assert "| a, b | 31.2 | 9.0 |" in shown
    del report["feed_forward"]
    path.write_text(json.dumps(report))
    assert tool.main([]) == 0
    assert "| kernels |" not in page.read_text()
