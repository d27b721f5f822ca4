"""Calls, copies and sums from rows of rocprofv3's CSV, of rocpd's views, or made of its JSON."""

from __future__ import annotations

from collections.abc import Iterable

from rocmforge.profiling.readers.records import Call, Copy, Total
from rocmforge.profiling.readers.values import Omissions, copy_direction, span, whole

TOOL = "rocprofv3"


def call(
    row: tuple[object, object, object, object, object],
    place: str,
    omissions: Omissions,
    nbytes: object = None,
) -> Call | None:
    """Return one call of an API; None, and counted, where it has no name or no times.

    Parameters
    ----------
    row
        Domain, function, begin, end, thread.
    place
        Names the row in remarks.
    omissions
        Counts what cannot be read.
    nbytes
        Of memory that it allocates.
    """
    domain, function, start, end, thread = row
    if not text(function):
        omissions.lose("no function's name, left out", place)
        return None
    begin, finish = whole(start), whole(end)
    if begin is None or finish is None or finish < begin:
        omissions.lose("a call whose times are no span of nanoseconds, left out", place)
        return None
    fields = text(domain) or "API", text(function), begin, finish
    return Call(*fields, thread=whole(thread), nbytes=whole(nbytes))


def copy(
    row: tuple[object, object, object, object], place: str, omissions: Omissions
) -> Copy | None:
    """Return one copy of memory; None, and counted, where it has no direction.

    Parameters
    ----------
    row
        Direction as the tool names it, begin, end, size in bytes.
    place
        Names the row in remarks.
    omissions
        Counts what cannot be read.
    """
    name, begin, finish, nbytes = row
    if not text(name):
        omissions.lose("a copy without its direction, left out", place)
        return None
    start, end = span(begin, finish, place, omissions) or (None, None)
    return Copy(copy_direction(text(name)), start, end, whole(nbytes))


def text(value: object) -> str:
    """Return a value as text; nothing for None, for binary data and for what has parts."""
    return "" if value is None or isinstance(value, (bytes, list, dict)) else str(value).strip()


def family(domain: str) -> str:
    """Return ``"kernel"``, ``"copy"``, ``"HIP"``, ``"HSA"`` … for a domain as the tool names it."""
    name = domain.upper()
    if name.startswith("KERNEL"):
        return "kernel"
    return "copy" if name in ("COPY", "MEMORY_COPY") else name.partition("_")[0]


def runs_added(count: int) -> list[str]:
    """Return the remark that a recording holds so many runs of kernels; nothing for one of them."""
    if count < 2:
        return []
    return [
        f"{count} runs or processes of the program are added up: calls and times are those of all"
    ]


def totals_without_singles(
    totals: Iterable[Total], dispatches: bool, copies: bool, calls: Iterable[Call]
) -> tuple[Total, ...]:
    """Return the totals of what the run has no single records of."""
    single = {family(domain) for domain in {call.domain for call in calls}}
    single |= ({"kernel"} if dispatches else set()) | ({"copy"} if copies else set())
    return tuple(
        total
        for total in totals
        if family(total.name if total.domain == "domain" else total.domain) not in single
    )
