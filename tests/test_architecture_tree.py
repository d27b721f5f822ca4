"""The tree of docs/ARCHITECTURE.md is the repository, and the kernels' tables are their folder:
every line exists, and nothing is missing.

The tree is the fenced block that has a line `rocmforge/`: a name first on each line, directories
with a slash, two spaces of indentation for each level. A directory that shows entries shows all.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import pytest

INDENT = 2
UNSAID = ("__init__.py",)
"""Names that need no line; nor do links, or files of the top level that begin with a dot."""


def tree_of(readme: str) -> list[str]:
    """Return the paths of the tree, directories with a slash at the end."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", readme, re.S | re.M)
    trees = [block for block in blocks if re.search(r"^ *rocmforge/", block, re.M)]
    if len(trees) != 1:
        raise ValueError(f"docs/ARCHITECTURE.md: got {len(trees)} trees, wanted one")
    paths: list[str] = []
    parents: list[str] = []
    for line in filter(str.strip, trees[0].splitlines()):
        depth, odd = divmod(len(line) - len(line.lstrip(" ")), INDENT)
        name = line.split()[0]
        if odd or depth > len(parents):
            raise ValueError(
                f"docs/ARCHITECTURE.md: {line!r} is not indented by {INDENT} under a directory"
            )
        del parents[depth:]
        paths.append("".join(parents) + name)
        if name.endswith("/"):
            parents.append(name)
    return paths


def differences(tree: Iterable[str], files: Iterable[str]) -> list[str]:
    """Return what is wrong with a tree of the repository that has these files."""
    shown = list(tree)
    entries: set[str] = set()
    for file in files:
        path = PurePosixPath(file)
        entries.add(file)
        entries.update(f"{parent}/" for parent in path.parents if parent.name)
    found = [f"{path}: is twice in the tree" for path in set(shown) if shown.count(path) > 1]
    found += [f"{path}: does not exist" for path in shown if path not in entries]
    opened = {parent_of(path) for path in shown}
    for entry in entries - set(shown):
        name = PurePosixPath(entry).name
        hidden = parent_of(entry) == "" and name.startswith(".") and not entry.endswith("/")
        if parent_of(entry) in opened and name not in UNSAID and not hidden:
            found.append(f"{entry}: is not in the tree")
    return sorted(found)


def parent_of(path: str) -> str:
    head, _, _ = path.rstrip("/").rpartition("/")
    return f"{head}/" if head else ""


def rows_of(readme: str) -> list[str]:
    """Return the files that the tables name: in code marks, in the first cell of a row."""
    cells = re.findall(r"^\| *(`[^|]*) *\|", readme, re.M)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_the_tables_of_the_kernels_are_their_folder(repo: Path) -> None:
    files = [path.name for path in (repo / "kernels").iterdir() if path.suffix in (".hip", ".h")]
    assert sorted(rows_of((repo / "kernels/README.md").read_text("utf-8"))) == sorted(files)


def test_rows_are_the_first_cells_of_tables() -> None:
    readme = "Of `x.h`:\n| file | op |\n|---|---|\n| `a.hip`, `b.hip` | see `a.h` |\n| `a.h` | |\n"
    assert rows_of(readme) == ["a.hip", "b.hip", "a.h"]


def test_the_tree_is_the_repository(repo: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=repo,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip(f"not a git repository: {listed.stderr.strip()}")
    paths = {file: repo / file for file in listed.stdout.splitlines()}
    files = [file for file, path in paths.items() if path.exists() and not path.is_symlink()]
    assert differences(tree_of((repo / "docs" / "ARCHITECTURE.md").read_text("utf-8")), files) == []


README = """# Name
```
make test   # rocmforge/ is not the tree
```
```text
Makefile          # what make does
.ci/              # for machines
rocmforge/        # the package
  errors.py       # the tree of errors
  kv/             # pages
    cache.py
  ops/            # not opened
tests/
```
"""
FILES = [
    *("Makefile", ".gitignore", ".ci/run", "rocmforge/__init__.py", "rocmforge/errors.py"),
    *(
        "rocmforge/kv/cache.py",
        "rocmforge/ops/api.py",
        "rocmforge/ops/x/y.py",
        "tests/a/test_b.py",
    ),
]


def test_a_right_tree_passes() -> None:
    assert differences(tree_of(README), FILES) == []


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ("rocmforge/env.py", "rocmforge/env.py: is not in the tree"),
        ("rocmforge/kv/table.py", "rocmforge/kv/table.py: is not in the tree"),
        ("rocmforge/new/a.py", "rocmforge/new/: is not in the tree"),
        ("setup.py", "setup.py: is not in the tree"),
        (".github/x.yml", ".github/: is not in the tree"),
    ],
)
def test_a_file_without_a_line_is_found(added: str, message: str) -> None:
    assert differences(tree_of(README), [*FILES, added]) == [message]


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("rocmforge/errors.py", "rocmforge/errors.py: does not exist"),
        ("tests/a/test_b.py", "tests/: does not exist"),
        ("Makefile", "Makefile: does not exist"),
    ],
)
def test_a_line_without_a_file_is_found(gone: str, message: str) -> None:
    assert differences(tree_of(README), [f for f in FILES if f != gone]) == [message]


def test_a_directory_must_end_with_a_slash_and_a_file_must_not() -> None:
    wrong = README.replace("  ops/ ", "  ops ").replace("errors.py ", "errors.py/ ")
    assert differences(tree_of(wrong), FILES) == [
        "rocmforge/errors.py/: does not exist",
        "rocmforge/errors.py: is not in the tree",
        "rocmforge/ops/: is not in the tree",
        "rocmforge/ops: does not exist",
    ]


@pytest.mark.parametrize(
    ("readme", "message"),
    [
        ("no tree", "got 0 trees, wanted one"),
        (README + "```\nrocmforge/\n```\n", "got 2 trees"),
        ("```\nrocmforge/\n   a.py\n```", "'   a.py' is not indented by 2"),
        ("```\nrocmforge/\nMakefile\n    a.py\n```", "'    a.py' is not indented"),
    ],
)
def test_a_tree_that_cannot_be_read_is_named(readme: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tree_of(readme)
