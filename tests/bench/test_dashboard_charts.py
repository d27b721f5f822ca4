"""The pages of measured points in Chromium, opened as files: charts, tables, choices, addresses."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asv_tree import MACHINE, AsvTree, report
from dashboard_runs import DAY_MS, FIRST_DAY, result
from dashboard_tab import DRAWN, Tab
from page_audit import WIDTHS, problems_of

from rocmforge.bench.asv_results import read_benchmarks
from rocmforge.bench.dashboard.conditions_data import ENERGY
from rocmforge.bench.dashboard.formats_data import BITS, DIVERGENCE
from rocmforge.bench.dashboard.machines import load_run, read_machines
from rocmforge.bench.dashboard.render import Site, write_pages
from rocmforge.bench.dashboard.scaling_data import DEPTHS, RATE
from rocmforge.bench.dashboard.ttft_data import PARTS, WHOLE
from rocmforge.bench.dashboard.vendored import VENDOR
from rocmforge.bench.results import Direction, Result

HARMFUL = "<img src=x onerror=document.title='harmed'>"
NAMES = ("roofline", "formats", "ttft", "scaling", "kernels", "conditions")
CARD = {
    "device": "cuda:0",
    "clock_mhz": [900.0, 1500.0, 1980.0],
    "power_watts": [100.0, 150.0, 200.0],
    "throttle": [],
    "utilization_before": 0.0,
    "other_processes": 0,
}
SAMPLES = [0.95 + at / 100 for at in range(11)]
WAVES = "kernel_resources.KernelResources.track_occupancy"


def spread(value: float) -> list[float]:
    return [value * one for one in SAMPLES]


def results(speed: float, waves: float) -> list[Result]:
    """A few results of every page; the times are those of a machine of that speed."""
    on = {"device": "gpu"}
    environment = {
        "others_share": 0.02 * speed,
        "cpu_mhz": [2000.0, 2100.0, 2200.0],
        "gpus": [CARD],
    }
    found = [
        result("roofline.Matmul.track_inverse_roofline_fraction", p | on, 2 / speed, "times ideal")
        for p in ({"format": "Q4_K", "tokens": "1"}, {"format": HARMFUL, "tokens": "128"})
    ]
    found += [
        result("rows.Prompt.track_gb_per_second", {"op": "rope", "device": "cpu"}, 30.0, "GB/s"),
        result(BITS, {"format": "Q4_K"}, 4.5, "bits"),
        result(DIVERGENCE, {"format": "Q4_K", "device": "cpu"}, 0.06, "nats"),
        result(ENERGY, {"model": "1B", **on}, 0.3 / speed, "J"),
    ]
    found += [
        result(PARTS, {"model": "1B", "part": part, **on}, ms / speed)
        for part, ms in (("tokenize", 1.0), ("embedding", 2.0), ("prefill", 40.0), ("load", 500.0))
    ]
    found += [
        result(WHOLE, {"model": "1B", "tokens": tokens, **on}, ms, samples=spread(ms))
        for tokens, ms in (("32", 10.0), ("2048", 90.0))
    ]
    found += [
        result(RATE, {"model": name, "batch": batch, **on}, rate * speed, "tokens/s")
        for name in ("1B", HARMFUL)
        for batch, rate in (("1", 100.0), ("8", 700.0))
    ]
    found += [
        result(
            DEPTHS[0],
            {"model": "1B", "kv": "f16", "context": at, **on},
            ms,
            environment=environment,
        )
        for at, ms in (("0", 10.0), ("16384", 25.0))
    ]
    params = {"file": "matmul.hip", "architecture": "gfx1100"}
    return [*found, result(WAVES, params, waves, "waves", direction=Direction.HIGHER)]


FORMATS = {
    "commit": "c" * 40,
    "date": "2026-11-20T10:00:00+00:00",
    "model": "demo-F16.gguf",
    "threads": 2,
    "formats": {
        name: {
            "bits_per_weight": bits,
            "kl_nats": divergence,
            "prefill_tokens_per_second": 1000.0,
            "decode_tokens_per_second": decode,
        }
        for name, bits, divergence, decode in (
            ("Q2_K", 2.6, 1.5, 90.0),
            ("Q4_0", 4.5, 0.2, 100.0),
            ("Q4_K", 4.5, 0.1, 98.0),
            ("Q8_0", 8.5, 0.002, 80.0),
            ("F16", 16.0, 0.0, 50.0),
        )
    },
}


def write_run(tree: AsvTree, tag: str, commit: str, day: int, found: list[Result]) -> None:
    """Write results as asv would have, and the environments of those that have one."""
    names: dict[str, list[Result]] = {}
    for one in found:
        names.setdefault(one.name, []).append(one)
    values: dict[str, Any] = {}
    samples: dict[str, Any] = {}
    places: dict[str, list[tuple[str, ...]]] = {}
    for name, of_name in names.items():
        grid = [
            list(dict.fromkeys(column)) for column in zip(*(r.params for r in of_name), strict=True)
        ]
        params = dict(zip(of_name[0].param_names, grid, strict=True))
        direction = of_name[0].direction
        tree.benchmark(
            name, of_name[0].unit or "", params, direction=direction.value if direction else None
        )
        known = {r.params: r for r in of_name}
        places[name] = list(itertools.product(*grid))
        values[name] = [known[at].value if at in known else None for at in places[name]]
        samples[name] = [list(known[at].samples) if at in known else None for at in places[name]]
    kept = {name: found for name, found in samples.items() if any(found)}
    date = FIRST_DAY + day * DAY_MS
    written = tree.run(
        commit * 40, values, samples=kept, machine={**MACHINE, "machine": tag}, date=date
    )
    for one in found:
        if one.environment:
            report(written, one.name, places[one.name].index(one.params), None, {**one.environment})


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three machines: one that has everything, one that is twice as fast, one that has nothing."""
    folder = tmp_path_factory.mktemp("pages")
    tree = AsvTree(folder / "results")
    for tag, speed in (("box", 1.0), ("fast", 2.0)):
        for day, commit in enumerate("abc"):
            write_run(tree, tag, commit, day, results(speed, 10.0 if commit == "c" else 12.0))
    baselines = folder / "baselines"
    for tag in ("box", "none"):
        (baselines / tag).mkdir(parents=True)
    (baselines / "box" / "formats.json").write_text(json.dumps(FORMATS))
    benchmarks = read_benchmarks(tree.results / "benchmarks.json")
    machines = read_machines(tree.results, baselines, {}, benchmarks)
    runs = {m.tag: [load_run(one, benchmarks) for one in m.runs] for m in machines}
    html = folder / "html"
    html.mkdir()
    write_pages(html, Site(machines, runs, {}, baselines, {}))
    shutil.copytree(VENDOR, html / VENDOR.name)
    (html / "swallow.png").touch()
    return html


@pytest.fixture
def tab(chromium: Any, pages: Path) -> Iterator[Tab]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    opened = Tab(context.new_page(), f"{pages.as_uri()}/")
    yield opened
    title = opened.page.title()
    context.close()
    assert opened.problems == []
    assert title != "harmed"


def drawn(page: Any) -> list[str]:
    """What screen readers hear of each chart that is drawn."""
    page.wait_for_function(DRAWN)
    labels: list[str] = page.evaluate(
        """[...document.querySelectorAll('.plot [role=img]')]
        .map(one => one.getAttribute('aria-label'))"""
    )
    return labels


def rows(page: Any, caption: str) -> list[list[str]]:
    """The cells of a table by its caption, hidden ones too."""
    found: list[list[str]] = page.evaluate(
        """caption => [...[...document.querySelectorAll('table')]
        .find(one => one.caption.textContent.startsWith(caption)).tBodies[0].rows]
        .map(row => [...row.cells].map(cell => cell.textContent))""",
        caption,
    )
    return found


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_drawn_and_readable_for_everybody(tab: Tab, name: str, width: int) -> None:
    tab.page.set_viewport_size({"width": width, "height": 900})
    page = tab.drawn(f"{name}.html")
    assert len(drawn(page)) >= 1
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    assert problems_of(page) == []
    assert page.locator("img").count() == 0


@pytest.mark.parametrize("name", [name for name in NAMES if name != "kernels"])
def test_a_machine_that_measured_nothing_says_so_and_how(tab: Tab, name: str) -> None:
    page = tab.drawn(f"{name}.html#machine=none")
    assert drawn(page) == []
    said = page.locator(".absent").first.inner_text()
    assert said.startswith("n/a: ")
    assert "rocmforge bench run" in said or "tools/compare_formats.py" in said


@pytest.mark.parametrize("name", ["roofline", "ttft", "scaling", "conditions"])
def test_the_machine_is_part_of_the_address(tab: Tab, name: str) -> None:
    page = tab.drawn(f"{name}.html#machine=box")
    before = page.text_content("#content")
    page.select_option("#controls select", "fast")
    page.wait_for_url("**machine=fast*")
    tab.settle()
    after = page.text_content("#content")
    assert after != before
    page.go_back()
    page.wait_for_function("before => content.textContent === before", arg=before)
    page = tab.drawn(f"{name}.html#machine=fast")
    assert page.text_content("#content") == after


@pytest.mark.parametrize("name", NAMES)
def test_an_address_of_nonsense_shows_the_first_choice(tab: Tab, name: str) -> None:
    usual = tab.drawn(f"{name}.html").text_content("#content")
    nonsense = "machine=no&device=no&work=no&rates=no&metric=no&file=no&scale=no&sort=no&order=-no"
    assert tab.drawn(f"{name}.html#{nonsense}&model={HARMFUL}x").text_content("#content") == usual


@pytest.mark.parametrize("name", NAMES)
def test_the_keyboard_reaches_choices_tables_and_headings(tab: Tab, name: str) -> None:
    page = tab.drawn(f"{name}.html")
    seen = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        kind, outline = page.evaluate(
            "(at => [at.tagName, getComputedStyle(at).outlineStyle])(document.activeElement)"
        )
        assert outline != "none" or kind == "BODY", kind
        seen.add(kind)
    assert {"A", "SELECT", "SUMMARY"} <= seen or {"A", "SELECT", "BUTTON"} <= seen


def test_shares_of_the_roofline(tab: Tab) -> None:
    page = tab.drawn("roofline.html#machine=box&device=gpu")
    assert drawn(page)[0].startswith("Shares of the roofline of 2 benchmarks; the largest is 50 %")
    (first, second) = rows(page, "Shares of the roofline")
    assert first[:3] == ["Q4_K", "matmul, 1 token", "50 %"]
    assert second[0] == HARMFUL
    page.select_option("#controls label:has-text('Work') select", "matmul, 1 token")
    page.wait_for_url("**work=matmul*")
    page.wait_for_function("document.querySelectorAll('.plot circle').length == 1")
    page = tab.drawn("roofline.html#machine=box&device=cpu")
    assert "30 GB/s" in drawn(page)[0]


def test_formats_on_the_fronts(tab: Tab) -> None:
    page = tab.drawn("formats.html")
    labels = drawn(page)
    assert "On the front: Q2_K, Q4_K, Q8_0, F16." in labels[0]
    assert "not on the logarithmic axis: F16" in labels[0]
    assert "On the front: Q4_0, Q4_K, Q8_0, F16." in labels[1]
    assert [row[0] for row in rows(page, "Formats")] == ["Q2_K", "Q4_0", "Q4_K", "Q8_0", "F16"]
    page.click("th button:has-text('Decode')")
    tab.settle()
    assert rows(page, "Formats")[0][0] == "F16"
    page = tab.drawn("formats.html#machine=fast")
    assert "speed was not measured" in page.inner_text(".absent")
    assert rows(page, "Formats") == [["Q4_K", "4.5", "0.06", "n/a", "n/a", "n/a", "n/a", "bits"]]


def test_the_split_of_the_first_token(tab: Tab) -> None:
    page = tab.drawn("ttft.html#machine=box")
    split, prompts = drawn(page)
    assert split == "1B: 41 ms to the first token."
    assert "32, 2,048 tokens" in prompts
    ((name, tokenize, embedding, to_device, rest, *_, total, loaded, commit, _date),) = rows(
        page, "Parts of the time"
    )
    assert (name, tokenize, embedding) == ("1B", "1 ms (2.44 %)", "2 ms (4.88 %)")
    assert (to_device, rest, total) == ("n/a", "38 ms (92.7 %)", "41 ms")
    assert (loaded, commit) == ("500 ms", "cccccccc")
    assert page.locator(".plot svg").first.locator("rect").count() == 3


def test_tokens_per_second_over_sequences_and_context(tab: Tab) -> None:
    page = tab.drawn("scaling.html#machine=box&scale=log")
    batches, depths = drawn(page)
    assert "The most is 700 tokens/s" in batches
    assert "0 tokens of context" in depths
    assert [row[:3] for row in rows(page, "Over the context")] == [
        ["1B, f16 cache", "0", "100"],
        ["1B, f16 cache", "16,384", "40"],
    ]
    assert page.input_value("#controls label:has-text('Scale') select") == "log"
    page.select_option("#controls label:has-text('Model') select", "1B")
    page.wait_for_function("document.querySelectorAll('.legend')[0].children.length == 1")
    assert [row[:3] for row in rows(page, "Over sequences")] == [
        ["1B", "1", "100"],
        ["1B", "8", "700"],
    ]


def test_what_a_commit_changed_in_a_kernel(tab: Tab) -> None:
    page = tab.drawn("kernels.html")
    assert "waves of matmul.hip" in drawn(page)[0]
    assert rows(page, "Values that a commit changed") == [
        ["matmul.hip", "gfx1100", "waves", "12", "10", "worse", "cccccccc"]
    ]
    assert rows(page, "waves, waves, higher is better, each") == [["matmul.hip", "10"]]
    assert [row[2] for row in rows(page, "waves of matmul.hip")] == ["12", "12", "10"]
    page.fill("input[type=search]", "rope")
    tab.settle()
    assert "No value of these files changed" in page.inner_text("#content")
    assert page.evaluate("document.activeElement.type") == "search"


def test_conditions_of_every_run(tab: Tab) -> None:
    page = tab.drawn("conditions.html#machine=box")
    labels = drawn(page)
    assert labels[0].startswith("Other work, of the CPU time, %, of 3 runs; the newest, cccccccc")
    assert any(label.startswith("GPU power, W") for label in labels)
    newest = rows(page, "Runs")[0]
    assert newest[:3] == ["cccccccc", "2023-11-16", "2023-11-16"]
    assert "2 / 2 / 2" in newest
    assert newest[-1] == "none"
    assert [row[1] for row in rows(page, "Joules per token")] == ["0.3", "0.3", "0.3"]
    assert "no process recorded Load average" in page.inner_text("#content")
    recorded = {row[0]: row[1:] for row in rows(page, "What was recorded")}
    assert recorded["GPU power"] == ["100 … 200 W", "100 … 200 W"]
    assert "No benchmark of the newest run is marked." in page.inner_text("#content")
