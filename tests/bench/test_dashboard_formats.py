"""formats.html: bits per weight, divergence and speed of each format, and what none beats."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest
from dashboard_runs import machine, result, run

from rocmforge.bench.dashboard.formats_data import formats_data, pareto
from rocmforge.bench.dashboard.machines import read_report
from rocmforge.errors import ResultFileError


def test_the_front_is_what_no_other_point_beats() -> None:
    points = [("a", 1.0, 5.0), ("b", 2.0, 2.0), ("c", 2.0, 3.0), ("d", 4.0, 2.0), ("e", 5.0, 1.0)]
    assert pareto(points) == {"a", "b", "e"}
    assert pareto([*points, ("f", 0.5, 0.5)]) == {"f"}
    assert pareto([("one", 1.0, 1.0), ("same", 1.0, 1.0)]) == {"one", "same"}
    assert pareto([("no speed", None, 0.0), ("slow", 9.0, 9.0)]) == {"slow"}
    assert pareto([]) == set()


def test_every_point_is_on_the_front_or_beaten_by_one_that_is() -> None:
    rng = random.Random(0)
    points = [(str(at), float(rng.randrange(9)), float(rng.randrange(9))) for at in range(40)]
    front = pareto(points)
    on = [(x, y) for name, x, y in points if name in front]
    for (a, b), (c, d) in itertools.product(on, repeat=2):
        assert (a < c) == (b > d), "of two on the front, each is better in one number"
    for name, x, y in points:
        assert (name in front) == ((x, y) in on)
        assert any(a <= x and b <= y for a, b in on)


def test_a_report_gives_every_number_of_a_format(repo: Path) -> None:
    path = repo / "baselines" / "cpu-amd-epyc-zen4-2c" / "formats.json"
    (box,) = formats_data([machine(formats=read_report(path))])["machines"]
    report = json.loads(path.read_text())
    stored = report["formats"]
    assert [row["format"] for row in box["rows"]] == [*stored]
    assert (box["model"], box["reference"], box["threads"]) == ("demo", "Q8_0", 2)
    assert box["date"] == report["date"][:10]
    for row in box["rows"]:
        one = stored[row["format"]]
        assert row["bits"] == pytest.approx(one["bits_per_weight"], rel=1e-5)
        assert row["decode"] == pytest.approx(one["decode_tokens_per_second"], rel=1e-5)
    front = {row["format"] for row in box["rows"] if row["smallest_front"]}
    assert {"IQ3_S", "Q4_K", "Q6_K"} <= front
    assert not {"Q2_K", "F32"} & front, "IQ2_S and Q8_0 are smaller and diverge less"
    fastest = max(stored, key=lambda name: stored[name]["decode_tokens_per_second"])
    assert fastest in {row["format"] for row in box["rows"] if row["fastest_front"]}


def test_without_a_report_bits_and_divergence_are_of_the_runs_and_speed_is_unknown() -> None:
    bits, divergence = "dequantize.Size.track_bits_per_weight", "quality.Quality.track_kl_nats"
    newest = run(
        "a",
        result(bits, {"format": "Q4_K"}, 4.5, "bits"),
        result(bits, {"format": "Q6_K"}, 6.5, "bits"),
        result(divergence, {"format": "Q4_K", "device": "cpu"}, 0.06, "nats"),
        result(divergence, {"format": "Q4_K", "device": "gpu"}, 9.0, "nats"),
    )
    (box,) = formats_data([machine(newest)])["machines"]
    (row,) = box["rows"]
    assert (row["format"], row["bits"], row["kl"], row["decode"]) == ("Q4_K", 4.5, 0.06, None)
    assert (row["smallest_front"], row["fastest_front"]) == (True, False)
    assert (box["commit"], box["reference"]) == ("aaaaaaaa", "Q8_0")


def test_a_report_that_is_broken_is_named(tmp_path: Path) -> None:
    path = tmp_path / "formats.json"
    made = {"commit": None, "date": "2026-11-20"}
    for content, said in (
        ({}, "formats: got nothing"),
        ({"formats": {"Q4_0": 1}}, "Q4_0: got int"),
        ({"formats": {"Q4_0": {"kl_nats": "low"}}}, "kl_nats of Q4_0: got str"),
    ):
        path.write_text(json.dumps({**made, **content}))
        with pytest.raises(ResultFileError, match=rf"formats\.json: {said}"):
            formats_data([machine(formats=read_report(path))])
