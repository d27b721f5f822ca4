"""Reads text traces of API calls: roctracer's, and those that rocprof v1 makes its tables from.

Each line is one record. A program's own output may stand between them, so a line that does not
begin as a record is passed over; one that does and goes on otherwise is counted as lost.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from rocmforge.profiling.readers.input_files import MOST_CELLS, head_lines, lines, opened
from rocmforge.profiling.readers.records import Agent, Call, Copy, Dispatch, Recording
from rocmforge.profiling.readers.values import Omissions, copy_direction, kernel_name, span, whole

_N = r"(\d{1,19})"
_OPERATION = re.compile(rf"{_N}:{_N} {_N}:{_N} (.+):(\d+):(\d+)")
_CALL = re.compile(rf"{_N}:{_N} {_N}:{_N} (\w+)(?:\(.*)?")
_CORRELATION = re.compile(r" :[0-9a-f]+$")
_ASYNC_COPY = re.compile(rf"{_N}:{_N} (async-copy):(\w+):(\d+)")
_MARKER = re.compile(rf'{_N} {_N}:{_N} (\d+):(\d+):"(.*)"')
_AGENT = re.compile(r"(0x[0-9a-f]+) agent (cpu|gpu)")
_ACTIVITY = re.compile(rf"\s+(\S+(?:\s+\S+)*?)\s+correlation_id\((\d+)\) time_ns\({_N}:{_N}\)(.*)")
_CALLBACK = re.compile(
    r"<(\w+) id\(\d+\)\s+correlation_id\((\d+)\) on-(enter|exit) pid\(\d+\) tid\((\d+)\)>"
)
_UNTIMED_MARKER = re.compile(r"rocTX <.*>")
_BANNER = re.compile(r"ROCTracer \(pid=\d+\): *")
_RECORDS = (_BANNER, _OPERATION, _CALL, _ASYNC_COPY, _MARKER, _ACTIVITY, _CALLBACK, _UNTIMED_MARKER)
_BEGINS = re.compile(
    r"\d+:|\d{10,} \d*:?|0x[0-9a-f]+ agent|\s+\w+\s+correlation_id|<\w+ id\(|rocTX <"
)
_COPY = re.compile(r"Copy|Memcpy|Memset|Fill")
_BARRIER = re.compile(r"Marker|Barrier")
_UNNAMED = re.compile(r"(hc)?(Command)?Kernel(Execution|Dispatch)?")
_DEVICE = re.compile(r"device_id\((\d+)\)")
_QUEUE = re.compile(r"queue_id\((\d+)\)")
_THREAD = re.compile(r"thread_id\((\d+)\)")
_BYTES = re.compile(r"bytes\((0x[0-9a-f]+|\d+)\)")


def matches(path: Path) -> bool:
    """Whether roctracer's banner, or a record of a trace, is among the first lines."""
    return any(record.fullmatch(line) for line in head_lines(path) for record in _RECORDS)


def read_api_traces(path: Path) -> Recording:
    """Read a text trace of HIP, HSA or rocTX calls and of what the device did for them.

    Raises
    ------
    ResultFileError
        There is no such file, or it is not regular, empty or too large.
    """
    trace = _Trace()
    with opened(path, "a text trace of API calls") as file:
        for number, line in enumerate(lines(path, file), 1):
            if trace.records > MOST_CELLS // 10:
                trace.omissions.lose("the rest of the file", f"line {number}")
                break
            trace.add(line.rstrip("\r\n"), f"line {number}")
    return trace.recording()


class _Trace:
    """Collects the records of all lines."""

    def __init__(self) -> None:
        self.omissions = Omissions("line")
        self.records = 0
        self._calls: list[Call] = []
        self._copies: list[Copy] = []
        self._dispatches: list[Dispatch] = []
        self._agents: list[Agent] = []
        self._launched: dict[str, str] = {}
        self._threads: dict[str, int] = {}
        self._timed: set[str] = set()
        self._entered: dict[str, str] = {}
        self._pushed: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
        self._started: dict[str, tuple[str, str, str, str]] = {}

    def add(self, line: str, place: str) -> None:
        """Add the record of a line, if it is one."""
        self.records += 1
        if found := _ASYNC_COPY.fullmatch(line):
            self._copy(found[3], found[1], found[2], place)
        elif found := _OPERATION.fullmatch(line):
            self._operation(found, place)
        elif found := _CALL.fullmatch(line):
            self._call(line, found, place)
        elif found := _MARKER.fullmatch(line):
            self._marker(found, place)
        elif found := _ACTIVITY.fullmatch(line):
            self._activity(found, place)
        elif found := _CALLBACK.fullmatch(line):
            self._entered.setdefault(found[2], place)
            self._threads[found[2]] = int(found[4])
        elif found := _AGENT.fullmatch(line):
            self._agents.append(Agent(found[1], found[2]))
        elif _UNTIMED_MARKER.fullmatch(line):
            self.omissions.note("a rocTX message without a time, left out", place)
        elif _BEGINS.match(line):
            self.omissions.lose("begins as a record and goes on otherwise, left out", place)

    def _call(self, line: str, found: re.Match[str], place: str) -> None:
        times = self._times(found[1], found[2], place)
        if times is None:
            return
        self._calls.append(Call(_domain(found[5]), found[5], *times, thread=whole(found[4])))
        kernel = _CORRELATION.sub("", line.partition(") kernel=")[2])
        correlation = re.search(r" :(\d+)$", line)
        if kernel and correlation:
            self._launched[correlation[1]] = kernel_name(kernel)

    def _operation(self, found: re.Match[str], place: str) -> None:
        name = found[5]
        if _COPY.search(name) and "(" not in name:
            self._copy(name, found[1], found[2], place)
        elif _BARRIER.fullmatch(name):
            self.omissions.note("a barrier, which runs no kernel, left out", place)
        elif times := self._times(found[1], found[2], place):
            if _UNNAMED.fullmatch(name):
                name = self._launched.get(found[6], name)
            if _UNNAMED.fullmatch(name):
                self.omissions.note(f"a kernel whose name is not in the file ({name})", place)
            name = kernel_name(name)
            self._dispatches.append(Dispatch(name, *times, agent=found[3], queue=found[4]))

    def _copy(self, name: str, start: str, end: str, place: str, nbytes: int | None = None) -> None:
        if times := self._times(start, end, place):
            self._copies.append(Copy(copy_direction(name), *times, nbytes))

    def _times(self, start: str, end: str, place: str) -> tuple[int, int] | None:
        return span(start, end, place, self.omissions)

    def _marker(self, found: re.Match[str], place: str) -> None:
        """One rocTX record: 0 marks a moment, 1 and 2 push and pop, 3 and 4 start and stop."""
        time, thread, kind, identity, message = found[1], found[3], found[4], found[5], found[6]
        if kind == "0":
            self._mark(message, time, time, thread, place)
        elif kind == "1":
            self._pushed[thread].append((message, time, place))
        elif kind == "3":
            self._started[identity] = (message, time, thread, place)
        elif kind == "2" and self._pushed[thread]:
            message, start, place = self._pushed[thread].pop()
            self._mark(message, start, time, thread, place)
        elif kind == "4" and identity in self._started:
            message, start, thread, place = self._started.pop(identity)
            self._mark(message, start, time, thread, place)
        else:
            self.omissions.lose("a rocTX range that ends and never began, left out", place)

    def _mark(self, message: str, start: str, end: str, thread: str, place: str) -> None:
        if times := self._times(start, end, place):
            self._calls.append(Call("MARKER", message, *times, thread=whole(thread)))

    def _activity(self, found: re.Match[str], place: str) -> None:
        name, identity, rest = found[1], found[2], found[5]
        self._timed.add(identity)
        if device := _DEVICE.search(rest):
            queue = _QUEUE.search(rest)
            size = _BYTES.search(rest)
            if _COPY.search(name) and "(" not in name:
                self._copy(name, found[3], found[4], place, int(size[1], 0) if size else None)
            elif times := self._times(found[3], found[4], place):
                where = device[1], queue[1] if queue else None
                self._dispatches.append(Dispatch(kernel_name(name), *times, *where))
        elif times := self._times(found[3], found[4], place):
            thread = _THREAD.search(rest)
            number = int(thread[1]) if thread else self._threads.get(identity)
            self._calls.append(Call(_domain(name), name, *times, thread=number))

    def recording(self) -> Recording:
        """Return all of it; ranges that never ended are counted as lost."""
        for message, _, place in (one for stack in self._pushed.values() for one in stack):
            self.omissions.lose(f"a rocTX range that never ended, left out ({message})", place)
        for message, _, _, place in self._started.values():
            self.omissions.lose(f"a rocTX range that never ended, left out ({message})", place)
        untimed = [
            place for identity, place in self._entered.items() if identity not in self._timed
        ]
        for place in untimed:
            self.omissions.note("entry and exit of a call without its times, left out", place)
        remarks = self.omissions.remarks()
        if not (self._calls or self._copies or self._dispatches or remarks):
            remarks = ("the trace has no records",)
        return Recording(
            "roctracer",
            dispatches=tuple(self._dispatches),
            copies=tuple(self._copies),
            calls=tuple(self._calls),
            agents=tuple(self._agents),
            remarks=remarks,
            partial=self.omissions.partial,
        )


def _domain(function: str) -> str:
    """Return the API by the function's name; ``"API"`` where the name does not say it."""
    if function.startswith("hsa_"):
        return "HSA_API"
    return "HIP_API" if function.startswith(("hip", "__hip")) else "API"
