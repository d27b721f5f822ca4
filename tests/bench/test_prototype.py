"""Baselines of the earlier prototype: read as they are, compared without samples, or refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asv_tree import Tools

from rocmforge.bench.baseline import load_baseline
from rocmforge.bench.compare import Outcome, compare
from rocmforge.bench.decision import Verdict
from rocmforge.bench.records import Direction
from rocmforge.errors import MeasurementError, ResultFileError
from rocmforge.hardware import Hardware

CARD = {
    "gpu_name": "AMD Radeon RX 7900 XT",
    "gpu_architecture": "gfx1100",
    "rocm_version": "6.0.2",
    "cpu_arch": "x86_64",
    "os": "linux",
    "rust_version": "1.75.0",
}
METRICS = {
    "avg_ms": 0.52,
    "min_ms": 0.5,
    "max_ms": 0.6,
    "p50_ms": 0.51,
    "p95_ms": 0.58,
    "p99_ms": 0.59,
    "iterations": 100,
    "bandwidth_gb_s": 410.5,
}


def document(scale: float = 1.0) -> dict[str, Any]:
    """Two benchmarks as the prototype wrote them, metrics nested and flat."""
    metrics = {k: v * scale if k.endswith("_ms") else v for k, v in METRICS.items()}
    meta = {"backend": "hip", "format": "Q4_0"}
    return {
        "baselines": {
            "q4_0_matmul": {
                "name": "q4_0_matmul",
                "timestamp": 1_705_312_800,
                "hardware": CARD,
                "metrics": metrics,
                "metadata": meta,
            },
            "rmsnorm": {
                "name": "rmsnorm",
                "timestamp": "2024-01-15T10:00:00.123456789Z",
                "hardware": CARD,
                **metrics,
            },
        },
        "metadata": {"version": "1.0", "description": "RX 7900 XT"},
    }


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_it_is_read_as_ms_without_samples(tmp_path: Path) -> None:
    found = load_baseline(write(tmp_path / "old.json", document()))
    assert [record.label for record in found.records] == ["q4_0_matmul", "rmsnorm"]
    for record in found.records:
        assert (record.value, record.unit, record.direction) == (0.51, "ms", Direction.LOWER)
        assert record.samples == ()
        assert record.summary is not None
        assert (record.summary.mean, record.summary.iterations) == (0.52, 100)
        assert record.started_at == 1_705_312_800_000
    assert found.hardware == Hardware(
        gpu_name="AMD Radeon RX 7900 XT",
        gpu_architecture="gfx1100",
        rocm_version="6.0.2",
        cpu_arch="x86_64",
        os="Linux",
    )


def test_pythons_version_is_kept_and_empty_words_are_unknown(tmp_path: Path) -> None:
    content = document()
    for entry in content["baselines"].values():
        entry["hardware"] = {**CARD, "gpu_name": "Unknown", "rocm_version": "", "os": "Linux 6.1"}
        entry["hardware"] |= {"python_version": "3.11.7"}
    found = load_baseline(write(tmp_path / "old.json", content)).hardware
    assert (found.gpu_name, found.rocm_version) == (None, None)
    assert (found.os, found.python_version) == ("Linux 6.1", "3.11.7")


@pytest.mark.parametrize(
    ("scale", "verdict", "outcome"),
    [
        (1.05, Verdict.OK, Outcome.PASS),
        (1.5, Verdict.CANNOT_TELL, Outcome.NOTHING_MEASURED),
        (0.5, Verdict.CANNOT_TELL, Outcome.NOTHING_MEASURED),
    ],
)
def test_without_samples_a_change_cannot_be_told(
    tmp_path: Path, scale: float, verdict: Verdict, outcome: Outcome
) -> None:
    old = load_baseline(write(tmp_path / "old.json", document()))
    new = load_baseline(write(tmp_path / "new.json", document(scale)))
    comparison = compare(old, new)
    assert {row.verdict for row in comparison.rows} == {verdict}
    assert comparison.outcome is outcome


def test_other_hardware_is_refused_and_what_it_cannot_say_is_named(tmp_path: Path) -> None:
    old = load_baseline(write(tmp_path / "old.json", document()))
    here = replace(old.hardware, cpu_name="AMD EPYC", power_cap_watts=300, os="Linux 6.1.0")
    now = replace(old, hardware=here, unsaid=frozenset())
    comparison = compare(old, now)
    assert comparison.mismatches == ()
    assert f"{old.source} has no place for cpu_name, power_cap_watts: not compared" in (
        comparison.notes
    )
    other = replace(now, hardware=replace(here, gpu_architecture="gfx1030", rocm_version=None))
    named = [str(difference) for difference in compare(old, other).mismatches]
    assert named == ["gpu_architecture: gfx1100 → gfx1030", "rocm_version: 6 → unknown"]


Change = Callable[[dict[str, Any]], object]


def _entry(content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = content["baselines"]["q4_0_matmul"]
    return found


BROKEN: dict[str, tuple[Change, str]] = {
    "entry": (lambda d: d["baselines"].update(rmsnorm=3), "rmsnorm: got int"),
    "baselines": (lambda d: d.update(baselines=[]), "baselines: got list"),
    "hardware": (lambda d: _entry(d).pop("hardware"), "an object in q4_0_matmul"),
    "no field": (
        lambda d: _entry(d).update(hardware={"gpu_name": None}),
        "hardware of q4_0_matmul",
    ),
    "two": (
        lambda d: _entry(d).update(hardware={**CARD, "gpu_architecture": "gfx1030"}),
        "hardware of rmsnorm",
    ),
    "number": (
        lambda d: _entry(d).update(hardware={**CARD, "os": 3}),
        "os of q4_0_matmul: got int",
    ),
    "NaN": (lambda d: _entry(d)["metrics"].update(p50_ms=float("nan")), "p50_ms of q4_0_matmul"),
    "null": (lambda d: _entry(d)["metrics"].update(avg_ms=None), "avg_ms of q4_0_matmul"),
    "negative": (lambda d: _entry(d)["metrics"].update(min_ms=-1.0), "wanted 0 ≤ min"),
    "order": (lambda d: _entry(d)["metrics"].update(max_ms=0.1), "wanted 0 ≤ min"),
    "count": (lambda d: _entry(d)["metrics"].update(iterations=0), "iterations of q4_0_matmul"),
    "metrics": (lambda d: _entry(d).update(metrics=[]), "metrics of q4_0_matmul: got list"),
    "time": (lambda d: _entry(d).update(timestamp="noon"), "timestamp of q4_0_matmul: got noon"),
    "month": (lambda d: _entry(d).update(timestamp="2024-13-01T00:00:00Z"), "timestamp of"),
    "early": (lambda d: _entry(d).update(timestamp=-1), "timestamp of q4_0_matmul: got -1"),
    "list": (lambda d: _entry(d).update(timestamp=[]), "timestamp of q4_0_matmul: got list"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_one_is_named(tmp_path: Path, name: str) -> None:
    change, message = BROKEN[name]
    content = copy.deepcopy(document())
    change(content)
    path = write(tmp_path / "old.json", content)
    with pytest.raises(ResultFileError, match=message) as caught:
        load_baseline(path)
    assert str(path) in str(caught.value)


def test_an_empty_one_measured_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "old.json", {"baselines": {}, "metadata": {}})
    with pytest.raises(MeasurementError, match="no benchmark"):
        load_baseline(path)


def test_two_of_them_are_compared_as_a_user_does(tools: Tools, tmp_path: Path) -> None:
    write(tmp_path / "old.json", document())
    write(tmp_path / "new.json", document(1.02))
    done = tools("baselines.py", "compare", "old.json", "new.json")
    assert done.returncode == 0, done.stderr
    assert "2 ok" in done.stdout
    write(tmp_path / "new.json", document(2.0))
    done = tools("baselines.py", "compare", "old.json", "new.json")
    assert done.returncode == 3, done.stderr
    assert "cannot tell" in done.stdout
