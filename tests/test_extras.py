"""Each extra of pyproject.toml brings what its users import, and no more than they need."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # comes with pytest

PACKAGES = {
    "cuda": "cuda-bindings",
    "elftools": "pyelftools",
    "hip": "hip-python",
    "llama_cpp": "llama-cpp-python",
    "xdist": "pytest-xdist",
    "yaml": "pyyaml",
}
"""Packages of another name than what is imported."""

ONLY_THERE = {
    "amdsmi": "hip",
    "llama-cpp-python": "peer",
    "torch": "train",
    "perfetto": "browser",
    "playwright": "browser",
    "ray": "fleet-ray",
    "submitit": "fleet-slurm",
}
"""What some users alone have, and its extra: imported where it is needed, else skipped."""


@pytest.fixture(scope="module")
def extras(repo: Path) -> dict[str, set[str]]:
    """Names of packages by extra, each with what is always installed, extras in it resolved."""
    project = tomllib.loads((repo / "pyproject.toml").read_text("utf-8"))["project"]
    listed = project["optional-dependencies"]

    def names(requirements: list[str]) -> set[str]:
        found = set()
        for text in requirements:
            inner = re.fullmatch(r"rocmforge\[(.*)\]", text)
            for name in inner[1].split(",") if inner else ():
                found |= names(listed[name])
            if not inner:
                found.add(re.split("[=<>]", text)[0].lower().replace("_", "-"))
        return found

    return {extra: names(listed[extra] + project["dependencies"]) for extra in listed}


def imported(folder: Path) -> set[str]:
    """Packages of others that the files of a folder import."""
    own = {"rocmforge", "benchmarks"}
    own |= {path.stem for path in folder.parent.joinpath("tools").glob("*.py")}
    own |= {path.stem for path in folder.rglob("*")}
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(str(node.module).partition(".")[0])
    names = found - own - sys.stdlib_module_names - {"tomli"}
    return {PACKAGES.get(name, name.replace("_", "-")) for name in names}


@pytest.mark.parametrize(
    ("folder", "extra"),
    [("rocmforge", "bench"), ("benchmarks", "bench"), ("tools", "bench"), ("tests", "test")],
)
def test_what_is_imported_is_brought_by_the_extra(
    folder: str, extra: str, extras: dict[str, set[str]], repo: Path
) -> None:
    brought = extras[extra]
    if folder == "rocmforge":  # each GPU's package is imported by one module, where it is there
        brought = brought | extras["cuda"] | extras["hip"]
    missing = imported(repo / folder) - brought
    assert missing <= {*ONLY_THERE}
    assert all(name in extras[ONLY_THERE[name]] for name in missing)


def test_benchmarks_need_no_tools_of_developers_and_no_gpus_packages(
    extras: dict[str, set[str]],
) -> None:
    tools = {"mypy", "ruff", "clang-format", "pytest", "playwright"}
    gpus = extras["cuda"] ^ extras["hip"]
    assert {"hip-python", "amdsmi", "cuda-bindings", "nvidia-cuda-nvrtc"} == gpus
    assert not extras["bench"] & (tools | gpus)
    assert not extras["check"] & ({"playwright"} | gpus)
    assert not extras["test"] & {"mypy", "ruff", "clang-format", "playwright"}


def test_dev_is_the_sum_of_what_make_installs(extras: dict[str, set[str]]) -> None:
    wanted = set().union(*(extras[name] for name in ("bench", "browser", "check", "docs", "test")))
    assert extras["dev"] == wanted


def test_a_hip_python_that_the_user_chose_stays(repo: Path) -> None:
    """No extra wants one that pip would put in the place of a tested version."""
    ranges = re.findall(r'"hip-python([^"]*)"', (repo / "pyproject.toml").read_text("utf-8"))
    assert set(ranges) == {">=6.4,<11"}
