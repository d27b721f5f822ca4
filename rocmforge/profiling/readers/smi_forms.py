"""The forms in which rocm-smi and amd-smi write: JSON, CSV, text. Each becomes cards with values.

Nested keys of amd-smi are joined by a slash: ``usage/gfx_activity``. Warnings that the tools print
above their output are skipped.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rocmforge.errors import ResultFileError
from rocmforge.profiling.readers.input_files import column_names
from rocmforge.profiling.readers.values import Omissions

MOST_BYTES = 64 * 1024**2
_MOST_DEPTH = 12
_MOST_VALUES = 5_000_000
_MOST_FAILURES = 200
_WANTED = "the output of rocm-smi or amd-smi"
_CARD = re.compile(r"(?:card|gpu)?[ \[]*(\d{1,4})\]?", re.IGNORECASE)
_JSON_STARTS = re.compile(r"^[ \t]*[{\[]", re.MULTILINE)
_CARD_KEY = re.compile(r'"card\d+"\s*:')
_GPU_KEY = re.compile(r'"gpu"\s*:\s*"?\d')
_TEXT_CARD = re.compile(r"GPU: *(\d{1,4})\s*")
_TEXT_LINE = re.compile(r"( *)([^ :][^:]*):(?: (.*))?")
_OLD_TEXT = re.compile(r"GPU\[(\d{1,4})\]\s*: *([^ ].*?): *(.*)")
_SMI_COLUMNS = {
    *("gfx_activity", "socket_power", "current_socket_power", "used_vram", "vram_used"),
    *("total_vram", "vram_total", "hotspot", "edge", "gfx_0_clk", "gfx_clk", "edge_temperature"),
    *("market_name", "umc_activity", "perf_level", "average_socket_power", "power_usage"),
}
_ROCM_COLUMNS = ("(c)", "(w)", "(%)", "(b)", "(vram%)", "clock", "performance level", "card series")


@dataclass(frozen=True)
class Card:
    """What a tool says of one card: its number, where that stands, and all values by key."""

    number: int
    place: str
    values: Mapping[str, object]


def form(lines: list[str]) -> str | None:
    """Return ``"json"``, ``"csv"``, ``"text"`` or ``"old text"``; None: neither tool's output."""
    start = "\n".join(lines)
    if found := _JSON_STARTS.search(start):
        inside = start[found.start() :]
        if _CARD_KEY.search(inside) or (_GPU_KEY.search(inside) and "traceEvents" not in inside):
            return "json"
    for line in lines[:200]:
        if _is_header(column_names(line)):
            return "csv"
        if _TEXT_CARD.fullmatch(line):
            return "text"
        if _OLD_TEXT.match(line):
            return "old text"
    return None


def cards(path: Path) -> tuple[str, list[Card], Omissions]:
    """Return the tool, each card's values in the file's order, and what could not be read."""
    try:
        text = path.read_bytes().decode("utf-8-sig", "replace")
    except OSError as error:
        raise ResultFileError(path, "file", got=error, wanted=_WANTED) from error
    kind = form(text[:300_000].splitlines())
    omissions = Omissions("place")
    if kind == "json":
        tool, found = _json(path, text, omissions)
    elif kind == "csv":
        tool, found = _csv(text, omissions)
    elif kind == "text":
        tool, found = "amd-smi", _text(text)
    else:
        tool, found = "rocm-smi", _old_text(text)
    if not found:
        raise ResultFileError(path, "content", got="no card", wanted=_WANTED)
    return tool, found, omissions


def _is_header(names: list[str]) -> bool:
    lower = [name.lower() for name in names]
    if "device" in lower:
        return any(mark in name for name in lower for mark in _ROCM_COLUMNS)
    return "gpu" in lower and bool(_SMI_COLUMNS & set(lower))


def _number(value: object) -> int | None:
    found = _CARD.fullmatch(str(value).strip()) if not isinstance(value, bool) else None
    return int(found[1]) if found else None


def _json(path: Path, text: str, omissions: Omissions) -> tuple[str, list[Card]]:
    """Read one JSON document, or several behind each other, as a tool that repeats writes them."""
    decoder = json.JSONDecoder()
    found: list[Card] = []
    tools = set()
    position = counted = failures = 0
    line = 1
    while (start := _JSON_STARTS.search(text, position)) and failures < _MOST_FAILURES:
        line += text.count("\n", counted, start.end())
        counted = start.end()
        place = f"line {line}"
        try:
            document, position = decoder.raw_decode(text, start.end() - 1)
        except (ValueError, RecursionError) as error:
            # A line of a log, or a document that was cut off: what is whole in it may follow.
            if not failures:
                omissions.lose(f"no complete JSON ({error})", place)
            failures += 1
            position = start.end()
            continue
        for tool, card in _documents(document, place):
            tools.add(tool)
            found.append(card)
    if not found:
        got = next(iter(omissions.remarks()), "no card")
        raise ResultFileError(path, "content", got=got, wanted=_WANTED)
    return (tools.pop() if len(tools) == 1 else "amd-smi"), found


def _documents(document: object, place: str, depth: int = 0) -> Iterator[tuple[str, Card]]:
    if depth > _MOST_DEPTH:
        return
    if isinstance(document, list):
        for one in document:
            yield from _documents(one, place, depth + 1)
    elif isinstance(document, Mapping):
        number = _number(document.get("gpu")) if "gpu" in document else None
        if number is not None:
            yield "amd-smi", Card(number, f"{place}, gpu {number}", dict(_flat(document)))
            return
        for key, value in document.items():
            number = _number(key) if str(key).lower().startswith("card") else None
            if number is not None and isinstance(value, Mapping):
                yield "rocm-smi", Card(number, f"{place}, {key}", value)
            elif isinstance(value, (list, Mapping)):
                yield from _documents(value, place, depth + 1)


def _flat(
    values: Mapping[str, object], path: str = "", depth: int = 0
) -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        name = f"{path}{key}"
        if isinstance(value, Mapping) and "value" not in value and depth < _MOST_DEPTH:
            yield from _flat(value, f"{name}/", depth + 1)
        else:
            yield name, value


def _csv(text: str, omissions: Omissions) -> tuple[str, list[Card]]:
    """Read tables of CSV; each header begins another one, as rocm-smi writes several in a row."""
    names: list[str] = []
    found: list[Card] = []
    tool = "amd-smi"
    values = 0
    reader = csv.reader(text.splitlines())
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            omissions.lose(f"{error}, so the rest is not read", f"line {reader.line_num}")
            break
        if row is None or values > _MOST_VALUES:
            break
        place = f"line {reader.line_num}"
        if _is_header(row):
            names = [name.strip() for name in row]
            tool = "rocm-smi" if "device" in map(str.lower, names) else tool
            continue
        if not names or not any(row):
            continue
        if len(row) != len(names):
            omissions.lose("another number of fields than the header, left out", place)
            continue
        values += len(row)
        card = dict(zip(names, row, strict=True))
        lower = {name.lower(): value for name, value in card.items()}
        number = _number(lower.get("device", lower.get("gpu")))
        if number is None:
            omissions.lose("no card's number, left out", place)
        else:
            found.append(Card(number, place, card))
    return tool, found


def _text(text: str) -> list[Card]:
    """Read amd-smi's text: sections by their indentation, below ``GPU: 0``."""
    found: list[Card] = []
    sections: list[tuple[int, str]] = []
    values: dict[str, object] = {}
    for index, line in enumerate(text.splitlines(), 1):
        if card := _TEXT_CARD.fullmatch(line):
            values = {}
            sections = []
            found.append(Card(int(card[1]), f"line {index}", values))
        elif found and (part := _TEXT_LINE.fullmatch(line.rstrip())):
            depth, key, value = len(part[1]), part[2].strip().lower(), part[3]
            while sections and sections[-1][0] >= depth:
                sections.pop()
            if value is None:
                sections.append((depth, key))
            else:
                values["/".join([*(name for _, name in sections), key])] = value
    return found


def _old_text(text: str) -> list[Card]:
    """Read rocm-smi's text: ``GPU[0] : GPU use (%): 3``, with the keys that its JSON has."""
    found: dict[int, dict[str, object]] = {}
    first: dict[int, str] = {}
    for index, line in enumerate(text.splitlines(), 1):
        if part := _OLD_TEXT.fullmatch(line.rstrip()):
            number = int(part[1])
            first.setdefault(number, f"line {index}")
            found.setdefault(number, {}).setdefault(part[2], part[3])
    return [Card(number, first[number], values) for number, values in found.items()]
