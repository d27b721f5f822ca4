"""GGUF files, whole or split into parts: metadata, and tensor views over read-only maps.

Tensor bytes are never copied, and no tensor page is touched here. What makes a file broken is in
`header.py` and `parts.py`.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import EllipsisType, MappingProxyType
from typing import Any, TypeVar, cast, overload

import numpy as np

from rocmforge.errors import GGUFError, brief
from rocmforge.gguf.header import StringArray, TensorInfo, Value
from rocmforge.gguf.parts import Part, open_parts

T = TypeVar("T")
_KINDS = (bool, int, float, str, np.ndarray, StringArray, list)


class GGUFFile:
    """A GGUF file, mapped read-only, its header read and checked in full.

    Parameters
    ----------
    path
        A regular file: GGUF version 2 or 3, little-endian. Of a split file it is any part.
    every_format
        Accept tensors whose format is not in `FORMATS`, to describe them.

    Attributes
    ----------
    path : Path
    version, alignment, nbytes, parts : int
        2 or 3; of tensor data, in bytes (``general.alignment``, or 32); size of all parts; how many
        there are.
    metadata : Mapping[str, Value]
        Of the first part. Read-only, in the file's order. Scalars are bool, int, float or str;
        arrays of numbers or bools are 1-D read-only numpy arrays of the file's type; arrays of
        strings are `StringArray`; arrays of arrays are lists. Stays valid after `close`.
    tensors : Mapping[str, TensorInfo]
        Of all parts. Read-only, in the file's order. Stays valid after `close`.

    Raises
    ------
    GGUFError
        The file is missing, unreadable or no regular file; it is big-endian or of another
        version; any count, length or offset does not fit the file; a key or a tensor name stands
        twice; a tensor has a type that is not in `FORMATS`, or overlaps another; a part is missing
        or belongs to another file.

    Notes
    -----
    Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
    As with any mapped file, one that another process truncates in place while it is open kills
    the reader (SIGBUS) at the next touch of the lost part. Writers should use ``os.replace``.
    """

    def __init__(self, path: str | os.PathLike[str], *, every_format: bool = False) -> None:
        self.path = Path(path)
        parts = open_parts(self.path, every_format)
        self._parts: list[Part] | None = parts
        self.parts = len(parts)
        self.version = parts[0].header.version
        self.alignment = parts[0].header.alignment
        self.nbytes = sum(len(part.data) for part in parts)
        tensors = {
            name: replace(info, part=place) if place else info
            for place, part in enumerate(parts)
            for name, info in part.header.tensors.items()
        }
        self.metadata: Mapping[str, Value] = MappingProxyType(parts[0].header.metadata)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(tensors)

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
        parts, self._parts = self._parts, None
        for part in parts or ():
            part.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _error(self, what: str, got: object, wanted: object) -> GGUFError:
        return GGUFError(self.path, what, offset=None, got=got, wanted=wanted)

    def _locate(self, name: str) -> tuple[mmap.mmap, TensorInfo]:
        if self._parts is None:
            raise ValueError(f"{self.path}: got a closed GGUFFile, wanted an open one")
        info = self.tensors.get(name)
        if info is None:
            wanted = f"one of the {len(self.tensors)} in the file"
            raise self._error(f"tensor {brief(name)}", "no such tensor", wanted)
        return self._parts[info.part].data, info
