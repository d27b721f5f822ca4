"""Which commits the stored measurements name, and which of these this repository has not.

A measurement of a commit that nobody can check out cannot be followed. `render_tables.py --check`
asks it; git has to have the whole history, which a shallow clone has not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rocmforge.bench.files import read_json
from rocmforge.bench.git import ask_git

FOLDERS = ("baselines", "results")
_NAMED = ("commit", "commit_hash")
_COMPARED = ("before", "after")  # hashes where two commits were compared, else values


def commits_in_words(commits: Sequence[str]) -> str:
    """Return "commit a", or "commits a, b"."""
    return f"commit{'s' * (len(commits) > 1)} {', '.join(commits)}"


def lost_commits(repository: Path) -> list[str] | None:
    """Return a line for each commit that a committed measurement names and no branch or tag has.

    None where git cannot tell: without a repository, or in a shallow clone.
    """
    shallow = ask_git(repository, "rev-parse", "--is-shallow-repository")
    history = ask_git(repository, "rev-list", "--all")
    files = ask_git(repository, "ls-files", "-z", "--", *FOLDERS)
    if shallow is None or shallow.strip() != "false" or history is None or files is None:
        return None
    known = history.split()
    return [
        f"{name}: commit {commit} is not in this repository"
        for name in sorted(filter(None, files.split("\0")))
        if name.endswith(".json") and (repository / name).exists()
        for commit in sorted(set(named_commits(read_json(repository / name))))
        if not any(one.startswith(commit) for one in known)
    ]


def named_commits(stored: Any) -> Iterator[str]:
    """Return every commit that a report names, at any depth."""
    if isinstance(stored, dict):
        for key, value in stored.items():
            if not isinstance(value, str):
                yield from named_commits(value)
            elif key in _NAMED or (key in _COMPARED and re.fullmatch("[0-9a-f]{7,40}", value)):
                yield value
    elif isinstance(stored, list):
        for value in stored:
            yield from named_commits(value)
