"""Breaks files as disks, editors and crashes do, repeatably: for the tests of the readers."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from pathlib import Path

from rocmforge.errors import RocmforgeError
from rocmforge.profiling.readers.records import Recording

FEW = 500
"""Mutations of a form in `make test`; `make test-all` makes the next number."""

MANY = 10_000
MOST_SECONDS = 5.0

_STRANGE = (
    b"",
    b"-1",
    b"9" * 400,
    b"1e308",
    b"nan",
    b"NULL",
    b"0x7f",
    b"\xff\xfe",
    b'"',
    b"\0",
    b"{}",
)


def mutated(content: bytes, seed: int) -> bytes:
    """Return content with one to three things broken; the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(rng.randint(1, 3)):
        content = rng.choice(_WAYS)(content, rng)
    return content


def _flip(content: bytes, rng: random.Random) -> bytes:
    if not content:
        return content
    place = rng.randrange(len(content))
    return content[:place] + bytes([rng.randrange(256)]) + content[place + 1 :]


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _lose_line(content: bytes, rng: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    if lines:
        del lines[rng.randrange(len(lines))]
    return b"".join(lines)


def _repeat_line(content: bytes, rng: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    if lines:
        place = rng.randrange(len(lines))
        lines.insert(rng.randrange(len(lines) + 1), lines[place])
    return b"".join(lines)


def _lose_column(content: bytes, rng: random.Random) -> bytes:
    column = rng.randrange(8)
    rows = [line.split(b",") for line in content.split(b"\n")]
    return b"\n".join(b",".join(row[:column] + row[column + 1 :]) for row in rows)


def _strange_value(content: bytes, rng: random.Random) -> bytes:
    values = list(re.finditer(rb"[A-Za-z0-9_.]+", content[:1_000_000]))
    if not values:
        return content
    value = rng.choice(values)
    return content[: value.start()] + rng.choice(_STRANGE) + content[value.end() :]


def _swap(content: bytes, rng: random.Random) -> bytes:
    if len(content) < 4:
        return content
    first, second = sorted(rng.sample(range(len(content)), 2))
    return content[:first] + content[second:] + content[first:second]


_WAYS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(_flip, _cut, _lose_line, _repeat_line, _lose_column, _strange_value, _strange_value, _swap),
)


def read_all(
    content: bytes, count: int, path: Path, read: Callable[[Path], Recording]
) -> tuple[int, int]:
    """Read mutations of a file; return how many were refused, and how many gave a recording.

    Anything but a recording or an error that names the path fails, and so does a read that takes
    longer than `MOST_SECONDS`.
    """
    refused = recorded = 0
    for seed in range(count):
        path.write_bytes(mutated(content, seed))
        start = time.monotonic()
        recording = None
        message = ""
        try:
            recording = read(path)
        except RocmforgeError as error:
            message = str(error)
        assert time.monotonic() - start < MOST_SECONDS, f"seed {seed}"
        if recording is None:
            assert path.name in message, f"seed {seed}: {message}"
            refused += 1
        else:
            assert isinstance(recording, Recording), f"seed {seed}"
            assert not recording.partial or recording.remarks, f"seed {seed}"
            recorded += 1
    return refused, recorded
