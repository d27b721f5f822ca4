"""The report in a real browser: Chromium without a window, the page opened as a file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="no playwright: pip install -e '.[browser]'")

from made_profile import made_profile

from rocmforge.profiling.html_report import write_html

CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("no chromium on PATH: apt-get install chromium", allow_module_level=True)

FAINT = """() => {
  const channels = color => color.match(/[\\d.]+/g).map(Number);
  const light = color => channels(color).slice(0, 3).map(v => v / 255)
    .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [.2126, .7152, .0722][at], 0);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const color = getComputedStyle(element).backgroundColor;
      if (channels(color)[3] !== 0) return color;
    }
    return 'rgb(255, 255, 255)';
  };
  const found = [];
  for (const element of document.querySelectorAll('body *:not(svg):not(svg *):not(script)')) {
    if (![...element.childNodes].some(n => n.nodeType == 3 && n.data.trim())) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(behind(element))];
    const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (contrast < 4.5) found.push([element.outerHTML.slice(0, 80), contrast]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "profile.html"
    write_html(made_profile(), path)
    return path


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def opened(chromium: Any, report: Path, width: int = 1280, scheme: str = "light") -> Any:
    page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.problems = []
    page.on("console", lambda said: page.problems.append(said.text))
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("dialog", lambda dialog: page.problems.append(dialog.message))
    page.on("request", lambda sent: page.problems.append(sent.url))
    page.goto(report.as_uri())
    assert page.problems == [report.as_uri()]  # the page itself is the only request
    return page


@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_and_is_readable(chromium: Any, report: Path, width: int, scheme: str) -> None:
    page = opened(chromium, report, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(FAINT) == []
    page.close()


def test_a_column_sorts_by_its_numbers(chromium: Any, report: Path) -> None:
    page = opened(chromium, report)
    table = page.locator("#prefill table.sortable")
    names = "rows => rows.map(row => row.cells[0].textContent)"
    rows = table.locator("tbody tr")
    head = table.get_by_role("columnheader", name="roofline")
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert rows.evaluate_all(names) == ["attention", "matmul_qkv", "kv_append"]  # 100, 50, 20 %
    head.get_by_role("button").press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert rows.evaluate_all(names) == ["kv_append", "matmul_qkv", "attention"]
    other = table.get_by_role("columnheader", name="op", exact=True)
    other.get_by_role("button").click()
    assert head.get_attribute("aria-sort") is None
    assert rows.evaluate_all(names) == ["attention", "kv_append", "matmul_qkv"]
    page.close()


def test_the_keyboard_reaches_the_verdicts_and_every_table(chromium: Any, report: Path) -> None:
    page = opened(chromium, report, 390)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "To the verdicts"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#verdicts"
    wide = page.evaluate(
        "[...document.querySelectorAll('.wide')].filter(box => box.scrollWidth > box.clientWidth)"
        ".map(box => [box.tabIndex, box.getAttribute('aria-label')])"
    )
    assert len(wide) >= 3  # both tables of ops, and the roofline
    assert all(index == 0 and label for index, label in wide)
    page.close()


def test_the_stacked_bar_has_the_shares(chromium: Any, report: Path) -> None:
    page = opened(chromium, report)
    widths = "parts => parts.map(part => part.getBoundingClientRect().width)"
    short, long = page.locator("#first-token .bar span").evaluate_all(widths)
    assert long / short == pytest.approx(9, rel=0.02)
    page.close()


def test_it_prints_in_light_colors(chromium: Any, report: Path) -> None:
    page = opened(chromium, report, scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate(FAINT) == []
    assert not page.locator("nav").is_visible()
    page.close()


def test_a_long_name_does_not_widen_a_phone(chromium: Any, tmp_path: Path) -> None:
    profile = made_profile()
    model = replace(profile.model, path="/models/" + "long" * 100)
    verdict = replace(profile.verdicts[0], summary="x" * 500)
    write_html(replace(profile, model=model, verdicts=(verdict,)), tmp_path / "profile.html")
    page = opened(chromium, tmp_path / "profile.html", 390)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.close()
