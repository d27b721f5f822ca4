"""A kernel's arguments, packed once: it takes one struct by value.

`Arguments` is that struct's bytes and the list that points a vendor's runtime to them.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable

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
