"""Interpreters of made-up builds: scripts that run this Python under another name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

RUN = (
    "import runpy, sys; sys.executable = sys.argv[1]; "
    'sys.argv[:] = sys.argv[3:]; runpy.run_path(sys.argv[0], run_name="__main__")'
)


def write_interpreter(program: Path, variables: Mapping[str, object] | None = None) -> None:
    """Write a script that runs this Python as `program`, with some environment variables."""
    exports = "".join(f"export {name}={value}\n" for name, value in (variables or {}).items())
    program.write_text(f"#!/bin/sh\n{exports}exec {sys.executable} -c '{RUN}' {program} \"$@\"\n")
    program.chmod(0o755)
