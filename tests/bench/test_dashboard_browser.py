"""The pages in a real browser: Chromium without a window, and without any way to the network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("asv")
pytest.importorskip("playwright.sync_api", reason="no playwright: pip install -e '.[dev]'")

from dashboard_site import Site, make_site
from tool_modules import tool_module

load = tool_module("dashboard_load", "studies")
if load.CHROMIUM is None:
    pytest.skip("no chromium on PATH: apt-get install chromium", allow_module_level=True)

BENCHMARKS, COMMITS, SLACK_MS, WAIT_MS = 60, 20, 5000, 15_000
GRAPH = "asv.html#inference.Prompt.track_ttft_ms?machine=box&p-model='1.1B-Q4_0'&p-tokens=128"
ROWS = "[...document.querySelector('{}').tBodies[0].rows].filter(row => !row.hidden)"
INK = """() => [...document.querySelectorAll('#main-graph canvas')].map(canvas =>
  canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)
    .data.filter((byte, at) => at % 4 == 3 && byte).length)"""


@dataclass
class Tab:
    """A page that may ask only its own server; keeps what went wrong in it."""

    page: Any
    address: str
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(WAIT_MS)
        self.page.route("**/*", self._only_local)
        self.page.on("pageerror", lambda error: self.problems.append(f"error {error}"))
        self.page.on(
            "console",
            lambda said: said.type in ("error", "warning") and self.problems.append(said.text),
        )
        self.page.on(
            "response",
            lambda got: got.status >= 400 and self.problems.append(f"{got.status} {got.url}"),
        )

    def _only_local(self, route: Any) -> None:
        if route.request.url.startswith((self.address, "data:")):
            route.continue_()
        else:
            self.problems.append(f"outside: {route.request.url}")
            route.abort()

    def open(self, name: str, shown: str = "body") -> Any:
        self.page.goto("about:blank")
        self.page.goto(self.address + name)
        self.page.wait_for_selector(shown)
        return self.page


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with load.browser() as started:
        yield started


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
        ("index.html", "table#speeds"),
        ("commits.html", "table#commits"),
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


def test_our_filter_leaves_rows_with_all_of_the_words(tab: Tab) -> None:
    page = tab.open("index.html", "table#speeds")
    page.fill("input[data-filters=speeds]", "box ttft 128")
    assert page.evaluate(f"{ROWS.format('#speeds')}.map(row => row.cells[4].innerText)") == [
        "prompt of 128, cpu"
    ]
    assert page.locator(".filter", has_text="Filter speeds").inner_text().endswith("rows")
    page.fill("input[data-filters=speeds]", "")
    assert page.evaluate(f"{ROWS.format('#speeds')}.length") > 10


def test_our_tables_sort_by_value(tab: Tab) -> None:
    page = tab.open("index.html", "table#speeds")
    page.click("#speeds th:has-text('Value') button")
    cells = f"{ROWS.format('#speeds')}.map(row => row.cells[5].dataset.v)"
    rising = [float(value) for value in page.evaluate(cells) if value]
    assert rising == sorted(rising)
    assert page.get_attribute("#speeds th:has-text('Value')", "aria-sort") == "ascending"
    page.click("#speeds th:has-text('Value') button")
    falling = [float(value) for value in page.evaluate(cells) if value]
    assert falling == sorted(falling, reverse=True)
    assert page.evaluate(cells)[-1] == ""  # n/a last either way


def test_the_keyboard_reaches_everything_and_shows_where_it_is(tab: Tab) -> None:
    page = tab.open("index.html", "table#speeds")
    seen = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        kind, outline = page.evaluate(
            "(at => [at.tagName, getComputedStyle(at).outlineStyle])(document.activeElement)"
        )
        assert outline != "none", kind
        seen.add(kind)
    assert {"A", "BUTTON", "INPUT", "SUMMARY"} <= seen
    page.focus("#speeds th:has-text('Model') button")
    page.keyboard.press("Enter")
    assert page.get_attribute("#speeds th:has-text('Model')", "aria-sort") == "ascending"


def test_links_resolve(tab: Tab) -> None:
    page = tab.open("index.html", "table#speeds")
    links = set(page.evaluate("[...document.querySelectorAll('a[href]')].map(a => a.href)"))
    inside = {link for link in links if link.startswith(f"{tab.address}index.html#")}
    for link in inside:
        assert page.query_selector(f"[id='{link.partition('#')[2]}']"), link
    known = page.evaluate("fetch('index.json').then(got => got.json())")["benchmarks"]
    for link in links - inside:
        assert link.startswith(tab.address)
        name, _, route = link.removeprefix(tab.address).partition("#")
        assert page.evaluate("name => fetch(name).then(got => got.status)", name) == 200
        benchmark = route.partition("?")[0]
        pages = ("", "/", "/summarylist", "/regressions")
        assert benchmark in pages or benchmark in known, link


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 1400])
def test_the_summary_fits_the_screen(chromium: Any, address: str, width: int, scheme: str) -> None:
    context = chromium.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page = Tab(context.new_page(), address).open("index.html", "table#speeds")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cut = "[...document.querySelectorAll('.card .wide')].map(at => at.scrollWidth - at.clientWidth)"
    assert page.evaluate(cut) == [0, 0]
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    context.close()


def test_the_summary_works_as_a_file(chromium: Any, site: Site) -> None:
    context = chromium.new_context()
    tab = Tab(context.new_page(), f"{site.html.as_uri()}/")
    page = tab.open("index.html", "table#speeds")
    page.fill("input[data-filters=speeds]", "sm-90-card 7B Q8_0 decode")
    assert page.evaluate(f"{ROWS.format('#speeds')}.length") == 3
    page.click("#speeds th:has-text('Value') button")
    assert page.locator("svg.chart circle").count() > 0
    assert tab.problems == []
    context.close()


def test_the_graphs_opened_as_a_file_say_what_to_do(chromium: Any, site: Site) -> None:
    context = chromium.new_context()
    page = Tab(context.new_page(), f"{site.html.as_uri()}/").open("index.html", "table#speeds")
    page.click("nav a:has-text('Graphs')")
    page.wait_for_selector("#error.in")
    said = page.inner_text("#error")
    assert "The graphs need a web server" in said
    assert f"python3 -m http.server --bind 127.0.0.1 --directory '{site.html}/'" in said
    assert "gone down" not in said
    context.close()


def test_pages_of_many_benchmarks_load_quickly(
    chromium: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A smaller case than the 500 by 200 of studies/dashboard_load.py, by the same way."""
    pages = load.published(tmp_path, BENCHMARKS, COMMITS)
    with load.serve(pages) as served:
        times = load.load_times(chromium, served, BENCHMARKS)
    with capsys.disabled():
        print("", ", ".join(f"{name} {value:.0f} ms" for name, value in times.items()))
    assert {name: value for name, value in times.items() if value > SLACK_MS} == {}
