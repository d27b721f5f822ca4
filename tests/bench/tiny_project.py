"""A repository with our asv.conf.json, a tiny suite and one commit, for `bench run`."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocmforge.bench import arguments

SHARED = (
    *("__init__", "asv_process", "checks", "devices", "models", "prepare"),
    *("recording", "reference", "samples"),
)
"""Modules of our benchmarks that have no benchmark."""

STEADY = """

def _best(call):  # the machine's own speed decides no test
    call()
    return 1e-3
"""

SUITE = '''\
"""Reads its figures from a file, so that a test can change them."""

from pathlib import Path

FIGURE = Path(__file__).with_name("figure.txt")


def track_ms(device):
    if device == "gpu":
        return float("nan")
    return {"samples": [float(FIGURE.read_text()) + i / 1000 for i in range(9)], "number": 1}


track_ms.params = [["cpu", "gpu"]]
track_ms.param_names = ["device"]
track_ms.unit = "ms"


def track_broken():
    raise ValueError("wrong result on purpose")
'''


def make_project(repo: Path, root: Path) -> None:
    """Write a repository with our asv.conf.json, a tiny suite and one commit.

    The suite stands on what ours share.
    """
    (root / "benchmarks").mkdir(parents=True)
    shutil.copy(repo / "asv.conf.json", root)
    shutil.copy(repo / ".gitignore", root)
    for name in SHARED:
        shutil.copy(repo / "benchmarks" / f"{name}.py", root / "benchmarks")
    with (root / "benchmarks" / "reference.py").open("a", encoding="utf-8") as file:
        file.write(STEADY)
    (root / "benchmarks" / "tiny.py").write_text(SUITE, encoding="utf-8")
    (root / "benchmarks" / "figure.txt").write_text("2.0", encoding="utf-8")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "-m", "first")


@contextlib.contextmanager
def inside(repo: Path, root: Path) -> Iterator[None]:
    """Work in a project, made if it is not there; the folder above is home.

    Its suites are `benchmarks`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(root.parent))
        patch.delenv("COLUMNS", raising=False)  # the wide tables, also where pytest sets it
        for key in [key for key in os.environ if key.startswith("GIT_")]:
            patch.delenv(key)
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        if not root.exists():
            make_project(repo, root)
        patch.chdir(root)
        patch.setattr(arguments, "OTHERS_LIMIT", 1.0)  # what else runs here decides no test
        patch.syspath_prepend(root)
        repos = {name: sys.modules.pop(name) for name in imported_suites()}
        try:
            yield
        finally:
            for name in imported_suites():
                del sys.modules[name]
            sys.modules.update(repos)


def imported_suites() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True)
