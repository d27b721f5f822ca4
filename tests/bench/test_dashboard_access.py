"""Every page of ours, as it is published, for those who read it otherwise.

axe-core, the contrast of all text in light and dark, a phone's width, the keyboard's focus; no
error in the console, and no request that leaves. Tables that stand behind a click are opened first.
On a phone `make test` leaves the pages of charts to test_dashboard_charts.py, which has small ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("asv")

import page_audit
from dashboard_tab import DRAWN, READY, Tab
from page_audit import WIDTHS
from slow_parameters import slow_where
from test_dashboard_charts import NAMES

from rocmforge.bench.dashboard.render import PAGE, PAGES

OPENED = "() => document.querySelectorAll('details').forEach(at => { at.open = true })"
FOCUS = """() => {
  const at = document.activeElement, style = getComputedStyle(at)
  const seen = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2
  return [at.tagName, at === document.body || seen ? '' : at.outerHTML.slice(0, 80)]
}"""


def opened(chromium: Any, pages: Path, name: str, width: int) -> Tab:
    context = chromium.new_context(viewport={"width": width, "height": 900})
    tab = Tab(context.new_page(), f"{pages.as_uri()}/")
    page = tab.open(f"{name}.html")
    if (PAGE / f"{name}.js").exists():
        page.wait_for_function(READY)
    return tab


@pytest.mark.parametrize(
    ("name", "width"),
    slow_where(
        ((page.name, width) for page in PAGES for width in WIDTHS),
        lambda name, width: name in NAMES and width == min(WIDTHS),
    ),
)
def test_nothing_is_wrong_with_a_page(
    chromium: Any, own_pages: Path, name: str, width: int
) -> None:
    tab = opened(chromium, own_pages, name, width)
    closed = page_audit.width_problems(tab.page)
    tab.page.evaluate(OPENED)
    tab.page.wait_for_function(DRAWN)
    assert [*closed, *page_audit.problems_of(tab.page)] == []
    assert tab.problems == []
    tab.page.context.close()


@pytest.fixture(scope="module")
def wide(chromium: Any, own_pages: Path) -> Callable[[str], Tab]:
    """Pages on a wide screen, each opened once; the tests below leave them as they are."""
    return functools.cache(lambda name: opened(chromium, own_pages, name, 1280))


@pytest.mark.parametrize("name", [page.name for page in PAGES])
def test_the_keyboard_shows_where_it_is(wide: Callable[[str], Tab], name: str) -> None:
    tab = wide(name)
    kinds = set()
    for _ in range(25):
        tab.page.keyboard.press("Tab")
        kind, unseen = tab.page.evaluate(FOCUS)
        assert unseen == ""
        kinds.add(kind)
    assert "A" in kinds
    assert kinds & {"SELECT", "INPUT", "BUTTON", "SUMMARY"} or name == "commits"
    assert tab.problems == []


def test_each_chart_says_what_it_shows_and_has_its_numbers(wide: Callable[[str], Tab]) -> None:
    seen = 0
    for page in PAGES:
        tab = wide(page.name)
        tab.page.wait_for_function(DRAWN)
        for chart in tab.page.query_selector_all(".plot > svg"):
            assert chart.get_attribute("role") == "img"
            assert len(chart.get_attribute("aria-label")) > 20
            seen += 1
        tables = tab.page.query_selector_all("table")
        assert all(table.query_selector("th[scope=col]") for table in tables)
        assert all(table.query_selector("caption") for table in tables)
        if tab.page.query_selector("figure:not(.spark) > .plot > svg"):
            assert tables
    assert seen >= len(PAGES) // 2
