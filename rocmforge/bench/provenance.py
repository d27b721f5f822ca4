"""Where and when something was measured: machine, commit, date, for the head of a report."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rocmforge.bench.git import ask_git, find_commit
from rocmforge.hardware import hardware_tag


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


def head(repository: Path) -> tuple[str | None, bool]:
    """Return the hash of HEAD, or None without git or a commit, and whether the tree differs.

    What `asv run` left in results/ is no difference: it is no code.

    Parameters
    ----------
    repository
        Folder of the code.
    """
    changed = ask_git(repository, "status", "--porcelain", "--", ".", ":(exclude)results")
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
