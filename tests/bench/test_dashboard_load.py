"""The study of how the pages load: a smaller case, published and measured in the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("asv")

from tool_modules import tool_module

from rocmforge.bench.dashboard.render import PAGES

load = tool_module("dashboard_load", "studies")
SERIES, COMMITS, SLACK_MS = 600, 12, 5000.0  # other tests run beside it


@pytest.mark.slow
def test_pages_of_many_series_load_quickly_and_stay_small(
    chromium: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = load.published(tmp_path, SERIES, COMMITS)
    with load.serve(pages) as served:
        found = dict(load.loads(chromium, served))
    with capsys.disabled():
        print("", ", ".join(f"{name} {one.milliseconds:.0f} ms" for name, one in found.items()))
    assert {*found} == {page.title for page in PAGES} | {*load.ASVS}
    assert {name: one for name, one in found.items() if one.milliseconds > SLACK_MS} == {}
    assert {name: one for name, one in found.items() if not 1000 < one.size < 5e6} == {}


def test_what_exceeds_a_limit_is_said() -> None:
    assert load.Load(999.0, 4.9e6).over == ""
    assert load.Load(1001.0, 4.9e6).over == "too slow"
    assert load.Load(1001.0, 5.1e6).over == "too slow and too large"
