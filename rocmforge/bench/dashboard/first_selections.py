"""Chooses which lines asv's page shows of a benchmark at first: a few that have values.

asv 0.6.6 itself draws the first eight combinations of the parameters for every machine, whether
they were measured or not.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rocmforge.bench.files import read_json, write_bytes

LINES = 6
"""A legend of so many is read at a glance."""

Places = tuple[int, ...]


def write_selections(pages: Path, target: Path) -> None:
    """Write a script with the first selection of each benchmark, as asv's addresses have it.

    Parameters
    ----------
    pages
        What asv published, before `index.json` is changed.
    target
        Gets ``const firstSelections``: name to query.
    """
    index = read_json(pages / "index.json")
    found = {}
    for name, benchmark in index["benchmarks"].items():
        machine, measured = _newest(pages, name, index["graph_param_list"])
        if measured:
            query = [("machine", machine), *_parameters(benchmark, measured)]
            found[name] = "&".join(f"{quote(key, '')}={quote(value, '')}" for key, value in query)
    text = json.dumps(found).replace("<", "\\u003c")
    write_bytes(target, f'"use strict";\nconst firstSelections = {text};\n'.encode())


def _newest(
    pages: Path, name: str, machines: Sequence[Mapping[str, Any]]
) -> tuple[str, list[list[Any]]]:
    """Return the machine that measured a benchmark at the newest commit, and its graph's points."""
    from asv.graph import Graph

    best: tuple[int, str, list[list[Any]]] = (-1, "", [])
    for machine in machines:
        path = pages / f"{Graph.get_file_path(machine, name)}.json"
        points = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        known = [point for point in points if any(_has_values(point[1]))]
        if known and known[-1][0] > best[0]:
            best = known[-1][0], str(machine.get("machine")), known
    return best[1], best[2]


def _has_values(value: Any) -> Iterator[bool]:
    """Whether there is a value, for each combination of the parameters."""
    for one in value if isinstance(value, list) else [value]:
        yield one is not None and not math.isnan(one)


def _parameters(
    benchmark: Mapping[str, Any], measured: Sequence[Sequence[Any]]
) -> Iterator[tuple[str, str]]:
    """Choose values of the parameters: the first combination that has a value, one of them varied.

    The one that is varied is the first that has several values beside the others'.
    """
    names, values = benchmark["param_names"], benchmark["params"]
    if not names:
        return
    combinations = list(itertools.product(*(range(len(one)) for one in values)))
    known: dict[Places, None] = {}  # in the order of the newest commit's, then of earlier ones'
    for _, found in reversed(measured):
        known |= dict.fromkeys(itertools.compress(combinations, _has_values(found)))
    first = next(iter(known))
    varied = [
        sorted({place[at] for place in known if _others(place, at) == _others(first, at)})
        for at in range(len(names))
    ]
    axis = next((at for at, places in enumerate(varied) if len(places) > 1), 0)
    for at, name in enumerate(names):
        places = varied[at][:LINES] if at == axis else [first[at]]
        for place in places:
            yield f"p-{name}", str(values[at][place])


def _others(place: Places, at: int) -> Places:
    return place[:at] + place[at + 1 :]
