"""Kernel launches that are ready to go: arguments packed once, enqueued many times.

A kernel takes one struct by value; `Arguments` is that struct's bytes and the list that points the
runtime to them. This file knows no vendor and no op.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocmforge.gpu.runtime import Runtime

_POINTER, _SIZE = 1, 2  # the same in hip_runtime_api.h and cuda.h; the end mark is not
_END = {"hip": 3, "cuda": 0}


class Arguments:
    """A kernel's argument struct, packed.

    Parameters
    ----------
    layout
        The struct's members in order, as `struct` codes with native alignment: P an address,
        i an int, f a float.
    values
        One for each.
    platform
        "hip" or "cuda".
    """

    __slots__ = ("_keep", "address", "layout", "nbytes")

    def __init__(self, layout: str, values: Iterable[int | float], platform: str) -> None:
        packed = struct.pack(f"@{layout}0P", *values)  # 0P: padded to the struct's alignment
        buffer = ctypes.create_string_buffer(packed, len(packed))
        size = ctypes.c_size_t(len(packed))
        extra = (ctypes.c_void_p * 5)(
            _POINTER, ctypes.addressof(buffer), _SIZE, ctypes.addressof(size), _END[platform]
        )
        self._keep = (buffer, size, extra)
        self.layout = layout
        self.nbytes = len(packed)
        self.address = ctypes.addressof(extra)


@dataclass(frozen=True)
class Launch:
    """One kernel over one grid, with its arguments.

    Parameters
    ----------
    name
        The kernel's name, for errors and profiles.
    function
        The runtime's handle.
    grid
        Blocks in x, y and z.
    threads
        Threads of a block.
    arguments
        The packed struct.
    """

    name: str
    function: Any
    grid: tuple[int, int, int]
    threads: int
    arguments: Arguments

    def enqueue(self, runtime: Runtime, stream: Any = None) -> None:
        """Put the kernel on a stream."""
        runtime.launch(self.function, self.grid, self.threads, self.arguments, stream)
