"""JSON files: read with errors that name the file, written whole or not at all.

asv's files and ours have a version field; NaN is allowed where asv writes it.
"""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from rocmforge.atomic import whole_file
from rocmforge.errors import ResultFileError, said_of_json

_YEAR_10000_MS = 253_402_300_800_000


def read_text(path: Path, wanted: str, most_bytes: float = math.inf) -> str:
    """Read a regular file in UTF-8, errors naming the file; a pipe would be waited for forever."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ResultFileError(path, "file", got="no regular file", wanted=wanted)
        if status.st_size > most_bytes:
            limit = f"{wanted} of at most {most_bytes} bytes"
            raise ResultFileError(path, "file", got=f"{status.st_size} bytes", wanted=limit)
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ResultFileError(path, "file", got="none", wanted=wanted) from error
    except (OSError, ValueError) as error:
        raise ResultFileError(path, "content", got=error, wanted=wanted) from error


def parse_json(path: Path, text: str, wanted: str = "a complete JSON file") -> Any:
    """Parse JSON in which no object has a key twice, errors naming the file."""
    refuse_empty(path, text, wanted)
    try:
        return json.loads(text, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        raise ResultFileError(path, "content", got=said_of_json(error), wanted=wanted) from error


def refuse_empty(path: Path, text: str, wanted: str) -> None:
    """Raise ResultFileError where a file holds nothing; a parser would name a line and a column."""
    if not text.strip():
        raise ResultFileError(path, "content", got="an empty file", wanted=wanted)


def _without_doubles(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} twice")
    return found


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, errors naming the file."""
    data = parse_json(path, read_text(path, "a JSON file"))
    if not isinstance(data, dict):
        raise ResultFileError(path, "content", got=kind_of(data), wanted="an object")
    return data


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write strict JSON, whole or not at all."""
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all."""
    write_whole(path, lambda file: file.write(data))


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a file, whole or not at all; its folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        write(file)


def read_versioned_json(path: Path, version: int) -> dict[str, Any]:
    """Read a JSON object (bare NaN and Infinity allowed, as asv's) and check its version.

    Raises
    ------
    ResultFileError
        The file is missing, unreadable, no JSON object, or of another version.
    """
    data = read_json(path)
    if data.get("version") != version or isinstance(data["version"], bool):
        raise ResultFileError(path, "version", got=data.get("version"), wanted=version)
    return data


def refuse_loss(path: Path, kept: Iterable[str], new: Collection[str]) -> None:
    """Raise ValueError where the file at `path` has benchmarks that are not among the new ones."""
    lost = [label for label in kept if label not in new]
    if lost:
        more = " …" if len(lost) > 1 else ""
        raise ValueError(
            f"{path}: got results without {len(lost)} of its benchmarks ({lost[0]}{more}), "
            "wanted all of them, or --replace to lose those"
        )


def typed_field(path: Path, data: Mapping[str, Any], key: str, kind: type, wanted: str) -> Any:
    """Value of a key that must be of one JSON type; ResultFileError otherwise."""
    value = data.get(key)
    if not isinstance(value, kind):
        raise ResultFileError(path, key, got=kind_of(value), wanted=wanted)
    return value


def finite_number(path: Path, what: str, value: object) -> float:
    """Value as a float if it is a finite number (no bool); ResultFileError otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ResultFileError(path, what, got=kind_of(value), wanted="a number")
    try:
        converted = float(value)
    except OverflowError:
        converted = math.inf
    if not math.isfinite(converted):
        raise ResultFileError(path, what, got=converted, wanted="a finite number")
    return converted


def milliseconds(path: Path, what: str, value: object) -> int | None:
    """Return a moment, in milliseconds since 1970 and before the year 10000; null is None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _YEAR_10000_MS:
        raise ResultFileError(path, what, got=value, wanted="milliseconds since 1970")
    return value


def is_strings(value: object) -> TypeGuard[list[str]]:
    """Whether a JSON value is a list of strings."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def kind_of(value: object) -> str:
    """Type of a JSON value for an error message."""
    return "nothing" if value is None else type(value).__name__
