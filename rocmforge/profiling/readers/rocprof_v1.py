"""Reads what rocprof (version 1) wrote: results.csv, .stats.csv, .hip_stats.csv, .json, .db.

rocprofv2's tables of dispatches have the same columns by other names, and are read too. Times are
nanoseconds. A file tells its kind by its beginning, not by its name.
"""

from __future__ import annotations

import re
from pathlib import Path

from rocmforge.profiling.readers import rocprof_v1_traces
from rocmforge.profiling.readers.dispatch_rows import Columns, dispatch
from rocmforge.profiling.readers.input_files import find_header, head, head_lines, table
from rocmforge.profiling.readers.records import Dispatch, Recording, Total
from rocmforge.profiling.readers.rocprof_v1_traces import ENDED
from rocmforge.profiling.readers.values import (
    Omissions,
    copy_direction,
    kernel_name,
    number,
    plain,
    whole,
)

_WANTED = "a table of rocprof"
_STATS = ("name", "calls", "totaldurationns", "averagens", "percentage")
_DISPATCHES = (("index", "kernelname"), ("dispatchid", "gpuid", "kernelname"))
_COPY = re.compile(r"(hc|hip)?Mem(cpy|set)|Copy|Fill|async-copy")


def matches(path: Path) -> bool:
    """Whether the file begins as one of rocprof's."""
    return _kind(path) is not None


def read_rocprof_v1(path: Path) -> Recording:
    """Read one file of rocprof v1 or a table of rocprofv2.

    Raises
    ------
    ResultFileError
        There is no such file, it is none of rocprof's, or it is broken.
    """
    kind = _kind(path)
    if kind == "database":
        return rocprof_v1_traces.read_database(path)
    if kind == "trace":
        return rocprof_v1_traces.read_trace(path)
    return _read_stats(path) if kind == "stats" else _read_dispatches(path)


def _kind(path: Path) -> str | None:
    start = head(path)
    if rocprof_v1_traces.is_database(path, start):
        return "database"
    if rocprof_v1_traces.is_trace(start):
        return "trace"
    lines = head_lines(path)
    stats = find_header(lines, *_STATS)
    if stats is not None:
        # rocprofv3 writes the same columns and three more.
        return None if "minns" in map(plain, stats) else "stats"
    for needed in _DISPATCHES:
        names = find_header(lines, *needed)
        if names is not None and "countername" not in map(plain, names):
            return "dispatches"
    return None


def _read_dispatches(path: Path) -> Recording:
    omissions = Omissions("row")
    found: list[Dispatch] = []
    names = find_header(head_lines(path), *_DISPATCHES[0])
    needed = _DISPATCHES[0] if names is not None else _DISPATCHES[1]
    columns = None
    for line, row in table(path, _WANTED, needed, omissions):
        columns = columns or Columns(row)
        one = dispatch(row, columns, f"line {line}", omissions)
        if one is not None:
            found.append(one)
    remarks = (ENDED, *omissions.remarks())
    if not found:
        remarks = (*remarks, "the table has no runs of kernels")
    return Recording(
        tool="rocprof" if names is not None else "rocprofv2",
        dispatches=tuple(found),
        remarks=remarks,
        partial=omissions.partial,
    )


def _read_stats(path: Path) -> Recording:
    omissions = Omissions("row")
    rows = list(table(path, _WANTED, _STATS, omissions))
    if not rows:
        remarks = (ENDED, *omissions.remarks(), "the table has no rows")
        return Recording("rocprof", remarks=remarks, partial=omissions.partial)
    columns = Columns(rows[0][1])
    domain = _domain(path, [str(columns.value(row, ("name",))) for _, row in rows])
    totals = []
    for line, row in rows:
        name = str(columns.value(row, ("name",))).strip()
        calls = whole(columns.value(row, ("calls",)))
        total = whole(columns.value(row, ("totaldurationns",)))
        if not name or calls is None or total is None:
            omissions.lose("no name, calls or total duration, left out", f"line {line}")
            continue
        average = number(columns.value(row, ("averagens",)))
        if average is not None and calls and abs(total / calls - average) > 1:
            omissions.lose("its total is not its calls times its average", f"line {line}")
        totals.append(Total(domain, _named(domain, name), calls, total))
    return Recording(
        "rocprof",
        totals=tuple(totals),
        remarks=(ENDED, *omissions.remarks()),
        partial=omissions.partial,
    )


def _named(domain: str, name: str) -> str:
    if domain == "kernel":
        return kernel_name(name)
    return copy_direction(name) if domain == "copy" else name


def _domain(path: Path, names: list[str]) -> str:
    """Return what a table of sums is of: its file's name says it, else the names that it has."""
    for mark, domain in (
        ("hip_stats", "HIP_API"),
        ("hsa_stats", "HSA_API"),
        ("copy_stats", "copy"),
    ):
        if mark in path.name.lower():
            return domain
    if all(name.startswith(("hip", "__hip")) and "(" not in name for name in names):
        return "HIP_API"
    if all(name.startswith("hsa_") and "(" not in name for name in names):
        return "HSA_API"
    if all(_COPY.match(name) and "(" not in name for name in names):
        return "copy"
    return "kernel"
