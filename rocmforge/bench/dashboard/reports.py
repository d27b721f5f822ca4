"""Reads the reports that stand beside a baseline: commit and date checked, the rest as it is.

Those of tools/compare_llama_cpp.py, gpu_speed.py and compare_formats.py; knows no speed in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmforge.bench.files import kind_of, read_json, typed_field
from rocmforge.errors import ResultFileError


@dataclass(frozen=True, slots=True)
class Report:
    """A report: its file, its content, and the commit and the day that it was made at."""

    path: Path
    content: Mapping[str, Any]
    commit: str | None
    date: str


def read_report(path: Path) -> Report:
    """Read a report.

    Raises
    ------
    ResultFileError
        The file is broken, or does not say when and at which commit it was made.
    """
    content = read_json(path)
    commit = content.get("commit", 0)  # null: there was no git
    if commit is not None and not isinstance(commit, str):
        got = kind_of(content.get("commit"))
        raise ResultFileError(path, "commit", got=got, wanted="a hash, or null without git")
    return Report(path, content, commit, typed_field(path, content, "date", str, "ISO 8601"))
