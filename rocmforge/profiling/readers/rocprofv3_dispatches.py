"""One run of a kernel, from a row of rocprofv3's CSV or rocpd's views, or one made of its JSON.

The three name the same things differently. A row of counters has one value of one counter; all such
rows of a dispatch, and the dispatch's own row, become one record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rocmforge.profiling.readers.records import Dispatch, Sizes
from rocmforge.profiling.readers.rocprofv3_rows import text
from rocmforge.profiling.readers.values import Omissions, kernel_name, number, plain, span, whole

_KERNEL = ("kernelname", "name")
_START = ("starttimestamp", "start")
_END = ("endtimestamp", "end")
_INDEX = ("agentlogindex", "agentlogicalindex", "agentabsindex", "agentabsoluteindex")
_AGENT = ("agentid",)
_TEXTS = {"queue": ("queueid",), "stream": ("streamid",)}
_COUNTS = {
    "dispatch_id": ("dispatchid",),
    "lds_bytes": ("ldsblocksize", "groupsegmentsize", "ldssize"),
    "scratch_bytes": ("scratchsize", "privatesegmentsize"),
    "vgprs": ("vgprcount", "archvgprcount"),
    "accum_vgprs": ("accumvgprcount",),
    "sgprs": ("sgprcount",),
}
_THREADS = {"threads": ("gridsize",), "block_threads": ("workgroupsize",)}
_SIZES = {"grid": ("grid", "gridsize"), "workgroup": ("workgroup", "workgroupsize")}
"""`kernels` of rocpd 4 has ``grid_x`` in threads and ``grid_size_x`` in blocks: the first wins."""

_COUNTER_NAME = ("countername", "pmcname")
_COUNTER_VALUE = ("countervalue", "value", "pmcvalue")
_PROCESS = ("guid", "processid", "pid")
_CORRELATION = ("correlationid",)
_PASS = ("replaypass",)
SAID_ELSEWHERE = {
    *("kind", "category", "duration", "id", "nid", "eventid", "trackid", "codeobjectid"),
    *("agenttype", "agenttypeindex", "queue", "stream", "stackid", "parentstackid", "extdata"),
    *("callstack", "lineinfo", "staticldssize", "staticldsblocksize", "staticscratchsize"),
    *("oclgridsize", "oclworkgroupsize", "blocksize", "blocksizex", "blocksizey", "blocksizez"),
    *("description", "block", "expression", "valuetype", "counterid", "countersymbol", "component"),
    *("isconstant", "isderived", "kernelregion"),
}
"""Columns that every row has the same, or that say what a field says already, as `plain` names."""

_MOST_SHARED = 10_000
_IN_BLOCKS = {"gridsizex", "gridsizey", "gridsizez"}


class DispatchColumns:
    """Which column of a table means what; made once a table.

    Parameters
    ----------
    names
        The table's columns.
    omissions
        Counts what rows do not say.
    """

    def __init__(self, names: Iterable[str], omissions: Omissions) -> None:
        self._omissions = omissions
        self._by_plain = {plain(name): name for name in names}
        self._kernel = self._find(_KERNEL)
        self._start, self._end = self._find(_START), self._find(_END)
        self._index, self._agent = self._find(_INDEX), self._find(_AGENT)
        self._texts = self._all(_TEXTS)
        self._counts = self._all(_COUNTS)
        self._sizes = {field: axes for field in _SIZES if (axes := self._axes(field))}
        if "grid" not in self._sizes:
            self._counts |= self._all(_THREADS)
        self._counter = self._find(_COUNTER_NAME), self._find(_COUNTER_VALUE)
        self._pass = self._find(_PASS)
        self._process = [self._find((name,)) for name in _PROCESS]
        self._correlation = self._find(_CORRELATION)
        self._others = self._unknown()
        self._shared: dict[str, str] = {}

    def _find(self, names: tuple[str, ...]) -> str | None:
        return next((self._by_plain[name] for name in names if name in self._by_plain), None)

    def _all(self, fields: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
        return {field: name for field, names in fields.items() if (name := self._find(names))}

    def _axes(self, field: str) -> list[str]:
        for start in _SIZES[field]:
            axes = [self._by_plain.get(start + axis) for axis in "xyz"]
            if all(axes):
                return [str(axis) for axis in axes]
        return []

    def _unknown(self) -> list[str]:
        known = {self._kernel, self._start, self._end, self._index, self._agent, *self._counter}
        known |= {*self._texts.values(), *self._counts.values(), self._pass}
        known |= {axis for axes in self._sizes.values() for axis in axes}
        known |= {self._find((name,)) for names in (_INDEX, *_THREADS.values()) for name in names}
        return [
            name
            for bare, name in self._by_plain.items()
            if name not in known and bare not in SAID_ELSEWHERE | _IN_BLOCKS
        ]

    def identity(self, row: Mapping[str, Any]) -> tuple[str | None, ...]:
        """Return what tells the row's dispatch from all others of the table."""
        parts = (*self._process, self._agent or self._index, self._counts.get("dispatch_id"))
        return (*(text(row.get(one)) if one else None for one in parts), self.correlation(row))

    def correlation(self, row: Mapping[str, Any]) -> str | None:
        """Return the correlation id, which identifies a dispatch where the table has no other."""
        if "dispatch_id" in self._counts or self._correlation is None:
            return None
        return text(row.get(self._correlation))

    def counter(self, row: Mapping[str, Any], place: str) -> tuple[str, float, str] | None:
        """Return the counter's name and value, and which pass of the dispatch they are of."""
        name, value = (row.get(column) if column else None for column in self._counter)
        found = number(value)
        if not text(name) or found is None:
            self._omissions.lose("no counter's name or value, left out", place)
            return None
        return text(name), found, text(row.get(self._pass)) if self._pass else ""

    def dispatch(self, row: Mapping[str, Any], place: str) -> Dispatch | None:
        """Return the run of a kernel; None, and counted, where it has no kernel."""
        kernel = self._share(kernel_name(text(row.get(self._kernel)))) if self._kernel else ""
        if not kernel:
            self._omissions.lose("no kernel's name, left out", place)
            return None
        start = end = None
        if self._start and self._end:
            times = row.get(self._start), row.get(self._end)
            start, end = span(*times, place, self._omissions) or (None, None)
        texts = {
            field: self._share(text(row.get(name))) or None for field, name in self._texts.items()
        }
        counts = {field: self._count(row, name, place) for field, name in self._counts.items()}
        sizes = {field: self._three(row, axes, place) for field, axes in self._sizes.items()}
        more = {name: self._share(said) for name in self._others if (said := text(row.get(name)))}
        fields: dict[str, Any] = {**texts, **counts, **sizes}
        return Dispatch(kernel, start, end, agent=self._which(row), more=more, **fields)

    def _which(self, row: Mapping[str, Any]) -> str | None:
        index = text(row.get(self._index)) if self._index else ""
        if index:
            return self._share(f"Agent {index}")
        return self._share(text(row.get(self._agent))) or None if self._agent else None

    def _share(self, said: str) -> str:
        """Return the text that an earlier row had already, so that a million rows share a name."""
        if len(self._shared) < _MOST_SHARED:
            return self._shared.setdefault(said, said)
        return self._shared.get(said, said)

    def _count(self, row: Mapping[str, Any], name: str, place: str) -> int | None:
        value = row.get(name)
        found = whole(value)
        if found is None and text(value):
            self._omissions.lose(f"{name} is no whole number, so it is not known", place)
        return found

    def _three(self, row: Mapping[str, Any], axes: list[str], place: str) -> Sizes | None:
        x, y, z = (self._count(row, name, place) for name in axes)
        return None if x is None or y is None or z is None else (x, y, z)


class Dispatches:
    """The dispatches of one run, each with its counters.

    Parameters
    ----------
    omissions
        Counts what cannot be read, and counters that were added up.
    """

    def __init__(self, omissions: Omissions) -> None:
        self._omissions = omissions
        self._runs: list[tuple[Dispatch, str | None]] = []
        self._counted: dict[tuple[str | None, ...], tuple[Dispatch, str | None]] = {}
        self._values: dict[tuple[str | None, ...], dict[str, tuple[float, str]]] = {}

    def add_run(self, row: Mapping[str, Any], columns: DispatchColumns, place: str) -> None:
        """Add a dispatch's own row."""
        run = columns.dispatch(row, place)
        if run is not None:
            self._runs.append((run, columns.correlation(row)))

    def add_counter(self, row: Mapping[str, Any], columns: DispatchColumns, place: str) -> None:
        """Add a row with one counter of a dispatch.

        Rows of one counter are its instances (a shader engine, an XCC), and are added up, as
        rocprofv3 does. Where the kernel was replayed, its first pass with the counter is meant.
        """
        found = columns.counter(row, place)
        if found is None:
            return
        name, value, replay = found
        identity = columns.identity(row)
        if identity not in self._counted:
            run = columns.dispatch(row, place)
            if run is None:
                return
            correlation = columns.correlation(row) or run.more.get("Correlation_Id")
            self._counted[identity] = run, correlation
            self._values[identity] = {}
        values = self._values[identity]
        before, first = values.get(name, (None, replay))
        if before is not None and first != replay:
            self._omissions.note(f"{name} was counted in several passes; the first is kept", place)
        elif before is not None:
            values[name] = before + value, replay
            self._omissions.note("another instance of a counter, added to the first", place)
        else:
            values[name] = value, replay

    def all(self) -> tuple[Dispatch, ...]:
        """Return each run once; those of which only counters are known come last."""
        by_id: dict[tuple[str, object, str], list[int]] = defaultdict(list)
        for place, (run, correlation) in enumerate(self._runs):
            for key in _keys(run, correlation):
                by_id[key].append(place)
        found = [run for run, _ in self._runs]
        alone = []
        for identity, (counted, correlation) in self._counted.items():
            counters = {name: value for name, (value, _) in self._values[identity].items()}
            places = {
                place
                for key in _keys(counted, correlation)
                for place in by_id.get(key, ())
                if not found[place].counters and _same_process(found[place], counted)
            }
            if len(places) > 1:  # its replays have its number, too
                places = {one for one in places if found[one].start_ns == counted.start_ns}
            if len(places) == 1:
                place = places.pop()
                found[place] = _joined(found[place], counted, counters)
            else:
                alone.append(replace(counted, counters=counters))
        return (*found, *alone)


def _keys(run: Dispatch, correlation: str | None) -> list[tuple[str, object, str]]:
    keys: list[tuple[str, object, str]] = []
    if run.dispatch_id is not None:
        keys.append(("dispatch", run.dispatch_id, run.kernel))
    if correlation:
        keys.append(("correlation", correlation, run.kernel))
    return keys


def _same_process(run: Dispatch, counted: Dispatch) -> bool:
    """Whether what both say of their process is the same."""
    said = {plain(name): value for name, value in run.more.items()}
    return all(
        said.get(bare, value) == value
        for name, value in counted.more.items()
        if (bare := plain(name)) in _PROCESS
    )


def _joined(run: Dispatch, counted: Dispatch, counters: Mapping[str, float]) -> Dispatch:
    """Return a run with its counters, and with what only their rows say; its times are its own."""
    missing = {
        field: getattr(counted, field)
        for field in ("start_ns", "end_ns", *_TEXTS, *_COUNTS)
        if getattr(run, field) is None
    }
    return replace(run, counters=counters, more={**counted.more, **run.more}, **missing)
