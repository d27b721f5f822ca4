"""Reads rocprofv3's CSV files: one of them, a folder of them, or all with one beginning of name.

The headers changed over the years: `Agent_Id` was a number and is ``"Agent 4"``, `Thread_Id` and
`Stream_Id` came later, files made from rocpd have `Guid` and other case. What a table is, its
columns say; only a table of sums needs its file's name for what it sums up.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from glob import escape
from itertools import chain, islice
from pathlib import Path
from typing import Any

from rocmforge.errors import ResultFileError
from rocmforge.profiling.readers.input_files import (
    HEADER_WITHIN,
    MOST_FILES,
    check,
    column_names,
    head,
    head_lines,
    named,
    not_read,
    table,
)
from rocmforge.profiling.readers.records import Agent, Call, Copy, Recording, Total
from rocmforge.profiling.readers.rocprofv3_dispatches import DispatchColumns, Dispatches
from rocmforge.profiling.readers.rocprofv3_rows import (
    TOOL,
    call,
    copy,
    runs_added,
    totals_without_singles,
)
from rocmforge.profiling.readers.values import (
    Omissions,
    copy_direction,
    kernel_name,
    number,
    plain,
    whole,
)

_Rows = Iterator[tuple[int, dict[str, str]]]
_WANTED = "a table of rocprofv3"
_TABLES = {
    "samples": ("sampletimestamp", "execmask"),
    "spm": ("countername", "countervalue", "agentid", "timestamp"),
    "counters": ("kernelname", "agentid", "countername", "countervalue"),
    "dispatches": ("kernelname", "agentid", "starttimestamp", "endtimestamp"),
    "copies": ("direction", "starttimestamp", "endtimestamp"),
    "allocations": ("operation", "allocationsize", "starttimestamp", "endtimestamp"),
    "scratch": ("operation", "allocflags", "starttimestamp", "endtimestamp"),
    "calls": ("domain", "function", "starttimestamp", "endtimestamp"),
    "totals": ("name", "calls", "totaldurationns", "minns", "maxns"),
    "agents": ("nodeid", "agenttype"),
    "hip_events": ("kind", "operation", "eventhandle"),
    "graphs": ("kind", "graphexecid", "kerneldispatchcount"),
}
"""What a table has, by the columns that it must have, as `plain` names; the first that fits."""

_NOT_READ = {
    "samples": "samples of the program counter are not read",
    "spm": "samples of counters over time are not read",
    "hip_events": "records of HIP events are not read",
    "graphs": "launches of whole HIP graphs are not read",
}
_HOLDS_MORE = {".db": (b"rocpd_",), ".json": (b'"rocprofiler-sdk-tool"',)}
_NAME = re.compile(
    r"(?P<run>.*?)(?:^|_)(?:(?P<what>kernel|(?:hip|hsa)(?:_(?:api|runtime|runtime_api|compiler|"
    r"compiler_api|core|core_api|amd_ext|image_ext|finalizer_ext))?|(?:marker|rccl|rocdecode|"
    r"rocjpeg|hipfile|rocshmem)(?:_api)?|memory_copy|memory_allocation|scratch_memory|domain|"
    r"graph_launch|hip_event|kfd|ompt|pc_sampling(?:_host_trap|_stochastic)?|counter_collection|"
    r"spm_counter_collection)_(?:trace|stats)|counter_collection|spm_counter_collection|regions|"
    r"agent_info|pc_sampling_host_trap|pc_sampling_stochastic)\.csv",
    re.IGNORECASE,
)
_DOMAIN = re.compile(r"KERNEL_DISPATCH|MEMORY_[A-Z]+|SCRATCH_MEMORY|[A-Z]+_(?:API|COLLECTION)")


def matches(path: Path) -> bool:
    """Whether this is a table of rocprofv3, a folder of them, or what their names begin with.

    A folder that has the run in a form that holds more is none.
    """
    if path.is_file():
        return _kind(path) is not None
    files = list(_files(path))
    if any(mark in head(file) for file in files for mark in _HOLDS_MORE.get(file.suffix, ())):
        return False
    return any(_is_table(file) for file in files)


def read_rocprofv3_csv(path: Path) -> Recording:
    """Read tables of rocprofv3.

    Parameters
    ----------
    path
        A table; a folder, of which all tables are read, also those in folders below it; or what the
        names of a run's tables begin with, as rocprofv3's option ``-o`` sets it.

    Raises
    ------
    ResultFileError
        There are no such files, they are no tables of rocprofv3, or one of them is broken before
        its first row.
    """
    if path.is_file():
        return _Run().read(path).recording()
    files = list(_files(path))
    tables = [file for file in files if _is_table(file)]
    if not tables:
        raise ResultFileError(path, "files", got=named(files), wanted=f"{_WANTED} at least")
    runs: dict[tuple[Path, str], _Run] = defaultdict(_Run)
    errors = []
    for file in tables:
        name = _NAME.fullmatch(file.name)
        try:
            runs[file.parent, name["run"] if name else file.stem].read(file)
        except ResultFileError as error:
            errors.append(error)
    if len(errors) == len(tables):
        raise errors[0]
    others = [file.name for file in files if file not in tables]
    return _as_one([run.recording() for run in runs.values()], tables, others, errors)


def _files(path: Path) -> Iterator[Path]:
    """Yield the files in a folder or in those below it, or the tables whose names begin so.

    rocprofv3 makes a folder for each host, and one for each pass.
    """
    deep = ("*", "*/*", "*/*/*") if path.is_dir() else (f"{escape(path.name)}*.csv",)
    folder = path if path.is_dir() else path.parent
    try:
        inside = [one for to in deep for one in sorted(islice(folder.glob(to), MOST_FILES))]
    except (OSError, ValueError):
        return iter(())
    return islice((one for one in inside if _is_file(one)), MOST_FILES)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _is_table(path: Path) -> bool:
    return path.suffix.lower() == ".csv" and _kind(path) is not None


def _kind(path: Path) -> str | None:
    """Return which of the tables it is; None: none of rocprofv3's."""
    for line in head_lines(path)[:HEADER_WITHIN]:
        names = {plain(name) for name in column_names(line)}
        for kind, needed in _TABLES.items():
            if names.issuperset(needed):
                return kind
    return None


class _Run:
    """Collects the tables of one process."""

    def __init__(self) -> None:
        self._omissions = Omissions("row")
        self._dispatches = Dispatches(self._omissions)
        self._copies: list[Copy] = []
        self._calls: list[Call] = []
        self._totals: list[Total] = []
        self._agents: list[Agent] = []
        self._empty: list[str] = []

    def read(self, path: Path) -> _Run:
        """Add a table; raises ResultFileError where it is none of rocprofv3's."""
        kind = _kind(path)
        if kind is None:
            check(path, _WANTED)
            raise ResultFileError(path, "header", got="another", wanted=_WANTED)
        rows = self._rows(path, kind)
        readers: dict[str, Callable[[Mapping[str, str], str], None]] = {
            "copies": self._copy,
            "allocations": self._allocation,
            "scratch": self._allocation,
            "calls": self._call,
        }
        if kind in ("dispatches", "counters"):
            self._read_dispatches(path, rows, kind == "counters")
        elif kind == "totals":
            self._read_totals(path, rows)
        else:
            for line, row in rows:
                place = _place(path, line)
                if kind == "agents":
                    self._agent(row, place)
                elif kind in readers:
                    readers[kind]({plain(name): value for name, value in row.items()}, place)
                else:
                    self._omissions.note(_NOT_READ[kind], place)
        return self

    def _rows(self, path: Path, kind: str) -> _Rows:
        none = True
        for line, row in table(path, _WANTED, _TABLES[kind], self._omissions):
            none = False
            yield line, row
        if none:
            self._empty.append(path.name)

    def _read_dispatches(self, path: Path, rows: _Rows, counters: bool) -> None:
        columns = None
        add = self._dispatches.add_counter if counters else self._dispatches.add_run
        for line, row in rows:
            columns = columns or DispatchColumns(row, self._omissions)
            add(row, columns, _place(path, line))

    def _read_totals(self, path: Path, rows: _Rows) -> None:
        found = [({plain(name): value for name, value in row.items()}, line) for line, row in rows]
        domain = _domain(path, [row["name"].strip() for row, _ in found])
        for row, line in found:
            self._total(row, domain, _place(path, line))

    def _total(self, row: Mapping[str, str], domain: str, place: str) -> None:
        name = row["name"].strip()
        calls, total = whole(row["calls"]), whole(row["totaldurationns"])
        least, most = whole(row["minns"]), whole(row["maxns"])
        if not name or calls is None or total is None:
            self._omissions.lose("no name, calls or total duration, left out", place)
            return
        average = number(row.get("averagens"))
        if average is not None and calls and abs(total / calls - average) > 1 + 1e-4 * average:
            self._omissions.lose("its total is not its calls times its average", place)
        if domain == "kernel":
            name = kernel_name(name)
        elif domain == "copy":
            name = copy_direction(name)
        self._totals.append(Total(domain, name, calls, total, least, most))

    def _copy(self, row: Mapping[str, str], place: str) -> None:
        said = row["direction"], row["starttimestamp"], row["endtimestamp"], row.get("size")
        found = copy(said, place, self._omissions)
        if found is not None:
            self._copies.append(found)

    def _allocation(self, row: Mapping[str, str], place: str) -> None:
        self._add_call(row, row.get("kind"), row["operation"], place)

    def _call(self, row: Mapping[str, str], place: str) -> None:
        self._add_call(row, row["domain"], row["function"], place)

    def _add_call(self, row: Mapping[str, str], domain: Any, function: Any, place: str) -> None:
        said = domain, function, row["starttimestamp"], row["endtimestamp"], row.get("threadid")
        found = call(said, place, self._omissions, row.get("allocationsize"))
        if found is not None:
            self._calls.append(found)

    def _agent(self, row: Mapping[str, str], place: str) -> None:
        bare = {plain(name): value.strip() for name, value in row.items()}
        kind = bare["agenttype"].lower()
        name = bare.get("name") or bare["nodeid"]
        if not name:
            self._omissions.lose("neither name nor number of an agent, left out", place)
            return
        said = {key: value for key, value in row.items() if value and plain(key) != "name"}
        self._agents.append(Agent(name, kind if kind in ("cpu", "gpu") else None, said))

    def recording(self) -> Recording:
        """Return all of it; totals are left out where the single records are there."""
        dispatches = self._dispatches.all()
        totals = totals_without_singles(
            self._totals, bool(dispatches), bool(self._copies), self._calls
        )
        empty = tuple(f"{name} has no rows" for name in self._empty)
        return Recording(
            TOOL,
            dispatches=dispatches,
            totals=totals,
            copies=tuple(self._copies),
            calls=tuple(self._calls),
            agents=tuple(self._agents),
            remarks=(*self._omissions.remarks(), *empty),
            partial=self._omissions.partial,
        )


def _place(path: Path, line: int) -> str:
    return f"{path.name}, line {line}"


def _domain(path: Path, names: list[str]) -> str:
    """Return what a table of sums is of: its file's name says it, else the names that it has."""
    said = _NAME.fullmatch(path.name)
    what = (said["what"] or "").lower() if said else ""
    if what == "kernel":
        return "kernel"
    if what in ("memory_copy", "domain"):
        return what.removeprefix("memory_")
    if what:
        return what.upper() if "_" in what else f"{what.upper()}_API"
    if all(_DOMAIN.fullmatch(name) for name in names):
        return "domain"
    if all(name.startswith("MEMORY_COPY_") for name in names):
        return "copy"
    for start, domain in (("hip", "HIP_API"), ("hsa_", "HSA_API"), ("nccl", "RCCL_API")):
        if all(name.startswith((start, f"__{start}")) and "(" not in name for name in names):
            return domain
    return "kernel"


def _as_one(
    recordings: list[Recording], files: list[Path], others: list[str], errors: list[ResultFileError]
) -> Recording:
    """Join the recordings of a run's processes; an error stands for a table that is broken."""
    remarks = [f"read: {', '.join(file.name for file in files)}"]
    folders = sorted({file.parent.name for file in files})
    if len(folders) > 1:
        remarks.append(f"of {len(folders)} folders, each a process or a pass: {', '.join(folders)}")
    remarks += not_read(others)
    remarks += runs_added(sum(bool(one.dispatches) for one in recordings))
    remarks += [f"not read: {error}" for error in errors]
    return Recording(
        TOOL,
        dispatches=tuple(chain.from_iterable(one.dispatches for one in recordings)),
        totals=tuple(chain.from_iterable(one.totals for one in recordings)),
        copies=tuple(chain.from_iterable(one.copies for one in recordings)),
        calls=tuple(chain.from_iterable(one.calls for one in recordings)),
        agents=tuple(chain.from_iterable(one.agents for one in recordings)),
        remarks=(*remarks, *dict.fromkeys(line for one in recordings for line in one.remarks)),
        partial=bool(errors) or any(one.partial for one in recordings),
    )
