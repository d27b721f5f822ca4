"""A profile as a trace that Perfetto and chrome://tracing open.

The format is Chrome's: one JSON document whose `traceEvents` are complete events ("X"), counters
("C") and names of processes and threads ("M"). Times are microseconds from the profile's zero.
Source: the document "Trace Event Format" of Chromium's Catapult.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocmforge.atomic import whole_file
from rocmforge.profiling.condition_charts import Series, series_of
from rocmforge.profiling.profile import Profile, Span, Track

PROCESSES: Mapping[Track, int] = {"host": 1, "device": 2}
"""Number of each track's process; 0 is the idle one of a system's traces."""

LANES = 100  # threads of a process; more spans than that never overlap

Event = dict[str, Any]


def write_trace(profile: Profile, path: Path) -> None:
    """Write the spans and the samples of a profile as a trace.

    Spans of one track that overlap without one being inside the other go to a further row of that
    track, as viewers drop them otherwise. A span without a finite start and a length of at least 0
    is left out; `otherData` says how many were.

    Parameters
    ----------
    profile
        Measured.
    path
        Its folder exists. The file takes its place whole or not at all.

    Raises
    ------
    OSError
        It cannot be written.
    """
    spans = [span for span in profile.spans if _is_drawable(span)]
    series = series_of(profile)
    moments = [seconds for one in series for seconds, _ in one.points]
    zero = min([0.0, *moments, *(span.start for span in spans)])  # Perfetto drops what is before 0
    events = [*_slices(spans, zero), *_counters(profile, series, zero)]
    events.sort(key=lambda event: event["ts"])  # stable: an outer span stays before an inner one
    document = {
        "displayTimeUnit": "ms",
        "otherData": _about(profile, len(profile.spans) - len(spans)),
        "traceEvents": [*_names(profile, events), *events],
    }
    text = json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    with whole_file(path) as file:  # UTF-8: Perfetto leaves \u00b0 in the name of a unit as it is
        file.write(f"{text}\n".encode())


def _is_drawable(span: Span) -> bool:
    return math.isfinite(span.start) and math.isfinite(span.seconds) and span.seconds >= 0


def _slices(spans: Sequence[Span], zero: float) -> Iterator[Event]:
    for track, process in PROCESSES.items():
        rows: list[list[int]] = []  # of each row: the ends of the spans that are open
        for span in sorted(
            (span for span in spans if span.track == track), key=lambda s: (s.start, -s.seconds)
        ):
            start = _nanoseconds(span.start - zero)
            end = _nanoseconds(span.start - zero + span.seconds)
            yield {
                "ph": "X",
                "name": _text(span.name),
                "cat": span.category,
                "pid": process,
                "tid": process * LANES + _row(rows, start, end),
                "ts": start / 1e3,
                "dur": (end - start) / 1e3,
            }


def _row(rows: list[list[int]], start: int, end: int) -> int:
    """Return the first row in which the span lies inside what is open, and open it there."""
    for number, ends in enumerate(rows):
        while ends and ends[-1] <= start:
            ends.pop()
        if not ends or end <= ends[-1]:
            ends.append(end)
            return number
    rows.append([end])
    return len(rows) - 1


def _counters(profile: Profile, found: Sequence[Series], zero: float) -> Iterator[Event]:
    on_host = profile.monitor is not None and profile.monitor.device == "cpu"
    for series in found:
        for seconds, value in series.points:
            if value is not None:
                yield {
                    "ph": "C",
                    "name": series.name,
                    "pid": PROCESSES["host" if on_host else "device"],
                    "ts": _nanoseconds(seconds - zero) / 1e3,
                    "args": {series.unit: value},
                }


def _names(profile: Profile, events: Iterable[Event]) -> Iterator[Event]:
    rows = sorted({(event["pid"], event["tid"]) for event in events if "tid" in event})
    titles: dict[Track, str] = {
        "host": "host",
        "device": f"{profile.device.name}: {profile.device.description}",
    }
    used = {event["pid"] for event in events}
    for track, process in PROCESSES.items():
        if process in used:
            yield _name("process_name", process, process * LANES, {"name": _text(titles[track])})
            order = {"sort_index": process}
            yield _name("process_sort_index", process, process * LANES, order)
    for process, thread in rows:
        row = thread - process * LANES
        title = next(track for track, number in PROCESSES.items() if number == process)
        shown = title if row == 0 else f"{title}, overlapping {row}"
        yield _name("thread_name", process, thread, {"name": shown})
        yield _name("thread_sort_index", process, thread, {"sort_index": row})


def _name(kind: str, process: int, thread: int, args: Event) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "ts": 0, "args": args}


def _about(profile: Profile, not_drawable: int) -> dict[str, Any]:
    return {
        "model": _text(profile.model.path),
        "device": _text(f"{profile.device.name}: {profile.device.description}"),
        "prompt_tokens": profile.settings.prompt_tokens,
        "tokens": profile.settings.tokens,
        "spans_left_out": profile.spans_left_out + not_drawable,
        "remarks": [_text(remark) for remark in profile.remarks],
    }


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _text(text: str) -> str:
    """Return a text that UTF-8 can hold: names of files may have bytes that are none."""
    return text.encode("utf-8", "replace").decode("utf-8")
