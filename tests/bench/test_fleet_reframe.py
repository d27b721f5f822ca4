"""The check for ReFrame, without ReFrame: the names of its figures, and the file that it reads."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest


def found_in(pattern: str, path: str, group: int) -> str:
    found = re.search(pattern, Path(path).read_text("utf-8"), re.MULTILINE)
    assert found
    return found[group]


@pytest.fixture
def check(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The check in a stage folder, after a run that wrote ``a b.json``."""

    class Test:
        stagedir, stdout = tmp_path, "out.txt"

    rfm = SimpleNamespace(simple_test=lambda made: made, RunOnlyRegressionTest=Test)
    sanity = SimpleNamespace(
        evaluate=lambda value: value,
        defer=lambda value: value,
        extractsingle=found_in,
        make_performance_function=lambda value, unit: (value, unit),
    )
    builtins = SimpleNamespace(
        run_before=lambda step: lambda function: function,
        sanity_function=lambda function: function,
        variable=lambda kind, value: value,
    )
    fakes = {"reframe": rfm, "reframe.core": rfm, "reframe.core.builtins": builtins}
    fakes |= {"reframe.utility": SimpleNamespace(sanity=sanity), "reframe.utility.sanity": sanity}
    rfm.utility = fakes["reframe.utility"]
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, name, fake)
    spec = importlib.util.spec_from_file_location("check", repo / "docs" / "reframe_check.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "out.txt").write_text("as text   a b.md\nas JSON   a b.json\nmore\n")
    made = module.RocmforgeSuite()
    made.checkout, made.perf_variables = str(tmp_path), {}
    return made


def write(folder: Path, labels: Sequence[str]) -> None:
    stored = {label: {"metrics": {"p50_us": 3.0, "p99_us": 4.0}} for label in labels}
    (folder / "a b.json").write_text(json.dumps({"baselines": stored}))


def test_medians_are_read_from_a_file_with_a_space_in_its_name(check: Any, tmp_path: Path) -> None:
    write(tmp_path, ["matmul.Time(1, 'cpu')", "rope"])
    check.read_medians()
    assert check.perf_variables == {"matmul_Time_1_cpu": (3.0, "us"), "rope": (3.0, "us")}


def test_two_benchmarks_of_one_name_are_an_error(check: Any, tmp_path: Path) -> None:
    write(tmp_path, ["time(1)", "time[1]"])
    with pytest.raises(ValueError, match=r"second benchmark of the figure time_1: time\[1\]"):
        check.read_medians()
