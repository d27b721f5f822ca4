"""Reads rocpd, the SQLite database that rocprofv3 writes.

Its tables end in a UUID and change with the schema, so only its views are read. A database is code
as well as data: its views may call functions and join without end. What AMD's views need is
allowed, and time, memory and rows are bounded.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from rocmforge.errors import ResultFileError
from rocmforge.profiling.readers.input_files import MOST_CELLS, check, head
from rocmforge.profiling.readers.records import Agent, Call, Copy, Dispatch, Recording, Total
from rocmforge.profiling.readers.rocprofv3_dispatches import (
    SAID_ELSEWHERE,
    DispatchColumns,
    Dispatches,
)
from rocmforge.profiling.readers.rocprofv3_rows import (
    TOOL,
    call,
    copy,
    text,
)
from rocmforge.profiling.readers.values import (
    Omissions,
    kernel_name,
    number,
    plain,
    whole,
)

MOST_SECONDS = 60.0
"""That SQLite itself may take; what was not read by then is left out, and the recording says so."""

_MOST_HEAP = 512 * 1024**2
"""Bytes that SQLite may use, in the whole process."""

_MOST_CHARACTERS = 500_000_000
_STEPS = 10_000
"""Of SQLite's machine between two looks at the clock."""

_WANTED = "a database of rocprofv3 (rocpd)"
_KNOWN_SCHEMAS = {"3", *(f"3.0.{patch}" for patch in range(6))}
_MOST_NAMES = 5000
_MOST_PROPERTIES = 1_000_000
_LONG = {"extdata", "callstack", "lineinfo", "description", "longdescription", "expression"}
_SAMPLE = "pc_sample"
_MIXED = "kernel_pmc_events"
"""Schema 4.1 joins it by the event alone, which each process counts from 1."""

_BROKEN = (sqlite3.Error, UnicodeDecodeError, MemoryError)
"""What sqlite3 raises at a broken or hostile database; it decodes names of columns strictly."""

_FUNCTIONS = {
    *("abs", "avg", "cast", "coalesce", "count", "format", "iif", "ifnull", "json_extract", "max"),
    *("length", "lower", "min", "nullif", "printf", "round", "row_number", "substr", "sum"),
    *("total", "upper", "->", "->>"),
}
"""None of them runs long for one row, so that the clock is looked at."""

_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ}


def matches(path: Path) -> bool:
    """Whether the file begins as an SQLite database with rocpd's names."""
    start = head(path)
    return start.startswith(b"SQLite format 3\0") and b"rocpd_" in start


def read_rocpd(path: Path) -> Recording:
    """Read a database of rocprofv3.

    Parameters
    ----------
    path
        The file. It is opened read-only, and nothing is written beside it.

    Raises
    ------
    ResultFileError
        There is no such file, or it is no database with any of rocpd's views.
    """
    check(path, _WANTED)
    try:
        uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            reading = _Reading(path, database)
            reading.read()
    except _BROKEN as error:
        raise ResultFileError(path, "database", got=_said(error), wanted=_WANTED) from error
    return reading.recording()


def _guard(database: sqlite3.Connection, expired: Callable[[], bool]) -> None:
    """Bound what reading may cost; the limit of memory holds for SQLite in the whole process."""
    for setting in (
        f"hard_heap_limit = {_MOST_HEAP}",
        "temp_store = MEMORY",
        "trusted_schema = OFF",
        "cell_size_check = ON",
        "query_only = ON",
    ):
        database.execute(f"PRAGMA {setting}").close()
    database.set_progress_handler(expired, _STEPS)
    database.set_authorizer(_authorize)
    database.text_factory = lambda raw: raw.decode("utf-8", "replace")


def _authorize(
    action: int, first: str | None, second: str | None, _database: str | None, _view: str | None
) -> int:
    """Refuse recursion, writing, other files, and functions that none of AMD's views calls."""
    if action == sqlite3.SQLITE_FUNCTION:
        allowed = (second or "").lower() in _FUNCTIONS
    else:
        allowed = action in _ALLOWED
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


class _Reading:
    """Reads one database, view by view; a view that is broken costs its own rows only."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self._path = path
        self._database = database
        self._omissions = Omissions("row")
        self._runs = Dispatches(self._omissions)
        self._dispatches: tuple[Dispatch, ...] = ()
        self._totals: list[Total] = []
        self._copies: list[Copy] = []
        self._calls: list[Call] = []
        self._agents: list[Agent] = []
        self._remarks: list[str] = []
        self._version: str | None = None
        self._processes: set[str] = set()
        self._cells = MOST_CELLS
        self._characters = _MOST_CHARACTERS
        self._deadline = time.monotonic() + MOST_SECONDS
        _guard(database, lambda: time.monotonic() > self._deadline)

    def read(self) -> None:
        """Read all views that are there; raises ResultFileError where there is none."""
        query = "SELECT name FROM sqlite_master WHERE type IN ('view', 'table')"
        present = {str(name) for (name,) in self._database.execute(query).fetchmany(_MOST_NAMES)}
        views: dict[str, Callable[[str], None]] = {
            "kernels": self._read_kernels,
            _first(present, "counters_collection", _MIXED): self._read_counters,
            "memory_copies": self._read_copies,
            "memory_allocations": self._read_allocations,
            _first(present, "regions_and_samples", "regions"): self._read_regions,
            "rocpd_info_agent": self._read_agents,
        }
        if not present & views.keys():
            wanted = f"{_WANTED} with the views {', '.join(views)}"
            seen = ", ".join(sorted(present)[:5]) or "none"
            raise ResultFileError(self._path, "views", got=seen, wanted=wanted)
        self._read_version()
        for view, read in views.items():
            if view in present:
                read(view)
            else:
                self._remarks.append(f"the database has no view {view}")
        self._dispatches = self._runs.all()
        if not self._dispatches and "top_kernels" in present:
            self._read_top_kernels("top_kernels")
        for ending in ("-wal", "-journal"):
            beside = self._path.with_name(self._path.name + ending)
            if beside.is_file() and beside.stat().st_size:
                self._omissions.lose("the run did not end well: changes lie beside it", beside.name)

    def _rows(
        self, view: str, *wanted: str, without: Collection[str] = _LONG
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield place and values by column of a view's rows; an error ends them, and is counted."""
        index = 0
        try:
            cursor = self._database.execute(f'SELECT * FROM "{view}" LIMIT 0')
            names = [str(column[0]) for column in cursor.description]
            lacking = set(wanted) - {plain(name) for name in names}
            if lacking:
                why = f"{view} has no column {', '.join(sorted(lacking))}, so it is not read"
                self._omissions.lose(why, view)
                return
            names = [name for name in names if plain(name) in wanted or plain(name) not in without]
            keys = [bare if (bare := plain(name)) in wanted else name for name in names]
            columns = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
            for row in self._database.execute(f'SELECT {columns} FROM "{view}"'):
                index += 1
                self._cells -= len(row)
                self._characters -= sum(len(one) for one in row if type(one) is str)
                if self._cells < 0 or self._characters < 0:
                    self._omissions.lose("the rest of the database", f"{view}, row {index}")
                    return
                paused = time.monotonic()
                yield f"{view}, row {index}", dict(zip(keys, row, strict=True))
                self._deadline += time.monotonic() - paused
        except _BROKEN as error:
            why = "it takes too long" if str(error) == "interrupted" else _said(error)
            self._omissions.lose(f"{view}: {why}; its rest is not read", f"row {index + 1}")

    def _read_version(self) -> None:
        said = {
            text(row["tag"]): text(row["value"])
            for _, row in self._rows("rocpd_metadata", "tag", "value")
        }
        self._version = said.get("schema_version", "")[:40] or None
        if self._version is None:
            self._remarks.append("the database does not say the version of its schema")
        elif self._version not in _KNOWN_SCHEMAS:
            self._remarks.append(
                f"the schema's version {self._version} is not known: its views are read as far as"
                " they are like those of version 3"
            )

    def _read_kernels(self, view: str) -> None:
        columns = None
        count = 0
        lost = self._omissions.lost
        for place, row in self._rows(view, "name", "start", "end", without=SAID_ELSEWHERE):
            columns = columns or DispatchColumns(row, self._omissions)
            self._runs.add_run(row, columns, place)
            self._processes.add(text(row.get("guid")))
            count += 1
        if self._omissions.lost == lost:
            self._compare(view, count)

    def _compare(self, view: str, count: int) -> None:
        """Count what the view leaves out: it joins, and drops what lacks a queue or a thread."""
        try:
            query = "SELECT COUNT(*) FROM rocpd_kernel_dispatch"
            (all_of_them,) = self._database.execute(query).fetchone()
        except _BROKEN:
            return
        if all_of_them > count:
            self._omissions.lose(f"{all_of_them - count} runs of kernels are not in {view}", view)

    def _read_top_kernels(self, view: str) -> None:
        """Read what the database itself added up; its times are in microseconds."""
        for place, row in self._rows(view, "name", "totalcalls", "totalduration"):
            name, calls = kernel_name(text(row["name"])), whole(row["totalcalls"])
            total = number(row["totalduration"])
            if not name or calls is None or total is None or total < 0:
                self._omissions.lose("no name, calls or total duration, left out", place)
            else:
                self._totals.append(Total("kernel", name, calls, round(total * 1000)))

    def _read_counters(self, view: str) -> None:
        if view == _MIXED and len(self._processes) > 1:
            why = (
                f"{view} mixes the counters of {len(self._processes)} processes, so it is not read"
            )
            self._omissions.lose(why, view)
            return
        columns = None
        for place, row in self._rows(view, "dispatchid", without=SAID_ELSEWHERE):
            columns = columns or DispatchColumns(row, self._omissions)
            self._runs.add_counter(row, columns, place)

    def _read_copies(self, view: str) -> None:
        for place, row in self._rows(view, "name", "start", "end"):
            said = row["name"], row["start"], row["end"], row.get("size")
            found = copy(said, place, self._omissions)
            if found is not None:
                self._copies.append(found)

    def _read_allocations(self, view: str) -> None:
        """Read each allocation once.

        The view joins the threads of all processes: where databases were merged, it has an
        allocation again for each other process, with that one's thread.
        """
        known: dict[tuple[str, str], int] = {}
        for place, row in self._rows(view, "type", "start", "end"):
            identity = text(row.get("guid")), text(row.get("id"))
            if all(identity) and identity in known:
                first = known[identity]
                self._calls[first] = replace(self._calls[first], thread=None)
                self._omissions.note("an allocation again, with another thread, left out", place)
                continue
            count = len(self._calls)
            self._add_call(row, row["type"], place)
            if len(self._calls) > count:
                known[identity] = count

    def _read_regions(self, view: str) -> None:
        for place, row in self._rows(view, "name", "start", "end"):
            if row["name"] == _SAMPLE:
                self._omissions.note("samples of the program counter are not read", place)
            else:
                self._add_call(row, row["name"], place)

    def _add_call(self, row: Mapping[str, Any], function: object, place: str) -> None:
        said = row.get("category"), function, row["start"], row["end"], row.get("tid")
        found = call(said, place, self._omissions, row.get("size"))
        if found is not None:
            self._calls.append(found)

    def _read_agents(self, view: str) -> None:
        for place, row in self._rows(view, "name", "type", "extdata"):
            name, kind = text(row["name"]), text(row["type"]).lower()
            if not name:
                self._omissions.lose("no agent's name, left out", place)
                continue
            said = {**_properties(row.pop("extdata")), **row}
            properties = {key: text(value) for key, value in said.items() if text(value)}
            del properties["name"]
            self._agents.append(Agent(name, kind if kind in ("cpu", "gpu") else None, properties))

    def recording(self) -> Recording:
        """Return all of it."""
        return Recording(
            TOOL,
            version=f"rocpd schema {self._version}" if self._version else None,
            dispatches=self._dispatches,
            totals=tuple(self._totals),
            copies=tuple(self._copies),
            calls=tuple(self._calls),
            agents=tuple(self._agents),
            remarks=(*self._remarks, *self._omissions.remarks()),
            partial=self._omissions.partial,
        )


def _first(present: set[str], *views: str) -> str:
    return next((view for view in views if view in present), views[0])


def _said(error: BaseException) -> str:
    """Return what an error says; SQLite's lack of memory has no words."""
    return str(error) or type(error).__name__


def _properties(extdata: object) -> dict[str, Any]:
    """Return the single values of the JSON in which the database keeps an agent's properties."""
    try:
        said = json.loads(text(extdata)[:_MOST_PROPERTIES] or "{}")
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
