"""How long the dashboard's pages take to load in Chromium, with many benchmarks and commits.

Makes results of that size in a repository of its own, publishes them and prints, for each page,
the milliseconds from the start of the navigation until all is there. The numbers in the results
are made up; only the times of the pages are measured.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.server
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rocmforge.bench import exits
from rocmforge.bench.dashboard.publish import publish

CHROMIUM = shutil.which("chromium")
MACHINE = {
    "machine": "made-up",
    "os": "Linux 6.1.0",
    "arch": "x86_64",
    "cpu": "none",
    "num_cpu": "2",
}
COLUMNS = ("result", "params", "version", "started_at", "duration")
SAMPLES = 9
PAGES = {
    "summary": ("index.html", "document.querySelector('output')?.textContent.includes(' of ')"),
    "asv's grid": ("asv.html#/", "document.querySelectorAll('.benchmark-container').length == N"),
    "asv's list": (
        "asv.html#/summarylist",
        "document.querySelectorAll('#summarylist-body tbody tr').length == N",
    ),
    "asv's regressions": (
        "asv.html#/regressions",
        "document.querySelector('#regressions-body table tbody')",
    ),
    "a graph": ("asv.html#suite0.time_op0", "document.querySelector('#main-graph canvas')"),
}
"""Name to address, and to what says that all is there; N is the number of benchmarks."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument("--benchmarks", type=int, default=500, help="(default: %(default)s)")
    parser.add_argument("--commits", type=int, default=200, help="(default: %(default)s)")
    args = parser.parse_args(argv)
    return exits.run(parser.prog, lambda: _measure(args.benchmarks, args.commits))


def _measure(benchmarks: int, commits: int) -> int:
    if CHROMIUM is None:
        raise ValueError("chromium: got none on PATH, wanted one: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        print(f"making {benchmarks} benchmarks of {commits} commits …")
        pages = published(Path(folder), benchmarks, commits)
        print(f"published after {time.monotonic() - begin:.0f} s")
        with serve(pages) as address, browser() as chromium:
            for name, milliseconds in load_times(chromium, address, benchmarks).items():
                print(f"{name:18} {milliseconds:6.0f} ms")
    return 0


def published(folder: Path, benchmarks: int, commits: int) -> Path:
    """Make results in a repository below `folder` and publish them; return the pages' folder."""
    hashes = make_results(folder, benchmarks, commits)
    settings = {"version": 1, "project": "made-up", "repo": ".", "branches": ["HEAD"]}
    config = folder / "asv.conf.json"
    config.write_text(json.dumps({**settings, "regressions_thresholds": {".*": 0.1}}))
    html = folder / "html"
    publish(config, folder / "results", html, folder / "none", folder / "log", print)
    print(f"commits {hashes[0][:8]} to {hashes[-1][:8]}")
    return html


def make_results(folder: Path, benchmarks: int, commits: int) -> list[str]:
    """Write a repository of empty commits and asv's results for each; return the hashes.

    A tenth of the benchmarks are throughputs; every seventh gets 30 % worse in the middle, every
    eleventh better.
    """
    stream = "".join(
        f"commit refs/heads/main\ncommitter t <t@example.org> {1_700_000_000 + 3600 * at} +0000\n"
        f"data 9\ncommit {at % 10}\n\n"
        for at in range(commits)
    )
    _git(folder, "init", "-q", "-b", "main", ".")
    subprocess.run(["git", "fast-import", "--quiet"], cwd=folder, input=stream.encode(), check=True)
    hashes = _git(folder, "rev-list", "--reverse", "main").split()
    random.seed(0)
    names = {f"suite{at // 25}.time_op{at}": at for at in range(benchmarks)}
    units = {name: "tokens/s" if at % 10 == 9 else "seconds" for name, at in names.items()}
    results = folder / "results"
    machine = results / MACHINE["machine"]
    machine.mkdir(parents=True)
    (machine / "machine.json").write_text(json.dumps({**MACHINE, "version": 1}))
    declared = {
        name: {"code": "", "name": name, "param_names": [], "params": [], "type": "time"}
        | {"unit": units[name], "version": "1"}
        for name in names
    }
    (results / "benchmarks.json").write_text(json.dumps({**declared, "version": 2}))
    for number, commit in enumerate(hashes):
        rows = {}
        date = 1_700_000_000_000 + 3_600_000 * number
        for name, at in names.items():
            late = number >= commits // 2
            factor = 1.3 if late and at % 7 == 0 else 0.7 if late and at % 11 == 0 else 1.0
            samples = [0.01 * factor * random.uniform(0.98, 1.02) for _ in range(SAMPLES)]
            middle = sorted(samples)[SAMPLES // 2]
            rows[name] = [[middle], [], "1", date, 0.1, *[None] * 6, [samples]]
        content = {
            "commit_hash": commit,
            "env_name": "existing-py3.11",
            "date": date,
            "params": {**MACHINE, "python": "3.11"},
            "python": "3.11",
            "requirements": {},
            "env_vars": {},
            "durations": {},
            "version": 2,
            "results": rows,
            "result_columns": [
                *COLUMNS,
                *("stats_ci_99_a", "stats_ci_99_b", "stats_q_25", "stats_q_75"),
                *("stats_number", "stats_repeat", "samples"),
            ],
        }
        (machine / f"{commit[:8]}-existing-py3.11.json").write_text(json.dumps(content))
    return hashes


def load_times(chromium: Any, address: str, benchmarks: int) -> dict[str, float]:
    """Open each page anew; return milliseconds until all of it is there."""
    found = {}
    for name, (page, condition) in PAGES.items():
        with contextlib.closing(chromium.new_context()) as context:
            tab = context.new_page()
            tab.goto(address + page)
            tab.wait_for_function(f"() => {condition.replace('N', str(benchmarks))}")
            found[name] = float(tab.evaluate("() => performance.now()"))
    return found


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Start Debian's Chromium, without a window; it ends with the block."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine only; yield its address."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
