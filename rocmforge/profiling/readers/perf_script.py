"""Reads the output of `perf script`: one stack for each sample, joined where they are the same.

Frames are functions from the outermost to the innermost. The functions of Python 3.12 and newer
appear by name where the program ran with PYTHONPERFSUPPORT=1.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rocmforge.errors import ResultFileError
from rocmforge.profiling.readers.input_files import lines, opened

MOST_FRAMES = 1000
MOST_STACKS = 1_000_000

_WANTED = "the output of `perf script`"
_UNKNOWN = "[unknown]"

# "python 12311/12315 [001] 28239.600585:    2004008 cpu-clock:pppH: "
_SAMPLE = re.compile(
    r"(?P<program>\S+(?:\s+\S+)*?)\s+(?P<thread>-?\d+(?:/-?\d+)?)\s+(?:\[\d+\]\s+)?\d+\.\d+:\s+"
    r"(?:\d+\s+)?(?P<event>\S+?):(?:\s|$)"
)
# "    e2bc _dl_relocate_object+0x69c (/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2)"
_FRAME = re.compile(r"\s+[0-9a-f]+\s+(?P<rest>\S.*)\)")
_OFFSET = re.compile(r"\+0x[0-9a-f]+\s+\(")
_PYTHON = re.compile(r"py::(?P<function>[^:]*):(?P<file>.*)")


@dataclass(frozen=True)
class Stacks:
    """Samples by stack.

    Parameters
    ----------
    samples
        How many samples have a stack: frames from the outermost on, the program first.
    event
        What perf counted between two samples: ``"cpu-clock"``, ``"cycles"``.
    remarks
        What a reader should know.
    partial
        Some of the file was left out; `remarks` says what.
    """

    samples: dict[tuple[str, ...], int]
    event: str
    remarks: tuple[str, ...] = ()
    partial: bool = False

    @property
    def total(self) -> int:
        """All samples."""
        return sum(self.samples.values())

    def leaves(self) -> list[tuple[str, int]]:
        """Return the innermost functions, each with its samples, most first."""
        found: Counter[str] = Counter()
        for stack, count in self.samples.items():
            found[stack[-1]] += count
        return sorted(found.items(), key=lambda item: (-item[1], item[0]))

    def collapsed(self) -> str:
        """Return a line for each stack, as flame graph tools take it: ``program;outer 12``."""
        written = (
            f"{';'.join(frame.replace(';', ',') for frame in stack)} {count}\n"
            for stack, count in sorted(self.samples.items())
        )
        return "".join(written)


def read_perf_script(path: Path) -> Stacks:
    """Read a file of `perf script`, sample by sample.

    Raises
    ------
    ResultFileError
        The file is missing, or has no sample.
    """
    samples: Counter[tuple[str, ...]] = Counter()
    events: Counter[str] = Counter()
    lost = 0
    program: str | None = None
    frames: list[str] = []  # innermost first

    def end() -> int:
        if program is None:
            return 0
        stack = (program, *reversed(frames))
        if stack not in samples and len(samples) >= MOST_STACKS:
            return 1
        samples[stack] += 1
        return 0

    with opened(path, _WANTED) as file:
        for line in lines(path, file):
            if not line.strip() or line.startswith("#"):
                continue
            if line[0].isspace():
                name = _frame_name(line)
                if program is None or not name or len(frames) >= MOST_FRAMES:
                    lost += 1
                    continue
                if not (name == _UNKNOWN and frames and frames[-1] == _UNKNOWN):
                    frames.append(sys.intern(name))
                continue
            lost += end()
            frames = []
            sample = _SAMPLE.match(line)
            program = None if sample is None else sample["program"]
            if sample is None:
                lost += 1
            else:
                events[sample["event"].partition(":")[0]] += 1
    lost += end()
    if not samples:
        raise ResultFileError(path, "content", got="no sample", wanted=_WANTED)
    remarks = [f"{lost} lines of perf's output were not understood"] if lost else []
    if len(events) > 1:
        remarks.append(f"samples of several events are added up: {', '.join(sorted(events))}")
    return Stacks(dict(samples), events.most_common(1)[0][0], tuple(remarks), lost > 0)


def _frame_name(line: str) -> str:
    """Return what a reader takes a frame for: its function, else the library that it is in.

    Both may have parentheses: ``void (anonymous namespace)::f<4>()+0x8 (/lib/a.so (deleted))``.
    """
    frame = _FRAME.fullmatch(line.rstrip())
    if frame is None:
        return ""
    rest = frame["rest"].removesuffix(" (deleted)")
    offset = _OFFSET.search(rest)
    if offset is not None:
        function, file = rest[: offset.start()], rest[offset.end() :]
    else:
        function, _, file = rest.rpartition(" (")
    function = function.strip()
    if not function:
        return ""
    python = _PYTHON.fullmatch(function)
    if python is not None:
        return f"{python['function']} ({PurePosixPath(python['file']).name})"
    if function != _UNKNOWN:
        return f"{function} [kernel]" if file.startswith("[kernel") else function
    return _UNKNOWN if file in (_UNKNOWN, "", "//anon") else f"[{PurePosixPath(file).name}]"
