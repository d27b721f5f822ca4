"""What asv and the profiles take of the suites: names, units, directions, and their expressions."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rocmforge.model.synthetic import plan_model

discovery = pytest.importorskip("asv_runner.discovery")
load_json = pytest.importorskip("asv.util").load_json


@pytest.fixture(scope="module")
def suite(repo: Path) -> dict[str, Any]:
    """Every benchmark that asv finds, by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ROCFORGE_TEST_MODEL", raising=False)
        patch.syspath_prepend(str(repo))
        return {b.name: b for b in discovery.disc_benchmarks(str(repo / "benchmarks"))}


def labels(suite: dict[str, Any]) -> list[str]:
    return [
        f"{name}({', '.join(values)})"
        for name, b in suite.items()
        for values in itertools.product(*b.params)
    ]


HIGHER = {
    "kernel_resources.KernelResources.track_occupancy": "waves",
    "kernel_resources.Loads.track_bytes_per_load": "bytes/load",
}
"""Units of what is better when higher, and is no rate."""


def test_what_is_better_when_higher_says_so_and_all_have_units(suite: dict[str, Any]) -> None:
    for name, benchmark in suite.items():
        higher = getattr(benchmark, "direction", "lower") == "higher"
        assert higher == (benchmark.unit.endswith("/s") or benchmark.unit == HIGHER.get(name)), name
        assert benchmark.unit != "unit", name


def test_asvs_regressions_page_leaves_out_what_is_better_when_higher(
    suite: dict[str, Any], repo: Path
) -> None:
    config = load_json(str(repo / "asv.conf.json"), js_comments=True)
    left_out = [k for k, v in config["regressions_first_commits"].items() if v is None]
    for name, benchmark in suite.items():
        higher = getattr(benchmark, "direction", "lower") == "higher"
        assert any(re.fullmatch(pattern, name) for pattern in left_out) == higher, name


def test_asv_check_passes(repo: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "asv", "check", "-E", f"existing:{sys.executable}"],
        cwd=repo,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No problems found" in done.stdout
    assert done.returncode == 0


def patterns(repo: Path, profile: str, device: str = "cpu") -> list[str]:
    """Expressions of a profile, as `rocmforge bench` fills them in."""
    lines = (repo / "benchmarks" / f"{profile}.txt").read_text(encoding="utf-8").splitlines()
    return [
        line.replace("<device>", f"'{device}'").replace("<model>", r"0\.5B-Q4_K_M")
        for line in lines
        if line and not line.startswith("#")
    ]


@pytest.mark.parametrize("profile", ["quick", "standard"])
def test_every_expression_of_a_profile_finds_a_benchmark(
    suite: dict[str, Any], repo: Path, profile: str
) -> None:
    known = labels(suite)
    expressions = patterns(repo, profile, "(cpu|gpu)")
    for expression in expressions:
        assert any(re.search(expression, label) for label in known), expression
    found = {label.split(".")[0] for label in known for e in expressions if re.search(e, label)}
    assert found == {name.split(".")[0] for name in suite}


def test_the_readme_says_how_large_the_models_of_a_full_run_are(repo: Path) -> None:
    from benchmarks import models

    cores = 2
    large = [plan_model(*name.split("-", 1)).nbytes for name in models.LARGE]
    total = sum(nbytes for nbytes in large if nbytes <= cores * models.BYTES_PER_CORE)
    made = (*models.EXPERTS.values(), *models.WINDOWED.values(), *models.GRIDS.values())
    total += sum(plan_model(preset, mix, layers=layers).nbytes for preset, mix, layers in made)
    total += sum(plan_model(*models.GENERATED[n]).nbytes for n in models.MODELS[:2])
    said = (repo / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert f"the first time makes {total / 1e9:.0f} GB of models" in said


def test_standard_has_all_of_quick(suite: dict[str, Any], repo: Path) -> None:
    quick, standard = (
        {label for label in labels(suite) for e in patterns(repo, p) if re.search(e, label)}
        for p in ("quick", "standard")
    )
    assert quick < standard
    assert len(quick) < 60
