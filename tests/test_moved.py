"""Scripts of tools/: the two that are doors to `rocmforge bench`, and the old names that moved."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tool_modules import tool_module

from rocmforge.bench.cli import COMMANDS


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


def test_every_old_name_says_the_new_one(repo: Path) -> None:
    now = tool_module("moved").NOW
    links = [path for path in (repo / "tools").iterdir() if path.is_symlink()]
    assert sorted(path.name for path in links) == sorted(now)
    for path in links:
        done = call(repo, str(path), "--anything")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"tools/{path.name} is now: {now[path.name]}\n"
        new, _, rest = now[path.name].partition(" ")
        if new == "rocmforge":
            assert rest.split()[:1] == ["bench"]
            assert rest.split()[1] in COMMANDS
        else:
            assert (repo / new).is_file()
