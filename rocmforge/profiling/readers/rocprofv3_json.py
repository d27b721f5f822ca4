"""Reads rocprofv3's JSON: under `rocprofiler-sdk-tool` one entry for each process of the run.

Records name kernels, counters, agents and functions by numbers, which the entry's other lists
explain. A file is held in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from rocmforge.errors import ResultFileError
from rocmforge.profiling.readers.input_files import head, read_json
from rocmforge.profiling.readers.records import Agent, Call, Copy, Dispatch, Recording, Total
from rocmforge.profiling.readers.rocprofv3_dispatches import DispatchColumns, Dispatches
from rocmforge.profiling.readers.rocprofv3_rows import (
    TOOL,
    call,
    copy,
    family,
    text,
    totals_without_singles,
)
from rocmforge.profiling.readers.values import (
    Omissions,
    copy_direction,
    kernel_name,
    whole,
)

_WANTED = "rocprofv3's JSON"
_ROOT = "rocprofiler-sdk-tool"
_KINDS = {1: "cpu", 2: "gpu"}
_RUN = (
    *("kernel_name", "start_timestamp", "end_timestamp", "agent_id", "queue_id", "stream_id"),
    *("dispatch_id", "lds_block_size", "scratch_size", "vgpr_count", "accum_vgpr_count"),
    *("sgpr_count", "grid_x", "grid_y", "grid_z", "workgroup_x", "workgroup_y", "workgroup_z"),
    *("Kernel_Id", "Thread_Id", "Correlation_Id", "Process_Id", "Region"),
)
_COUNTER = (*_RUN, "counter_name", "counter_value")
_COPIES = "memory_copy"
_ALLOCATIONS = ("memory_allocation", "scratch_memory")


def matches(path: Path) -> bool:
    """Whether the file begins as rocprofv3's JSON does."""
    start = head(path).decode("utf-8", "replace").removeprefix("\ufeff").lstrip()
    return start.startswith("{") and f'"{_ROOT}"' in start[:1000]


def read_rocprofv3_json(path: Path) -> Recording:
    """Read a file of rocprofv3's JSON.

    Raises
    ------
    ResultFileError
        There is no such file, or it is broken or not rocprofv3's.
    """
    document = read_json(path, _WANTED)
    entries = document.get(_ROOT) if isinstance(document, dict) else None
    if isinstance(entries, dict):
        entries = [entries]
    if not isinstance(entries, list) or not entries:
        got = type(document if entries is None else entries).__name__
        wanted = f"{_WANTED}: a list of processes, with at least one"
        raise ResultFileError(path, _ROOT, got=got, wanted=wanted)
    omissions = Omissions("record")
    processes = []
    for index, entry in enumerate(entries):
        if isinstance(entry, dict):
            processes.append(_Process(entry, f"{_ROOT}[{index}]", omissions))
        else:
            omissions.lose("no object, left out", f"{_ROOT}[{index}]")
    for process in processes:
        process.read()
    return Recording(
        TOOL,
        dispatches=tuple(chain.from_iterable(one.dispatches for one in processes)),
        totals=tuple(chain.from_iterable(one.totals for one in processes)),
        copies=tuple(chain.from_iterable(one.copies for one in processes)),
        calls=tuple(chain.from_iterable(one.calls for one in processes)),
        agents=tuple(chain.from_iterable(one.agents for one in processes)),
        remarks=omissions.remarks(),
        partial=omissions.partial,
    )


class _Process:
    """Reads what one process recorded."""

    def __init__(self, entry: Mapping[str, Any], place: str, omissions: Omissions) -> None:
        self._entry = entry
        self._place = place
        self._omissions = omissions
        self._strings = _object(entry.get("strings"))
        self._pid = text(_object(entry.get("metadata")).get("pid"))
        self._symbols = _by_number(entry.get("kernel_symbols"), "kernel_id")
        self._counters = _by_number(entry.get("counters"), "id")
        self._messages = _pairs(self._strings.get("marker_api"))
        self._regions = _pairs(_object(self._strings.get("correlation_id")).get("external"))
        self._labels: dict[int, str] = {}
        self._runs = DispatchColumns(_RUN, omissions)
        self._counted = DispatchColumns(_COUNTER, omissions)
        self._dispatches = Dispatches(omissions)
        self.dispatches: tuple[Dispatch, ...] = ()
        self.totals: tuple[Total, ...] = ()
        self.copies: list[Copy] = []
        self.calls: list[Call] = []
        self.agents: list[Agent] = []

    def read(self) -> None:
        """Read all records; agents first, since the others name them."""
        for place, agent in self._records(self._entry, "agents"):
            self._add_agent(agent, place)
        records = _object(self._entry.get("buffer_records"))
        callbacks = _object(self._entry.get("callback_records"))
        for place, record in self._records(records, "kernel_dispatch"):
            row = self._row(record, _object(record.get("dispatch_info")), record, place)
            self._dispatches.add_run(row, self._runs, place)
        for place, record in self._records(callbacks, "counter_collection"):
            self._add_counters(record, place)
        for kind in (*records, *callbacks):
            if kind == _COPIES:
                for place, record in self._records(records, kind):
                    self._add_copy(record, place)
            elif kind in _ALLOCATIONS or kind.endswith("_api"):
                for place, record in self._records(records, kind):
                    self._add_call(record, kind, place)
            elif kind not in ("kernel_dispatch", "counter_collection"):
                for place, _ in self._records(records if kind in records else callbacks, kind):
                    self._omissions.note(f"{kind} is not read", place)
        self.dispatches = self._dispatches.all()
        singles = bool(self.dispatches), bool(self.copies), self.calls
        self.totals = totals_without_singles(self._summary(), *singles)

    def _records(
        self, parent: Mapping[str, Any], kind: str
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield place and record of a list; what is no object is counted as lost."""
        found = parent.get(kind)
        if found is None:
            return
        if not isinstance(found, list):
            self._omissions.lose(f"{kind} is no list, left out", self._place)
            return
        for index, record in enumerate(found):
            place = f"{self._place}, {kind}[{index}]"
            if isinstance(record, dict):
                yield place, record
            else:
                self._omissions.lose("no object, left out", place)

    def _add_agent(self, agent: Mapping[str, Any], place: str) -> None:
        handle = _handle(agent.get("id"))
        index = whole(agent.get("logical_node_id", agent.get("node_id")))
        name = text(agent.get("name"))
        if not name:
            self._omissions.lose("no agent's name, left out", place)
            return
        if handle is not None and index is not None:
            self._labels[handle] = f"Agent {index}"
        said = {key: text(value) for key, value in agent.items() if key != "name" and text(value)}
        kind = whole(agent.get("type"))
        self.agents.append(Agent(name, _KINDS.get(kind) if kind else None, said))

    def _row(
        self,
        record: Mapping[str, Any],
        info: Mapping[str, Any],
        timed: Mapping[str, Any],
        place: str,
    ) -> dict[str, Any]:
        """Return what a dispatch's record says as a row like those of rocprofv3's tables."""
        kernel = whole(info.get("kernel_id"))
        symbol = self._symbols.get(kernel, {}) if kernel is not None else {}
        names = ("formatted_kernel_name", "demangled_kernel_name", "kernel_name")
        name = next((said for one in names if (said := text(symbol.get(one)))), "")
        if not name and kernel is not None:
            self._omissions.lose("the kernel's name is not in the file", place)
            name = f"kernel {kernel}"
        correlation = _object(timed.get("correlation_id"))
        external = whole(correlation.get("external"))
        agent, queue = _handle(info.get("agent_id")), _handle(info.get("queue_id"))
        stream = _handle(record.get("stream_id"))
        grid, workgroup = _object(info.get("grid_size")), _object(info.get("workgroup_size"))
        values = (
            *(kernel_name(name), timed.get("start_timestamp"), timed.get("end_timestamp")),
            *(None if agent is None else self._labels.get(agent, str(agent)), queue, stream),
            *(info.get("dispatch_id"), info.get("group_segment_size")),
            info.get("private_segment_size"),
            *(_either(symbol, "arch_vgpr_count", record), symbol.get("accum_vgpr_count")),
            _either(symbol, "sgpr_count", record),
            *(grid.get(axis) for axis in "xyz"),
            *(workgroup.get(axis) for axis in "xyz"),
            *(kernel, record.get("thread_id"), correlation.get("internal"), self._pid),
            None if external is None else self._regions.get(external),
        )
        return dict(zip(_RUN, values, strict=True))

    def _add_counters(self, record: Mapping[str, Any], place: str) -> None:
        timed = _object(record.get("dispatch_data"))
        row = self._row(record, _object(timed.get("dispatch_info")), timed, place)
        for within, one in self._records(record, "records"):
            identity = _handle(one.get("counter_id"))
            counter = self._counters.get(identity, {}) if identity is not None else {}
            row["counter_name"] = text(counter.get("name"))
            row["counter_value"] = one.get("value")
            self._dispatches.add_counter(
                row, self._counted, f"{place}, {within.rpartition(', ')[2]}"
            )

    def _named(self, record: Mapping[str, Any]) -> tuple[str, str]:
        """Return kind and operation of a record as the file's strings name them."""
        kinds = self._strings.get("buffer_records")
        kind, operation = whole(record.get("kind")), whole(record.get("operation"))
        if not isinstance(kinds, list) or kind is None or kind >= len(kinds):
            return "", ""
        said = _object(kinds[kind])
        operations = said.get("operations")
        if not isinstance(operations, list) or operation is None or operation >= len(operations):
            return text(said.get("kind")), ""
        return text(said.get("kind")), text(operations[operation])

    def _add_copy(self, record: Mapping[str, Any], place: str) -> None:
        times = record.get("start_timestamp"), record.get("end_timestamp")
        _, name = self._named(record)
        found = copy((name, *times, record.get("bytes")), place, self._omissions)
        if found is not None:
            self.copies.append(found)

    def _add_call(self, record: Mapping[str, Any], list_name: str, place: str) -> None:
        kind, function = self._named(record)
        if list_name == "marker_api":
            correlation = whole(_object(record.get("correlation_id")).get("internal"))
            if correlation is not None:
                function = self._messages.get(correlation, function)
        operation = whole(record.get("operation"))
        if not function and operation is not None:
            self._omissions.note("the function's name is not in the file", place)
            function = f"operation {operation}"
        times = record.get("start_timestamp"), record.get("end_timestamp")
        said = kind or list_name.upper(), function, *times, record.get("thread_id")
        found = call(said, place, self._omissions, record.get("allocation_size"))
        if found is not None:
            self.calls.append(found)

    def _summary(self) -> Iterator[Total]:
        """Yield what the tool itself added up, where it was told to."""
        for place, domain in self._records(self._entry, "summary"):
            stats = _object(domain.get("stats"))
            said = text(domain.get("domain"))
            what = family(said)
            operations = stats.get("operations")
            pairs = operations.items() if isinstance(operations, dict) else _items(operations)
            for name, value in pairs:
                values = _object(value)
                calls, total = whole(values.get("count")), whole(values.get("sum"))
                label = text(name)
                if calls is None or total is None or not label:
                    self._omissions.lose("no name, count or sum, left out", place)
                    continue
                named = copy_direction(label) if what == "copy" else kernel_name(label)
                limits = whole(values.get("min")), whole(values.get("max"))
                domain_name = what if what in ("kernel", "copy") else said
                yield Total(domain_name, named, calls, total, *limits)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the pairs of a map as the tool writes it: a list of objects with key and value."""
    for one in value if isinstance(value, list) else ():
        if isinstance(one, dict):
            yield one.get("key"), one.get("value")


def _pairs(value: Any) -> dict[int, str]:
    return {number: text(said) for key, said in _items(value) if (number := whole(key)) is not None}


def _handle(value: Any) -> int | None:
    """Return the number in ``{"handle": 4}``, which older files have without the object."""
    return whole(value.get("handle") if isinstance(value, dict) else value)


def _by_number(value: Any, key: str) -> dict[int, dict[str, Any]]:
    """Return a list's objects by the number that each has under a key."""
    found = {}
    for one in value if isinstance(value, list) else ():
        number = _handle(one.get(key)) if isinstance(one, dict) else None
        if number is not None:
            found[number] = one
    return found


def _either(symbol: Mapping[str, Any], name: str, record: Mapping[str, Any]) -> Any:
    """Return a register count of the kernel's symbol, or of the record where that has none."""
    return symbol.get(name, record.get(name))
