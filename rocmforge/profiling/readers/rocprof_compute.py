"""Reads a workload folder of rocprof-compute (formerly Omniperf), or one of its tables of counters.

The tool runs the program many times, since a card counts only a few things at once, and writes a
table for each run. Wide tables have a column for each counter, long ones a row for each
(`Counter_Name`, `Counter_Value`). Rows of one dispatch become one record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rocmforge.errors import ResultFileError
from rocmforge.profiling.readers.dispatch_rows import (
    AGENT,
    COUNTER_NAME,
    COUNTER_VALUE,
    DISPATCH_ID,
    KERNEL,
    START,
    Columns,
    dispatch,
)
from rocmforge.profiling.readers.input_files import (
    MOST_FILES,
    find_header,
    head_lines,
    not_read,
    table,
)
from rocmforge.profiling.readers.records import Agent, Dispatch, Recording
from rocmforge.profiling.readers.values import Omissions, number, plain, whole

_WANTED = "a table of rocprof-compute"
_LONG = ("dispatchid", "kernelname", "gpuid", "countername", "countervalue")
_WIDE = ("dispatchid", "kernelname", "gpuid")
_OLD = ("index", "kernelname", "gpuid")
_SHAPES = (_LONG, _WIDE, _OLD)
_TIMES = "timestamps.csv"
_NAMES = ("pmc_", "sq_", "timestamps", "results_pmc_", "results_sq_")
_BESIDE = ("sysinfo.csv", "roofline.csv", "pmc_dispatch_info.csv", "pmc_kernel_top.csv")
_RESULTS = (".csv", ".db", ".json", ".txt")
_LEVEL = "SQ_ACCUM_PREV_HIRES"
"""Sums the level counter before it over all cycles; its meaning depends on the table's name."""


def matches(path: Path) -> bool:
    """Whether this is a folder with tables of rocprof-compute, or one of them by its own name."""
    if path.is_dir():
        return any(True for _ in _tables(path))
    return _is_table(path)


def read_rocprof_compute(path: Path) -> Recording:
    """Read a workload folder, or one table of it.

    The system's description (sysinfo.csv) becomes agents. Of roofline.csv they carry the peaks as
    properties ``roofline.…``: bandwidths in GB/s, rates in GFLOP/s and GOP/s.

    Raises
    ------
    ResultFileError
        There is nothing of rocprof-compute, or none of its tables can be read.
    """
    files = list(_tables(path)) if path.is_dir() else [path]
    omissions = Omissions("row")
    if not files:
        wanted = "a workload folder of rocprof-compute, with pmc_perf.csv"
        raise ResultFileError(path, "folder", got="no table of counters", wanted=wanted)
    merged = _Merged()
    for file in files:
        merged.add(file.name, _read_table(file, omissions))
    agents: tuple[Agent, ...] = ()
    version = None
    remarks = merged.remarks
    if path.is_dir():
        for file in _csv_files(path):
            if _is_named(file) and file not in files:
                merged.leave_out(f"{file.name}: no table of counters by its header, left out")
        agents, version = _system(path, omissions)
        if not agents:
            remarks.append("no sysinfo.csv that names the card, so it is not known")
        if (path / "profiling_config.yaml").exists():
            remarks.append("profiling_config.yaml, the tool's own settings, is not read")
        remarks += _beside(path, files)
    return Recording(
        "rocprof-compute",
        version,
        dispatches=tuple(merged.dispatches),
        agents=agents,
        remarks=(*omissions.remarks(), *remarks),
        partial=omissions.partial or merged.partial,
    )


def _csv_files(folder: Path) -> list[Path]:
    try:
        files = [file for file in folder.iterdir() if file.suffix.lower() == ".csv"][:MOST_FILES]
    except OSError as error:
        raise ResultFileError(folder, "folder", got=error, wanted="a workload folder") from error
    files = [file for file in files if file.name.lower() not in _BESIDE]
    return sorted(files, key=lambda file: (not file.name.lower().startswith("pmc_perf"), file.name))


def _beside(folder: Path, tables: list[Path]) -> list[str]:
    """Name the files that may hold results of another tool; the tool's own are known."""
    others = [
        file.name
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in _RESULTS
        and file not in tables
        and file.name.lower() not in _BESIDE
        and not _is_named(file)
    ]
    return not_read(others)


def _tables(folder: Path) -> Iterator[Path]:
    """Tables of counters in a folder, that of most counters first."""
    return (file for file in _csv_files(folder) if _is_table(file))


def _is_named(path: Path) -> bool:
    """Whether a file has a name that rocprof-compute gives its tables of counters."""
    return path.name.lower().startswith(_NAMES)


def _is_table(path: Path) -> bool:
    shape, names = _shape(path)
    # rocprof's and rocprofv2's tables have the same columns; these are told by their names.
    foreign = {"sig", "queueindex", "correlationid"} & {plain(name) for name in names}
    return shape == _LONG or (shape is not None and (_is_named(path) or not foreign))


def _shape(path: Path) -> tuple[tuple[str, ...] | None, list[str]]:
    lines = head_lines(path)
    for shape in _SHAPES:
        names = find_header(lines, *shape)
        if names is not None:
            return shape, names
    return None, []


def _read_table(path: Path, omissions: Omissions) -> list[Dispatch]:
    shape, _ = _shape(path)
    rows = table(path, _WANTED, shape or _WIDE, omissions)
    if shape == _LONG:
        return _read_long(path, rows, omissions)
    found = []
    columns = None
    for line, row in rows:
        columns = columns or Columns(row)
        one = dispatch(row, columns, f"{path.name}, line {line}", omissions)
        if one is not None:
            found.append(_level_named(one, path.stem))
    return found


def _level_named(one: Dispatch, table_name: str) -> Dispatch:
    """Give the sum of a level the name that rocprof-compute's own analysis gives it."""
    level = table_name.removeprefix("results_")
    if _LEVEL not in one.counters or not level.startswith("SQ_"):
        return one
    counters = {
        f"{level}_ACCUM" if name == _LEVEL else name: value for name, value in one.counters.items()
    }
    return replace(one, counters=counters)


def _read_long(
    path: Path, rows: Iterator[tuple[int, dict[str, str]]], omissions: Omissions
) -> list[Dispatch]:
    found: dict[object, Dispatch] = {}
    counters: dict[object, dict[str, tuple[float, int | None]]] = {}
    columns = None
    for line, row in rows:
        columns = columns or Columns(row)
        place = f"{path.name}, line {line}"
        identity = tuple(columns.value(row, names) for names in (AGENT, DISPATCH_ID, KERNEL))
        start = whole(columns.value(row, START))
        if identity not in found:
            one = dispatch(row, columns, place, omissions)
            if one is None:
                continue
            found[identity], counters[identity] = one, {}
        elif start not in (None, found[identity].start_ns):
            omissions.note("of another run of its dispatch, whose times are the first run's", place)
        name = str(columns.value(row, COUNTER_NAME)).strip()
        value = number(columns.value(row, COUNTER_VALUE))
        if not name or value is None:
            omissions.lose("no counter's name or value, left out", place)
            continue
        repeated = name in counters[identity]
        first, first_start = counters[identity].setdefault(name, (value, start))
        if repeated and first_start == start:
            omissions.lose(f"a second value of {name} in one run; the first is kept", place)
        elif first != value:
            omissions.note("a counter of several runs; the first run's value is kept", place)
    return [
        _level_named(
            replace(one, counters={name: value for name, (value, _) in counters[identity].items()}),
            path.stem,
        )
        for identity, one in found.items()
    ]


class _Merged:
    """The dispatches of several runs of one program, as one list."""

    def __init__(self) -> None:
        self.dispatches: list[Dispatch] = []
        self.remarks: list[str] = []
        self.partial = False
        self._first = ""

    def add(self, name: str, dispatches: list[Dispatch]) -> None:
        """Add the counters of a run, where its dispatches are those of the first run."""
        if not self.dispatches:
            self.dispatches, self._first = dispatches, name
        elif dispatches:
            self._pair(name, dispatches)

    def leave_out(self, why: str) -> None:
        """Say that a table is not in the recording."""
        self.remarks.append(why)
        self.partial = True

    def _pair(self, name: str, dispatches: list[Dispatch]) -> None:
        by_id = {(one.agent, one.dispatch_id): index for index, one in enumerate(self.dispatches)}
        places = [by_id.get((one.agent, one.dispatch_id), -1) for one in dispatches]
        if len(by_id) < len(self.dispatches) or not self._same(places, dispatches):
            places = list(range(len(dispatches)))
            if len(dispatches) != len(self.dispatches) or not self._same(places, dispatches):
                self.leave_out(f"{name}: its dispatches are not those of {self._first}, left out")
                return
            self.remarks.append(
                f"{name}: its dispatches are numbered otherwise than those of {self._first}; "
                "they are paired in their order, in which the kernels' names agree"
            )
        for place, one in zip(places, dispatches, strict=True):
            self.dispatches[place] = _joined(
                self.dispatches[place], one, timed=name.lower() == _TIMES
            )

    def _same(self, places: list[int], dispatches: list[Dispatch]) -> bool:
        """Whether these places are there, none of them twice, and are runs of the same kernels."""
        if min(places) < 0 or len(set(places)) < len(places):
            return False
        return all(
            self.dispatches[place].kernel == one.kernel
            for place, one in zip(places, dispatches, strict=True)
        )


def _joined(first: Dispatch, second: Dispatch, *, timed: bool) -> Dispatch:
    """Return the first run's record with the second's counters.

    It has the second's times where only those are known, or where that run counted nothing: a run
    with counters is slower.
    """
    more = {**second.more, **first.more}
    joined = replace(first, counters={**second.counters, **first.counters}, more=more)
    if second.start_ns is not None and (timed or first.start_ns is None):
        joined = replace(joined, start_ns=second.start_ns, end_ns=second.end_ns)
    return joined


def _system(folder: Path, omissions: Omissions) -> tuple[tuple[Agent, ...], str | None]:
    """Return the agents that sysinfo.csv and roofline.csv describe, and the tool's version."""
    system = _plain_rows(folder / "sysinfo.csv", ("command",), omissions)
    roofline = _plain_rows(folder / "roofline.csv", ("device",), omissions)
    if not system:
        return (), None
    row = {name: value.strip() for name, value in system[0].items() if value.strip()}
    card = row.get("gpu_arch") or row.get("gpu_model") or row.get("gpu_soc")
    host = row.get("cpu_model") or row.get("host_cpu")
    agents = [Agent(host, "cpu")] if host else []
    for peaks in (roofline or [{}]) if card else []:
        measured = {f"roofline.{name}": value for name, value in peaks.items()}
        agents.append(Agent(str(card), "gpu", {**row, **measured}))
    return tuple(agents), row.get("version")


def _plain_rows(path: Path, needed: tuple[str, ...], omissions: Omissions) -> list[dict[str, str]]:
    if not path.exists():
        return []
    try:
        return [row for _, row in table(path, _WANTED, needed, omissions)]
    except ResultFileError as error:
        omissions.lose(f"not read: {error.what}", path.name)
        return []
