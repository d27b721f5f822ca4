"""Compiled kernels kept on disk, so that a second start compiles nothing.

Many processes, and many commits of the benchmarks, share one directory: an entry's name is the
digest of everything that went into it, it is written under a temporary name and renamed, and it
carries the digest of its content, so that a damaged one counts as missing. This file knows no
compiler, no kernel and no device.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

_DIGEST_BYTES = hashlib.sha256().digest_size


def cache_key(parts: Mapping[str, object]) -> str:
    """Return the name of what is made of these parts (strings, lists and mappings of them)."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class CodeCache:
    """Bytes by name, in one directory. Where it cannot be written, it warns once and keeps nothing.

    Parameters
    ----------
    directory
        Made at the first `put`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._writable = True

    def get(self, name: str) -> bytes | None:
        """Return an entry's content; None where it is missing, truncated or damaged."""
        try:
            entry = (self.directory / name).read_bytes()
        except OSError:
            return None
        digest, content = entry[:_DIGEST_BYTES], entry[_DIGEST_BYTES:]
        return content if hashlib.sha256(content).digest() == digest else None

    def put(self, name: str, content: bytes) -> None:
        """Keep an entry in place of what stood there."""
        if not self._writable:
            return
        try:
            self._write(self.directory / name, hashlib.sha256(content).digest() + content)
        except OSError as error:
            self._writable = False
            warnings.warn(
                f"compiled kernels cannot be kept in {self.directory} ({error}): every start will "
                "compile them again; ROCMFORGE_CACHE names another directory",
                RuntimeWarning,
                stacklevel=2,
            )

    def _write(self, path: Path, entry: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(entry)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
