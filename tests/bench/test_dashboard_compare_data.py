"""What compare.html loads says of each run what asv's files say, and of verdicts what compare says.

The numbers wanted here are read from the files with json, not by the code that is tested.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("asv")

from dashboard_site import Site, make_site

from rocmforge.bench.asv import read_thresholds
from rocmforge.bench.asv_results import read_benchmarks
from rocmforge.bench.dashboard.compare_data import FIRST, compare_data
from rocmforge.bench.dashboard.machines import load_run, read_machines

TTFT = "inference.Prompt.track_ttft_ms"
PREFILL = "inference.Prompt.track_prefill_tokens_per_second"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return make_site(tmp_path_factory.mktemp("compared"))


@pytest.fixture(scope="module")
def data(site: Site) -> dict[str, Any]:
    thresholds = read_thresholds(site.root / "asv.conf.json")
    known = read_benchmarks(site.results / "benchmarks.json")
    machines = read_machines(site.results, site.root / "baselines", thresholds, known)
    runs = {m.tag: [load_run(run, known) for run in m.runs] for m in machines}
    return dict(compare_data(machines, runs, {**thresholds, "rope": 0.3}))


def machine(data: dict[str, Any], tag: str = "box") -> Any:
    return next(one for one in data[FIRST]["machines"] if one["tag"] == tag)


def place(data: dict[str, Any], name: str, params: str = "") -> int:
    columns = data[FIRST]["catalogue"]
    pairs = [*zip(columns["name"], columns["params"], strict=True)]
    return pairs.index((name, params))


def test_a_file_of_a_run_has_the_medians_of_asvs_file(data: dict[str, Any], site: Site) -> None:
    runs = [run for run in machine(data)["runs"] if not run["baseline"]]
    assert [run["commit"] for run in runs] == site.commits
    for run in runs:
        (path,) = site.results.glob(f"box/{run['commit'][:8]}*.json")
        wanted = json.loads(path.read_text())["results"][TTFT][0]
        content = data[run["file"]]
        for tokens, value in (("128", wanted[0]), ("512", wanted[2])):
            at = content["place"].index(
                place(data, TTFT, f"model 1.1B-Q4_0, tokens {tokens}, device cpu")
            )
            assert content["median"][at] == value
            assert content["low"][at] < value < content["high"][at]


def test_what_was_disturbed_is_marked_with_the_reason(data: dict[str, Any]) -> None:
    rope = place(data, "rope.time_rope")
    *calm, disturbed = (run["file"] for run in machine(data)["runs"])
    assert all(rope not in data[file]["marked"] for file in calm)
    assert "90 % of the CPU" in data[disturbed]["marked"][rope]


def test_verdicts_are_those_of_the_comparison(data: dict[str, Any]) -> None:
    *_, before, newest = machine(data)["runs"]
    judged = {(a, b): data[file] for a, b, file in machine(data)["judged"]}
    rows = judged[before["file"], newest["file"]]["rows"]
    slower = rows[place(data, TTFT, "model 1.1B-Q4_0, tokens 512, device cpu")]
    assert slower[0] == "ok"
    assert judged[before["file"], newest["file"]]["outcome"].startswith("FAIL")
    worse = rows[place(data, TTFT, "model 1.1B-Q4_0, tokens 128, device cpu")]
    assert worse[0] == "regression"


def test_the_newest_of_each_benchmark_is_a_file_of_its_own(data: dict[str, Any]) -> None:
    on_gpu = machine(data, "sm-90-card")
    assert on_gpu["device"] == "gpu"
    newest = data[on_gpu["newest"]]
    at = newest["place"].index(place(data, PREFILL, "model 1.1B-Q4_0, tokens 512, device gpu"))
    assert newest["median"][at] == 20_000.0


def test_keys_join_what_differs_in_the_device_or_the_format_alone(data: dict[str, Any]) -> None:
    columns = data[FIRST]["catalogue"]
    name = "roofline.Matmul.track_inverse_roofline_fraction"
    small, large = (
        place(data, name, f"format {f}, tokens 1, device cpu") for f in ("Q4_0", "Q6_K")
    )
    on_gpu = place(data, name, "format Q4_0, tokens 1, device gpu")
    assert columns["group"][small] == columns["group"][large] != columns["group"][on_gpu]
    assert columns["elsewhere"][small] == columns["elsewhere"][on_gpu]
    assert columns["elsewhere"][small] != columns["elsewhere"][large]
    assert [columns["format"][at] for at in (small, large)] == ["Q4_0", "Q6_K"]
    assert columns["format"][place(data, TTFT, "model 1.1B-Q4_0, tokens 128, device cpu")] == "Q4_0"


def test_a_benchmark_keeps_its_own_threshold_and_direction(data: dict[str, Any]) -> None:
    columns = data[FIRST]["catalogue"]
    rope = place(data, "rope.time_rope")
    prefill = place(data, PREFILL, "model 1.1B-Q4_0, tokens 128, device cpu")
    assert (columns["threshold"][rope], columns["better"][rope]) == (0.3, -1)
    assert (columns["threshold"][prefill], columns["better"][prefill]) == (0.1, 1)


def test_peers_are_those_of_the_reports(repo: Path) -> None:
    known = read_benchmarks(repo / "results" / "benchmarks.json")
    machines = read_machines(repo / "results", repo / "baselines", {}, known)
    runs = {m.tag: [load_run(run, known) for run in m.runs] for m in machines}
    data = dict(compare_data(machines, runs, {}))
    found = machine(data, "cpu-amd-epyc-zen5-2c")["peer"]
    stored = [*(repo / "baselines" / "cpu-amd-epyc-zen5-2c" / "llama.cpp").glob("*.json")]
    assert len(found) == sum(len(json.loads(path.read_text())["phases"]) for path in stored)
    assert all(row["low"] <= row["ratio"] <= row["high"] for row in found)
