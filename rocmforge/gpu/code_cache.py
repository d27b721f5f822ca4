"""Compiled kernels kept on disk, so that a second start compiles nothing.

Many processes, and many commits of the benchmarks, share one directory: an entry's name is the
digest of everything that went into it, it is written under a temporary name and renamed, and it
carries the digest of its content, so that a damaged one counts as missing. What another user could
have written is not run: the folder and the entry are looked at, not the folders above. This file
knows no compiler, no kernel and no device.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

_DIGEST_BYTES = hashlib.sha256().digest_size


def cache_key(parts: Mapping[str, object]) -> str:
    """Return the name of what is made of these parts (strings, lists and mappings of them)."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class CodeCache:
    """Bytes by name, in one directory.

    Where it cannot be written, or others than its user and root may write it, it warns once and
    keeps nothing. An entry that others may write counts as missing, and the first one is warned of.

    Parameters
    ----------
    directory
        Made at the first `put`, with the folders above it that are missing, for its user alone.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._usable = True
        self._entry_refused = False

    def get(self, name: str) -> bytes | None:
        """Return an entry's content; None where it is missing, damaged or open to others."""
        path = self.directory / name
        try:
            if not self._folder_is_safe():
                return None
            status = path.lstat()
            wrong = _open_to_others(status) if stat.S_ISREG(status.st_mode) else "is no file"
            if wrong:
                self._refuse_entry(path, wrong)
                return None
            entry = path.read_bytes()
        except OSError:
            return None
        digest, content = entry[:_DIGEST_BYTES], entry[_DIGEST_BYTES:]
        return content if hashlib.sha256(content).digest() == digest else None

    def put(self, name: str, content: bytes) -> None:
        """Keep an entry in place of what stood there."""
        if not self._usable:
            return
        try:
            _make(self.directory)
            if self._folder_is_safe():
                self._write(self.directory / name, hashlib.sha256(content).digest() + content)
        except OSError as error:
            self._give_up(f"cannot be kept in {self.directory} ({error})")

    def _folder_is_safe(self) -> bool:
        """Whether none but we and root may write the directory."""
        if self._usable:
            folder = self.directory
            wrong = _open_to_others(folder.lstat()) or _open_to_others(folder.stat())
            if wrong:
                self._give_up(f"are neither taken from {folder} nor kept there, since it {wrong}")
        return self._usable

    def _give_up(self, why: str) -> None:
        self._usable = False
        warnings.warn(
            f"compiled kernels {why}: every start will compile them again; "
            "ROCMFORGE_CACHE names another directory",
            RuntimeWarning,
            stacklevel=4,
        )

    def _refuse_entry(self, path: Path, why: str) -> None:
        if not self._entry_refused:
            self._entry_refused = True
            warnings.warn(
                f"compiled kernel {path} {why}: it, and others like it, are compiled again",
                RuntimeWarning,
                stacklevel=3,
            )

    def _write(self, path: Path, entry: bytes) -> None:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(entry)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def _make(folder: Path) -> None:
    """Make a folder and those above it that are missing, for their user alone."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


def _open_to_others(status: os.stat_result) -> str:
    """What lets others than us and root write something; empty where nothing does."""
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to user {status.st_uid}"
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o022 and not stat.S_ISLNK(status.st_mode):
        return f"may be written by others (mode {mode:03o})"
    return ""
