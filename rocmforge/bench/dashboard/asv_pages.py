"""Changes what asv 0.6.6 published: our page in front, directions shown, markup made harmless.

asv's single page moves from index.html to asv.html. Its routes are fragments and its data lies
beside it: all its links go on working.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocmforge.bench.asv_results import BenchmarkInfo
from rocmforge.bench.files import read_json, write_bytes
from rocmforge.bench.results import Direction
from rocmforge.errors import ResultFileError

ASV_PAGE = "asv.html"
COMMIT_URL = "commits.html#"
HIGHER = "higher is better"
SCRIPT = "directions.js"
_NAV = '<li id="nav-li-" class="active">'
_HEAD_END = "</head>"
_STYLE = (
    ".navbar-nav > li > a, #title { padding-left: 10px; padding-right: 10px }"
    "#title { font-size: 15px; white-space: nowrap; overflow: hidden; text-overflow: ellipsis;"
    " max-width: max(8em, calc(100vw - 830px)) }"
)
"""Makes room in asv's bar for one more link: where it breaks, it hides what is below."""


def showable(name: str, entry: Mapping[str, Any]) -> bool:
    """Whether asv's pages, which put names into HTML as they are, can show a benchmark safely."""
    told = {key: value for key, value in entry.items() if key not in ("code", "pretty_name")}
    return not re.search("[<>&\"']", name) and "<" not in json.dumps(told)


def adapt(pages: Path, benchmarks: Mapping[str, BenchmarkInfo]) -> None:
    """Rename asv's page, link back to ours, and say which way each metric is better.

    Parameters
    ----------
    pages
        What asv published; changed in place.
    benchmarks
        What is known of each.

    Raises
    ------
    ResultFileError
        asv's page has no place for the link or the script: another version of asv.
    """
    page = pages / "index.html"
    text = page.read_text(encoding="utf-8")
    for place, added in (
        (_NAV, '<li><a href="index.html">Summary</a></li>\n\t'),
        (_HEAD_END, f'<script src="{SCRIPT}"></script>\n    <style>{_STYLE}</style>\n  '),
    ):
        if text.count(place) != 1:
            raise ResultFileError(page, "asv's page", got=f"no {place}", wanted="that of asv 0.6.6")
        text = text.replace(place, added + place)
    (pages / ASV_PAGE).write_text(text, encoding="utf-8")
    page.unlink()
    feed = pages / "regressions.xml"
    links = feed.read_text(encoding="utf-8").replace("index.html#", f"{ASV_PAGE}#")
    feed.write_text(links, encoding="utf-8")
    _adapt_index(pages / "index.json", benchmarks)
    _fill_gaps(pages)


def _fill_gaps(pages: Path) -> None:
    """Say of what a machine never measured that there is no value: asv's page asks for all."""
    from asv.graph import Graph

    index = read_json(pages / "index.json")
    revision = max(map(int, index["revision_to_hash"]), default=0)
    for machine in index["graph_param_list"]:
        for name in index["benchmarks"]:
            path = pages / f"{Graph.get_file_path(machine, name)}.json"
            if not path.exists():
                path.write_text(json.dumps([[revision, None]]), encoding="utf-8")


def _adapt_index(path: Path, benchmarks: Mapping[str, BenchmarkInfo]) -> None:
    """Units say what is better higher; what asv shows as HTML is escaped.

    Names of parameters are also part of the graphs' addresses: one that holds markup gets no
    buttons, and its graphs stay.
    """
    index = read_json(path)
    for name, entry in index["benchmarks"].items():
        entry["code"] = html.escape(str(entry.get("code", "")))
        if entry.get("pretty_name"):
            entry["pretty_name"] = html.escape(str(entry["pretty_name"]))
        entry["direction"] = benchmarks[name].direction.value
        if benchmarks[name].direction is Direction.HIGHER:
            entry["unit"] = f"{entry['unit']}, {HIGHER}"
    for name, machine in index["machines"].items():
        index["machines"][name] = {
            html.escape(key): html.escape(str(value)) for key, value in machine.items()
        }
    index["params"] = {
        key: values for key, values in index["params"].items() if key == html.escape(key)
    }
    index["tags"] = {html.escape(tag): revision for tag, revision in index["tags"].items()}
    write_bytes(path, json.dumps(index).encode())
