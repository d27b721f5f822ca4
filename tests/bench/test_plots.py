"""The forest plot: what it draws, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from asv_tree import A, AsvTree, B

from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.compare import compare
from rocmforge.bench.comparison import Comparison, Row
from rocmforge.bench.decision import Verdict
from rocmforge.bench.plots import forest_plot
from rocmforge.bench.results import Direction
from rocmforge.errors import MeasurementError

pytest.importorskip("matplotlib")


def comparison(*rows: Row) -> Comparison:
    return Comparison("before", "after", 0.1, rows, (), ())


def row(name: str, verdict: Verdict, direction: Direction = Direction.LOWER) -> Row:
    return Row(name, {}, 1.0, 1.2, 1.2, 1.15, 1.25, "ms", direction, verdict)


def test_every_row_with_a_ratio_is_drawn(two_commits: AsvTree, tmp_path: Path) -> None:
    found = compare(*ResultsDirectory(two_commits.results).load_pair(A, B))
    path = tmp_path / "new" / "forest.svg"
    assert forest_plot(found, path) == 5  # one failed, one is n/a
    text = path.read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    for label in ("matmul.track_tokens", "matmul.track_ms('Q4_0', 8)", "rope.time_rope"):
        assert f"<!-- {label} -->" in text
    assert "gpu.time_gpu" not in text


def test_right_is_worse_where_higher_is_better_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.axes import Axes

    drawn: dict[float, tuple[float, float]] = {}
    monkeypatch.setattr(Axes, "hlines", lambda self, y, a, b, **_: drawn.update({y: (a, b)}))
    rows = (
        row("a", Verdict.REGRESSION),
        row("b", Verdict.IMPROVED, Direction.HIGHER),
    )
    assert forest_plot(comparison(*rows), tmp_path / "f.png") == 2
    assert drawn[0] == pytest.approx((1 / 1.25, 1 / 1.15))  # the better one comes first from below
    assert drawn[1] == (1.15, 1.25)
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_to_draw_and_unknown_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="no benchmark has a value on both sides"):
        forest_plot(comparison(), tmp_path / "f.svg")
    with pytest.raises(ValueError, match=r"wanted a name that ends in \.svg"):
        forest_plot(comparison(row("a", Verdict.OK)), tmp_path / "f.gif")
    assert not list(tmp_path.iterdir())
