"""asv's own pages: a line for each machine, at first few lines, a legend beside the plot."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

pytest.importorskip("asv")

from asv_tree import MACHINE, AsvTree, report
from dashboard_site import Site, commits_in
from page_audit import width_problems
from tool_modules import tool_module

from rocmforge.bench.dashboard.first_selections import LINES, write_selections
from rocmforge.bench.dashboard.staging import stage

load = tool_module("dashboard_load", "studies")

PATHS = "/home/me/venv/bin/python"
NAMED_BY_PATH = "existing-py_home_me_venv_bin_python"
FORMATS = [f"'Q{number}'" for number in range(9)]
SPEED = "matmul.Speed.track_gflops"
PLAIN = "rope.time_rope"
CARD = {**MACHINE, "machine": "card", "gpu": "NVIDIA Card", "gfx": "sm_90"}
NAN = float("nan")


@pytest.fixture
def tree(tmp_path: Path) -> AsvTree:
    made = AsvTree(tmp_path / "results")
    made.benchmark(PLAIN)
    return made


def staged(tree: AsvTree) -> dict[str, dict[str, Any]]:
    """The axes of every result file that asv is given."""
    target = tree.results.parent / "staged"
    shutil.rmtree(target, ignore_errors=True)
    stage(tree.results, target)
    return {
        f"{path.parent.name}/{path.name}": json.loads(path.read_text())["params"]
        for path in sorted(target.glob("*/*-*"))
    }


def test_a_new_kernel_driver_ram_or_interpreter_is_no_new_line(tree: AsvTree) -> None:
    tree.run("a" * 40, {PLAIN: 1.0}, machine={**CARD, "driver": "1.0", "power_cap_watts": "300"})
    newer = {**CARD, "driver": "2.0", "os": "Linux 7.0", "ram": "9", "power_cap_watts": "250"}
    written = tree.run("b" * 40, {PLAIN: 1.0}, machine=newer, environment=NAMED_BY_PATH)
    content = json.loads(written.read_text())
    content |= {"python": PATHS, "requirements": {"numpy": "2.0"}, "env_vars": {"A": "1"}}
    content["params"]["python"] = PATHS
    written.write_text(json.dumps(content))
    assert [*staged(tree).values()] == [{"machine": "card"}] * 2
    files = [json.loads(p.read_text()) for p in (tree.results.parent / "staged").glob("card/b*")]
    assert [(one["requirements"], one["env_vars"]) for one in files] == [({}, {})]
    assert json.loads(written.read_text()) == content, "the stored file stays as it is"


def test_what_asv_is_told_of_a_machine_stays_whole(tree: AsvTree) -> None:
    tree.run("a" * 40, {PLAIN: 1.0}, machine=CARD)
    staged(tree)
    told = json.loads((tree.results.parent / "staged/card/machine.json").read_text())
    assert told == {**CARD, "version": 1}


def test_two_environments_of_one_commit_are_two_lines_by_name(tree: AsvTree) -> None:
    for commit in ("a" * 40, "b" * 40):
        tree.run(commit, {PLAIN: 1.0}, environment="virtualenv-py3.11")
    tree.run("b" * 40, {PLAIN: 2.0}, environment="virtualenv-py3.12")
    tree.run("b" * 40, {PLAIN: 2.0}, machine=CARD)
    names = [params.get("environment") for params in staged(tree).values()]
    assert names == ["virtualenv-py3.11", "virtualenv-py3.11", "virtualenv-py3.12", None]


def test_a_name_made_of_a_path_becomes_that_of_the_python_that_processes_reported(
    tree: AsvTree,
) -> None:
    written = tree.run("a" * 40, {PLAIN: 1.0}, environment=NAMED_BY_PATH)
    content = json.loads(written.read_text()) | {"python": PATHS}
    written.write_text(json.dumps(content))
    tree.run("a" * 40, {PLAIN: 1.0}, environment="existing-py3.11")
    assert {params["environment"] for params in staged(tree).values()} == {
        "existing",
        "existing-py3.11",
    }
    report(written, PLAIN, None, None, {"versions": {"python": "3.11.7"}})
    assert [*staged(tree).values()] == [{"machine": "box"}] * 2


def test_runs_under_an_override_of_the_architecture_have_their_own_line(tree: AsvTree) -> None:
    tree.run("a" * 40, {PLAIN: 1.0}, machine=CARD)
    tree.run("b" * 40, {PLAIN: 1.0}, machine={**CARD, "gfx_override": "10.3.0"})
    first, second = (params["environment"] for params in staged(tree).values())
    assert first == "virtualenv-py3.11"
    assert second == "virtualenv-py3.11, HSA_OVERRIDE_GFX_VERSION=10.3.0"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Two machines, three commits; the card is the one that measured last."""
    root = tmp_path_factory.mktemp("asv")
    commits = commits_in(root, 3)
    (root / "asv.conf.json").write_text(
        '{"version": 1, "project": "tiny", "repo": ".", "branches": ["HEAD"]}'
    )
    tree = AsvTree(root / "results")
    params = {"format": FORMATS, "tokens": ["1", "32"], "device": ["'cpu'", "'gpu'"]}
    tree.benchmark(SPEED, "GFLOPS", params, direction="higher")
    tree.benchmark(PLAIN)
    for at, commit in enumerate(commits[:2]):
        machine = {**MACHINE, "os": f"Linux 6.{at}"}
        row = [100.0 + at + 10 * place if place % 2 == 0 else NAN for place in range(36)]
        tree.run(commit, {SPEED: row, PLAIN: 0.1}, machine=machine, date=1_700_000_000_000 + at)
    for at, commit in enumerate(commits[1:]):
        row = [900.0 + at + 10 * place if place % 4 == 3 else NAN for place in range(36)]
        tree.run(commit, {SPEED: row}, machine={**CARD, "driver": str(at)})
    made = Site(root, commits)
    made.publish()
    return made


def selections(site: Site) -> dict[str, Any]:
    text = site.text("first_selections.js")
    return json.loads(text.partition(" = ")[2].rstrip().rstrip(";"))


def test_the_first_selection_is_of_the_machine_that_measured_last(site: Site) -> None:
    chosen = parse_qs(selections(site)[SPEED])
    assert chosen == {
        "machine": ["card"],
        "p-format": FORMATS[:LINES],
        "p-tokens": ["32"],
        "p-device": ["'gpu'"],
    }
    assert parse_qs(selections(site)[PLAIN]) == {"machine": ["box"]}


def test_asvs_axes_are_machine_and_branch(site: Site) -> None:
    assert site.json("index.json")["params"] == {"machine": ["box", "card"], "branch": ["HEAD"]}


def test_markup_in_a_selection_ends_no_script(tmp_path: Path) -> None:
    from asv.graph import Graph

    name, machine = "m.track_x", {"machine": "</script><b>"}
    entry = {"param_names": [], "params": []}
    index = {"benchmarks": {name: entry}, "graph_param_list": [machine]}
    (tmp_path / "index.json").write_text(json.dumps(index))
    graph = tmp_path / f"{Graph.get_file_path(machine, name)}.json"
    graph.parent.mkdir(parents=True)
    graph.write_text("[[1, 2.0]]")
    write_selections(tmp_path, tmp_path / "out.js")
    text = (tmp_path / "out.js").read_text()
    assert "<" not in text
    assert "%3C%2Fscript%3E" in text


@pytest.fixture
def page(chromium: Any, site: Site) -> Iterator[Any]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    problems: list[str] = []
    tab = context.new_page()
    tab.set_default_timeout(15_000)
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("response", lambda got: got.status >= 400 and problems.append(f"{got.status} {got.url}"))
    with load.serve(site.html) as address:
        tab.address = address
        yield tab
    context.close()
    assert problems == []


LEGEND = "#legend .legendLabel"
BOXES = """() => ['legend', 'main-graph', 'overview'].map(id => {
  const box = document.getElementById(id).getBoundingClientRect()
  return [box.top, box.bottom]
})"""


def test_a_benchmark_opens_with_few_lines_and_a_legend_below_the_plot(page: Any) -> None:
    page.goto(f"{page.address}asv.html#/")
    page.click(f"[href='#{SPEED}']")
    page.wait_for_selector(LEGEND)
    labels = page.locator(LEGEND).all_inner_texts()
    assert labels == [f"device-gpu; format-{name[1:-1]}; tokens-32" for name in FORMATS[:LINES]]
    legend, graph, overview = page.evaluate(BOXES)
    assert legend[0] >= max(graph[1], overview[1])
    assert legend[1] <= 900
    assert page.locator("#main-graph .legend").count() == 0


def test_the_first_selection_takes_no_place_in_the_history(page: Any) -> None:
    page.goto(f"{page.address}asv.html#/")
    page.click(f"[href='#{SPEED}']")
    page.wait_for_selector(LEGEND)
    assert "machine=card" in page.url
    page.go_back()
    page.wait_for_selector(".benchmark-container:visible")


def test_all_machines_can_be_chosen_though_the_first_selection_has_one(page: Any) -> None:
    page.goto(f"{page.address}asv.html#{PLAIN}")
    page.wait_for_selector("#main-graph canvas")
    page.click("#graphdisplay-state-params a:has-text('card')")
    page.wait_for_url(f"**#{PLAIN}?")
    active = page.locator("#graphdisplay-state-params a.active").all_inner_texts()
    assert active == ["box", "card"]
    page.wait_for_function(f"document.querySelectorAll('{LEGEND}').length == 1")
    assert page.locator(LEGEND).all_inner_texts() == ["machine-box"]  # the other has no value


def test_an_address_with_a_selection_is_left_alone(page: Any) -> None:
    page.goto(f"{page.address}asv.html#{SPEED}?machine=box&p-device='cpu'&p-tokens=1")
    page.wait_for_selector(LEGEND)
    labels = page.locator(LEGEND).all_inner_texts()
    assert len(labels) == 8
    assert "machine=card" not in page.url


def test_the_keyboard_reaches_asvs_buttons(page: Any) -> None:
    page.goto(f"{page.address}asv.html#{SPEED}")
    page.wait_for_selector(LEGEND)
    page.focus("#graphdisplay-navigation-params a:has-text('Q8')")
    page.keyboard.press(" ")
    page.wait_for_function(f"document.querySelectorAll('{LEGEND}').length == {LINES + 1}")
    page.focus("#log-scale")
    page.keyboard.press("Enter")
    page.wait_for_url("**y-axis-scale=log*")


def test_a_machines_provenance_is_shown_beside_its_button(page: Any) -> None:
    page.goto(f"{page.address}asv.html#{SPEED}")
    page.wait_for_selector(LEGEND)
    page.hover("#graphdisplay-state-params a:has-text('box')")
    page.wait_for_selector(".tooltip .tooltip-inner")
    said = page.locator(".tooltip .tooltip-inner").inner_text()
    assert "os: Linux 6.1" in said
    assert "ram: 8000000000" in said


@pytest.mark.parametrize("route", [SPEED, "/", "/summarylist", "/regressions"])
def test_asvs_pages_fit_a_phone(page: Any, route: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{page.address}asv.html#{route}")
    page.wait_for_selector("#main-graph canvas, .benchmark-container canvas, table")
    assert width_problems(page) == []
