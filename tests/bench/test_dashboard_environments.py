"""A machine with two environments of asv has a line for each."""

from __future__ import annotations

from pathlib import Path

from asv_tree import A, AsvTree, B

from rocmforge.bench.asv_results import read_benchmarks
from rocmforge.bench.dashboard.history_data import history_data
from rocmforge.bench.dashboard.machines import load_run, read_machines


def test_each_environment_is_a_line_and_named(tree: AsvTree, tmp_path: Path) -> None:
    tree.benchmark("a.time_a")
    tree.run(A, {"a.time_a": 1.0}, date=1_700_000_000_000)
    second = tree.run(B, {"a.time_a": 2.0}, date=1_700_000_100_000)
    text = second.read_text()
    known = read_benchmarks(tree.results / "benchmarks.json")
    (alone,) = read_machines(tree.results, tmp_path / "baselines", {}, known)
    name = alone.runs[0].asv_environment
    second.write_text(text.replace(f'"{name}"', '"other"'))
    (box,) = read_machines(tree.results, tmp_path / "baselines", {}, known)
    for machine, wanted in ((alone, [None]), (box, [name, "other"])):
        runs = {machine.tag: [load_run(one, known) for one in box.runs]}
        if machine is alone:
            runs = {machine.tag: runs[machine.tag][:1]}
        data = dict(history_data([machine], runs, {}, tmp_path, {}))
        lines = data["history/0"]["lines"]
        assert [one["params"].get("environment") for one in lines] == wanted
        assert len({one["id"] for one in lines}) == len(wanted)
