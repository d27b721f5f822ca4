"""Stages results for `asv publish`: a graph has a line for a machine, and none for its provenance.

asv 0.6.6 makes an axis of every field of the machine, of the interpreter and of what is installed:
a new kernel or a checkout elsewhere would begin a new line. The stored files stay as they are.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rocmforge import env
from rocmforge.bench.asv_results import BENCHMARKS_VERSION, RESULT_VERSION
from rocmforge.bench.dashboard.asv_pages import showable
from rocmforge.bench.files import read_versioned_json, typed_field, write_json
from rocmforge.bench.reports import read_reports, reports_path

ENVIRONMENT = "environment"
_MACHINE_FILE = "machine.json"


@dataclass(frozen=True, slots=True)
class Staged:
    """What is known of a result file: commit, environment, override of the architecture."""

    commit: str
    environment: str
    override: object
    benchmarks: frozenset[str]


def stage(results: Path, target: Path) -> tuple[int, list[str]]:
    """Write the results into a folder of their own, with the benchmarks that asv can show.

    It cannot show those that nothing has measured, for which it would look in vain, nor those
    whose names hold markup.

    Returns
    -------
    tuple
        The number of result files, and the names left out for their markup.

    Raises
    ------
    ResultFileError
        A file is broken.
    """
    path = results / "benchmarks.json"
    entries = read_versioned_json(path, BENCHMARKS_VERSION)
    measured: set[str] = set()
    count = 0
    for machine in sorted(results.glob(f"*/{_MACHINE_FILE}")):
        folder = target / machine.parent.name
        folder.mkdir(parents=True)
        (folder / _MACHINE_FILE).symlink_to(machine.resolve())
        sources = [file for file in sorted(machine.parent.glob("*.json")) if file != machine]
        runs = [_write(source, folder) for source in sources]
        if has_environments(runs):
            for source, run in zip(sources, runs, strict=True):
                _write(source, folder, run.environment)
        measured = measured.union(*(run.benchmarks for run in runs))
        count += len(runs)
    known = {key: entry for key, entry in entries.items() if key in measured}
    kept = {key: entry for key, entry in known.items() if showable(key, entry)}
    write_json(target / path.name, {**kept, "version": BENCHMARKS_VERSION})
    return count, [key for key in known if key not in kept]


def _write(source: Path, folder: Path, environment: str | None = None) -> Staged:
    """Write a result file whose only axes are its machine and, where it is given, environment."""
    run = read_versioned_json(source, RESULT_VERSION)
    params = typed_field(source, run, "params", dict, "an object")
    axes = {"machine": params.get("machine"), ENVIRONMENT: environment}
    known = {key: value for key, value in axes.items() if value is not None}
    staged = {**run, "params": known, "requirements": {}, "env_vars": {}}
    (folder / source.name).write_text(json.dumps(staged), encoding="utf-8")
    override = params.get("gfx_override")
    name = _name(source, str(run.get("env_name")), str(run.get("python")))
    return Staged(
        commit=typed_field(source, run, "commit_hash", str, "a string"),
        environment=f"{name}, {env.GFX_OVERRIDE}={override}" if override else name,
        override=override,
        benchmarks=frozenset(typed_field(source, run, "results", dict, "an object")),
    )


def has_environments(runs: Iterable[Staged]) -> bool:
    """Whether a machine's lines are drawn apart by environment.

    They are where a commit was measured in two of them, of which asv would draw the mean, and where
    some were measured under an override of the GPU's architecture. An environment that follows
    another goes on with its line.
    """
    names: dict[str, set[str]] = defaultdict(set)
    overrides = set()
    for run in runs:
        names[run.commit].add(run.environment)
        overrides.add(run.override)
    return len(overrides) > 1 or any(len(one) > 1 for one in names.values())


def _name(source: Path, name: str, python: str) -> str:
    """Name an environment; where asv named it by the interpreter's path, by what Python that was.

    The processes report their Python, whose first two numbers count: ``existing-py3.11``.
    """
    if "/" not in python and "\\" not in python:
        return name
    tool = name.partition("-")[0]
    for reports in read_reports(reports_path(source)).values():
        for report in reports:
            versions = report.environment.get("versions")
            said = versions.get("python") if isinstance(versions, dict) else None
            known = re.match(r"\d+\.\d+", str(said))
            if known:
                return f"{tool}-py{known[0]}"
    return tool
