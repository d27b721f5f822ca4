"""The kernel sources inside the installed package."""

from __future__ import annotations

import hashlib
import importlib.resources
import re
from typing import TYPE_CHECKING

from rocmforge.errors import DeviceError

if TYPE_CHECKING:
    from importlib.abc import Traversable

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


CHOOSERS = ("gemv_constants.py", "dot_rows.py", "expert_constants.py", "matmul_batch.py")
"""Files in ops/ that have constants."""


def kernels_folder() -> Traversable:
    """Return the folder of the kernel sources inside the installed package."""
    return importlib.resources.files("rocmforge") / "kernels"


def read_kernel(folder: Traversable, file: str) -> tuple[str, dict[str, str]]:
    """Return a kernel file's text and the headers that it includes, directly or not, by name.

    Raises
    ------
    DeviceError
        The file or a header is not in the folder.
    """
    source = _read(folder, file, "rocmforge")
    headers: dict[str, str] = {}
    waiting = [(name, file) for name in _INCLUDE.findall(source)]
    while waiting:
        name, by = waiting.pop()
        if name not in headers:
            headers[name] = _read(folder, name, by)
            waiting += [(inner, name) for inner in _INCLUDE.findall(headers[name])]
    return source, headers


def kernels_digest() -> str:
    """Return a digest of all kernel sources, and of what chooses constants for them.

    What was measured of them holds for them alone.
    """
    digest = hashlib.sha256()
    sources = [one for one in kernels_folder().iterdir() if one.name.endswith((".hip", ".h"))]
    ops = importlib.resources.files("rocmforge") / "gpu" / "ops"
    for file in (*sorted(sources, key=lambda one: one.name), *(ops / name for name in CHOOSERS)):
        digest.update(f"{file.name}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _read(folder: Traversable, name: str, by: str) -> str:
    try:
        return (folder / name).read_text("utf-8")
    except OSError as error:
        raise DeviceError(
            f"kernel file {name}, which {by} needs, is not in {folder}: the installation is "
            "incomplete; install rocmforge again"
        ) from error
