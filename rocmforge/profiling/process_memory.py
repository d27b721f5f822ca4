"""The memory of this process, as Linux counts it."""

from __future__ import annotations

import re
import resource
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/")


def peak_memory_bytes(root: Path = _ROOT) -> int:
    """Return the most bytes of memory that this process has held at once.

    From Linux's VmHWM: getrusage's ru_maxrss, used where /proc lacks it, also counts what the
    process that started this one held.

    Parameters
    ----------
    root
        Directory under which ``proc`` is looked up.
    """
    found = _status(root, "VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 if found is None else found


def resident_bytes(root: Path = _ROOT) -> int | None:
    """Return the bytes of memory that this process holds now; None where /proc does not say.

    Parameters
    ----------
    root
        Directory under which ``proc`` is looked up.
    """
    return _status(root, "VmRSS")


def _status(root: Path, field: str) -> int | None:
    with suppress(OSError):
        text = (root / "proc/self/status").read_text(encoding="utf-8", errors="replace")
        if found := re.search(rf"^{field}:\s*(\d+) kB", text, re.M):
            return int(found[1]) * 1024
    return None
