"""asv's own environment of a commit runs the benchmarks of a GPU, which is the CPU stand-in here.

A clone at HEAD is measured as the README says. What the README leaves to the machine is made to be
one with ROCm 10: a folder with its version and the stand-in's libraries. No number counts.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import build_standin
import pytest

pytest.importorskip("hip", reason="hip-python is not installed")
pytest.importorskip("asv")
pytest.importorskip("virtualenv")

WANTED = {
    "rows.HotToken.track_us": r"rows\.HotToken\.track_us\('rmsnorm', 'gpu'\)",
    "startup.Load.track_load_ms": r"startup\.Load\.track_load_ms\('demo-Q8_0', 'gpu'\)",
}


def ran(words: list[str], folder: Path, variables: dict[str, str]) -> str:
    """Run a program that has to succeed; return all that it said."""
    done = subprocess.run(
        words,
        cwd=folder,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout


@pytest.fixture
def rocm(tmp_path: Path) -> Path:
    """A folder like ROCm's, of the version that hip-python 10.0 is for."""
    folder = tmp_path / "rocm"
    (folder / ".info").mkdir(parents=True)
    (folder / ".info" / "version").write_text("10.0.0\n")
    (folder / "lib").symlink_to(build_standin.build() / "lib")
    return folder


def measured(results: Path, name: str) -> list[float]:
    """Values of a benchmark in asv's one result file; those of other parameters are left out."""
    (path,) = (file for file in results.glob("*.json") if file.name != "machine.json")
    stored: dict[str, Any] = json.loads(path.read_text())
    values = stored["results"][name][stored["result_columns"].index("result")]
    return [value for value in values if value is not None and not math.isnan(value)]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_benchmarks_of_the_gpu_have_values_in_asvs_own_environment(
    repo: Path, tmp_path: Path, rocm: Path
) -> None:
    clone = tmp_path / "clone"
    pip_cache = [sys.executable, "-m", "pip", "cache", "dir"]
    variables = {
        "HOME": str(tmp_path),  # of asv's machine file
        "PIP_CACHE_DIR": subprocess.check_output(pip_cache, text=True).strip(),
        "ROCMFORGE_CACHE": str(tmp_path / "cache"),
        "ROCMFORGE_DEVICE": "hip:0",  # auto looks only where there is a driver
        "ROCMFORGE_GPU_PACKAGES": "",
        "ROCM_PATH": str(rocm),
        "SKBUILD_CMAKE_BUILD_TYPE": "Debug",  # builds in half the time
        "STANDIN_HIP_VERSION": "71526333",
    }
    ran(["git", "clone", "--quiet", str(repo), str(clone)], tmp_path, variables)
    asv = [sys.executable, "-m", "asv"]
    ran([*asv, "machine", "--yes", "--machine", "box"], clone, variables)
    chosen = [word for pattern in WANTED.values() for word in ("--bench", pattern)]
    run = [*asv, "run", "--verbose", "--quick", "--machine", "box", *chosen, "HEAD^!"]
    said = ran(run, clone, variables)
    assert "install_gpu_packages.py" in said
    assert "Successfully installed hip-python-10.0." in said
    results = clone / "results" / "box"
    for name in WANTED:
        (value,) = measured(results, name)
        assert value > 0, said[-8000:]
    (reports,) = results.glob("*.jsonl")
    lines = [json.loads(line) for line in reports.read_text().splitlines()]
    assert {line["benchmark"] for line in lines} == set(WANTED)
    for line in lines:
        assert line["conditions"]["versions"]["hip-python"].startswith("10.0.")
