"""Opens the files of profilers: regular files of a bounded size, read line by line where possible.

What a reader's `matches` looks at is the beginning of a file only.
"""

from __future__ import annotations

import csv
import json
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from rocmforge.errors import ResultFileError, said_of_json
from rocmforge.profiling.readers.values import Omissions, plain

MOST_FILES = 1000
"""Of a folder."""

NAMED = 5
"""Files that a message names at most."""

MOST_BYTES = 2 * 1024**3
MOST_JSON_BYTES = 512 * 1024**2
"""JSON is held in memory as a whole, at about ten times its size."""

MOST_CELLS = 20_000_000
"""Values of a table that are read; the rest of it is left out, and the recording says so."""

MOST_CHARACTERS = 1_000_000
"""A line that is longer is no line of a profiler's."""

_HEAD_BYTES = 256 * 1024
HEADER_WITHIN = 200
"""Lines that a tool may print above a table's header."""

_MOST_LINES = 100
"""Of one field."""


def named(files: Iterable[Path]) -> str:
    """Return the names of the first files, or "no files"."""
    return ", ".join(file.name for file in islice(files, NAMED)) or "no files"


def not_read(names: Sequence[str]) -> list[str]:
    """Return the remark that names what lies beside the files that were read, if anything does."""
    more = ", …" if len(names) > NAMED else ""
    return [f"not read beside them: {', '.join(names[:NAMED])}{more}"] if names else []


def head(path: Path) -> bytes:
    """Return the beginning of a regular file; nothing where there is none or it cannot be read."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        return b""


def head_lines(path: Path) -> list[str]:
    """Return the first lines of a text file; none of a binary one."""
    start = head(path)
    if b"\0" in start:
        return []
    return start.decode("utf-8", "replace").removeprefix("\ufeff").splitlines()


def check(path: Path, wanted: str, most_bytes: int = MOST_BYTES) -> None:
    """Raise ResultFileError unless this is a regular file that holds something, of bounded size."""
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise ResultFileError(path, "file", got="none", wanted=wanted) from error
    except (OSError, ValueError) as error:
        raise ResultFileError(path, "file", got=error, wanted=wanted) from error
    if not stat.S_ISREG(status.st_mode):
        raise ResultFileError(path, "file", got="no regular file", wanted=wanted)
    if not status.st_size:
        raise ResultFileError(path, "file", got="an empty file", wanted=wanted)
    if status.st_size > most_bytes:
        limit = f"at most {most_bytes} bytes; record a shorter run"
        raise ResultFileError(path, "file", got=f"{status.st_size} bytes", wanted=limit)


@contextmanager
def opened(path: Path, wanted: str) -> Iterator[TextIO]:
    """Open a text file to be read line by line; bytes that are no UTF-8 become U+FFFD."""
    check(path, wanted)
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            yield file
    except OSError as error:
        raise ResultFileError(path, "file", got=error, wanted=wanted) from error


def lines(path: Path, file: TextIO) -> Iterator[str]:
    """Yield the lines of an open file; raises ResultFileError at one that has no end."""
    count = 0
    while line := file.readline(MOST_CHARACTERS):
        count += 1
        if len(line) == MOST_CHARACTERS:
            wanted = f"lines of less than {MOST_CHARACTERS} characters"
            raise ResultFileError(path, f"line {count}", got="a longer one", wanted=wanted)
        yield line


def read_json(path: Path, wanted: str) -> Any:
    """Read a JSON file as a whole, errors naming it."""
    check(path, wanted, MOST_JSON_BYTES)
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig", "replace"))
    except (OSError, ValueError, RecursionError) as error:
        raise ResultFileError(path, "content", got=said_of_json(error), wanted=wanted) from error


def column_names(line: str) -> list[str]:
    """Return the names in a line of a CSV file, without empty last ones; none where it is none."""
    try:
        names = next(csv.reader([line]), [])
    except csv.Error:
        return []
    names = [name.strip() for name in names]
    while names and not names[-1]:
        names.pop()
    return names


def find_header(lines: list[str], *needed: str) -> list[str] | None:
    """Return the names of the first line that has all these columns, given as `plain` names."""
    for line in lines[:HEADER_WITHIN]:
        names = column_names(line)
        if set(needed) <= {plain(name) for name in names}:
            return names
    return None


def table(
    path: Path, wanted: str, needed: tuple[str, ...], omissions: Omissions
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the line and the values by column of each row of a CSV file, below its header.

    What the tool printed above the header is skipped. A row of another length is left out. Of a
    header that was cut within its last name, the columns before it are read.
    """
    with opened(path, wanted) as file:
        text = lines(path, file)
        names, above, cut = _header(path, text, wanted, needed)
        most_rows = MOST_CELLS // len(names)
        rows = 0
        for line, row in _rows(path, text, above + 1, len(names), omissions):
            place = f"{path.name}, line {line}"
            while len(row) > len(names) and not row[-1]:
                row.pop()
            if not row or row == [""]:
                continue
            if cut and len(row) > len(names):
                omissions.lose("the header was cut, so its last columns are not known", place)
                del row[len(names) :]
            if len(row) != len(names):
                omissions.lose("another number of fields than the header", place)
                continue
            rows += 1
            if rows > most_rows:
                omissions.lose(f"the rest of the file, after {most_rows} rows", place)
                return
            yield line, dict(zip(names, row, strict=True))


def _header(
    path: Path, text: Iterator[str], wanted: str, needed: tuple[str, ...]
) -> tuple[list[str], int, bool]:
    """Return the header's names, its line, and whether it ends within the quotes of a name."""
    for number, line in enumerate(islice(text, HEADER_WITHIN), 1):
        cut = line.count('"') % 2 == 1
        names = column_names(line)[: -1 if cut else None]
        if set(needed) <= {plain(name) for name in names}:
            return _without_doubles(path, names), number, cut
    columns = ", ".join(needed)
    raise ResultFileError(path, "header", got="none", wanted=f"{wanted}: columns {columns}")


def _rows(
    path: Path, text: Iterator[str], first: int, width: int, omissions: Omissions
) -> Iterator[tuple[int, list[str]]]:
    """Yield the last line and the fields of each row; a quote that does not close costs its line.

    A field may go over several lines, as a range's message does. Where the lines together are no
    row either, only the first of them is left out.
    """
    ahead: deque[str] = deque()
    number = first
    while True:
        if not ahead:
            ahead.extend(islice(text, 1))
        if not ahead:
            return
        count = 1
        joined = ahead[0]
        while joined.count('"') % 2 and count < _MOST_LINES and len(joined) < MOST_CHARACTERS:
            if len(ahead) == count:
                ahead.extend(islice(text, 1))
            if len(ahead) == count:
                break
            joined += ahead[count]
            count += 1
        fields = _fields(joined, width if count > 1 else None)
        if fields is None:
            place = f"{path.name}, line {number}"
            omissions.lose("a quote that is not closed, or a broken field", place)
            count = 1
        for _ in range(count):
            ahead.popleft()
        number += count
        if fields is not None:
            yield number - 1, fields


def _fields(text: str, width: int | None) -> list[str] | None:
    """Return a row's fields; None where it is none, or has not as many as wanted, if wanted."""
    if text.count('"') % 2:
        return None
    try:
        # Names of kernels with quotes in them are written as they are, so one line is not strict.
        row = next(csv.reader([text], strict=width is not None), [])
    except csv.Error:
        return None
    return row if width is None or len(row) == width else None


def _without_doubles(path: Path, names: list[str]) -> list[str]:
    seen = set()
    for name in names:
        if name in seen:
            wanted = "each column once"
            raise ResultFileError(path, "header", got=f"column {name!r} twice", wanted=wanted)
        seen.add(name)
    return names
