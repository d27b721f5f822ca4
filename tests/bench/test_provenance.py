"""Provenance: the commit and state of a repository, and a folder that is none."""

from __future__ import annotations

import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from rocmforge.bench.git import provenance
from rocmforge.hardware import hardware_tag


def git(repository: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=T", "-c", "user.email=t@example.org"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=repository, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_commit_and_changes(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert provenance(tmp_path)["commit"] is None  # no commit yet
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-qm", "one")
    found = provenance(tmp_path)
    assert found["commit"] == git(tmp_path, "rev-parse", "HEAD")
    assert found["hardware_tag"] == hardware_tag()
    assert not found["uncommitted_changes"]
    assert datetime.fromisoformat(found["date"]).utcoffset() is not None
    (tmp_path / "a").write_text("2")
    assert provenance(tmp_path)["uncommitted_changes"]


def test_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance(tmp_path)["commit"] is None
    monkeypatch.setenv("PATH", "")
    assert provenance(tmp_path)["commit"] is None
