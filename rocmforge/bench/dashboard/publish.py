"""Publishes results as pages: asv's own, made to work without a network, behind our summary.

`asv publish` runs in a folder beside the target, which replaces the target at the end. A publish
that fails or is killed leaves the older pages as they were.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rocmforge.atomic import naming_full_disk, whole_folder
from rocmforge.bench.asv import command, read_config, refuse_no_expression, thresholds_of
from rocmforge.bench.asv_results import BenchmarkInfo, read_benchmarks
from rocmforge.bench.dashboard.asv_pages import COMMIT_URL, adapt
from rocmforge.bench.dashboard.machines import load_run, read_machines
from rocmforge.bench.dashboard.render import Site, write_pages
from rocmforge.bench.dashboard.staging import stage
from rocmforge.bench.dashboard.vendored import use_vendored
from rocmforge.bench.files import write_json
from rocmforge.bench.git import find_commit, known_commits
from rocmforge.bench.results import Direction
from rocmforge.errors import ResultFileError

FIRST_OF_ASV, LAST_OF_ASV = "asv.js", "info.json"  # files of every folder that asv published
TAGS_PLUGIN = ".rocmforge.bench.dashboard.asv_tags"


def publish(
    config: Path,
    results: Path,
    html: Path,
    baselines: Path,
    log: Path,
    say: Callable[[str], object],
) -> Path:
    """Publish a results directory, with the baselines beside it.

    Parameters
    ----------
    config
        asv's settings: the repository, the branches, thresholds.
    results
        asv's ``results_dir``, read only.
    html
        Gets the pages; an older dashboard there is replaced whole, or not at all.
    baselines
        A folder for each kind of machine.
    log
        Gets what asv prints, behind what is there.
    say
        Called with a line before each step that takes its time.

    Returns
    -------
    Path
        The first page.

    Raises
    ------
    ResultFileError
        A result, a baseline or the configuration is broken, or asv failed; the log says why.
    ValueError
        `html` holds something that is no dashboard.
    """
    if html.exists() and not (html / FIRST_OF_ASV).exists() and not _is_empty(html):
        raise ValueError(f"--html: got {html}, which has other files, wanted an older dashboard")
    settings = read_config(config)
    thresholds = thresholds_of(settings, config)
    repository = _repository(settings, config)
    benchmarks = read_benchmarks(results / "benchmarks.json")
    machines = read_machines(results, baselines, thresholds, benchmarks)
    runs = {m.tag: [load_run(run, benchmarks) for run in m.runs] for m in machines}
    with whole_folder(html) as work:
        count, left_out = stage(results, work / "results")
        if left_out:
            say(f"asv's pages go without {len(left_out)} names that hold markup: {left_out[0]}")
        _write_config(settings, config.parent, work, repository, benchmarks)
        say(f"asv publishes {count} result files of {len(benchmarks)} benchmarks …")
        begin = time.monotonic()
        _run_asv(work, log)
        pages = work / "new"
        adapt(pages, benchmarks)
        use_vendored(pages)
        say(f"done in {time.monotonic() - begin:.1f} s; our pages …")
        known = known_commits(repository)
        write_pages(pages, Site(machines, runs, known, baselines, thresholds))
    return html / "index.html"


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and next(folder.iterdir(), None) is None


def _repository(settings: Mapping[str, Any], config: Path) -> Path:
    """Return the repository of asv's settings, if it has the commits that they name.

    asv would say so at the end of its work, and in the log.

    Raises
    ------
    ResultFileError
        There is no such repository or commit, or no expression where one is wanted.
    """
    repo = str(settings.get("repo", "."))
    found = (config.parent / repo).resolve()
    if not any((found / name).exists() for name in (".git", "objects")):  # asv's own rule
        raise ResultFileError(config, "repo", got=repo, wanted="a folder that is a git repository")
    branches = settings.get("branches", [])
    if "branches" in settings and not branches:
        raise ResultFileError(config, "branches", got="none", wanted="at least one")
    firsts = settings.get("regressions_first_commits", {})
    for name in firsts:
        refuse_no_expression(config, f"regressions_first_commits of {name!r}", name)
    named = {f"regressions_first_commits of {name!r}": first for name, first in firsts.items()}
    for what, name in [*(("branches", branch) for branch in branches), *named.items()]:
        if name is not None and find_commit(found, str(name)) is None:
            raise ResultFileError(config, what, got=name, wanted=f"one that git knows in {found}")
    return found


def _write_config(
    settings: Mapping[str, Any],
    base: Path,
    work: Path,
    repository: Path,
    benchmarks: Mapping[str, BenchmarkInfo],
) -> None:
    """Write the settings with all that asv writes in `work`.

    No metric that is better higher takes part in its search for regressions: asv would take a rise
    for one. Where the project names no page for commits, ours is it.
    """
    higher = [name for name, info in benchmarks.items() if info.direction is Direction.HIGHER]
    first: dict[str, Any] = {rf"{re.escape(name)}(\(|@|$)": None for name in higher}
    own = settings.get("show_commit_url", "#")
    write_json(
        work / "asv.conf.json",
        {
            **settings,
            "version": 1,
            "dvcs": "git",
            "repo": str(repository),
            "plugins": [*settings.get("plugins", []), TAGS_PLUGIN],
            "benchmark_dir": str((base / settings.get("benchmark_dir", "benchmarks")).resolve()),
            "env_dir": "env",
            "results_dir": "results",
            "html_dir": "new",
            "show_commit_url": COMMIT_URL if own == "#" else own,
            "regressions_first_commits": {
                **first,
                **settings.get("regressions_first_commits", {}),
            },
        },
    )


def _run_asv(work: Path, log: Path) -> None:
    done = subprocess.run(
        command(work, "publish", "--no-pull"),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PYTHONUTF8": "1"},
        check=False,
    )
    said = done.stdout + done.stderr
    log.parent.mkdir(parents=True, exist_ok=True)
    with naming_full_disk(log), log.open("a", encoding="utf-8") as file:
        file.write(said)
    if done.returncode != 0 or not (work / "new" / LAST_OF_ASV).exists():
        last = (said.strip().splitlines() or ["nothing"])[-1]
        raise ResultFileError(
            log, "asv publish", got=f"exit {done.returncode}", wanted=f"0; it said last: {last}"
        )
