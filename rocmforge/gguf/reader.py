"""GGUF files, versions 2 and 3, little-endian: metadata and tensor views over one read-only map.

Bounded: every count, length and offset is checked against the file before it is used, so a broken
or hostile file ends in a `GGUFError`, never in a crash, a hang or a huge allocation. Metadata is
copied out of the map (it is small); tensor bytes never are, and no tensor page is touched here.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import EllipsisType, MappingProxyType
from typing import Any, TypeAlias, TypeVar, cast, overload

import numpy as np

from rocmforge.errors import GGUFError, NoSuchFileError, brief
from rocmforge.gguf.formats import FORMATS, Format, format_of_ggml_type

VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
ALIGNMENTS = (8, 1 << 16)  # smallest and largest that is accepted
MAX_DIMS = 4

# Above any real file; together they keep a hostile one under a second and 200 MB.
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
T = TypeVar("T")
_KINDS = (bool, int, float, str, np.ndarray, StringArray, list)


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
        Absolute, in bytes from the start of the file; a multiple of the file's alignment.
    nbytes
        Bytes of all rows; the file holds all of them.
    """

    name: str
    shape: tuple[int, ...]
    format: Format
    offset: int
    nbytes: int


class GGUFFile:
    """A GGUF file, mapped read-only, its header read and checked in full.

    Parameters
    ----------
    path
        A regular file: GGUF version 2 or 3, little-endian.

    Attributes
    ----------
    path : Path
    version, alignment, nbytes : int
        2 or 3; of tensor data, in bytes (``general.alignment``, or 32); size of the file.
    metadata : Mapping[str, Value]
        Read-only, in the file's order. Scalars are bool, int, float or str; arrays of numbers or
        bools are 1-D read-only numpy arrays of the file's type; arrays of strings are
        `StringArray`; arrays of arrays are lists. Stays valid after `close`.
    tensors : Mapping[str, TensorInfo]
        Read-only, in the file's order. Stays valid after `close`.

    Raises
    ------
    GGUFError
        The file is missing, unreadable or no regular file; it is big-endian or of another
        version; any count, length or offset does not fit the file; a key or a tensor name stands
        twice; a tensor has a type that is not in `FORMATS`, or overlaps another.

    Notes
    -----
    Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
    As with any mapped file, one that another process truncates in place while it is open kills
    the reader (SIGBUS) at the next touch of the lost part. Writers should use ``os.replace``.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        data = _map_file(self.path)
        try:
            header = _Header(self.path, data)
        except BaseException:
            data.close()
            raise
        self._map: mmap.mmap | None = data
        self.version = header.version
        self.alignment = header.alignment
        self.nbytes = len(data)
        self.metadata: Mapping[str, Value] = MappingProxyType(header.metadata)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(header.tensors)

    @overload
    def get(self, key: str, kind: type[T]) -> T: ...
    @overload
    def get(self, key: str, kind: type[T], default: None) -> T | None: ...
    @overload
    def get(self, key: str, kind: type[T], default: T) -> T: ...
    def get(self, key: str, kind: type[T], default: T | EllipsisType | None = ...) -> T | None:
        """Return ``metadata[key]`` as a `kind`.

        Parameters
        ----------
        key
            Metadata key.
        kind
            bool, int, float, str, np.ndarray, StringArray or list. Strict but for one case: an
            integer is taken as a float, since writers differ there. A bool is never a number, a
            float never an int.
        default
            Returned where the key is missing; without it a missing key is an error. It does not
            excuse a value of another type.

        Raises
        ------
        GGUFError
            The key is missing and there is no default, or its value is of another type.
        """
        if kind not in _KINDS:
            names = ", ".join(k.__name__ for k in _KINDS)
            raise TypeError(f"kind of {key!r}: got {kind!r}, wanted one of {names}")
        what = f"metadata key {brief(key)}"
        value = self.metadata.get(key)
        if value is None:
            if default is ...:
                raise self._error(what, "no such key", kind.__name__)
            return default
        if kind is float and type(value) is int:
            return cast(T, float(value))
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        raise self._error(what, f"{type(value).__name__} {brief(value)}", kind.__name__)

    def tensor(self, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the stored bytes of a tensor: a read-only view of the map, no copy.

        Parameters
        ----------
        name
            A key of `tensors`.

        Returns
        -------
        np.ndarray
            uint8, ``info.shape[:-1] + (row_bytes,)``: ``(rows, row_bytes)`` of a matrix,
            ``(row_bytes,)`` of a vector. It stays valid after `close`.

        Raises
        ------
        GGUFError
            The file has no such tensor.
        ValueError
            The file is closed.
        """
        data, info = self._locate(name)
        flat = np.frombuffer(data, np.uint8, info.nbytes, info.offset)
        return flat.reshape(*info.shape[:-1], info.format.row_bytes(info.shape[-1]))

    def release(self, name: str) -> None:
        """Drop the pages of a tensor from this process's memory; a later use reads them again.

        Whole pages inside the tensor go (MADV_DONTNEED); the at most two that it shares with its
        neighbours stay. Views of it stay valid. Errors as in `tensor`.
        """
        data, info = self._locate(name)
        start = -(-info.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (info.offset + info.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start:
            data.madvise(mmap.MADV_DONTNEED, start, end - start)

    def close(self) -> None:
        """Give the map back; `tensor` and `release` raise ValueError from here on. Idempotent.

        Arrays that `tensor` returned stay valid: while one lives, so does the map (and its file
        descriptor), and both go with the last of them.
        """
        data, self._map = self._map, None
        if data is not None:
            # BufferError: views are alive, and now hold the only references; the last one unmaps.
            with suppress(BufferError):
                data.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _error(self, what: str, got: object, wanted: object) -> GGUFError:
        return GGUFError(self.path, what, offset=None, got=got, wanted=wanted)

    def _locate(self, name: str) -> tuple[mmap.mmap, TensorInfo]:
        if self._map is None:
            raise ValueError(f"{self.path}: got a closed GGUFFile, wanted an open one")
        info = self.tensors.get(name)
        if info is None:
            wanted = f"one of the {len(self.tensors)} in the file"
            raise self._error(f"tensor {brief(name)}", "no such tensor", wanted)
        return self._map, info


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


class _Header:
    """The header: all that lies before the tensor data. It is parsed on construction, at `pos`."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.pos = 0
        self.end = min(len(data), MAX_HEADER_BYTES)
        self.strings_left = MAX_STRINGS
        self.nested_left = MAX_NESTED_ARRAYS
        self.alignment = DEFAULT_ALIGNMENT
        self.metadata: dict[str, Value] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self.version = self._version()
        n_tensors = self._count("number of tensors", MIN_TENSOR_BYTES, MAX_TENSORS)
        n_keys = self._count("number of metadata keys", MIN_KEY_BYTES, MAX_KEYS)
        for index in range(n_keys):
            self._read_key(f"metadata key {index}")
        self._place([self._read_tensor(f"tensor {index}") for index in range(n_tensors)])

    def _error(self, what: str, offset: int, got: object, wanted: object) -> GGUFError:
        return GGUFError(self.path, what, offset=offset, got=got, wanted=wanted)

    def _take(self, length: int, what: str) -> int:
        """Step over `length` bytes that must be there; return where they start."""
        start, left = self.pos, self.end - self.pos
        if length > left:
            whole = "file" if self.end == len(self.data) else f"{self.end} bytes of a header"
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
            reason = "the bytes left can hold" if fits <= limit else "the reader's limit"
            raise self._error(what, self.pos - 8, count, f"at most {min(fits, limit)}, {reason}")
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
        magic = self.data[self._take(4, "magic") : self.pos]
        if magic != b"GGUF":
            raise self._error("magic", 0, magic, b"GGUF")
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
            count = self._count(counted, 8, self.strings_left)
            self.strings_left -= count
            return self._strings(count, what)
        if kind == _ARRAY:
            if depth == MAX_DEPTH:
                wanted = f"at most {depth} levels of arrays"
                raise self._error(f"array type of {what}", start, "one more", wanted)
            count = self._count(counted, 12, self.nested_left)
            self.nested_left -= count
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
            fmt = format_of_ggml_type(type_id)
        except ValueError as error:
            wanted = f"one of {_TENSOR_TYPES}"
            raise self._error(f"type of {what}", self.pos - 4, type_id, wanted) from error
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
