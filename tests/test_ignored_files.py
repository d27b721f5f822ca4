"""What commands of the documents and of --help write into the checkout is no change of its code.

A run with uncommitted changes belongs to no commit, and becomes no baseline.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

WRITTEN = re.compile(
    r"(?:--(?:html|trace|roofline|figure|output)|>) ([a-z][a-z.]*\.(?:html|svg|json|csv|txt))"
    r"|--output ([a-z]+)"
)


def test_git_ignores_what_documented_commands_write(repo: Path) -> None:
    pages = [repo / "README.md", repo / "rocmforge" / "arguments.py"]
    pages += [*(repo / "docs").glob("*.md"), *(repo / "rocmforge/bench/commands").glob("*.py")]
    found = (WRITTEN.findall(page.read_text("utf-8")) for page in pages)
    names = sorted({file or f"{folder}/x" for pairs in found for file, folder in pairs})
    assert {"profile.html", "roofline.svg", "speed.json", "perf/x"} <= {*names}
    done = subprocess.run(
        ["git", "check-ignore", *names], cwd=repo, capture_output=True, text=True, check=False
    )
    if done.returncode > 1:
        pytest.skip(f"not a git repository: {done.stderr.strip()}")
    assert done.stdout.splitlines() == names
