"""The pages in a real browser: Chromium without a window, and without any way to the network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

pytest.importorskip("asv")
pytest.importorskip("playwright.sync_api", reason="no playwright: pip install -e '.[dev]'")

from dashboard_site import Site, make_site
from dashboard_tab import Tab
from tool_modules import tool_module

load = tool_module("dashboard_load", "studies")
if load.CHROMIUM is None:
    pytest.skip("no chromium on PATH: apt-get install chromium", allow_module_level=True)

GRAPH = "asv.html#inference.Prompt.track_ttft_ms?machine=box&p-model='1.1B-Q4_0'&p-tokens=128"
INK = """() => [...document.querySelectorAll('#main-graph canvas')].map(canvas =>
  canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)
    .data.filter((byte, at) => at % 4 == 3 && byte).length)"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, repo: Path) -> Site:
    report = repo / "baselines" / "sm-90-nvidia-h200" / "gpu_speed.json"
    made = make_site(tmp_path_factory.mktemp("site"), report)
    made.publish()
    return made


@pytest.fixture(scope="module")
def address(site: Site) -> Iterator[str]:
    with load.serve(site.html) as served:
        yield served


@pytest.fixture
def tab(chromium: Any, address: str) -> Iterator[Tab]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    opened = Tab(context.new_page(), address)
    yield opened
    title = opened.page.title()
    context.close()
    assert opened.problems == []
    assert title != "harmed"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("index.html", ".card"),
        ("commits.html", "tbody tr"),
        ("asv.html#/", ".benchmark-container canvas"),
        ("asv.html#/summarylist", "#summarylist-body tbody tr"),
        ("asv.html#/regressions", "#regressions-body tbody tr"),
        (GRAPH, "#main-graph canvas"),
        ("error.html", "h1"),
    ],
)
def test_every_page_opens_without_a_network(tab: Tab, name: str, shown: str) -> None:
    assert tab.open(name, shown).title()


def test_a_graph_is_drawn(tab: Tab) -> None:
    page = tab.open(GRAPH, "#main-graph canvas")
    assert max(page.evaluate(INK)) > 500


def test_a_benchmark_opens_from_asvs_grid(tab: Tab) -> None:
    page = tab.open("asv.html#/", ".benchmark-container canvas")
    page.click(".benchmark-container[href*=prefill]")
    page.wait_for_selector("#main-graph canvas")
    assert page.url.startswith(f"{tab.address}asv.html#inference.Prompt.track_prefill")
    assert max(page.evaluate(INK)) > 500


def test_old_addresses_of_asvs_page_still_lead_there(tab: Tab) -> None:
    page = tab.open("index.html#/summarylist", "#summarylist-body tbody tr")
    assert page.url.startswith(f"{tab.address}asv.html#")


def test_asvs_list_filters_by_machine(tab: Tab) -> None:
    page = tab.open("asv.html#/summarylist?machine=box", "#summarylist-body tbody tr")
    rows = "#summarylist-body table:visible tbody tr"
    assert page.locator(rows, has_text="rope <img").count() == 1
    page.click("#summarylist-navigation a:has-text('sm-90-card')")
    page.wait_for_function("document.querySelectorAll('#summarylist-body table').length == 2")
    assert "machine=sm-90-card" in page.url
    tokens = page.locator(rows, has_text="(\"'1.1B-Q4_0'\", 512, 'gpu')".replace('"', ""))
    assert "tokens/s, higher is better" in tokens.inner_text()


def test_asvs_list_paints_a_rising_throughput_as_good(tab: Tab) -> None:
    page = tab.open("asv.html#/summarylist?machine=box", "td.change[data-seen] a")
    classes = {
        row.locator("a").first.inner_text(): row.locator("td.change").get_attribute("class")
        for row in page.locator("#summarylist-body tbody tr:has(td.change a)").all()
    }
    rising = classes["inference.Prompt.track_prefill_tokens_per_second"]
    assert "negative-change" in rising  # green
    assert "positive-change" in classes["inference.Prompt.track_ttft_ms"]


def test_asvs_list_sorts(tab: Tab) -> None:
    page = tab.open("asv.html#/summarylist?machine=box", "#summarylist-body tbody tr")
    heading = page.locator("#summarylist-body th", has_text="Benchmark")
    names = page.locator("#summarylist-body tbody td:first-child").all_inner_texts()
    heading.click()
    page.wait_for_url("**sort=0&dir=desc")
    turned = page.locator("#summarylist-body tbody td:first-child").all_inner_texts()
    assert turned == sorted(names, reverse=True) != names


def cells(page: Any, column: int) -> list[str]:
    """The texts of a column of the speeds."""
    found: list[str] = page.locator(f"#rows tbody tr > :nth-child({column})").all_text_contents()
    return found


def test_our_filter_leaves_rows_with_all_of_the_words(tab: Tab) -> None:
    page = tab.drawn("models.html#machine=box")
    page.fill("#controls input[type=search]", "ttft 128")
    page.wait_for_url("**filter=ttft*")
    page.wait_for_function("document.querySelectorAll('#rows tbody tr').length == 1")
    assert cells(page, 3) == ["prompt of 128, cpu"]
    page.fill("#controls input[type=search]", "")
    page.wait_for_function("document.querySelectorAll('#rows tbody tr').length > 1")


def test_our_tables_sort_by_value(tab: Tab) -> None:
    page = tab.drawn("models.html#machine=box&phase=prefill")
    page.click("#rows th:has-text('Value') button")
    tab.settle()
    assert page.url.endswith("order=Value")
    assert cells(page, 4) == ["900 tokens/s", "1,200 tokens/s"]
    assert page.get_attribute("#rows th:has-text('Value')", "aria-sort") == "ascending"
    page.keyboard.press("Enter")  # the focus has stayed on the heading
    tab.settle()
    assert page.url.endswith("order=-Value")
    assert cells(page, 4) == ["1,200 tokens/s", "900 tokens/s"]


def test_a_long_table_draws_its_first_rows_until_all_are_asked_for(tab: Tab) -> None:
    page = tab.drawn("models.html")
    page.evaluate("""() => {
      const columns = [{ name: "Number", number: true, of: (row) => row }];
      const rows = Array.from({ length: 1000 }, (_, at) => at);
      document.getElementById("rows").replaceChildren(rocmforge.table("Long", columns, rows));
    }""")
    assert page.locator("#rows tbody tr").count() == 300
    page.get_by_role("button", name="Show all 1,000 rows").click()
    assert page.locator("#rows tbody tr").count() == 1000
    assert page.locator("#rows tbody tr").last.inner_text() == "999"
    assert page.get_by_role("button", name="Show all").count() == 0


def test_links_resolve(tab: Tab) -> None:
    page = tab.open("index.html", ".card")
    links = set(page.evaluate("[...document.querySelectorAll('a[href]')].map(a => a.href)"))
    inside = {link for link in links if link.startswith(f"{tab.address}index.html#")}
    for link in inside:
        assert page.query_selector(f"[id='{link.partition('#')[2]}']"), link
    known = page.evaluate("fetch('index.json').then(got => got.json())")["benchmarks"]
    for link in links - inside:
        assert link.startswith(tab.address)
        name, _, route = link.removeprefix(tab.address).partition("#")
        assert page.evaluate("name => fetch(name).then(got => got.status)", name) == 200
        pages = ("", "/", "/summarylist", "/regressions")
        if name == "asv.html":
            assert route in pages, link
        if name == "history.html" and route:
            assert parse_qs(route)["benchmark"][0] in known, link


def test_the_graphs_opened_as_a_file_say_what_to_do(chromium: Any, site: Site) -> None:
    context = chromium.new_context()
    page = Tab(context.new_page(), f"{site.html.as_uri()}/").open("index.html", ".card")
    page.click("nav a:has-text('graphs')")
    page.wait_for_selector("#error.in")
    said = page.inner_text("#error")
    assert "The graphs need a web server" in said
    assert f"python3 -m http.server --bind 127.0.0.1 --directory '{site.html}/'" in said
    assert "gone down" not in said
    context.close()
