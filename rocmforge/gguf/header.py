"""The header of a GGUF file, versions 2 and 3, little-endian: metadata, and where tensors lie.

Bounded: every count, length and offset is checked against the file before it is used, so a broken
or hostile file ends in a `GGUFError`, never in a crash, a hang or a huge allocation. Metadata is
copied out of the map (it is small).
"""

from __future__ import annotations

import math
import mmap
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias, cast, overload

import numpy as np

from rocmforge.errors import GGUFError, brief
from rocmforge.gguf.formats import (
    FORMATS,
    Format,
    described_format,
    format_of_ggml_type,
    ggml_type_name,
)

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
ALIGNMENTS = (8, 1 << 16)  # smallest and largest that is accepted
MAX_DIMS = 4

# Above any real file, all parts together; they keep a hostile one under a second and 200 MB.
MAX_HEADER_BYTES = 1 << 26  # everything in front of the tensor data
MAX_KEYS = 1 << 14
MAX_TENSORS = 1 << 15
MAX_STRINGS = 1 << 21  # in all arrays of one file together
MAX_NESTED_ARRAYS = 1 << 16  # arrays inside arrays, in one file together
MAX_DEPTH = 8  # of arrays inside arrays
MAX_KEY_BYTES = (1 << 16) - 1  # as the specification says
MAX_NAME_BYTES = 1024  # the specification says 64; forks of llama.cpp write longer ones

MIN_KEY_BYTES = 8 + 1 + 4 + 1  # length, one letter, value type, smallest value
MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # length, one letter, n_dims, one dim, type, offset

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

# Value types in the order of their ids; a string and an array have no fixed size.
_BOOL, _STRING, _ARRAY = 7, 8, 9
_CODES = ("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?", "", "", "<u8", "<i8", "<f8")
_NUMBERS = {kind: np.dtype(code) for kind, code in enumerate(_CODES) if code}

_TENSOR_TYPES = ", ".join(
    f"{f.ggml_type} ({f.name})" for f in FORMATS.values() if f.ggml_type is not None
)


class StringArray(Sequence[str]):
    """An array of strings, decoded one by one when asked for; immutable.

    Bytes that are not UTF-8 decode with ``errors="surrogateescape"``; `raw` gives them as stored.
    It owns its bytes: it stays valid after the file is closed.
    """

    __slots__ = ("_bounds", "_data")

    def __init__(self, data: bytes, bounds: array[int]) -> None:
        # String i is data[bounds[i] + 8 : bounds[i + 1]]: the 8 bytes of its length come first.
        self._data, self._bounds = data, bounds

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def raw(self, index: int) -> bytes:
        """Return string `index` (negative counts from the end) as the bytes in the file."""
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"string index: got {index}, wanted {-count} to {count - 1}")
        index %= count
        return self._data[self._bounds[index] + 8 : self._bounds[index + 1]]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.raw(index).decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        data = self._data
        for start, end in pairwise(self._bounds):
            yield data[start + 8 : end].decode("utf-8", "surrogateescape")

    def __repr__(self) -> str:
        more = ", …" if len(self) > 3 else ""
        return f"StringArray([{', '.join(map(repr, self[:3]))}{more}], len={len(self)})"


_Numbers: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Value: TypeAlias = "bool | int | float | str | _Numbers | StringArray | list[Value]"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies in the file.

    Parameters
    ----------
    name
        As in the file, unique there.
    shape
        1 to 4 sizes of at least 1 in numpy's order (GGUF's reversed), ``(rows, columns)`` of a
        matrix; the columns are a whole number of blocks.
    format
        Of its blocks.
    offset
        Absolute, in bytes from the start of the file, or of its part of a split one; a multiple of
        the file's alignment.
    nbytes
        Bytes of all rows; the file holds all of them.
    part
        Which part of a split file it lies in, from 0.
    """

    name: str
    shape: tuple[int, ...]
    format: Format
    offset: int
    nbytes: int
    part: int = 0


class Budget:
    """What the headers of a file may still take, all parts together."""

    def __init__(self) -> None:
        self.header_bytes = MAX_HEADER_BYTES
        self.tensors = MAX_TENSORS
        self.strings = MAX_STRINGS
        self.nested = MAX_NESTED_ARRAYS


class Header:
    """The header: all that lies before the tensor data. It is parsed on construction, at `pos`.

    With `every_format` tensors may have formats that do not run.
    """

    def __init__(
        self, path: Path, data: mmap.mmap, budget: Budget, every_format: bool = False
    ) -> None:
        self.format_of = described_format if every_format else format_of_ggml_type
        self.path = path
        self.data = data
        self.pos = 0
        self.end = min(len(data), budget.header_bytes)
        self.budget = budget
        self.alignment = DEFAULT_ALIGNMENT
        self.metadata: dict[str, Value] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self.version = self._version()
        n_tensors = self._count("number of tensors", MIN_TENSOR_BYTES, budget.tensors)
        n_keys = self._count("number of metadata keys", MIN_KEY_BYTES, MAX_KEYS)
        for index in range(n_keys):
            self._read_key(f"metadata key {index}")
        self._place([self._read_tensor(f"tensor {index}") for index in range(n_tensors)])
        budget.tensors -= n_tensors
        budget.header_bytes -= self.pos

    def _error(self, what: str, offset: int, got: object, wanted: object) -> GGUFError:
        return GGUFError(self.path, what, offset=offset, got=got, wanted=wanted)

    def _take(self, length: int, what: str) -> int:
        """Step over `length` bytes that must be there; return where they start."""
        start, left = self.pos, self.end - self.pos
        if length > left:
            whole = "file: is it cut short?"
            if self.end < len(self.data):
                whole = f"{self.end} bytes of a header"
            wanted = f"at most {left}, to the end of the {whole}"
            raise self._error(what, start, f"{length} bytes", wanted)
        self.pos = start + length
        return start

    def _u32(self, what: str) -> int:
        return int(_U32.unpack_from(self.data, self._take(4, what))[0])

    def _u64(self, what: str) -> int:
        return int(_U64.unpack_from(self.data, self._take(8, what))[0])

    def _count(self, what: str, smallest: int, limit: int) -> int:
        """Read a count of things that take at least `smallest` bytes each."""
        count, fits = self._u64(what), (self.end - self.pos) // smallest
        if count > min(fits, limit):
            wanted = f"at most {limit}, the reader's limit"
            if fits <= limit:
                wanted = f"at most {fits}, which fit into the rest of the file: is it cut short?"
            raise self._error(what, self.pos - 8, count, wanted)
        return count

    def _text(self, length: int, what: str) -> str:
        start = self._take(length, what)
        return self.data[start : self.pos].decode("utf-8", "surrogateescape")

    def _name(self, what: str, limit: int, seen: Mapping[str, object]) -> str:
        length = self._u64(f"name length of {what}")
        if not 1 <= length <= limit:
            raise self._error(f"name length of {what}", self.pos - 8, length, f"1 to {limit}")
        name = self._text(length, f"name of {what}")
        if name in seen:
            start = self.pos - length
            raise self._error(f"name of {what}", start, brief(name), "a name not used before")
        return name

    def _version(self) -> int:
        first = self.data[: len(MAGIC)]
        if first != MAGIC:
            raise GGUFError(
                self.path, "not a GGUF file: first bytes", offset=None, got=first, wanted=MAGIC
            )
        self.pos = len(MAGIC)
        version = self._u32("version")
        if version in VERSIONS:
            return version
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        got = f"{swapped}, big-endian" if 0 < swapped < 1 << 16 < version else version
        raise self._error("version", 4, got, "2 or 3, little-endian")

    def _read_key(self, what: str) -> None:
        key = self._name(what, MAX_KEY_BYTES, self.metadata)
        what = f"metadata key {brief(key)}"
        kind, start = self._u32(f"type of {what}"), self.pos
        self.metadata[key] = value = self._value(kind, what)
        if key == "general.alignment":
            low, high = ALIGNMENTS
            if not isinstance(value, int) or not low <= value <= high or value & (value - 1):
                raise self._error(what, start, brief(value), f"a power of 2, {low} to {high}")
            self.alignment = value

    def _value(self, kind: int, what: str) -> Value:
        """Read the value behind its type `kind`."""
        if kind == _STRING:
            return self._text(self._u64(f"string length of {what}"), f"string of {what}")
        if kind == _ARRAY:
            return self._array(what, 1)
        return cast(Value, self._numbers(kind, 1, self.pos - 4, what)[0].item())

    def _array(self, what: str, depth: int) -> Value:
        start, kind = self.pos, self._u32(f"array type of {what}")
        counted = f"array length of {what}"
        if kind == _STRING:
            count = self._count(counted, 8, self.budget.strings)
            self.budget.strings -= count
            return self._strings(count, what)
        if kind == _ARRAY:
            if depth == MAX_DEPTH:
                wanted = f"at most {depth} levels of arrays"
                raise self._error(f"array type of {what}", start, "one more", wanted)
            count = self._count(counted, 12, self.budget.nested)
            self.budget.nested -= count
            return [self._array(what, depth + 1) for _ in range(count)]
        return self._numbers(kind, self._u64(counted), start, what)

    def _numbers(self, kind: int, count: int, kind_at: int, what: str) -> _Numbers:
        dtype = _NUMBERS.get(kind)
        if dtype is None:
            raise self._error(f"type of {what}", kind_at, kind, "0 to 12")
        start = self._take(count * dtype.itemsize, f"value of {what}")
        # Over bytes: read-only, aligned, and independent of the map.
        numbers = np.frombuffer(self.data[start : self.pos], dtype)
        if kind == _BOOL and (wrong := numbers.view(np.uint8) > 1).any():
            at = start + int(wrong.argmax())
            raise self._error(f"bool of {what}", at, self.data[at], "0 or 1")
        return numbers

    def _strings(self, count: int, what: str) -> StringArray:
        # The one loop that runs for every token and merge of a vocabulary: kept tight. `pos` only
        # grows, so a string that is too long ends the loop and is found behind it.
        data, last, unpack = self.data, self.end - 8, _U64.unpack_from
        first = pos = self.pos
        bounds = array("q")
        add = bounds.append
        for _ in range(count):
            if pos > last:
                break
            add(pos - first)
            pos += 8 + unpack(data, pos)[0]
        if pos > self.end:
            self.pos = first + bounds[-1] + 8
            self._take(pos - self.pos, f"string {len(bounds) - 1} of {what}")
        self.pos = pos
        if len(bounds) < count:
            self._take(8, f"length of string {len(bounds)} of {what}")
        add(pos - first)
        return StringArray(data[first:pos], bounds)

    def _read_tensor(self, what: str) -> int:
        """Read one record, its offset still relative to the data; return where that stands."""
        name = self._name(what, MAX_NAME_BYTES, self.tensors)
        what = f"tensor {brief(name)}"
        n_dims = self._u32(f"dimensions of {what}")
        if not 1 <= n_dims <= MAX_DIMS:
            raise self._error(f"dimensions of {what}", self.pos - 4, n_dims, f"1 to {MAX_DIMS}")
        start = self.pos
        shape = tuple(self._u64(f"shape of {what}") for _ in range(n_dims))[::-1]
        if not 0 < math.prod(shape) < 1 << 63:
            raise self._error(f"shape of {what}", start, shape, "1 to 2^63 - 1 elements in all")
        type_id = self._u32(f"type of {what}")
        try:
            fmt = self.format_of(type_id)
        except ValueError as error:
            wanted = f"one of {_TENSOR_TYPES}; `rocmforge info` says what else the file has"
            got = ggml_type_name(type_id)
            raise self._error(f"type of {what}", self.pos - 4, got, wanted) from error
        if shape[-1] % fmt.block_len:
            wanted = f"a multiple of {fmt.block_len}, a block of {fmt.name}"
            raise self._error(f"columns of {what}", start, shape[-1], wanted)
        offset = self._u64(f"offset of {what}")
        if offset % self.alignment:
            wanted = f"a multiple of the alignment, {self.alignment}"
            raise self._error(f"offset of {what}", self.pos - 8, offset, wanted)
        self.tensors[name] = TensorInfo(name, shape, fmt, offset, fmt.nbytes(shape))
        return self.pos - 8

    def _place(self, fields: list[int]) -> None:
        """Make offsets absolute; `fields` says where each stands. Inside the file, no overlaps."""
        start, size = -(-self.pos // self.alignment) * self.alignment, len(self.data)
        free = start
        pairs = zip(fields, self.tensors.values(), strict=True)
        for field, info in sorted(pairs, key=lambda pair: pair[1].offset):
            begin, end = start + info.offset, start + info.offset + info.nbytes
            if begin < free or end > size:
                got = f"bytes {begin} to {end}"
                wanted = f"inside {free} (end of what lies in front) to {size} (end of the file)"
                if end > size:
                    wanted += "; is the file cut short?"
                raise self._error(f"data of tensor {brief(info.name)}", field, got, wanted)
            free = end
            self.tensors[info.name] = replace(info, offset=begin)
