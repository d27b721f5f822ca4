"""A plugin of asv 0.6.6, which `asv publish` loads: tags of any name, and of what is no commit.

asv itself asks git for each tag by its name, and stops at one that is not UTF-8, that is also a
file's, or that points to a tree.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asv.plugins.git import Git

from rocmforge.bench.git import run_git

_FIELDS = "%(objecttype) %(objectname) %(*objecttype) %(*objectname) %(refname:strip=2)"


def setup() -> None:
    """Take the place of asv's own reader of tags; asv calls it."""
    Git.get_tags = read_tags


def read_tags(git: Any) -> dict[str, str]:
    """Return the commit of each tag of asv's repository, the oldest first."""
    words = ("for-each-ref", f"--format={_FIELDS}", "--sort=taggerdate", "refs/tags")
    found = {}
    for line in run_git(Path(git._path), *words).stdout.split("\n")[:-1]:
        kind, commit, tagged, peeled, name = line.split(" ")
        if "commit" in (kind, tagged):
            found[name] = peeled or commit
    return found
