"""Publishes results as pages: asv's own, made to work offline, and ours in front of them.

Runs `asv publish` in a folder of its own beside the target and renames the whole at the end: a
publish that fails leaves the older pages as they were. Knows no page's content.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rocmforge.errors import ResultFileError
from rocmforge.regress.asv import command, read_config, read_thresholds
from rocmforge.regress.dashboard.asv_pages import COMMIT_URL, adapt, showable
from rocmforge.regress.dashboard.machines import read_machines, read_runs
from rocmforge.regress.dashboard.offline import make_offline
from rocmforge.regress.dashboard.render import write_pages
from rocmforge.regress.files import read_versioned_json, write_json
from rocmforge.regress.records import Direction
from rocmforge.regress.results import BENCHMARKS_VERSION, BenchmarkInfo, read_benchmarks

FIRST_OF_ASV, LAST_OF_ASV = "asv.js", "info.json"  # files of every folder that asv published


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
    benchmarks = read_benchmarks(results / "benchmarks.json")
    html.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=html.parent, prefix=f".{html.name}."))
    try:
        count, left_out = _stage(results, work / "results")
        if left_out:
            say(f"asv's pages go without {len(left_out)} names that hold markup: {left_out[0]}")
        _write_config(settings, config.parent, work, benchmarks)
        say(f"asv publishes {count} result files of {len(benchmarks)} benchmarks …")
        begin = time.monotonic()
        _run_asv(work, log)
        pages = work / "html"
        adapt(pages, benchmarks)
        make_offline(pages)
        say(f"done in {time.monotonic() - begin:.1f} s; the summary of all machines …")
        machines = read_machines(results, baselines, read_thresholds(config), benchmarks)
        write_pages(pages, machines, _repository(settings, config.parent))
        _replace(pages, html, work / "old")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return html / "index.html"


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and next(folder.iterdir(), None) is None


def _stage(results: Path, target: Path) -> tuple[int, list[str]]:
    """Link the results into a folder of their own, with the benchmarks that asv can show.

    It cannot show those that nothing has measured, for which it would look in vain, nor those
    whose names hold markup.

    Returns
    -------
    tuple
        The number of result files, and the names left out for their markup.
    """
    path = results / "benchmarks.json"
    entries = read_versioned_json(path, BENCHMARKS_VERSION)
    measured: set[str] = set()
    count = 0
    for machine in sorted(results.glob("*/machine.json")):
        folder = target / machine.parent.name
        folder.mkdir(parents=True)
        for file in machine.parent.glob("*.json"):
            (folder / file.name).symlink_to(file.resolve())
        for run in read_runs(machine.parent):
            measured |= run.benchmarks
            count += 1
    known = {key: entry for key, entry in entries.items() if key in measured}
    kept = {key: entry for key, entry in known.items() if showable(key, entry)}
    write_json(target / path.name, {**kept, "version": BENCHMARKS_VERSION})
    return count, [key for key in known if key not in kept]


def _repository(settings: Mapping[str, Any], base: Path) -> Path:
    return (base / str(settings.get("repo", "."))).resolve()


def _write_config(
    settings: Mapping[str, Any], base: Path, work: Path, benchmarks: Mapping[str, BenchmarkInfo]
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
            "repo": str(_repository(settings, base)),
            "benchmark_dir": str((base / settings.get("benchmark_dir", "benchmarks")).resolve()),
            "env_dir": "env",
            "results_dir": "results",
            "html_dir": "html",
            "show_commit_url": COMMIT_URL if own == "#" else own,
            "regressions_first_commits": {
                **first,
                **settings.get("regressions_first_commits", {}),
            },
        },
    )


def _run_asv(work: Path, log: Path) -> None:
    words = command(work, "publish", "--no-pull")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(done.stdout + done.stderr)
    if done.returncode != 0 or not (work / "html" / LAST_OF_ASV).exists():
        raise ResultFileError(
            log, "asv publish", got=f"exit {done.returncode}", wanted="0; the log says why"
        )


def _replace(pages: Path, html: Path, old: Path) -> None:
    """Put new pages in the place of the old ones; these come back where that fails."""
    try:
        if html.exists():
            os.rename(html, old)
        os.rename(pages, html)
    except BaseException:  # the end of a CI job comes as KeyboardInterrupt
        if old.exists() and not html.exists():
            os.rename(old, html)
        raise
