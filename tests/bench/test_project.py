"""What `bench run` knows of a project: its commit, selections, labels, where results lie."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_project import git

from rocmforge.bench import project as project_module

pytest.importorskip("asv")


@pytest.fixture
def prepare(repo: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """benchmarks/prepare.py of this repository."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    return project_module.preparation(repo)


def test_selections(prepare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import devices, models

    monkeypatch.setattr(devices, "has_device", lambda device: False)
    assert prepare.select(["a", "b"], "quick") == ["a", "b"]
    assert prepare.select([], "full") == [prepare.NO_GPU]
    quick = prepare.select([], "quick")
    assert r"attention.Prefill.time_attention\('512x8x64', 'cpu'\)" in quick
    assert not any("<" in pattern or pattern.startswith("#") for pattern in quick)
    monkeypatch.setattr(models, "USER_MODEL", Path("my model (1).gguf"))
    mine = prepare.select([], "quick")
    assert any(r"my\ model\ \(1\)" in pattern for pattern in mine)
    monkeypatch.setattr(devices, "has_device", lambda device: True)
    assert prepare.select([], "full") == [".*"]
    assert any("'(cpu|gpu)'" in pattern for pattern in prepare.select([], "quick"))
    assert any("'(cpu|gpu)'" in pattern for pattern in prepare.select([], "standard"))


def test_a_long_profile_is_measured_suite_by_suite(prepare: Any) -> None:
    labels = ["a.time_x('Q4_K', 'cpu')", "a.time_x('Q4_K', 'gpu')", "b.track_y", "a.b.time_z(1)"]
    for selection in ([prepare.NO_GPU], [r"time_.\(", "track_y"], [r"^a\.", "^b"]):
        chosen = [x for x in labels if any(re.search(line, x) for line in selection)]
        batches = project_module.by_suite(selection, chosen)
        assert len(batches) == len({label.partition(".")[0] for label in chosen})
        found = [
            x for batch in batches for x in labels if any(re.search(line, x) for line in batch)
        ]
        assert sorted(found) == sorted(chosen)


def test_labels_are_what_asv_searches(repo: Path, prepare: Any) -> None:
    labels = project_module.labels(repo)
    assert labels["dequantize.Size.track_bits_per_weight('F16')"] == (
        "dequantize.Size.track_bits_per_weight",
        1,
    )
    assert "matmul.Quantized.time_matmul('Q4_K', 128, 'cpu')" in labels
    assert "memory.KVPerToken.track_kv_bytes_per_token('70B')" in labels


def test_head_knows_a_changed_tree(project: Path) -> None:
    commit, dirty = project_module.head(project)
    assert (len(commit), dirty) == (40, False)
    (project / "new.py").touch()
    assert project_module.head(project) == (commit, True)


def test_committed_results_join_and_own_ones_stay(project: Path) -> None:
    committed = project / "results" / "box"
    committed.mkdir(parents=True)
    (committed / "machine.json").write_text("committed", encoding="utf-8")
    (committed / "0a0a0a0a-env.json").write_text("committed", encoding="utf-8")
    git(project, "add", "-A")
    own = project / ".asv" / "results" / "box" / "machine.json"
    own.parent.mkdir(parents=True)
    own.write_text("own", encoding="utf-8")
    project_module.write_config(project, project / ".asv")
    path = project / ".asv" / "asv.conf.json"
    assert own.read_text(encoding="utf-8") == "own"
    assert own.with_name("0a0a0a0a-env.json").read_text(encoding="utf-8") == "committed"
    config = json.loads(path.read_text(encoding="utf-8"))
    for key in ("repo", "benchmark_dir"):
        assert (path.parent / config[key]).is_dir()
    assert config["results_dir"] == "results"
    assert config["regressions_first_commits"]


def test_results_that_asv_left_are_no_change_of_the_code(project: Path) -> None:
    left = project / "results" / "box" / "0a0a0a0a-env.json"
    left.parent.mkdir(parents=True)
    left.write_text("{}", encoding="utf-8")
    (project / "baselines").mkdir()
    (project / "baselines" / "new.json").touch()
    assert project_module.head(project)[1] is False
    project_module.write_config(project, project / ".asv")
    assert not (project / ".asv" / "results" / "box").exists()
