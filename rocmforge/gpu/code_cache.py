"""Compiled kernels kept on disk, so that a second start compiles nothing.

Many processes, and many commits of the benchmarks, share one directory: an entry's name is the
digest of everything that went into it, it is written under a temporary name and renamed, and it
carries the digest of its content, so that a damaged one counts as missing. What another user could
have written is not run: the folder and the entry are looked at, not the folders above.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from rocmforge.atomic import whole_file

_DIGEST_BYTES = hashlib.sha256().digest_size


def cache_key(parts: Mapping[str, object]) -> str:
    """Return the name of what is made of these parts (strings, lists and mappings of them)."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class CodeCache:
    """Bytes by name, in one directory.

    Where others than its user and root may write it, it warns once, and takes and keeps nothing.
    Where it cannot be written, it warns once and keeps nothing. An entry that others may write
    counts as missing, and the first one is warned of.

    Parameters
    ----------
    directory
        Made at the first `put`, with the folders above it that are missing, for its user alone.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._writable = True
        self._folder_refused = False
        self._entry_refused = False

    def get(self, name: str) -> bytes | None:
        """Return an entry's content; None where it is missing, damaged or open to others."""
        try:
            with _opened(self.directory, os.O_DIRECTORY) as folder:
                entry = self._read(folder, name) if self._is_safe(folder) else b""
        except OSError as error:
            if error.errno == errno.ELOOP:
                self._refuse_entry(name, "is no file")
            return None
        digest, content = entry[:_DIGEST_BYTES], entry[_DIGEST_BYTES:]
        return content if hashlib.sha256(content).digest() == digest else None

    def put(self, name: str, content: bytes) -> None:
        """Keep an entry in place of what stood there."""
        if not self._writable:
            return
        try:
            _make(self.directory)
            with _opened(self.directory, os.O_DIRECTORY) as folder:
                safe = self._is_safe(folder)
            if safe:
                with whole_file(self.directory / name, 0o600, anew=True) as file:
                    file.write(hashlib.sha256(content).digest() + content)
        except OSError as error:
            self._writable = False
            _warn_of_folder(f"cannot be kept in {self.directory} ({error})")

    def _is_safe(self, folder: int) -> bool:
        """Whether none but we and root may write the directory, or the link to it."""
        wrong = _open_to_others(self.directory.lstat()) or _open_to_others(os.fstat(folder))
        if wrong and not self._folder_refused:
            self._folder_refused = True
            _warn_of_folder(
                f"are neither taken from {self.directory} nor kept there, since it {wrong}; "
                "`chmod go-w` mends that where it is yours"
            )
        return not wrong

    def _read(self, folder: int, name: str) -> bytes:
        with _opened(name, os.O_NOFOLLOW | os.O_NONBLOCK, folder) as handle:
            status = os.fstat(handle)
            wrong = _open_to_others(status) if stat.S_ISREG(status.st_mode) else "is no file"
            if wrong:
                self._refuse_entry(name, wrong)
                return b""
            with open(handle, "rb", closefd=False) as file:
                return file.read()

    def _refuse_entry(self, name: str, why: str) -> None:
        if not self._entry_refused:
            self._entry_refused = True
            warnings.warn(
                f"compiled kernel {self.directory / name} {why}: it, and others like it, are "
                "compiled again",
                RuntimeWarning,
                stacklevel=3,
            )


@contextlib.contextmanager
def _opened(path: Path | str, flags: int, folder: int | None = None) -> Iterator[int]:
    """Open something to read; what is checked by its handle is what is read."""
    handle = os.open(path, os.O_RDONLY | flags, dir_fd=folder)
    try:
        yield handle
    finally:
        os.close(handle)


def _warn_of_folder(why: str) -> None:
    warnings.warn(
        f"compiled kernels {why}: every start will compile them again; "
        "ROCMFORGE_CACHE names another directory",
        RuntimeWarning,
        stacklevel=4,
    )


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
