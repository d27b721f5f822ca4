"""What the summary is made from: which runs, which speeds, which words."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from asv_tree import MACHINE, A, AsvTree, B

from rocmforge.bench import formatting
from rocmforge.bench.asv_results import ResultsDirectory, read_benchmarks
from rocmforge.bench.baseline import save_baseline
from rocmforge.bench.dashboard.asv_pages import showable
from rocmforge.bench.dashboard.machines import (
    Machine,
    Run,
    latest,
    load_run,
    read_machines,
    read_runs,
    two_newest,
    with_more,
)
from rocmforge.bench.dashboard.render import Site, write_pages
from rocmforge.bench.dashboard.roofline_data import roofline_data
from rocmforge.bench.dashboard.run_environments import environment_summary
from rocmforge.bench.dashboard.speeds import (
    PHASES,
    speeds,
    split_model,
)
from rocmforge.bench.results import Direction
from rocmforge.errors import ResultFileError

C = "c" * 40
NAN = float("nan")  # asv: not selected


def run(commit: str, date: int, environment: str = "py3.11") -> Run:
    return Run(Path(commit[:8]), commit, date, environment, frozenset())


def test_the_two_newest_are_of_one_environment_where_they_can() -> None:
    runs = [run(A, 1), run(B, 2, "py3.11"), run(B, 2, "py3.12"), run(C, 3, "py3.12")]
    assert two_newest(runs) == (runs[3], runs[2])


@pytest.mark.parametrize(
    ("runs", "wanted"),
    [
        ([], (None, None)),
        ([run(A, 1)], (run(A, 1), None)),
        ([run(A, 1), run(B, 2, "other")], (run(B, 2, "other"), run(A, 1))),
    ],
)
def test_and_what_there_is_where_not(runs: list[Run], wanted: tuple[Run, Run]) -> None:
    assert two_newest(runs) == wanted


def test_an_earlier_run_is_read_for_what_no_later_one_has() -> None:
    names = ({"a", "b"}, {"b"}, {"b", "c"}, {"c"})
    runs = [replace(run(A, at), benchmarks=frozenset(held)) for at, held in enumerate(names)]
    assert with_more(runs, runs[-1]) == [runs[0], runs[2]]
    assert with_more([], None) == []


def test_each_benchmark_is_of_the_newest_commit_that_has_it(tree: AsvTree, tmp_path: Path) -> None:
    for name in ("a.time_a", "b.time_b", "c.time_c"):
        tree.benchmark(name)
    for number, (commit, names) in enumerate({A: "abc", B: "ab", C: "a"}.items()):
        values = {f"{name}.time_{name}": 1.0 + number for name in names}
        tree.run(commit, values, date=1_700_000_000_000 + number)
    known = read_benchmarks(tree.results / "benchmarks.json")
    first = ResultsDirectory(tree.results).load(A)
    save_baseline(tmp_path / "baselines" / "box" / "baseline.json", first)
    (machine,) = read_machines(tree.results, tmp_path / "baselines", {}, known)
    found = {name: (one.value, run.commit) for name, (one, run) in latest(machine).items()}
    assert found == {"a.time_a": (3.0, C), "b.time_b": (2.0, B), "c.time_c": (1.0, A)}


ROOFLINE = "roofline.Matmul.track_inverse_roofline_fraction"


@pytest.fixture
def partly_measured(tree: AsvTree, tmp_path: Path) -> Machine:
    """A baseline of three formats, then a run of another commit that selected one of them."""
    formats = {"format": ["'Q4_0'", "'Q6_K'", "'Q8_0'"], "tokens": ["1"], "device": ["'cpu'"]}
    tree.benchmark(ROOFLINE, "times ideal", formats)
    tree.benchmark("a.time_a")
    written = tree.run(A, {ROOFLINE: [4.0, 2.0, 1.25]}, date=1_700_000_000_000)
    first = ResultsDirectory(tree.results).load(A)
    save_baseline(tmp_path / "baselines" / "box" / "baseline.json", first)
    written.unlink()
    tree.run(B, {ROOFLINE: [NAN, 1.0, NAN]}, date=1_700_000_100_000)
    tree.run(C, {"a.time_a": 1.0}, date=1_700_000_200_000)
    known = read_benchmarks(tree.results / "benchmarks.json")
    (machine,) = read_machines(tree.results, tmp_path / "baselines", {}, known)
    return machine


def test_what_a_run_skipped_hides_nothing_that_another_measured(partly_measured: Machine) -> None:
    found = {
        one.params[0]: (one.value, run.commit)
        for one, run in latest(partly_measured).values()
        if one.name == ROOFLINE
    }
    assert found == {"'Q4_0'": (4.0, A), "'Q6_K'": (1.0, B), "'Q8_0'": (1.25, A)}


def test_what_the_newest_run_did_not_measure_is_a_line_and_not_missing(
    partly_measured: Machine,
) -> None:
    compared = partly_measured.since_baseline
    assert compared is not None
    assert compared.missing == []
    assert [row.name for row in compared.rows] == ["a.time_a"]
    said = "3 benchmarks that had a value were not measured in the newest run"
    assert said in compared.notes


def test_the_roofline_shows_all_that_any_run_or_the_baseline_has(
    partly_measured: Machine,
) -> None:
    (box,) = roofline_data([partly_measured])["machines"]
    assert {(one["what"], one["value"], one["commit"]) for one in box["shares"]} == {
        ("Q4_0", 0.25, A[:8]),
        ("Q6_K", 1.0, B[:8]),
        ("Q8_0", 0.8, A[:8]),
    }


def test_a_run_under_an_override_is_called_so(tree: AsvTree, tmp_path: Path) -> None:
    tree.benchmark("a.time_a")
    card = {**MACHINE, "gpu": "Radeon RX 6700 XT", "gfx": "gfx1030"}
    for machine in (card, {**card, "machine": "other", "gfx_override": "10.3.0"}):
        tree.run(A, {"a.time_a": 1.0}, machine=machine)
    known = read_benchmarks(tree.results / "benchmarks.json")
    machines = read_machines(tree.results, tmp_path / "baselines", {}, known)
    runs = {m.tag: [load_run(one, known) for one in m.runs] for m in machines}
    write_pages(tmp_path, Site(machines, runs, {}, tmp_path / "baselines", {}))
    titles = re.findall(r"<h2[^>]*>(Radeon[^<]*)<", (tmp_path / "index.html").read_text())
    overridden = "Radeon RX 6700 XT under HSA_OVERRIDE_GFX_VERSION=10.3.0"
    assert titles == ["Radeon RX 6700 XT", overridden]


def test_runs_come_in_the_order_of_their_commits(tree: AsvTree) -> None:
    tree.benchmark("rope.time_rope")
    tree.run(A, {"rope.time_rope": 1.0}, date=2000)
    tree.run(B, {"rope.time_rope": 1.0}, date=1000)
    found = read_runs(tree.results / "box")
    assert [(one.commit, one.date) for one in found] == [(B, 1000), (A, 2000)]
    assert found[0].benchmarks == {"rope.time_rope"}


def test_a_broken_run_is_named(tree: AsvTree) -> None:
    tree.benchmark("rope.time_rope")
    tree.run(A, {"rope.time_rope": 1.0}).write_text('{"version": 2, "results": {}}')
    with pytest.raises(ResultFileError, match=r"aaaaaaaa-.*: commit_hash: got nothing"):
        read_runs(tree.results / "box")


def test_nothing_measured_is_no_machine(tmp_path: Path) -> None:
    assert read_machines(tmp_path, tmp_path, {}, {}) == []


def test_a_failed_benchmark_is_there_and_says_so(tree: AsvTree, tmp_path: Path) -> None:
    name = "inference.Decode.track_decode_tokens_per_second"
    tree.benchmark(name, "tokens/s", {"model": ["'tiny'"], "batch": ["1"], "device": ["'cpu'"]})
    tree.run(A, {name: [None]})
    known = read_benchmarks(tree.results / "benchmarks.json")
    (machine,) = read_machines(tree.results, tmp_path / "none", {}, known)
    assert machine.since_previous is machine.since_baseline is machine.baseline is None
    (speed,) = speeds(machine)
    assert (speed.model, speed.format, speed.setting) == ("tiny", None, "batch 1")
    assert (speed.value, speed.absent) == (None, "failed")
    assert len(latest(machine)) == 1
    assert machine.newest
    assert environment_summary(machine.newest)["GPU throttling"] == "n/a"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("1.1B-Q4_K_M", ("1.1B", "Q4_K_M")),
        ("1.1B-F16.gguf", ("1.1B", "F16")),
        ("Llama-3.2-3B-Instruct-IQ4_NL.gguf", ("Llama-3.2-3B-Instruct", "IQ4_NL")),
        ("demo-MXFP6_E2M3", ("demo", "MXFP6_E2M3")),
        ("my-model.gguf", ("my-model", None)),
    ],
)
def test_a_model_and_its_format(name: str, parts: tuple[str, str | None]) -> None:
    assert split_model(name) == parts


def test_the_suites_have_the_benchmarks_that_the_summary_names(repo: Path) -> None:
    known = read_benchmarks(repo / "results" / "benchmarks.json")
    assert not PHASES.keys() - known.keys()
    for name, (_, setting) in PHASES.items():
        setting.format(**dict.fromkeys(known[name].param_names, ""))


def test_words() -> None:
    assert formatting.value_and_unit(0.00123, "seconds") == "1.23 ms"
    assert formatting.value_and_unit(None, "ms") == "n/a"
    assert formatting.interval(1.0, None, "ms") == "n/a"
    assert formatting.interval(0.001, 0.002, "seconds") == "1 … 2 ms"
    assert formatting.better(Direction.LOWER) == "↓ lower"
    assert formatting.better(None) == "n/a"
    assert formatting.measured(None, None) == "n/a, n/a"
    assert formatting.extremes([]) == "n/a"
    assert formatting.extremes([2.0, 1.0], "MHz") == "1 … 2 MHz"


@pytest.mark.parametrize(
    ("name", "entry", "can"),
    [
        ("a.time_b", {"code": "if x < 3: pass"}, True),
        ("a.time_<b>", {}, False),
        ('a.time_"b', {}, False),
        ("a.time_b", {"params": [["'<i>'"]]}, False),
        ("a.time_b", {"unit": "<b>"}, False),
    ],
)
def test_what_asv_can_show(name: str, entry: dict[str, object], can: bool) -> None:
    assert showable(name, entry) is can
