"""What single values of profilers' files mean: names, whole numbers, measurements, spans of time.

A value that is not certainly a number is None, never a guess. `Omissions` counts what a reader had
to leave out, so that a recording says it.
"""

from __future__ import annotations

import re

LATEST_NS = 2**63 - 1
"""Times are 64-bit on every tool; what is larger is no time."""

_WHOLE = re.compile(r"\+?(\d{1,19})(?:\.0*)?")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?")
_NOT_ALPHANUMERIC = re.compile(r"[^a-z0-9]")
_KERNEL_DESCRIPTOR = re.compile(r"(?:\.kd| \(\.kd\)| \[clone \.kd\])$")


class Omissions:
    """What of the input is not in the recording, and why: counted by reason, with the first place.

    Parameters
    ----------
    unit
        What is counted: ``"row"``, ``"line"``, ``"event"``.
    """

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._lost: dict[str, tuple[int, str]] = {}
        self._noted: dict[str, tuple[int, str]] = {}

    def lose(self, why: str, place: object) -> None:
        """Count one unit of which something could not be read; the recording is partial."""
        count, first = self._lost.get(why, (0, str(place)))
        self._lost[why] = (count + 1, first)

    def note(self, why: str, place: object) -> None:
        """Count one unit that was read as it is, and of which a user should know something."""
        count, first = self._noted.get(why, (0, str(place)))
        self._noted[why] = (count + 1, first)

    @property
    def partial(self) -> bool:
        """Whether anything was lost."""
        return bool(self._lost)

    @property
    def lost(self) -> int:
        """How many units were lost."""
        return sum(count for count, _ in self._lost.values())

    def remarks(self) -> tuple[str, ...]:
        """Return a line for each reason: how many, why, and where the first one is."""
        found = []
        for why, (count, first) in (*self._lost.items(), *self._noted.items()):
            units = self._unit if count == 1 else f"{self._unit}s"
            found.append(f"{count} {units}: {why} (first: {first})")
        return tuple(found)


def plain(name: str) -> str:
    """Return a column's name in small letters and digits: ``gpu-id`` and ``GPU_ID`` are one."""
    return _NOT_ALPHANUMERIC.sub("", name.lower())


def whole(value: object) -> int | None:
    """Return a whole number of at least 0 as the file has it, or None.

    A number in exponent form was rounded by whoever wrote it, so it is none: ``8.1E+14`` ns says
    nothing about microseconds.
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return value if 0 <= value <= LATEST_NS else None
    found = _WHOLE.fullmatch(str(value).strip())
    number = int(found[1]) if found else None
    return number if number is not None and number <= LATEST_NS else None


def number(value: object) -> float | None:
    """Return a finite number, or None for all else (``N/A``, ``None``, nothing)."""
    text = "" if value is None or isinstance(value, bool) else str(value).strip()
    if len(text) > 400 or not _NUMBER.fullmatch(text):
        return None
    found = float(text)
    return found if abs(found) != float("inf") else None


def span(start: object, end: object, place: str, omissions: Omissions) -> tuple[int, int] | None:
    """Return begin and end in ns, or None, and counted, where they are no span of time.

    A begin of 0 is what rocprof writes where it did not ask for times. Numbers in exponent form
    come from a spreadsheet that rounded them.
    """
    begin, finish = whole(start), whole(end)
    if begin and finish is not None and finish >= begin:
        return begin, finish
    if begin == 0 or not (str(start or "") or str(end or "")):
        omissions.note("without times", place)
    elif "e" in str(start).lower() and number(start) is not None:
        omissions.note("its times were rounded by another program, so they are not known", place)
    else:
        omissions.lose("its times are no span of nanoseconds, so they are not known", place)
    return None


def kernel_name(text: str) -> str:
    """Return a kernel's name without the mark of its descriptor: ``.kd``, ``[clone .kd]``."""
    return _KERNEL_DESCRIPTOR.sub("", text.strip().strip('"'))


def copy_direction(name: str) -> str:
    """Return ``"host_to_device"`` … for what AMD's tools call a copy; other names as they are."""
    bare = plain(name)
    for source in ("host", "device"):
        for target in ("host", "device"):
            if f"{source}to{target}" in bare:
                return f"{source}_to_{target}"
    return name
