"""Page-locked memory of the host that runtimes hold, as their calls say."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from rocmforge.gpu.runtime import Runtime


class Pinned:
    """Counts it from here on; `held` has the bytes of each address."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: dict[int, int] = {}
        allocate, free = Runtime.allocate_pinned, Runtime.free_pinned

        def allocating(runtime: Runtime, nbytes: int) -> NDArray[np.uint8]:
            memory = allocate(runtime, nbytes)
            self.held[memory.ctypes.data] = nbytes
            return memory

        def freeing(runtime: Runtime, memory: NDArray[np.uint8]) -> None:
            del self.held[memory.ctypes.data]
            free(runtime, memory)

        monkeypatch.setattr(Runtime, "allocate_pinned", allocating)
        monkeypatch.setattr(Runtime, "free_pinned", freeing)

    @property
    def nbytes(self) -> int:
        return sum(self.held.values())
