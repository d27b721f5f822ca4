"""One run of a kernel, from a row of rocprof v1's, rocprofv2's or rocprof-compute's tables.

They name the same columns differently and have one column for each counter. What is no known column
and is a number is a counter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial

from rocmforge.profiling.readers.records import Dispatch
from rocmforge.profiling.readers.values import Omissions, kernel_name, number, plain, span, whole

KERNEL = ("kernelname",)
START = ("beginns", "starttimestamp")
END = ("endns", "endtimestamp", "stoptimestamp")
AGENT = ("gpuid", "agentid")
QUEUE = ("queueid",)
COUNTER_NAME = ("countername",)
COUNTER_VALUE = ("countervalue",)
DISPATCH_ID = ("dispatchid", "index")
_THREADS = ("grd", "gridsize")
_BLOCK_THREADS = ("wgr", "workgroupsize")
_LDS = ("lds", "ldsperworkgroup", "ldsblocksize")
_SCRATCH = ("scr", "scratchperworkitem", "scratchsize")
_VGPRS = ("archvgpr", "vgpr", "vgprcount")
_ACCUM_VGPRS = ("accumvgpr", "accumvgprcount")
_SGPRS = ("sgpr", "sgprcount")
_WORDS = (KERNEL, START, END, AGENT, QUEUE, COUNTER_NAME, COUNTER_VALUE)
_COUNTS = (DISPATCH_ID, _THREADS, _BLOCK_THREADS, _LDS, _SCRATCH, _VGPRS, _ACCUM_VGPRS, _SGPRS)
_KNOWN = {name for names in (*_WORDS, *_COUNTS) for name in names}
_NO_COUNTERS = {
    *("queueindex", "pid", "tid", "processid", "threadid", "fbar", "sig", "obj", "wavesize"),
    *("dispatchns", "completens", "correlationid", "kernelid", "xccindex"),
    *("node", "guid", "roctxrange"),
}
"""Columns of rocprof that count nothing of a kernel's work, as `plain` names."""
_DURATION = re.compile(r"duration|elapsed")
"""In the `plain` name of a column that is a time and no counter."""

_JOINED = re.compile(r"_\d+$")


class Columns:
    """Which column of a table means what; made once a table.

    Parameters
    ----------
    names
        The table's columns. pandas adds ``_1``, ``_2`` … to names that tables had in common when
        rocprof-compute joined them: ``Wave_Size_1`` says nothing new.
    """

    def __init__(self, names: Iterable[str]) -> None:
        names = list(names)
        self.by_plain = {plain(name): name for name in names}
        self._found: dict[tuple[str, ...], str | None] = {}
        self.counters = []
        self.others = []
        self.durations = [name for name in names if _DURATION.search(plain(name))]
        for name in names:
            bare = plain(_JOINED.sub("", name))
            if plain(name) in _NO_COUNTERS or name in self.durations:
                self.others.append(name)
            elif not {plain(name), bare} & (_KNOWN | _NO_COUNTERS):
                self.counters.append(name)

    def value(self, row: Mapping[str, object], names: tuple[str, ...]) -> object:
        """Return the row's value in the first of these columns, given as `plain` names."""
        if names not in self._found:
            present = (self.by_plain[name] for name in names if name in self.by_plain)
            self._found[names] = next(present, None)
        column = self._found[names]
        return None if column is None else row.get(column)

    def has(self, names: tuple[str, ...]) -> bool:
        """Whether the table has one of these columns."""
        return any(name in self.by_plain for name in names)


def dispatch(
    row: Mapping[str, object], columns: Columns, place: str, omissions: Omissions
) -> Dispatch | None:
    """Return the run of a kernel that a row describes; None, and counted, where it has no kernel.

    `place` names the row in remarks.
    """
    kernel = kernel_name(_text(columns.value(row, KERNEL)))
    if not kernel:
        omissions.lose("no kernel's name", place)
        return None
    count = partial(_count, row, columns, place, omissions)
    times = None
    if columns.has(START):
        times = span(columns.value(row, START), columns.value(row, END), place, omissions)
    elif columns.durations:
        seen = ", ".join(columns.durations)
        omissions.note(f"no time, for it has {seen} alone, wanted BeginNs and EndNs", place)
    counters, more = _counters(row, columns, place, omissions)
    start, end = times or (None, None)
    return Dispatch(
        kernel,
        start,
        end,
        agent=_text(columns.value(row, AGENT)) or None,
        queue=_text(columns.value(row, QUEUE)) or None,
        dispatch_id=count(DISPATCH_ID),
        threads=count(_THREADS),
        block_threads=count(_BLOCK_THREADS),
        lds_bytes=count(_LDS),
        scratch_bytes=count(_SCRATCH),
        vgprs=count(_VGPRS),
        accum_vgprs=count(_ACCUM_VGPRS),
        sgprs=count(_SGPRS),
        counters=counters,
        more=more,
    )


def _count(
    row: Mapping[str, object],
    columns: Columns,
    place: str,
    omissions: Omissions,
    names: tuple[str, ...],
) -> int | None:
    value = columns.value(row, names)
    found = whole(value)
    if found is None and _says(value):
        omissions.lose(f"{names[0]} is no whole number, so it is not known", place)
    return found


def _counters(
    row: Mapping[str, object], columns: Columns, place: str, omissions: Omissions
) -> tuple[dict[str, float], dict[str, str]]:
    counters = {}
    more = {name: text for name in columns.others if (text := _text(row.get(name)))}
    for name in columns.counters:
        value = number(row.get(name))
        if value is not None:
            counters[name] = value
        elif _says(row.get(name)):
            more[name] = _text(row.get(name))
            omissions.note(f"{name} is no number", place)
    return counters, more


def _says(value: object) -> bool:
    return _text(value).lower() not in ("", "none", "n/a", "nan")


def _text(value: object) -> str:
    return "" if value is None else str(value).strip()
