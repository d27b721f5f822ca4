"""What the first page says of a machine whose kind has no baseline."""

from __future__ import annotations

from dashboard_runs import machine, result, run

from rocmforge.bench.dashboard.overview import verdicts


def test_a_machine_without_a_baseline_hears_how_to_store_one() -> None:
    last = verdicts(machine(run("a", result("rope.time_rope"))))[-1]
    assert last["title"] == "Since the baseline"
    assert last["outcome"] == "n/a"
    assert last["said"].startswith("No baseline for this machine yet: ")
    assert "rocmforge bench run --profile full --save-baseline" in last["said"]
