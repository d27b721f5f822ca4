"""Host memory that begins with a cache line: scratch arrays of passes, pages of the KV cache."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64  # bytes: one cache line, one AVX-512 register


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return zeros that begin with a cache line: stores of whole vectors would cross two otherwise.

    Raises
    ------
    MemoryError
        There is not so much.
    """
    nbytes = dtype.itemsize * math.prod(shape)
    if nbytes + ALIGNMENT > np.iinfo(np.intp).max:
        raise MemoryError
    raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + nbytes].view(dtype).reshape(shape)
