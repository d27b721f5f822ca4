"""The hops that docs/ARCHITECTURE.md shows are in the code: each file has the names beside it."""

from __future__ import annotations

import re
from pathlib import Path

FILE = re.compile(r"[\w./]+\.(?:py|cpp|h|hip)")


def hops(page: str) -> list[tuple[str, list[str]]]:
    """Files in the tables in front of the tree, and the names in code marks that follow each."""
    found: list[tuple[str, list[str]]] = []
    rows = [line for line in page.partition("## The tree")[0].splitlines() if line[:1] == "|"]
    for row in rows:
        names: list[str] | None = None
        for quoted in re.findall(r"`([^`]+)`", row):
            if FILE.fullmatch(quoted):
                names = []
                found.append((quoted, names))
            elif names is not None:
                names.append(quoted)
    return found


def test_each_hop_is_in_its_file(repo: Path) -> None:
    shown = hops((repo / "docs" / "ARCHITECTURE.md").read_text("utf-8"))
    assert len(shown) > 20
    wrong = []
    for file, names in shown:
        path = repo / file
        if not path.is_file():
            wrong.append(f"{file}: does not exist")
            continue
        text = path.read_text("utf-8")
        found = (name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text))
        wrong += [f"{file}: has no {name}" for name in {*names} - {*found}]
    assert wrong == []


def test_names_belong_to_the_file_before_them() -> None:
    page = "`no.py`\n| x | `a` in `b/c.py` `D`, `e`, `f.hip` | `g` |\n## The tree\n| `h.py` |\n"
    assert hops(page) == [("b/c.py", ["D", "e"]), ("f.hip", ["g"])]
