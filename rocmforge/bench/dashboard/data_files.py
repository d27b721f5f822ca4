"""Writes what the pages draw, as scripts: a page that is opened as a file can read nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = "data"


def write_data(pages: Path, name: str, content: Any) -> None:
    """Write a data file.

    Parameters
    ----------
    pages
        Folder of the pages.
    name
        What the pages load it by, as "history/12".
    content
        JSON-ready, without NaN and infinities.
    """
    path = pages / FOLDER / f"{name}.js"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    harmless = text.replace("<", "\\u003c")
    path.write_text(f'rocmforge.data("{name}",{harmless});\n', encoding="utf-8")
