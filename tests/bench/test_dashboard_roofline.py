"""roofline.html: shares of the roofline and absolute rates, by machine and device."""

from __future__ import annotations

from dashboard_runs import machine, result, run

from rocmforge.bench.dashboard.roofline_data import roofline_data

MATMUL = "roofline.Matmul.track_inverse_roofline_fraction"
TIMES = "times ideal"


def test_a_share_is_the_inverse_of_the_times_and_so_are_the_ends_of_its_interval() -> None:
    samples = [1.9 + at / 50 for at in range(11)]
    params = {"format": "Q4_K", "tokens": "1", "device": "cpu"}
    newest = run("a" * 5, result(MATMUL, params, 2.0, TIMES, samples), day=2)
    (box,) = roofline_data([machine(newest)])["machines"]
    (share,) = box["shares"]
    assert share["value"] == 0.5
    low, high = newest.results[0].summary.ci_low, newest.results[0].summary.ci_high  # type: ignore[union-attr]
    assert (share["low"], share["high"]) == (round(1 / high, 6), round(1 / low, 6))
    assert share["low"] < 0.5 < share["high"]
    named = {"device": "cpu", "what": "Q4_K", "work": "matmul, 1 token"}
    assert {key: share[key] for key in named} == named
    assert (share["commit"], share["date"]) == ("aaaaaaaa", "2023-11-16")


def test_rates_keep_their_unit_and_stand_beside_what_the_cpu_reads() -> None:
    rate = result(
        "rows.Prompt.track_gb_per_second",
        {"op": "rope", "device": "cpu"},
        30.0,
        "GB/s",
        reference={"read_gb_per_second": 40.0},
    )
    flops = result("matmul.Dense.track_gflops", {"shape": "1x2"}, 90.0, "GFLOP/s")
    (box,) = roofline_data([machine(run("a", flops, rate))])["machines"]
    assert [(one["unit"], one["value"], one["work"]) for one in box["rates"]] == [
        ("GB/s", 30.0, "rows.Prompt"),
        ("GFLOP/s", 90.0, "matmul.Dense"),
    ]
    assert box["reads"] == 40.0
    assert box["shares"] == []


def test_what_was_not_measured_or_makes_no_sense_is_no_point() -> None:
    skipped, zero, negative = (
        result(MATMUL, {"format": name}, value, TIMES)
        for name, value in (("A", None), ("B", 0.0), ("C", -1.0))
    )
    tiny = result(MATMUL, {"format": "D"}, 5e-324, TIMES)
    data = roofline_data([machine(run("a", skipped, zero, negative, tiny)), machine(tag="none")])
    assert [(one["tag"], one["shares"]) for one in data["machines"]] == [("box", []), ("none", [])]
    assert data["command"] == "rocmforge bench run --bench roofline"
