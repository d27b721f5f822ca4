"""Runs of a fleet for its tests: a repository of two commits, a plan over two kinds, what remains.

The engine, the worker and the store are those of the package; `fleet_standin` alone is in place of
the benchmarks, so that results of the same commit are the same to the byte.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rocmforge.bench.fleet.engine import Engine
from rocmforge.bench.fleet.parts import Part, wanted_parts
from rocmforge.bench.fleet.runner import Outcome, Runner
from rocmforge.bench.fleet.store import Store
from rocmforge.bench.fleet.worker import Task

STANDIN = Path(__file__).with_name("fleet_standin.py")


def repository(root: Path, commits: int = 2) -> list[str]:
    """Make a git repository there; return its commits, the oldest first."""
    root.mkdir(parents=True)
    git(root, "init", "-q", "-b", "main")
    for number in range(commits):
        (root / "code.txt").write_text(f"{number}\n")
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", f"number {number}")
    return git(root, "rev-list", "--reverse", "HEAD").split()


def git(root: Path, *words: str) -> str:
    name = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    dates = {f"GIT_{who}_DATE": "2026-01-01T00:00:00Z" for who in ("AUTHOR", "COMMITTER")}
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    done = subprocess.run(
        ["git", "-C", str(root), *name, *words],
        capture_output=True,
        text=True,
        check=True,
        env={**kept, **own, **dates},  # so the hashes are always the same
    )
    return done.stdout


@dataclass
class Fleet:
    """A folder with a repository and a store, and what its runs said."""

    root: Path
    seconds: float = 0.4
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.commits = repository(self.root / "project")
        self.store = Store(self.root / "fleet", self.root / "fleet" / "results")

    @property
    def command(self) -> str:
        """Of a part: the stand-in."""
        words = [sys.executable, str(STANDIN), str(self.root / "journal"), str(self.seconds)]
        return f'{shlex.join(words)} "$1" "$2"'

    def wanted(self, kinds: tuple[str, ...] = ("east", "west"), boxes: int = 2) -> list[Part]:
        return wanted_parts(self.commits, kinds, boxes, "quick", command=self.command)

    def run(
        self,
        engine: Engine,
        wanted: list[Part],
        tries: int = 3,
        interval_s: float = 0.05,
        say: Callable[[str], object] | None = None,
    ) -> Outcome:
        def task(part: Part, token: str) -> Task:
            return Task(part, token, str(self.root / "project"), 1.0, 5)

        runner = Runner(engine, self.store, task, tries, say or self.said.append, interval_s)
        return runner.run(wanted)

    def journal(self, word: str) -> int:
        """How often the stand-in began, or ended."""
        path = self.root / "journal"
        text = path.read_text("utf-8") if path.exists() else ""
        return sum(line.startswith(word) for line in text.splitlines())

    def tree(self) -> dict[str, bytes]:
        """Merge, and return the files of the tree of results."""
        self.store.merge()
        files = [path for path in self.store.results.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.store.results)): path.read_bytes() for path in files}
