"""Baselines: the JSON as it is specified, saving, loading, and broken files."""

from __future__ import annotations

import copy
import itertools
import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asv_tree import AsvTree, B
from hypothesis import given, settings
from hypothesis import strategies as st

from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.baseline import (
    baseline_path,
    load_baseline,
    measured,
    metric_suffix,
    refreshed,
    refuse_smaller,
    replacements,
    save_baseline,
)
from rocmforge.bench.compare import compare, differences
from rocmforge.bench.comparison import Outcome
from rocmforge.bench.decision import Verdict
from rocmforge.bench.results import Direction, Result, ResultSet, Status
from rocmforge.bench.statistics import summarize
from rocmforge.errors import MeasurementError, ResultFileError
from rocmforge.hardware import Hardware

fewer = settings(max_examples=60)


@pytest.fixture
def results(two_commits: AsvTree) -> ResultSet:
    return ResultsDirectory(two_commits.results).load(B)


@pytest.fixture
def saved(results: ResultSet, tmp_path: Path) -> Path:
    path = baseline_path(tmp_path / "baselines", results.hardware)
    save_baseline(path, results)
    return path


def test_a_file_older_than_the_versions_of_hip_is_of_the_same_hardware(saved: Path) -> None:
    document = json.loads(saved.read_text())
    for entry in document["baselines"].values():
        del entry["hardware"]["hip_version"]
    for field in ("hip_version", "gfx_override"):
        del document["metadata"]["hardware"][field]
    saved.write_text(json.dumps(document))
    old = load_baseline(saved).hardware
    assert differences(old, replace(old, hip_version="6.4.43483")) == ()
    (named,) = differences(old, replace(old, gfx_override="10.3.0"))
    assert str(named) == "gfx_override: unknown → 10.3.0"


def test_one_file_per_kind_of_machine(saved: Path, tmp_path: Path) -> None:
    relative = saved.relative_to(tmp_path)
    assert str(relative) == "baselines/cpu-amd-epyc-zen4-2c/baseline.json"
    assert [p.name for p in saved.parent.iterdir()] == ["baseline.json"]


def test_json_is_as_specified(saved: Path) -> None:
    document = json.loads(saved.read_text())
    assert set(document) == {"baselines", "metadata"}
    entry = document["baselines"]["rope.time_rope"]
    assert set(entry) == {"name", "timestamp", "hardware", "metrics", "metadata"}
    assert entry["name"] == "rope.time_rope"
    assert entry["timestamp"] == "2023-11-14T22:15:01.000+00:00"
    assert entry["hardware"] == {
        "gpu_name": None,
        "gpu_architecture": None,
        "rocm_version": None,
        "hip_version": None,
        "cpu_arch": "x86_64",
        "os": "Linux 6.1.0",
        "python_version": "3.11",
    }
    metrics = entry["metrics"]
    names = ["avg_ms", "min_ms", "max_ms", "p50_ms", "p95_ms", "p99_ms"]
    assert [metrics[name] for name in names] == pytest.approx(
        [2.04, 2.0, 2.08, 2.04, 2.076, 2.0792]
    )
    assert metrics["iterations"] == 9
    assert (metrics["ci99_low_ms"], metrics["ci99_high_ms"]) == pytest.approx((2.0, 2.08))
    assert document["metadata"]["hardware_tag"] == "cpu-amd-epyc-zen4-2c"
    assert document["metadata"]["commit"] == B
    assert document["metadata"]["failed"] == ["matmul.track_ms('Q8_0', 1)"]
    assert document["metadata"]["skipped"] == ["gpu.time_gpu"]


def test_every_baseline_is_as_the_schema_says(saved: Path, repo: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(
        json.loads((repo / "baselines" / "schema.json").read_text(encoding="utf-8"))
    )
    committed = sorted((repo / "baselines").glob("*/baseline.json"))
    assert committed
    for path in (saved, *committed):
        validator.validate(json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("metadata", "direction", "up"),
        ("metadata", "samples", ["1"]),
        ("metadata", "error", -1),
        ("metrics", "p50_ms", None),
        ("metrics", "iterations", 0),
        ("metrics", "median", 1.0),
        ("hardware", "os", 3),
    ],
)
def test_the_schema_refuses_nonsense(
    saved: Path, repo: Path, part: str, key: str, value: object
) -> None:
    schema = json.loads((repo / "baselines" / "schema.json").read_text(encoding="utf-8"))
    document = json.loads(saved.read_text(encoding="utf-8"))
    document["baselines"]["rope.time_rope"][part][key] = value
    jsonschema = pytest.importorskip("jsonschema")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


def test_metrics_of_other_units_carry_the_unit(saved: Path) -> None:
    entries = json.loads(saved.read_text())["baselines"]
    tokens = entries["matmul.track_tokens"]
    assert tokens["metrics"]["p50_tokens_per_s"] == 85.0
    assert tokens["metrics"]["ci99_low_tokens_per_s"] == pytest.approx(85 * 0.996)
    assert (tokens["metadata"]["unit"], tokens["metadata"]["direction"]) == ("tokens/s", "higher")
    op = entries["matmul.track_ms('Q4_0', 8)"]
    assert op["metrics"]["avg_ms_per_token"] == pytest.approx(2.3)
    assert op["metadata"]["format"] == "Q4_0"
    assert op["metadata"]["backend"] is None
    assert op["metadata"]["params"] == {"format": "'Q4_0'", "tokens": "8"}


def test_backend_is_the_device_parameter(tree: AsvTree, tmp_path: Path) -> None:
    tree.benchmark("m.time_x", params={"device": ["'cpu'", "'gpu'"]})
    tree.run(B, {"m.time_x": [1.0, math.nan]})
    path = tmp_path / "b.json"
    assert save_baseline(path, ResultsDirectory(tree.results).load(B)) == 1
    entry = json.loads(path.read_text())["baselines"]["m.time_x('cpu')"]
    assert entry["metadata"]["backend"] == "cpu"


@pytest.mark.parametrize(
    ("unit", "suffix", "scale"),
    [
        ("seconds", "ms", 1e3),
        ("µs", "ms", 1e-3),
        ("bytes", "bytes", 1.0),
        ("GB/s", "gb_per_s", 1.0),
        ("%", "value", 1.0),
    ],
)
def test_metric_suffix(unit: str, suffix: str, scale: float) -> None:
    assert metric_suffix(unit) == (suffix, scale)


def test_loads_what_was_saved(saved: Path, results: ResultSet) -> None:
    loaded = load_baseline(saved)
    valued = [r for r in results.results if r.status is Status.OK]
    assert len(loaded.results) == len(valued) == 5
    for got, wanted in zip(loaded.results, valued, strict=True):
        assert wanted.value is not None
        assert wanted.summary is not None
        assert got.summary is not None
        assert (got.label, got.params, got.param_names) == (
            wanted.label,
            wanted.params,
            wanted.param_names,
        )
        assert (got.unit, got.direction, got.version, got.started_at) == (
            wanted.unit,
            wanted.direction,
            wanted.version,
            wanted.started_at,
        )
        assert got.value == pytest.approx(wanted.value, rel=1e-12)
        assert got.summary.p99 == pytest.approx(wanted.summary.p99, rel=1e-12)
        assert got.summary.ci_high == pytest.approx(wanted.summary.ci_high, rel=1e-12)
        assert got.summary.iterations == wanted.summary.iterations
        assert got.samples == pytest.approx(wanted.samples, rel=1e-5)
    assert any(len(result.samples) > 1 for result in loaded.results)
    assert (loaded.commit, loaded.machine) == (results.commit, results.machine)
    assert (loaded.commit_date, loaded.asv_environment) == (
        results.commit_date,
        results.asv_environment,
    )
    assert loaded.hardware == results.hardware
    assert not loaded.uncommitted_changes


def test_a_run_with_uncommitted_changes_says_so(saved: Path, results: ResultSet) -> None:
    save_baseline(saved, replace(results, uncommitted_changes=True))
    assert load_baseline(saved).uncommitted_changes


def test_a_run_passes_against_its_own_baseline(saved: Path, results: ResultSet) -> None:
    comparison = compare(load_baseline(saved), results)
    assert comparison.outcome is Outcome.PASS
    assert len(comparison.with_verdict(Verdict.OK)) == 5


@fewer
@given(
    st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=20),
    st.sampled_from(["seconds", "ms", "ns", "tokens/s", "bytes"]),
    st.sampled_from(Direction),
)
def test_any_samples_survive(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], unit: str, direction: Direction
) -> None:
    summary = summarize(values)
    result = Result(
        name="m.x",
        param_names=("n",),
        params=("'a, b'",),
        status=Status.OK,
        value=summary.p50,
        summary=summary,
        samples=tuple(values),
        unit=unit,
        direction=direction,
        version=None,
        started_at=None,
    )
    host = Hardware(cpu_name="x")
    original = ResultSet(Path("r"), "box", B, None, "env", host, (result,))
    path = tmp_path_factory.getbasetemp() / "any.json"
    save_baseline(path, original)
    loaded = load_baseline(path)
    assert loaded.results[0].label == "m.x('a, b')"
    assert loaded.results[0].samples == pytest.approx(values, rel=1e-5)
    comparison = compare(loaded, original, threshold=1e-6)
    assert comparison.outcome is Outcome.PASS


def test_nothing_measured_leaves_the_old_file(saved: Path, results: ResultSet) -> None:
    before = saved.read_bytes()
    none = tuple(r for r in results.results if r.status is not Status.OK)
    with pytest.raises(MeasurementError, match="nothing measured"):
        save_baseline(saved, replace(results, results=none))
    assert saved.read_bytes() == before


def test_a_failing_disk_leaves_the_old_file(
    saved: Path, results: ResultSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        save_baseline(saved, replace(results, results=results.results[:1]))
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == ["baseline.json"]


def test_what_has_no_unit_is_not_measured(saved: Path, results: ResultSet) -> None:
    """benchmarks.json does not know it: it cannot be saved, and so it would be lost."""
    unknown = tuple(
        replace(r, unit=None, direction=None) if r.label == "rope.time_rope" else r
        for r in results.results
    )
    later = replace(results, results=unknown)
    assert "rope.time_rope" not in measured(later)
    refuse_smaller(saved, results)
    with pytest.raises(ValueError, match=r"without 1 of its benchmarks \(rope\.time_rope\)"):
        refuse_smaller(saved, later)


def test_what_is_marked_now_replaces_nothing_that_is_not(results: ResultSet) -> None:
    def marked(label: str) -> ResultSet:
        changed = [replace(r, marked="load") if r.label == label else r for r in results.results]
        return replace(results, results=tuple(changed))

    now = marked("rope.time_rope")
    assert "rope.time_rope" not in replacements(results, now)
    kept = {r.label: r for r in refreshed(results, now).results}["rope.time_rope"]
    assert (kept.marked, kept.commit) == (None, results.commit)
    assert "rope.time_rope" in replacements(now, now)  # it was no better before
    without = replace(results, results=())
    assert "rope.time_rope" in replacements(without, now)


def test_unknown_hardware_makes_no_baseline(results: ResultSet, tmp_path: Path) -> None:
    with pytest.raises(ResultFileError, match=r"rocmforge bench machine"):
        save_baseline(tmp_path / "b.json", replace(results, hardware=Hardware()))
    assert not (tmp_path / "b.json").exists()


def _set(*place: str, value: object) -> Any:
    def change(document: dict[str, Any]) -> None:
        node = document
        for key in place[:-1]:
            node = node[key]
        node[place[-1]] = value

    return change


ROPE = ("baselines", "rope.time_rope")
BROKEN = {
    "schema": (_set("metadata", "schema_version", value=99), "schema_version: got 99, wanted 1"),
    "schema bool": (_set("metadata", "schema_version", value=True), "schema_version: got True"),
    "no metadata": (_set("metadata", value=None), "metadata: got nothing"),
    "no baselines": (_set("baselines", value=[]), "baselines: got list"),
    "entry": (_set(*ROPE, value=3), "rope.time_rope: got int"),
    "renamed": (_set(*ROPE, "name", value="other"), "got other, rope.time_rope"),
    "unit": (_set(*ROPE, "metadata", "unit", value=None), "a string in rope.time_rope"),
    "other unit": (_set(*ROPE, "metadata", "unit", value="bytes"), "wanted avg_bytes"),
    "direction": (_set(*ROPE, "metadata", "direction", value="up"), "direction of rope.time_rope"),
    "params": (_set(*ROPE, "metadata", "params", value={"n": 1}), "params of rope.time_rope"),
    "NaN": (_set(*ROPE, "metrics", "p50_ms", value=math.nan), "p50_ms of rope.time_rope: got nan"),
    "null median": (_set(*ROPE, "metrics", "p50_ms", value=None), "p50_ms of rope.time_rope"),
    "order": (_set(*ROPE, "metrics", "min_ms", value=1e9), "metrics of rope.time_rope"),
    "iterations": (_set(*ROPE, "metrics", "iterations", value=0), "iterations of rope.time_rope"),
    "hardware": (_set(*ROPE, "hardware", "os", value="BeOS"), "hardware of rope.time_rope"),
    "cpu_count": (
        _set("metadata", "hardware", "cpu_count", value="2"),
        "hardware.cpu_count: got 2",
    ),
    "huge count": (
        _set("metadata", "hardware", "ram_bytes", value=10**400),
        "wanted a number below 1e\\+18",
    ),
    "long name": (_set("metadata", "hardware", "cpu_name", value="x" * 300), "at most 100 charac"),
    "changes": (_set("metadata", "uncommitted_changes", value="no"), "_changes: got str"),
    "early": (_set(*ROPE, "timestamp", value="0001-01-01T00:00:00+23:59"), "milliseconds since 19"),
    "timestamp": (_set(*ROPE, "timestamp", value="noon"), "timestamp: got noon"),
    "time zone": (_set(*ROPE, "timestamp", value="2023-11-14T22:15:01"), "with a time zone"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_file(saved: Path, name: str) -> None:
    change, message = BROKEN[name]
    document = json.loads(saved.read_text())
    change(document)
    saved.write_text(json.dumps(document))
    with pytest.raises(ResultFileError, match=message) as caught:
        load_baseline(saved)
    assert str(saved) in str(caught.value)


def test_truncated_or_missing_file(saved: Path) -> None:
    whole = saved.read_text().rstrip()
    for length in [*range(0, len(whole), 101), len(whole) - 1]:
        saved.write_text(whole[:length])
        with pytest.raises(ResultFileError, match="content: got"):
            load_baseline(saved)
    saved.unlink()
    with pytest.raises(ResultFileError, match="file: got none"):
        load_baseline(saved)


def test_nonsense_in_any_place_of_an_entry_is_read_or_refused(saved: Path) -> None:
    whole = json.loads(saved.read_text())
    whole["baselines"] = {"rope.time_rope": whole["baselines"]["rope.time_rope"]}
    entry = whole["baselines"]["rope.time_rope"]
    places = [(a, b) for a in entry if isinstance(entry[a], dict) for b in entry[a]]
    refused = 0
    for (a, b), value in itertools.product(places, [None, True, -1, "x", [], {}]):
        document = copy.deepcopy(whole)
        document["baselines"]["rope.time_rope"][a][b] = value
        saved.write_text(json.dumps(document))
        try:
            result = load_baseline(saved).results[0]
        except ResultFileError:
            refused += 1
        else:
            assert result.value == pytest.approx(0.00204)
    assert refused > 60
