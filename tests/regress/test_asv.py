"""Running asv: its configuration, thresholds, results that are kept, builds that fail."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from pathlib import Path

import pytest
from asv_tree import A, AsvTree

from rocmforge.errors import ResultFileError
from rocmforge.regress.asv import (
    Builds,
    environment_name,
    keep_results,
    read_thresholds,
    result_file,
    write_config,
)
from rocmforge.regress.results import ResultsDirectory

pytest.importorskip("asv")

PYTHON = "/home/somebody/.venv/bin/python"


def test_everything_that_asv_writes_lies_below_the_folder(tmp_path: Path) -> None:
    (tmp_path / "asv.conf.json").write_text('{"version": 1, "project": "x"} // without folders\n')
    path = write_config(tmp_path, tmp_path / ".asv" / "work")
    config = json.loads(path.read_text(encoding="utf-8"))
    assert config["project"] == "x"
    assert (path.parent / config["repo"]).resolve() == tmp_path
    assert (path.parent / config["benchmark_dir"]).resolve() == tmp_path / "benchmarks"
    assert [config[key] for key in ("results_dir", "env_dir", "html_dir")] == [
        "results",
        "env",
        "html",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "content"),
        ('{"version": 1, "regressions_thresholds": []}', "wanted an object"),
        ('{"version": 1, "regressions_thresholds": {"a": "x"}}', "wanted a number"),
        ('{"version": 1, "regressions_thresholds": {"a": 0}}', "a number above 0"),
        ('{"version": 1, "regressions_thresholds": {"(": 0.1}}', "an expression"),
    ],
)
def test_broken_settings_are_named(tmp_path: Path, text: str, message: str) -> None:
    config = tmp_path / "asv.conf.json"
    config.write_text(text)
    with pytest.raises(ResultFileError, match=message) as raised:
        read_thresholds(config)
    assert "asv.conf.json" in str(raised.value)


def test_our_own_thresholds_can_be_read(repo: Path) -> None:
    assert read_thresholds(repo / "asv.conf.json") == {".*": 0.1, ".*peakmem_": 0.3}


def test_kept_results_say_nothing_of_where_the_interpreter_is(
    tree: AsvTree, tmp_path: Path
) -> None:
    tree.benchmark("rope.time_rope")
    tree.benchmark("gpu.time_gpu")
    path = tree.run(
        A,
        {"rope.time_rope": 0.5, "gpu.time_gpu": math.nan},
        samples={"rope.time_rope": [[0.4, 0.5, 0.6]]},
        environment=environment_name(PYTHON),
    )
    document = json.loads(path.read_text(encoding="utf-8"))
    document["python"] = document["params"]["python"] = PYTHON
    path.write_text(json.dumps(document), encoding="utf-8")

    kept = keep_results(tree.results, tmp_path / "kept", "box", A, PYTHON)
    name = f"existing-py{sys.version_info.major}.{sys.version_info.minor}"
    assert kept.name == f"{A[:8]}-{name}.json"
    assert "somebody" not in kept.read_text(encoding="utf-8")
    found = ResultsDirectory(tmp_path / "kept", "box").load(A, name)
    wanted = ResultsDirectory(tree.results, "box").load(A, environment_name(PYTHON))
    assert found.records == wanted.records
    assert found.commit_date == wanted.commit_date
    assert found.hardware.python_version == ".".join(platform.python_version_tuple()[:2])
    with pytest.raises(ResultFileError, match=f"{A[:8]}-existing"):
        keep_results(tree.results, tmp_path / "kept", "box", A, "/usr/bin/python3")


def test_names_that_are_too_long_for_a_file_are_found(tree: AsvTree, tmp_path: Path) -> None:
    python = f"/{'long' * 40}/bin/python"
    tree.benchmark("rope.time_rope")
    written = tree.run(A, {"rope.time_rope": 0.5}, environment=environment_name(python)[:60])
    written.rename(tree.results / result_file("box", A, environment_name(python)))
    assert keep_results(tree.results, tmp_path / "kept", "box", A, python).is_file()


def test_a_commit_that_cannot_be_built_is_named(tmp_path: Path) -> None:
    (tmp_path / "asv.conf.json").write_text('{"version": 1}')
    builds = Builds(tmp_path, tmp_path / ".asv", "box")
    with pytest.raises(ResultFileError, match="git clone") as raised:
        builds.prepare("f" * 40)
    assert os.fspath(tmp_path) in str(raised.value)
