"""The checkout whose benchmarks are measured: its root, HEAD, benchmarks and asv's settings.

What the engine must know before its benchmarks run stands in benchmarks/prepare.py, which is
imported from the checkout.
"""

from __future__ import annotations

import importlib
import itertools
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rocmforge.bench import asv, git

NEEDED = ("asv.conf.json", "benchmarks")


def root() -> Path:
    """Return the root of the repository, which is the current folder.

    Raises
    ------
    ValueError
        It is another folder.
    """
    folder = Path.cwd()
    missing = [name for name in NEEDED if not (folder / name).exists()]
    if missing:
        raise ValueError(
            f"{folder}: got no {' and no '.join(missing)}, wanted the root of the repository: "
            "go there first"
        )
    return folder


def head(root: Path) -> tuple[str, bool]:
    """Return the hash of HEAD, and whether the tree differs from it.

    Raises
    ------
    ValueError
        git is missing, this is no repository, or it has no commit: asv records per commit.
    """
    if shutil.which("git") is None:
        raise ValueError("git is not installed: asv records its results per commit")
    commit, changed = git.head(root)
    if commit is None:
        raise ValueError(
            f"{root} is no git repository with a commit: asv records its results per commit; "
            "clone the repository, or run git init and git commit"
        )
    return commit, changed


def preparation(root: Path) -> Any:
    """Return benchmarks/prepare.py of the checkout: what knows the engine."""
    if str(root) not in sys.path:
        sys.path.append(str(root))  # at the end: the installed rocmforge keeps its precedence
    return importlib.import_module("benchmarks.prepare")


def labels(root: Path) -> dict[str, tuple[str, int | None]]:
    """Every benchmark with its parameters, as asv writes and `--bench` searches it.

    Returns
    -------
    Label to the name without parameters and the index of the parameters, None without any.
    """
    from asv_runner.discovery import disc_benchmarks

    found: dict[str, tuple[str, int | None]] = {}
    for benchmark in disc_benchmarks(str(root / "benchmarks")):
        if not benchmark.params:
            found[benchmark.name] = benchmark.name, None
            continue
        for index, params in enumerate(itertools.product(*benchmark.params)):
            found[f"{benchmark.name}({', '.join(params)})"] = benchmark.name, index
    return found


def naming(patterns: Iterable[str | re.Pattern[str]]) -> Callable[[str], bool]:
    """Return whether a label is chosen: any expression is found in it, or there is none at all."""
    expressions = [re.compile(pattern) for pattern in patterns]
    return lambda label: not expressions or any(one.search(label) for one in expressions)


def choose(
    root: Path, bench: Sequence[re.Pattern[str]], profile: str
) -> tuple[list[str], dict[str, tuple[str, int | None]]]:
    """Return the expressions of --bench or else of a profile, and the benchmarks that they name.

    Raises
    ------
    ValueError
        They name none.
    """
    selection = preparation(root).select([one.pattern for one in bench], profile)
    named = naming(selection)
    chosen = {label: benchmark for label, benchmark in labels(root).items() if named(label)}
    if not chosen:
        raise ValueError(
            f"--bench: got {', '.join(selection)}, found in no name of a benchmark with its "
            "parameters, as matmul.Quantized.time_matmul('Q4_K', 1, 'cpu')"
        )
    return selection, chosen


def by_suite(selection: Sequence[str], selected: Iterable[str]) -> list[list[str]]:
    """Split a selection into one for each suite: asv writes what it measured when it ends."""
    suites = dict.fromkeys(label.partition(".")[0] for label in selected)
    return [[rf"^(?={suite}\.).*?(?:{line})" for line in selection] for suite in suites]


def options(selection: Iterable[str]) -> list[str]:
    """Spell a selection for `asv run`."""
    return [word for pattern in selection for word in ("--bench", pattern)]


def write_config(root: Path, work: Path) -> None:
    """Write asv's configuration with everything below `work`, and copy the committed results in."""
    asv.write_config(root, work)
    for name in git.committed_files(root, "results/*/*.json*"):  # .jsonl: the reports
        source, target = root / name, work / name
        if source.exists() and not target.exists():
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(source, target)
