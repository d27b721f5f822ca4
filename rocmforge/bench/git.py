"""Asks git, whose answers may hold any bytes: subjects of commits, names of tags and of files.

Without git, or without a repository, the answer is None. `provenance` is the head of every report:
machine, commit and date.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rocmforge.hardware import hardware_tag

_NO_CODE = (":(exclude)results", ":(exclude)baselines")


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


@dataclass(frozen=True, slots=True)
class Commit:
    """What git says of a commit: its subject, and its author's date as ISO 8601 has it."""

    subject: str
    authored: str


def known_commits(repository: Path | None) -> dict[str, Commit]:
    """Return every commit of a repository by its hash; empty without git."""
    said = ask_git(repository, "log", "--all", "-z", "--encoding=UTF-8", "--format=%H %aI %s") or ""
    found = (entry.split(" ", 2) for entry in said.split("\0") if entry)
    return {name: Commit(subject, authored) for name, authored, subject in found}


def find_commit(repository: Path | None, name: str) -> str | None:
    """Return the full hash of what git calls by that name; None where it knows no such commit."""
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    said = None if "\0" in name else ask_git(repository, *words)
    return None if said is None else said.strip()


def head(repository: Path) -> tuple[str | None, bool]:
    """Return the hash of HEAD, or None without git or a commit, and whether the tree differs.

    What was measured and lies in results/ and baselines/ is no difference: it is no code.

    Parameters
    ----------
    repository
        Folder of the code.
    """
    changed = ask_git(repository, "status", "--porcelain", "--", ".", *_NO_CODE)
    return find_commit(repository, "HEAD"), bool(changed)


def commit_hash(repository: Path, name: str) -> str:
    """Return the full hash of a commit.

    Parameters
    ----------
    repository
        Folder of the code.
    name
        As git names it: a branch, a tag, a prefix of the hash, ``HEAD~1``.

    Raises
    ------
    ValueError
        git knows no such commit, or there is no git.
    """
    found = find_commit(repository, name)
    if found is None:
        raise ValueError(f"commit: got {name!r}, wanted one that git knows (fetch it first)")
    return found


def committed_files(repository: Path, pattern: str) -> list[str]:
    """Return the files that git knows by a pattern, as `os.fsdecode` has them; none without git."""
    said = ask_git(repository, "ls-files", "-z", "--", pattern, errors="surrogateescape")
    return (said or "").split("\0")[:-1]


def provenance(repository: Path) -> dict[str, Any]:
    """Return the fields that every report of a measurement carries.

    Parameters
    ----------
    repository
        Folder of the code that is measured.

    Returns
    -------
    ``hardware_tag``; ``commit``, the hash of HEAD, None where there is no git or no commit;
    ``uncommitted_changes``, whether the tree differs from it; ``date`` in UTC, to the second.
    """
    commit, changed = head(repository)
    return {
        "hardware_tag": hardware_tag(),
        "commit": commit,
        "uncommitted_changes": changed,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
