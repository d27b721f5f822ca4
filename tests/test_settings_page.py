"""docs/SETTINGS.md has one row for each variable that rocmforge/env.py reads, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from rocmforge.env import READERS


def test_every_variable_of_ours_has_one_row(repo: Path) -> None:
    page = (repo / "docs" / "SETTINGS.md").read_text("utf-8")
    cells = re.findall(r"^\| *([^|]*) *\|", page, re.M)
    shown = re.findall(r"`((?:ROCMFORGE|ROCFORGE)_\w+)`", "\n".join(cells))
    assert sorted(shown) == sorted(READERS)
