"""compare.html in Chromium, opened as a file: choices, filter, order, address, factors.

The factors wanted here are divided anew from asv's files. No request may leave.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("asv")

from asv_tree import MACHINE, AsvTree, report
from dashboard_site import Site, commits_in, samples
from dashboard_tab import Tab

from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.baseline import save_baseline

BEGIN, APART = 1_700_000_000_000, 100_000  # ms: near enough for verdicts without reference kernels
ROWS = """() => [...document.querySelectorAll('#rows tbody tr')].map(row =>
  Object.fromEntries([...row.cells].map(cell => [cell.dataset.label, cell.innerText])))"""
CHART = "#rows svg"
FAST = {**MACHINE, "machine": "fast", "cpu": "Fast"}
VALUES = {
    "steady.time_op": (10.0, 10.1, 10.0),
    "worse.time_op": (10.0, 10.0, 15.0),
    "better.track_rate": (100.0, 100.0, 200.0),
    "bytes.peakmem_op": (4096.0, 4096.0, 2048.0),
    "busy.time_op": (10.0, 10.0, 20.0),
    "new.time_op": (None, None, 3.0),
}
FORMATS = {"format": ["'Q4_0'", "'Q8_0'"], "tokens": ["1"]}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Three commits of one machine, one of another that is twice as fast, two formats."""
    root = tmp_path_factory.mktemp("compared")
    commits = commits_in(root, 3)
    (root / "asv.conf.json").write_text(
        '{"version": 1, "project": "tiny", "repo": ".", "branches": ["HEAD"]}'
    )
    tree = AsvTree(root / "results")
    units = {"better.track_rate": "tokens/s", "bytes.peakmem_op": "bytes"}
    for name in VALUES:
        tree.benchmark(
            name, units.get(name, "ms"), direction="higher" if "rate" in name else "lower"
        )
    tree.benchmark("matmul.time_op", "ms", FORMATS)
    for number, commit in enumerate(commits):
        chosen = {name: of[number] for name, of in VALUES.items() if of[number] is not None}
        values: dict[str, Any] = {**chosen, "matmul.time_op": [2.0, 4.0]}
        path = tree.run(commit, values, samples=samples(values), date=BEGIN + APART * number)
        load = {"others_share": 0.9 if number == 2 else 0.0, "load_average": 1.0}
        report(path, "busy.time_op", None, None, load)
    half = {"steady.time_op": 5.0, "matmul.time_op": [1.0, 2.0]}
    tree.run(commits[2], half, samples=samples(half), machine=FAST, date=BEGIN + 2 * APART)
    first = ResultsDirectory(root / "results", "box").load(commits[0])
    save_baseline(root / "baselines" / "box" / "baseline.json", first)
    made = Site(root, commits)
    made.publish()
    return made


@pytest.fixture
def tab(chromium: Any, site: Site) -> Iterator[Tab]:
    yield from _tab(chromium, site.html)


@pytest.fixture
def own(chromium: Any, own_pages: Path) -> Iterator[Tab]:
    yield from _tab(chromium, own_pages)


def _tab(chromium: Any, pages: Path) -> Iterator[Tab]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    opened = Tab(context.new_page(), f"{pages.as_uri()}/")
    yield opened
    context.close()
    assert opened.problems == []


def rows(page: Any) -> dict[str, Any]:
    return {row["Benchmark"]: row for row in page.evaluate(ROWS)}


def choice(page: Any, label: str) -> Any:
    return page.get_by_role("combobox", name=label, exact=True)


def choose(page: Any, label: str, words: str) -> None:
    choice(page, label).select_option(label=words)


def said(page: Any, words: str) -> None:
    page.wait_for_function("words => document.body.innerText.includes(words)", arg=words)


def test_the_newest_two_commits_stand_there_with_what_differs(tab: Tab, site: Site) -> None:
    page = tab.drawn("compare.html")
    found = rows(page)
    assert {name: row["Verdict"].split()[0] for name, row in found.items()} == {
        "worse.time_op": "regression",
        "better.track_rate": "improved",
        "bytes.peakmem_op": "improved",
    }
    assert found["worse.time_op"]["Factor"] == "0.6667×"
    assert found["better.track_rate"]["Factor"] == "2×"
    assert found["bytes.peakmem_op"]["Factor"] == "2×"
    assert (found["worse.time_op"]["A"], found["worse.time_op"]["B"]) == ("10 ms", "15 ms")
    said(page, "The gate's verdicts: FAIL")
    assert f"a={site.commits[1][:8]}&b={site.commits[2][:8]}" in page.url
    assert page.locator(f"{CHART} text", has_text="worse.time_op").count() == 1


def test_each_level_shows_more(tab: Tab) -> None:
    page = tab.drawn("compare.html")
    choose(page, "Show", "what cannot be told, too")
    said(page, "busy.time_op")
    assert "90 % of the CPU" in rows(page)["busy.time_op"]["Verdict"]
    assert "steady.time_op" not in rows(page)
    choose(page, "Show", "everything")
    said(page, "steady.time_op")
    assert rows(page)["new.time_op"]["A"] == "n/a"
    assert {*VALUES} <= {*rows(page)}


def test_a_pair_that_was_not_judged_says_so_and_is_divided_by_the_formula(
    tab: Tab, site: Site
) -> None:
    a, b = site.commits[2][:8], site.commits[1][:8]
    page = tab.drawn(f"compare.html#a={a}&b={b}&show=all")
    said(page, f"rocmforge bench compare {a} {b}")
    row = rows(page)["worse.time_op"]
    stored = [_interval(site, commit, "worse.time_op") for commit in (a, b)]
    (after, after_low, after_high), (before, before_low, before_high) = stored
    factor = after / before
    below = math.hypot(math.log(after / after_low), math.log(before_high / before))
    above = math.hypot(math.log(after_high / after), math.log(before / before_low))
    ends = [factor * math.exp(-below), factor * math.exp(above)]
    assert [float(x.rstrip("×")) for x in row["Interval"].split(" … ")] == pytest.approx(
        ends, rel=1e-3
    )
    assert float(row["Factor"].rstrip("×")) == pytest.approx(factor, rel=1e-3)
    assert row["Verdict"] == "better"
    assert rows(page)["busy.time_op"]["Verdict"].startswith("cannot tell other work")
    assert rows(page)["steady.time_op"]["Verdict"] == "same"


def _interval(site: Site, commit: str, name: str) -> tuple[float, float, float]:
    """Median and its 99 % interval of 11 samples: from the smallest to the largest."""
    (path,) = site.results.glob(f"box/{commit}*.json")
    stored = json.loads(path.read_text())
    column = stored["result_columns"].index("samples")
    samples = sorted(stored["results"][name][column][0])
    return samples[5], samples[0], samples[-1]


def test_two_machines_and_two_formats(tab: Tab) -> None:
    page = tab.drawn("compare.html")
    choose(page, "Compare", "two machines")
    said(page, "B (fast) over A (box)")
    found = page.evaluate(ROWS)
    assert {row["Factor"] for row in found} == {"2×"}
    assert {row["Benchmark"] for row in found} == {"steady.time_op", "matmul.time_op"}
    page.get_by_role("button", name="Swap A and B").click()
    said(page, "B (box) over A (fast)")
    assert {row["Factor"] for row in page.evaluate(ROWS)} == {"0.5×"}
    choose(page, "Compare", "two formats")
    said(page, "Q8_0) over A (Q4_0")
    (row,) = page.evaluate(ROWS)
    assert (row["Parameters"], row["Factor"], row["Verdict"]) == (
        "format …, tokens 1",
        "0.5×",
        "worse",
    )


def test_the_filter_works_as_one_types_and_keeps_the_focus(tab: Tab) -> None:
    page = tab.drawn("compare.html#show=all")
    page.get_by_role("searchbox", name="Filter").press_sequentially("time_op ms wors")
    said(page, "1 of 8 rows")
    assert [*rows(page)] == ["worse.time_op"]
    assert page.evaluate("document.activeElement.value") == "time_op ms wors"
    page.get_by_role("searchbox", name="Filter").fill("nothing has this")
    said(page, "No row is left")


def test_the_table_and_the_chart_are_in_the_order_that_is_asked_for(tab: Tab) -> None:
    page = tab.drawn("compare.html#show=all")
    page.get_by_role("button", name="Factor").click()
    tab.settle()
    factors = [row["Factor"] for row in page.evaluate(ROWS)]
    numbers = [float(x.rstrip("×")) for x in factors if x != "n/a"]
    assert numbers == sorted(numbers)
    assert factors[-1] == "n/a"
    page.wait_for_selector(CHART)
    drawn = page.locator(f"{CHART} text").all_text_contents()
    named = [text for text in drawn if "." in text and "×" not in text]
    assert named[0].startswith("busy.time_op")
    page.get_by_role("button", name="Factor").click()
    tab.settle()
    assert page.evaluate(ROWS)[0]["Factor"] == "2×"


def test_the_address_has_the_whole_selection_and_back_returns_to_the_last(tab: Tab) -> None:
    page = tab.drawn("compare.html")
    choose(page, "Compare", "two formats")
    said(page, "Q8_0) over A (Q4_0")
    choose(page, "Show", "everything")
    tab.settle()
    address = page.url
    for part in ("mode=formats", "machine=box", "a=Q4_0", "b=Q8_0", "show=all"):
        assert part in address
    page.go_back()
    page.wait_for_url("**show=changed**")
    other = tab.drawn(address.removeprefix(tab.address))
    assert choice(other, "Compare").input_value() == "formats"
    assert choice(other, "Show").input_value() == "all"


def test_what_an_address_names_in_vain_is_left_out(tab: Tab) -> None:
    page = tab.drawn("compare.html#mode=constructor&machine=none&a=%3Cb%3E&b=gone&show=toString")
    assert "mode=commits" in page.url
    assert "show=changed" in page.url
    assert rows(page)["worse.time_op"]["Verdict"].startswith("regression")


def test_ours_and_llama_cpp_are_those_of_the_reports(own: Tab, repo: Path) -> None:
    page = own.drawn(
        "compare.html#mode=peer&machine=cpu-amd-epyc-zen5-2c&show=all&q=0.5B+4064+decode"
    )
    (row,) = page.evaluate(ROWS)
    folder = repo / "baselines" / "cpu-amd-epyc-zen5-2c" / "llama.cpp"
    stored = json.loads((folder / "0.5B-Q4_K_M-4096.json").read_text())["phases"]["decode"]
    assert row["Factor"] == f"{stored['ratio']}×"
    assert row["A"] == f"{stored['llama.cpp']} tokens/s"
    assert row["Interval"] == f"{stored['ratio_min']} … {stored['ratio_max']}×"


def test_every_run_of_ours_can_be_chosen(own: Tab, repo: Path) -> None:
    page = own.drawn("compare.html#machine=cpu-amd-epyc-zen5-2c&show=all")
    values = page.evaluate(
        "() => [...document.querySelectorAll('#choice select')].map(one => one.length)"
    )
    stored = [*(repo / "results" / "cpu-amd-epyc-zen5-2c").glob("*-existing-*.json")]
    assert values[2] == values[3] == len(stored) + 1  # and the baseline
    options = choice(page, "A").locator("option")
    choice(page, "A").select_option(index=len(stored) // 2)
    page.wait_for_url(f"**a={options.nth(len(stored) // 2).get_attribute('value')}**")
    said(page, "The gate has not judged this pair")
    assert page.locator("#rows tbody tr").count() > 30


def test_links_of_the_history_lead_to_the_two_commits(tab: Tab, site: Site) -> None:
    page = tab.drawn("history.html")
    links = page.evaluate(
        "() => [...document.querySelectorAll('a[href^=\"compare.html\"]')].map(at => at.href)"
    )
    assert links
    short = [commit[:8] for commit in site.commits]
    for link in links[:2]:
        opened = tab.drawn(link.removeprefix(tab.address))
        a, b = (choice(opened, side).input_value() for side in ("A", "B"))
        assert short.index(a) + 1 == short.index(b)
