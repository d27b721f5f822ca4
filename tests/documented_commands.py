"""Finds the commands that the documents show: in fenced blocks, and in code within a sentence.

A block shows commands if its first line begins with a program of `OURS` or `OTHERS`; then each of
its lines has to be one, but for those that begin with a space. All else is output. A pipe, a
redirection, `$(…)` and a comment are the shell's: each program between them is a command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OURS = ("rocmforge", "make", "tools/", "studies/")
OTHERS = (
    *("asv", "pytest", "pip", "git", "printf", "sudo", "apt-get", "python"),
    *("rocprofv3", "rocprofv3-avail", "rocprof-compute", "ray", "reframe"),
)
PAGES = (
    *("*.md", "docs/**/*.md", "kernels/*.md", "rocmforge/demo/*.md"),
    *("benchmarks/*.md", "baselines/*.md", "results/*.md", "studies/*.md"),
)
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```", re.M | re.S)
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")


@dataclass(frozen=True, slots=True)
class Command:
    """One program with its arguments, where it stands, and whether it is a line of a block."""

    words: tuple[str, ...]
    page: str
    whole: bool

    @property
    def text(self) -> str:
        """The command as the table of those that are not run names it."""
        return shlex.join(self.words)


def pages(repo: Path) -> list[Path]:
    """The Markdown pages, but for the changelog: it tells of commands that are no more."""
    found = {path for pattern in PAGES for path in repo.glob(pattern)}
    return sorted(found - {repo / "CHANGELOG.md"})


def commands(page: str, text: str) -> Iterator[Command]:
    """Yield the commands of a page, in the order of the text; a block's before its sentences'."""
    for fence in FENCE.finditer(text):
        language, block = fence[2].strip(), fence[3]
        lines = [line for line in block.splitlines() if line.strip() and not line.startswith(" ")]
        if language in ("", "sh") and lines and any(split(lines[0])):
            for line in lines:
                found = list(split(line))
                if not found:
                    raise ValueError(f"{page}: {line!r} is no command that this test knows")
                yield from (Command(words, page, whole=True) for words in found)
    for span in SPAN.finditer(FENCE.sub("", text)):
        for words in split(" ".join(span[1].split())):
            yield Command(words, page, whole=False)


def split(line: str) -> Iterator[tuple[str, ...]]:
    """Yield the commands of a line of shell; nothing where it begins with none that is known."""
    inner = re.findall(r"\$\(([^)]*)\)", line)
    outer = re.sub(r"\$\([^)]*\)", "VALUE", line)
    for part in [*inner, *re.split(r" (?:\||&&) ", outer)]:
        try:
            words = shlex.split(part, comments=True)
        except ValueError:  # a quotation mark alone: no shell
            return
        words = [word for word in words if not re.fullmatch(r"\w+=VALUE", word)]
        for index, word in enumerate(words):
            if word in (">", "<", "2>"):
                del words[index : index + 2]
        if not words:
            continue
        first = words[0].removeprefix(".venv/bin/")
        if first == "python" and len(words) > 1 and words[1].startswith(OURS):
            first, *words = words[1:]
            words = [first, *words]
        if not (first in OURS or first in OTHERS or first.startswith(("tools/", "studies/"))):
            return
        yield first, *words[1:]
