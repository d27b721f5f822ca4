"""history.html and index.html in Chromium, opened as files, of twelve commits with one step.

Values wanted here are those that the test wrote into asv's files. No request may leave.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("asv")

from asv_tree import MACHINE, AsvTree
from dashboard_site import Site, commits_in, samples
from dashboard_tab import Tab

COMMITS, STEP = 12, 6
BEGIN, APART = 1_700_000_000_000, 86_400_000  # ms
FAST = {**MACHINE, "machine": "fast", "cpu": "Fast"}
SLOW = "matmul.time_op"
FORMATS = {"format": ["'Q4_0'", "'Q8_0'"]}
ROWS = """() => [...document.querySelectorAll('#shown tbody tr')].map(row =>
  Object.fromEntries([...row.cells].map(cell => [cell.dataset.label, cell.textContent])))"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Two machines and two formats; on one machine Q4_0 is half as fast from one commit on."""
    root = tmp_path_factory.mktemp("history")
    commits = commits_in(root, COMMITS)
    (root / "asv.conf.json").write_text(
        '{"version": 1, "project": "tiny", "repo": ".", "branches": ["HEAD"]}'
    )
    tree = AsvTree(root / "results")
    tree.benchmark(SLOW, "ms", FORMATS)
    tree.benchmark("speed.track_rate", "tokens/s", direction="higher")
    tree.benchmark("batch.track_rate", "tokens/s", {"tokens": ["128"]}, direction="higher")
    for number, commit in enumerate(commits):
        values = {
            SLOW: [10.0 if number < STEP else 20.0, 4.0],
            "speed.track_rate": 100.0,
            "batch.track_rate": [50.0],
        }
        date = BEGIN + number * APART
        tree.run(commit, values, samples=samples(values), date=date)
        tree.run(commit, {SLOW: [5.0, 2.0]}, samples={}, machine=FAST, date=date)
    made = Site(root, commits)
    made.publish()
    return made


@pytest.fixture
def tab(chromium: Any, site: Site) -> Iterator[Tab]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    opened = Tab(context.new_page(), f"{site.html.as_uri()}/")
    yield opened
    context.close()
    assert opened.problems == []


def tick(page: Any, words: str) -> Any:
    return page.get_by_role("checkbox", name=words)


def heading(page: Any) -> str:
    return str(page.locator("#lines legend").inner_text())


def test_a_step_is_marked_with_its_commits_and_how_to_confirm_it(tab: Tab, site: Site) -> None:
    page = tab.drawn(f"history.html#benchmark={SLOW}&machine=box")
    good, bad = (site.commits[at][:8] for at in (STEP - 1, STEP))
    said = page.locator("#findings").inner_text()
    assert f"rocmforge bench confirm {good} {bad}" in said
    assert "▼ × 2" in page.locator("#shown svg").text_content()
    link = page.locator("#findings a").first.get_attribute("href")
    assert f"a={good}&b={bad}" in link


def test_the_table_has_the_values_that_were_measured(tab: Tab, site: Site) -> None:
    page = tab.drawn(f"history.html#benchmark={SLOW}&machine=box&words=Q4_0")
    rows = page.evaluate(ROWS)
    assert [row["Commit"] for row in rows] == [one[:8] for one in reversed(site.commits)]
    measured = [float(row["Value, ms"]) for row in rows]
    assert measured == [20.0] * (COMMITS - STEP) + [10.0] * STEP
    for row, value in zip(rows, measured, strict=True):
        low, high = map(float, row["99 % interval"].split(" … "))
        assert low <= value <= high


def test_lines_are_overlaid_by_choice_and_the_address_restores_them(tab: Tab) -> None:
    page = tab.drawn(f"history.html#benchmark={SLOW}&lines=none")
    assert "No line is chosen" in page.locator("#shown").inner_text()
    for count, words in enumerate(("box, Q4_0", "fast, Q8_0"), 1):
        tick(page, words).check()
        page.wait_for_function(
            "said => document.querySelector('#lines legend').innerText.includes(said)",
            arg=f"{count} of 4",
        )
    page.get_by_role("combobox", name="Scale").select_option("log")
    page.wait_for_url("**scale=log**")
    other = tab.drawn(page.url.removeprefix(tab.address))
    assert heading(other).endswith("2 of 4 drawn")
    assert tick(other, "fast, Q8_0").is_checked()
    assert other.get_by_role("combobox", name="Scale").input_value() == "log"
    assert {row["Line"] for row in other.evaluate(ROWS)} == {"box, Q4_0", "fast, Q8_0"}


def test_a_table_that_was_folded_open_stays_open_when_a_line_is_ticked(tab: Tab) -> None:
    page = tab.drawn(f"history.html#benchmark={SLOW}&lines=none")
    tick(page, "box, Q4_0").check()
    tab.settle()
    page.locator("summary").click()
    tick(page, "fast, Q8_0").check()
    tab.settle()
    assert page.evaluate("document.querySelector('details').open")
    assert page.evaluate("document.activeElement.type") == "checkbox"


def test_words_typed_quickly_end_at_the_last(tab: Tab) -> None:
    page = tab.drawn(f"history.html#benchmark={SLOW}")
    field = page.get_by_role("searchbox", name="Lines with")
    field.press_sequentially("fast Q4_0")
    page.wait_for_function(
        "() => document.querySelector('#lines legend').innerText.includes('1 of 1')"
    )
    assert field.input_value() == "fast Q4_0"
    assert {row["Line"] for row in page.evaluate(ROWS)} == {"fast, Q4_0"}


def test_a_number_has_its_parameters_name(tab: Tab) -> None:
    page = tab.drawn("history.html#benchmark=batch.track_rate")
    assert tick(page, "box, tokens 128").is_checked()


def test_higher_is_better_is_drawn_as_such(tab: Tab) -> None:
    page = tab.drawn("history.html#benchmark=speed.track_rate")
    assert "↑ higher is better" in page.locator("#shown svg").text_content()
    page = tab.drawn(f"history.html#benchmark={SLOW}")
    assert "↓ lower is better" in page.locator("#shown svg").text_content()


def test_the_overview_has_a_card_for_each_machine(tab: Tab) -> None:
    page = tab.drawn("index.html")
    assert page.locator("article.card .tag").all_inner_texts() == ["box", "fast"]
    first = page.locator("article.card").first.inner_text()
    assert "Since the last run: " in first
    assert "No baseline for this machine yet" in first
