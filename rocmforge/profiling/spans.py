"""Lays what was observed of a run on one time line, for a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rocmforge.plan.observation import Interval, ObservedPass
from rocmforge.profiling.profile import Span, Track
from rocmforge.profiling.ttft import Request
from rocmforge.profiling.turns import Turn

MOST_SPANS = 100_000  # that a profile keeps


def spans_of(
    begin: float, loaded: float, request: Request, turns: Sequence[Turn]
) -> tuple[tuple[Span, ...], int]:
    """Return the spans in order of their start, and how many more there were.

    Parameters
    ----------
    begin, loaded
        When loading began and ended, by `time.perf_counter`; the first is the trace's zero.
    request, turns
        As observed: the request, and the turns of decode.
    """
    found = sorted(_spans(begin, loaded, request, turns), key=lambda s: (s.start, -s.seconds))
    return tuple(found[:MOST_SPANS]), max(0, len(found) - MOST_SPANS)


def _spans(begin: float, loaded: float, request: Request, turns: Sequence[Turn]) -> Iterator[Span]:
    def span(name: str, category: str, start: float, end: float, track: Track = "host") -> Span:
        return Span(name, category, start - begin, end - start, track)

    yield span("load", "request", begin, loaded)
    yield span("request", "request", request.begin, request.turn.end)
    yield span("tokenize", "request", request.begin, request.tokenized)
    for name, some in (("prefill", [request.turn]), ("decode", turns)):
        for turn in some:
            yield span(name, "phase", turn.begin, turn.end)
            yield span("sampling", "host", turn.returned, turn.sampled)
            yield span("detokenize", "host", turn.sampled, turn.end)
            for seen in turn.passes:
                for category, interval, track in _of_pass(seen):
                    end = interval.start + interval.seconds
                    yield span(interval.name, category, interval.start, end, track)


def _of_pass(seen: ObservedPass) -> Iterator[tuple[str, Interval, Track]]:
    on_host = len(seen.host) == 1
    track: Track = "host" if on_host else "device"
    for interval in seen.host:
        yield "host", interval, "host"
    yield "pass", seen.device, track
    for interval in seen.copies:
        yield "copy", interval, track
    for interval in seen.steps:
        yield "op", interval, track
