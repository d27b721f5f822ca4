"""Asks git, whose answers may hold any bytes: subjects of commits, names of tags and of files.

Without git, or without a repository, the answer is None.
"""

from __future__ import annotations

import subprocess
from pathlib import Path


def run_git(
    repository: Path | None, *words: str, errors: str = "replace"
) -> subprocess.CompletedProcess[str]:
    """Run git in a folder (default: the current one); what is no UTF-8 becomes U+FFFD.

    Parameters
    ----------
    repository
        Where git looks.
    words
        Its command and options.
    errors
        Another way with what is no UTF-8, as of `bytes.decode`.

    Raises
    ------
    FileNotFoundError
        There is no git, or no such folder.
    """
    return subprocess.run(
        ["git", *words],
        cwd=repository,
        capture_output=True,
        encoding="utf-8",
        errors=errors,
        check=False,
    )


def ask_git(repository: Path | None, *words: str, errors: str = "replace") -> str | None:
    """Return what git prints; None where it fails or is not there. Parameters as of `run_git`."""
    try:
        done = run_git(repository, *words, errors=errors)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def find_commit(repository: Path | None, name: str) -> str | None:
    """Return the full hash of what git calls by that name; None where it knows no such commit."""
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    said = None if "\0" in name else ask_git(repository, *words)
    return None if said is None else said.strip()
