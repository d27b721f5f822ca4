"""The lists of CONTRIBUTING.md name files that exist, and every file that names an example in code.

A list is complete if all code that names a format (or an architecture) that we have stands in one
of its files: then nothing else has to be touched for the next one. Comments and docstrings do not
count, and tests may name any format as an example.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import io
import re
import subprocess
import tokenize
from pathlib import Path

import pytest

from rocmforge.gguf.formats import FORMATS
from rocmforge.model.architectures import ARCHITECTURES, Architecture

PATH = re.compile(r"`((?:\w+/)*[\w.]+\.(?:py|h|cpp|hip|md))`")
EXAMPLES = {
    "Adding a format": ("IQ4_NL",),
    "Adding an architecture": (
        *sorted(ARCHITECTURES.keys() - {"llama"}),  # which is also the name of a tokenizer
        *(field.name for field in dataclasses.fields(Architecture) if field.name != "name"),
    ),
}
"""Of each list, what the code that it must name is searched for."""


def section(text: str, title: str) -> str:
    """The lines below a heading, up to the next one."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert found, title
    return found[1]


def listed(text: str) -> list[str]:
    """The files that the numbered steps of a section name, in their order."""
    steps = re.findall(r"^\d+\. (.*(?:\n   .*)*)", text, re.M)
    return [path for step in steps for path in PATH.findall(step)]


@functools.cache
def code_of(path: Path) -> str:
    """A file's text without comments and docstrings."""
    text = path.read_text("utf-8")
    if path.suffix not in (".py", ".pyi"):
        return re.sub(r"//.*|/\*.*?\*/", "", text)
    docs = {
        (node.lineno, node.col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return "\n".join(
        token.string
        for token in tokens
        if token.type != tokenize.COMMENT and token.start not in docs
    )


def naming(repo: Path, word: str) -> list[str]:
    """The code files, other than tests, that name a word in any case."""
    tracked = subprocess.run(
        [
            "git",
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "*.py",
            "*.pyi",
            "*.h",
            "*.cpp",
            "*.hip",
        ],
        cwd=repo,
        capture_output=True,
        text=True,
        check=False,
    )
    if tracked.returncode:
        pytest.skip(f"not a git repository: {tracked.stderr.strip()}")
    exact = re.compile(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", re.I)
    return [
        name
        for name in tracked.stdout.splitlines()
        if not name.startswith("tests/") and (repo / name).exists()
        if exact.search(code_of(repo / name))
    ]


@pytest.mark.parametrize("title", EXAMPLES)
def test_files_of_the_list_exist(title: str, repo: Path) -> None:
    files = listed(section((repo / "CONTRIBUTING.md").read_text("utf-8"), title))
    assert len(files) > 5
    assert [name for name in files if not (repo / name).is_file()] == []
    assert len(files) == len(set(files))


@pytest.mark.parametrize(
    ("title", "word"), [(title, word) for title, words in EXAMPLES.items() for word in words]
)
def test_the_list_names_every_file_that_names_an_example(title: str, word: str, repo: Path) -> None:
    files = listed(section((repo / "CONTRIBUTING.md").read_text("utf-8"), title))
    found = naming(repo, word)
    assert found, f"nothing names {word}"
    assert sorted(set(found) - set(files)) == []


def test_readme_names_every_format_and_architecture(repo: Path) -> None:
    readme = (repo / "README.md").read_text("utf-8")
    names = [name for name, fmt in FORMATS.items() if fmt.ggml_type is not None]
    for first, last in re.findall(r"(\w+) to (\w+)", readme):
        if first in names and last in names:
            readme += " ".join(names[names.index(first) : names.index(last) + 1])
    words = set(re.findall(r"[\w-]+", readme))
    assert [name for name in (*names, *ARCHITECTURES) if name not in words] == []


def test_counts_of_formats_in_texts_are_the_tables(repo: Path) -> None:
    texts = [*repo.glob("*.md"), *repo.glob("docs/*.md"), repo / "benchmarks/README.md"]
    found = [
        (path.name, int(count))
        for path in texts
        for count in re.findall(r"(\d+) (?:weight |tensor )?formats\b", path.read_text("utf-8"))
    ]
    assert [(name, count) for name, count in found if count != len(FORMATS)] == []


def test_comments_and_docstrings_are_not_code(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text('"""Of X1."""\n\n\ndef f():\n    """X2"""\n    return "X3"  # X4\n')
    assert "X3" in code_of(path)
    assert not re.search("X[124]", code_of(path))
    path = tmp_path / "a.h"
    path.write_text("// X1\nint x = X2;  // X3\n")
    assert "X2" in code_of(path)
    assert not re.search("X[13]", code_of(path))
