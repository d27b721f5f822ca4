"""The two scripts of tools/ that are doors to `rocmforge bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def call(repo: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=repo, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("script", "command"), [("check_regressions", "compare"), ("baselines", "baseline")]
)
def test_a_script_is_the_same_as_its_command(repo: Path, script: str, command: str) -> None:
    door = call(repo, f"tools/{script}.py", "--help")
    same = call(repo, "-m", "rocmforge", "bench", command, "--help")
    assert (door.returncode, door.stdout, door.stderr) == (0, same.stdout, "")
