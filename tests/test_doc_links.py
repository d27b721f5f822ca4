"""Links in the Markdown pages lead to a file that exists, and to a heading of it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+)$", re.sub(r"^```.*?^```", "", page, flags=re.S | re.M), re.M)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in kept}


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere; those to other sites are not followed."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if re.match(r"\w+://", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists():
            found.append(f"{link}: no such file")
        elif anchor and anchor not in anchors(target.read_text("utf-8")):
            found.append(f"{link}: no such heading")
    return found


def test_every_link_leads_somewhere(repo: Path) -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=repo, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip(f"not a git repository: {listed.stderr.strip()}")
    pages = [repo / name for name in listed.stdout.splitlines() if (repo / name).exists()]
    assert len(pages) > 5
    assert {str(page.relative_to(repo)): broken(page) for page in pages if broken(page)} == {}


def test_a_link_to_nothing_is_found(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("# Of A: 1.5\n[x](b.md) [y](#of-a-15) [z](a.md#of-a-1) [u](https://x.org/a)\n")
    assert broken(page) == ["b.md: no such file", "a.md#of-a-1: no such heading"]
