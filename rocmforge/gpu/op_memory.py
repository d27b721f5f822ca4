"""Device memory of one op that runs on arrays of the host, and pages of a cache among them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge.gpu.release import release_all
from rocmforge.gpu.runtime import Runtime

NO_PAGES = np.empty((0, 1, 16, 16), np.float16)


class OpMemory:
    """Device memory that is given back at the end of a `with`, or then belongs to `keeper`."""

    def __init__(self, runtime: Runtime, keeper: list[int] | None) -> None:
        self._runtime = runtime
        self._keeper = keeper
        self._held: list[int] = []

    def __enter__(self) -> OpMemory:
        return self

    def __exit__(self, *_: object) -> None:
        if self._keeper is not None:
            self._keeper += self._held
            return
        release_all(*(partial(self._runtime.free, address) for address in self._held))

    def empty(self, nbytes: int) -> int:
        """Address of new memory, of at least one byte."""
        self._held.append(self._runtime.allocate(max(1, nbytes)))
        return self._held[-1]

    def upload(self, array: NDArray[Any]) -> int:
        """Address of a copy."""
        address = self.empty(array.nbytes)
        if array.size:
            self._runtime.copy_to_device(address, np.ascontiguousarray(array))
        return address

    def download(self, target: NDArray[Any], source: int) -> None:
        """Fill a C-contiguous array."""
        self._runtime.copy_to_host(target, source)


class OpPages:
    """One layer's pages of the host, (n, G, D, P) and (n, G, P, D), as the device lays them out."""

    windowed = ()

    def __init__(self, memory: OpMemory, k: NDArray[Any], v: NDArray[Any]) -> None:
        self._memory = memory
        self.dtype = "f16" if v.dtype == np.float16 else "f32"
        self.page_size = v.shape[2]
        self._addresses = memory.upload(k.transpose(0, 1, 3, 2)), memory.upload(v)

    def pages(self, layer: int) -> tuple[int, int]:
        """Addresses of the keys and values."""
        return self._addresses

    def scales(self, layer: int) -> tuple[int, int]:
        """None."""
        return 0, 0

    def download(self, k: NDArray[Any], v: NDArray[Any]) -> None:
        """Bring back what the device wrote."""
        turned = np.empty_like(v)
        self._memory.download(turned, self._addresses[0])
        k[:] = turned.transpose(0, 1, 3, 2)
        self._memory.download(v, self._addresses[1])
