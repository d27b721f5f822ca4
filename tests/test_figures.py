"""The figures of docs/FIGURES.md: the same numbers are the same bytes, and stale ones show."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tool_modules import tool_module

data, drawing = tool_module("figure_data"), tool_module("figures")
ROW = {"label": "Q4_K", "value": 2.0, "low": 1.5, "high": 3.0, "marked": False}
POINTS = [{"x": x, "y": 10.0 + x, "low": None, "high": None, "marked": x == 4} for x in (0, 4, 8)]
PANELS = (
    {"kind": "dots", "title": "Dots", "x": "times", "line": 1, "log": 2, "rows": {"a": [ROW]}},
    {
        "kind": "lines",
        "title": "Lines",
        "x": "tokens",
        "y": "ms",
        "xlog": True,
        "series": {"b": POINTS},
    },
    {"kind": "lines", "title": "Commits", "x": "commits", "y": "ms", "series": {"": POINTS}}
    | {"ticks": [f"{at:08x}" for at in range(9)]},
    {"kind": "stack", "title": "Bars", "x": "s", "bars": {"7B": {"load": 1.0, "run": 0.5}}},
)


@pytest.fixture
def figure() -> Any:
    """A figure with a panel of each kind."""
    return data.Figure("made", "ratios", PANELS, "It is 2 times as fast.", "`box`, commit 1")


def test_the_same_numbers_are_the_same_bytes(figure: Any) -> None:
    text = drawing.svg(figure)
    assert drawing.svg(figure) == text
    assert "<dc:date>" not in text
    assert "It is 2 times as fast." in text  # its title, for who cannot see it
    for shown in ("Dots", "times", "Lines", "Commits", "00000000", "Bars", "load", "7B", "Q4_K"):
        assert f">{shown}<" in text, shown


def test_other_numbers_and_an_edited_picture_are_stale(figure: Any, tmp_path: Path) -> None:
    path = tmp_path / "made.svg"
    assert not drawing.is_current(figure, path)
    path.write_text(drawing.svg(figure))
    assert drawing.is_current(figure, path)
    other = ({**PANELS[0], "rows": {"a": [{**ROW, "value": 2.5}]}}, *PANELS[1:])
    assert not drawing.is_current(replace(figure, panels=other), path)
    path.write_text(path.read_text().replace(">Dots<", ">Spots<"))
    assert not drawing.is_current(figure, path)


def test_where_nothing_was_measured_there_is_no_figure(repo: Path, tmp_path: Path) -> None:
    shutil.copy(repo / "results" / "benchmarks.json", tmp_path)
    (tmp_path / "baselines").mkdir()
    assert data.figures(tmp_path, tmp_path / "baselines") == []


def test_every_section_has_a_figure_and_every_figure_a_sentence(repo: Path) -> None:
    found = data.figures(repo / "results", repo / "baselines")
    assert {one.section for one in found} == {*data.SECTIONS}
    assert len({one.name for one in found}) == len(found)
    for one in found:
        assert re.fullmatch(r"[A-Z].*\d.*\.", one.alt), one.alt
        assert "nan" not in str(one.panels)
        assert all(panel["title"] and panel["x"] for panel in one.panels)


def test_a_stale_figure_is_drawn_and_one_without_numbers_removed(
    figure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = tool_module("render_tables")
    monkeypatch.setattr(tool, "REPO", tmp_path)
    folder = tmp_path / "figures"
    folder.mkdir()
    (folder / "old.svg").write_text("<svg/>")
    assert tool._draw([figure], folder, check=True)
    assert capsys.readouterr().out == "figures/made.svg: stale\nfigures/old.svg: stale\n"
    assert [path.name for path in folder.iterdir()] == ["old.svg"]
    assert tool._draw([figure], folder, check=False)
    assert [path.name for path in folder.iterdir()] == ["made.svg"]
    assert not tool._draw([figure], folder, check=True)
