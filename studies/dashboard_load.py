"""How long the dashboard's pages take to load in Chromium, and how much each loads.

Publishes made-up results of many series and commits, and opens each page several times. Prints the
median of the milliseconds from the start of the navigation until all is drawn, and the bytes of all
files that were loaded for it. Only these two are measured.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.server
import json
import math
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from made_up_results import make_commits, write_results

from rocmforge.bench import exits
from rocmforge.bench.dashboard.publish import publish
from rocmforge.bench.dashboard.render import PAGES

CHROMIUM = shutil.which("chromium")
REPO = Path(__file__).resolve().parent.parent
MOST_MS, MOST_BYTES, WAIT_MS = 1000.0, 5e6, 20_000
OURS = """(document.body.dataset.ready === 'yes'
  || !document.querySelector('script[src="NAME.js"]'))
  && document.readyState === 'complete'
  && [...document.querySelectorAll('.plot')].every(at => at.firstChild || !at.checkVisibility())"""
ASVS = {
    "asv's grid": ("asv.html#/", "document.querySelectorAll('.benchmark-container').length > 9"),
    "asv's list": (
        "asv.html#/summarylist",
        "document.querySelectorAll('#summarylist-body tbody tr').length > 9",
    ),
    "asv's regressions": (
        "asv.html#/regressions",
        "document.querySelector('#regressions-body table tbody')",
    ),
    "a graph": (
        "asv.html#attention.Decode.time_attention",
        "document.querySelector('#main-graph canvas')",
    ),
}
"""Name to address, and to what says that all is there."""
_BYTES = """() => [...performance.getEntriesByType('navigation'),
  ...performance.getEntriesByType('resource')].reduce((sum, one) => sum + one.decodedBodySize, 0)"""


@dataclass(frozen=True, slots=True)
class Load:
    """Of a page: milliseconds until all is drawn, bytes of what was loaded for it."""

    milliseconds: float
    size: float

    @property
    def over(self) -> str:
        """What exceeds its limit, in words; empty where nothing does."""
        said = {"slow": self.milliseconds >= MOST_MS, "large": self.size >= MOST_BYTES}
        return " and ".join(f"too {word}" for word, is_so in said.items() if is_so)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument("--series", type=int, default=10_000, help="(default: %(default)s)")
    parser.add_argument("--commits", type=int, default=500, help="(default: %(default)s)")
    parser.add_argument("--times", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--pages", type=Path, metavar="FOLDER", help="measure these, make none")
    args = parser.parse_args(argv)
    return exits.run(parser.prog, lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    if CHROMIUM is None:
        raise ValueError("chromium: got none on PATH, wanted one: apt-get install chromium")
    if args.pages:
        return _print_loads(args.pages, args.times)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        print(f"making {args.series} series of {args.commits} commits …", flush=True)
        pages = published(Path(folder), args.series, args.commits)
        print(f"published after {time.monotonic() - begin:.0f} s", flush=True)
        return _print_loads(pages, args.times)


def _print_loads(pages: Path, times: int) -> int:
    with serve(pages) as address, browser() as chromium:
        for name, load in loads(chromium, address, times):
            numbers = f"{load.milliseconds:6.0f} ms {load.size / 1e6:6.2f} MB"
            print(f"{name:18} {numbers}  {load.over}".rstrip(), flush=True)
    return 0


def published(folder: Path, series: int, commits: int) -> Path:
    """Make results in a repository below `folder` and publish them; return the pages' folder."""
    declared = json.loads((REPO / "results" / "benchmarks.json").read_text("utf-8"))
    write_results(folder / "results", declared, series, make_commits(folder, commits))
    settings = {"version": 1, "project": "made-up", "repo": ".", "branches": ["HEAD"]}
    config = folder / "asv.conf.json"
    config.write_text(json.dumps({**settings, "regressions_thresholds": {".*": 0.1}}))
    html = folder / "html"
    publish(config, folder / "results", html, folder / "none", folder / "log", print)
    return html


def loads(chromium: Any, address: str, times: int = 1) -> Iterator[tuple[str, Load]]:
    """Open each page anew, `times` times; yield its name and the median of its loads."""
    ours = {page.title: (f"{page.name}.html", OURS.replace("NAME", page.name)) for page in PAGES}
    for name, (page, condition) in {**ours, **ASVS}.items():
        seen = [_load(chromium, address + page, condition) for _ in range(times)]
        middle = statistics.median(one.milliseconds for one in seen)
        yield name, Load(middle, max(one.size for one in seen))


def _load(chromium: Any, page: str, condition: str) -> Load:
    from playwright.sync_api import TimeoutError as NeverDrawn

    with contextlib.closing(chromium.new_context()) as context:
        tab = context.new_page()
        tab.goto(page)
        try:
            tab.wait_for_function(f"() => {condition}", timeout=WAIT_MS)
            took = float(tab.evaluate("() => performance.now()"))
        except NeverDrawn:
            took = math.inf
        return Load(took, float(tab.evaluate(_BYTES)))


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


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a page that was closed early
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine only; yield its address."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with _Server(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


if __name__ == "__main__":
    sys.exit(main())
