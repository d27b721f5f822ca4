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
from rocmforge.bench.dashboard.first_selections import write_selections
from rocmforge.bench.files import read_json, write_bytes
from rocmforge.bench.results import Direction
from rocmforge.errors import ResultFileError

ASV_PAGE = "asv.html"
COMMIT_URL = "commits.html#"
HIGHER = "higher is better"
SCRIPT, STYLE, SELECTIONS = "graphs.js", "graphs.css", "first_selections.js"
_NAV = '<li id="nav-li-" class="active">'
_HEAD_END = "</head>"
_GRAPH = '<div id="graph">'
_ADDED_TO_HEAD = f"""<meta name="viewport" content="width=device-width, initial-scale=1">
    <link href="{STYLE}" rel="stylesheet">
    <script src="{SELECTIONS}"></script>
    <script src="{SCRIPT}"></script>
  """


def showable(name: str, entry: Mapping[str, Any]) -> bool:
    """Whether asv's pages, which put names into HTML as they are, can show a benchmark safely."""
    told = {key: value for key, value in entry.items() if key not in ("code", "pretty_name")}
    return not re.search("[<>&\"']", name) and "<" not in json.dumps(told)


def adapt(pages: Path, benchmarks: Mapping[str, BenchmarkInfo]) -> None:
    """Rename asv's page, link back to ours, make room for its legend, say what is better higher.

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
        (_NAV, '<li><a href="index.html">Overview</a></li>\n\t'),
        (_HEAD_END, _ADDED_TO_HEAD),
        (_GRAPH, '<div id="legend"></div>\n        '),
    ):
        if text.count(place) != 1:
            raise ResultFileError(page, "asv's page", got=f"no {place}", wanted="that of asv 0.6.6")
        text = text.replace(place, added + place)
    (pages / ASV_PAGE).write_text(text, encoding="utf-8")
    page.unlink()
    feed = pages / "regressions.xml"
    links = feed.read_text(encoding="utf-8").replace("index.html#", f"{ASV_PAGE}#")
    feed.write_text(links, encoding="utf-8")
    write_selections(pages, pages / SELECTIONS)
    _adapt_index(pages / "index.json", benchmarks)
    _fill_gaps(pages)


def _fill_gaps(pages: Path) -> None:
    """Say that there is no value where a machine, or every commit of a branch, has none.

    asv's page asks for all of them.
    """
    from asv.graph import Graph

    index = read_json(pages / "index.json")
    revision = max(map(int, index["revision_to_hash"]), default=0)
    for machine in [*index["graph_param_list"], {"summary": ""}]:
        for name in index["benchmarks"]:
            path = pages / f"{Graph.get_file_path(machine, name)}.json"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps([[revision, None]]), encoding="utf-8")


def _adapt_index(path: Path, benchmarks: Mapping[str, BenchmarkInfo]) -> None:
    """Units say what is better higher; what asv shows as HTML is escaped."""
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
    index["tags"] = {html.escape(tag): revision for tag, revision in index["tags"].items()}
    write_bytes(path, json.dumps(index).encode())
