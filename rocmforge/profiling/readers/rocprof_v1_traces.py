"""Reads rocprof v1's traces: results.json, in Chrome's form, and results.db, of SQLite.

Both hold the same sections: KERN (runs of kernels, with counters), OPS (the same as HIP's runtime
reports them), COPY, HIP, HSA, rocTX. The JSON's `ts` and `dur` are rounded to microseconds, and a
duration of 0 is written as 1, so only the exact times in `args` are read.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from rocmforge.errors import ResultFileError
from rocmforge.profiling.readers.dispatch_rows import Columns, dispatch
from rocmforge.profiling.readers.input_files import MOST_CELLS, check, read_json
from rocmforge.profiling.readers.records import Call, Copy, Dispatch, Recording
from rocmforge.profiling.readers.values import Omissions, copy_direction, kernel_name, span, whole

ENDED = "AMD's support of rocprof and rocprofv2 ended in mid-2026; their successor is rocprofv3"

_SQLITE = b"SQLite format 3\0"
_BROKEN = (sqlite3.Error, UnicodeDecodeError)
"""What sqlite3 raises at a broken database: it decodes the names of columns strictly."""

_TABLES = ("KERN", "OPS", "COPY", "HIP", "HSA", "rocTX")
_LABELS = (
    (re.compile(r"CPU HIP API", re.IGNORECASE), "HIP"),
    (re.compile(r"CPU HSA API", re.IGNORECASE), "HSA"),
    (re.compile(r"COPY", re.IGNORECASE), "COPY"),
    (re.compile(r"Markers and Ranges", re.IGNORECASE), "rocTX"),
    (re.compile(r"GPU ?Barriers ?\d+", re.IGNORECASE), "OPS"),
    (re.compile(r"GPU ?\d+", re.IGNORECASE), "OPS"),
)
_MARKS = (b'"BeginNs"', b'"CPU HIP API"', b'"CPU HSA API"', b'"Markers and Ranges"')
_BARRIER = "<barrier packet>"
_DOMAINS = {"HIP": "HIP_API", "HSA": "HSA_API", "rocTX": "MARKER"}


def is_trace(start: bytes) -> bool:
    """Whether a file that starts like this is rocprof's JSON, and no other tool's."""
    return b'"traceEvents"' in start and any(mark in start for mark in _MARKS)


def is_database(path: Path, start: bytes) -> bool:
    """Whether a file that starts like this is rocprof's database, and not rocprofv3's."""
    if not start.startswith(_SQLITE):
        return False
    try:
        with closing(_connect(path)) as database:
            return bool(_tables(database))
    except _BROKEN:
        return False


def read_trace(path: Path) -> Recording:
    """Read results.json; raises ResultFileError where it is broken."""
    whole_file = read_json(path, "a trace of rocprof")
    events = whole_file.get("traceEvents") if isinstance(whole_file, dict) else None
    if not isinstance(events, list):
        raise ResultFileError(path, "traceEvents", got=type(events).__name__, wanted="a list")
    sections = _Sections("event")
    labels = dict(_process_names(events))
    for index, event in enumerate(events):
        if isinstance(event, dict) and event.get("ph") == "X":
            sections.add_event(event, labels, f"event {index}")
        elif not isinstance(event, dict):
            sections.omissions.lose("no object, left out", f"event {index}")
    return sections.recording()


def read_database(path: Path) -> Recording:
    """Read results.db; raises ResultFileError where it is broken before its first row."""
    check(path, "a database of rocprof")
    sections = _Sections("row")
    try:
        with closing(_connect(path)) as database:
            for section, name in _tables(database).items():
                _read_table(database, section, name, sections)
    except _BROKEN as error:
        raise ResultFileError(path, "database", got=error, wanted="that of rocprof") from error
    return sections.recording()


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    database.execute("PRAGMA trusted_schema = OFF")
    database.text_factory = lambda text: text.decode("utf-8", "replace")
    return database


def _tables(database: sqlite3.Connection) -> dict[str, str]:
    """Names of rocprof's tables by section, in our order; views are none of rocprof's."""
    rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchmany(1000)
    present = {str(name).lower(): str(name) for (name,) in rows}
    return {name: present[name.lower()] for name in _TABLES if name.lower() in present}


def _read_table(database: sqlite3.Connection, section: str, name: str, sections: _Sections) -> None:
    quoted = name.replace('"', '""')
    place = f"table {name}"
    try:
        cursor = database.execute(f'SELECT * FROM "{quoted}"')
        names = [str(column[0]) for column in cursor.description]
        for index, row in enumerate(cursor, 1):
            if index * len(names) > MOST_CELLS:
                sections.omissions.lose("the rest of the table", f"{place}, row {index}")
                return
            values = dict(zip(names, row, strict=True))
            sections.add(section, values, f"{place}, row {index}")
    except _BROKEN as error:
        sections.omissions.lose(f"{error}, so the rest of the table is not read", place)


def _process_names(events: list[Any]) -> Iterator[tuple[str, str]]:
    for event in events:
        if isinstance(event, dict) and event.get("ph") == "M":
            args = event.get("args")
            if event.get("name") == "process_name" and isinstance(args, dict):
                yield str(event.get("pid")), str(args.get("name"))


class _Sections:
    """Collects the rows of all sections."""

    def __init__(self, unit: str) -> None:
        self.omissions = Omissions(unit)
        self._kernels: list[Dispatch] = []
        self._operations: list[Dispatch] = []
        self._copies: list[Copy] = []
        self._calls: list[Call] = []
        self._columns: dict[tuple[str, ...], Columns] = {}

    def add_event(self, event: Mapping[str, Any], labels: dict[str, str], place: str) -> None:
        """Add an event of the JSON; its process says which section it belongs to."""
        args = event.get("args")
        if not isinstance(args, dict):
            self.omissions.lose("no args, left out", place)
            return
        label = labels.get(str(event.get("pid")), "")
        section = next((name for mark, name in _LABELS if mark.fullmatch(label)), None)
        if "KernelName" in args:
            self.add("KERN", args, place)
        elif section is None:
            self.omissions.lose(f"of a process {label!r} that rocprof has not, left out", place)
        else:
            self.add(section, {"Name": event.get("name"), **args}, place)

    def add(self, section: str, row: Mapping[str, object], place: str) -> None:
        """Add a row of a section."""
        if section == "KERN":
            key = tuple(row)
            columns = self._columns.setdefault(key, Columns(key))
            found = dispatch(row, columns, place, self.omissions)
            if found is not None:
                self._kernels.append(found)
            return
        name = str(row.get("Name") or "").strip('"')
        if name == _BARRIER:
            self.omissions.note("barriers, which run no kernel, left out", place)
            return
        times = span(row.get("BeginNs"), row.get("EndNs"), place, self.omissions)
        if not name:
            self.omissions.lose("no name, left out", place)
        elif section == "OPS":
            self._operations.append(_operation(name, times, row))
        elif section == "COPY":
            self._copies.append(Copy(copy_direction(name), *(times or (None, None))))
        elif times is not None:
            self._calls.append(Call(_DOMAINS[section], name, *times, thread=whole(row.get("tid"))))
        else:
            self.omissions.lose("a call without times, left out", place)

    def recording(self) -> Recording:
        """Return all of it. KERN and OPS are the same runs; KERN has counters."""
        remarks = [ENDED, *self.omissions.remarks()]
        if self._kernels and self._operations:
            count = len(self._operations)
            remarks.append(f"{count} runs of kernels that HIP's runtime reported again, left out")
        return Recording(
            "rocprof",
            dispatches=tuple(self._kernels or self._operations),
            copies=tuple(self._copies),
            calls=tuple(self._calls),
            remarks=tuple(remarks),
            partial=self.omissions.partial,
        )


def _operation(name: str, times: tuple[int, int] | None, row: Mapping[str, object]) -> Dispatch:
    def text(column: str) -> str | None:
        value = row.get(column)
        return None if value is None else str(value)

    start, end = times or (None, None)
    return Dispatch(
        kernel_name(name),
        start,
        end,
        agent=text("dev-id"),
        queue=text("queue-id"),
        stream=text("stream-id"),
    )
