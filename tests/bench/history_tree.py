"""A git branch of empty commits with asv results for as many of them as a test wants."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from asv_tree import AsvTree
from numpy.typing import NDArray

WHO = {
    f"GIT_{who}_{what}": "t@example.org"
    for who in ("AUTHOR", "COMMITTER")
    for what in ("NAME", "EMAIL")
}
PLAIN = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


class HistoryTree(AsvTree):
    """asv results in the order of a branch."""

    def __init__(self, root: Path, commits: int) -> None:
        super().__init__(root / "results")
        self.root = root
        self.git("init", "-q", "-b", "main", ".")
        for number in range(commits):
            self.git("commit", "-q", "--allow-empty", "-m", f"commit {number}")
        self.commits = self.git("rev-list", "--reverse", "main").split()

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ("git", *arguments),
            cwd=self.root,
            env={**os.environ, **WHO, **PLAIN},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def result_file(self, position: int) -> Path:
        """Where `run` writes what was measured of a commit, by its position in the branch."""
        return self.results / "box" / f"{self.commits[position][:8]}-virtualenv-py3.11.json"

    def measure(self, columns: Mapping[str, Sequence[Any]], **more: Any) -> list[Path]:
        """Write one value of each benchmark for each commit; ... leaves the benchmark out."""
        written = []
        for commit, *values in zip(self.commits, *columns.values(), strict=True):
            kept = dict(zip(columns, values, strict=True))
            kept = {name: value for name, value in kept.items() if value is not ...}
            if kept:
                written.append(self.run(commit, kept, **more))
        return written


def noisy(count: int, spread: float = 0.01, seed: int = 0) -> NDArray[np.float64]:
    """Values around 1 with the given relative spread."""
    return np.exp(np.random.default_rng(seed).normal(0, spread, count))
