"""The parts of a GGUF file: one, or as many as its name and its metadata say.

A split file is NAME-00001-of-00003.gguf and so on. Each part has the keys ``split.no`` (from 0),
``split.count`` and ``split.tensors.count`` (of all parts together); the first has all other
metadata. Any part opens the file, and all of them have to be there.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from rocmforge.errors import GGUFError, NoSuchFileError, brief
from rocmforge.gguf.header import Budget, Header

MAX_PARTS = 512
COUNT, NUMBER, TENSORS = "split.count", "split.no", "split.tensors.count"
KEYS = (COUNT, NUMBER, TENSORS)
_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


class Part:
    """A file, mapped read-only, and its header.

    Parameters
    ----------
    path
        A regular file: GGUF version 2 or 3, little-endian.
    budget
        What its header may take; it takes that away.
    every_format
        Whether tensors may have formats that do not run.
    """

    def __init__(self, path: Path, budget: Budget, every_format: bool) -> None:
        self.path = path
        self.data = _map_file(path)
        try:
            self.header = Header(path, self.data, budget, every_format)
        except BaseException:
            self.data.close()
            raise

    def close(self) -> None:
        """Give the map back, or leave it to the arrays that view it; the last one unmaps it."""
        with suppress(BufferError):
            self.data.close()

    def number(self, key: str) -> int | None:
        """Return an integer of the metadata; None where the key is missing.

        Raises
        ------
        GGUFError
            It is something else, or below 0.
        """
        value = self.header.metadata.get(key)
        if value is not None and (type(value) is not int or value < 0):
            raise self.error(f"metadata key {key}", brief(value), "an integer, not below 0")
        return value

    def error(self, what: str, got: object, wanted: object) -> GGUFError:
        """Make an error that names the file."""
        return GGUFError(self.path, what, offset=None, got=got, wanted=wanted)


def open_parts(path: Path, every_format: bool) -> list[Part]:
    """Open a file, and the others that it is split into, in their order; see `Part`.

    Raises
    ------
    GGUFError
        A part is missing, broken, or of another file; or a tensor stands in two of them.
    """
    with ExitStack() as opened:
        budget = Budget()
        given = Part(path, budget, every_format)
        opened.callback(given.close)
        count = given.number(COUNT)
        if count is None or count <= 1:
            parts = [given]
        else:
            parts = _all_parts(
                given, count, lambda other: Part(other, budget, every_format), opened
            )
        opened.pop_all()
        return parts


def _all_parts(
    given: Part, count: int, open_part: Callable[[Path], Part], opened: ExitStack
) -> list[Part]:
    paths = _paths(given, count)
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        names = ", ".join(missing[:3]) + (" …" if len(missing) > 3 else "")
        got = f"{count - len(missing)} of {count}"
        raise given.error("parts", got, f"all of them in one folder; missing: {names}")
    parts = []
    for place, path in enumerate(paths):
        part = given if path.name == given.path.name else open_part(path)
        if part is not given:
            opened.callback(part.close)
        parts.append(part)
        found = part.number(NUMBER), part.number(COUNT)
        if found != (place, count):
            got = f"{NUMBER} {found[0]} and {COUNT} {found[1]}"
            raise part.error("metadata of the part", got, f"{place} and {count}, as its name says")
        if place:
            part.header.metadata.clear()  # the first part's are the file's
    _check_tensors(parts)
    return parts


def _paths(given: Part, count: int) -> list[Path]:
    """The names of all parts, by that of one."""
    if not 2 <= count <= MAX_PARTS:
        raise given.error(f"metadata key {COUNT}", count, f"at most {MAX_PARTS}")
    number = (given.number(NUMBER) or 0) + 1
    name = _NAME.fullmatch(given.path.name)
    if name is None or (int(name[2]), int(name[3])) != (number, count):
        wanted = f"NAME-{number:05d}-of-{count:05d}.gguf: it is part {number} of {count}"
        raise given.error("file name", given.path.name, wanted)
    return [
        given.path.with_name(f"{name[1]}-{place:05d}-of-{count:05d}.gguf")
        for place in range(1, count + 1)
    ]


def _check_tensors(parts: list[Part]) -> None:
    """Raise unless each tensor stands in one part, and they are as many as the metadata say."""
    seen: dict[str, Path] = {}
    for part in parts:
        for name in part.header.tensors:
            if name in seen:
                got = f"also in {seen[name].name}"
                raise part.error(f"tensor {brief(name)}", got, "a name not used in another part")
            seen[name] = part.path
    said = parts[0].number(TENSORS)
    if said is not None and said != len(seen):
        raise parts[0].error("tensors of all parts", len(seen), f"{said}, as {TENSORS} says")


def _map_file(path: Path) -> mmap.mmap:
    """Map a regular, non-empty file; a directory, FIFO, missing or empty file is a GGUFError."""
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer. Regular files ignore it.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and status.st_size:
                return mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
    except FileNotFoundError as error:
        raise NoSuchFileError(path) from error
    except (OSError, ValueError) as error:
        got = error.strerror if isinstance(error, OSError) else str(error)
        raise GGUFError(path, "file", offset=None, got=got, wanted="a readable file") from error
    kinds = {stat.S_IFREG: "an empty file", stat.S_IFDIR: "a directory"}
    got = kinds.get(stat.S_IFMT(status.st_mode), "a FIFO, socket or device")
    raise GGUFError(path, "file", offset=None, got=got, wanted="a regular file with data")
