"""Device memory for one test: arrays go up and down, and writes past an array's end are found.

The same on the stand-in and on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.launch import Launch

GUARD = np.random.default_rng(0x6A7D).integers(0, 256, 256, dtype=np.uint8)
"""Stands before and after each array, but where AddressSanitizer puts guards of its own."""


class Gpu:
    """What a test of kernels needs.

    Parameters
    ----------
    kernels
        Those of the open device.
    guarded
        Whether bytes around each array are checked; every array is an allocation of its own.
    """

    def __init__(self, kernels: Kernels, *, guarded: bool = True) -> None:
        self.kernels = kernels
        self._guard = GUARD if guarded else GUARD[:0]
        self.runtime = kernels.runtime
        self._sizes: dict[int, int] = {}

    def empty(self, nbytes: int) -> int:
        """Address of that many bytes of 0xFF (NaN as a float), aligned to 256."""
        address = (
            self.runtime.allocate(max(1, nbytes + 2 * self._guard.nbytes)) + self._guard.nbytes
        )
        self._sizes[address] = nbytes
        if self._guard.size:
            for guard in (address - self._guard.nbytes, address + nbytes):
                self.runtime.copy_to_device(guard, self._guard)
        if nbytes:
            self.runtime.fill(address, 0xFF, nbytes)
        return address

    def upload(self, array: NDArray[Any]) -> int:
        """Address of a copy of an array, aligned to 256."""
        array = np.ascontiguousarray(array)
        address = self.empty(array.nbytes)
        if array.nbytes:
            self.runtime.copy_to_device(address, array)
        return address

    def download(self, address: int, shape: int | tuple[int, ...], dtype: DTypeLike) -> Any:
        """Return an array read from any address, after all that was enqueued."""
        array = np.empty(shape, dtype)
        self.runtime.synchronize()
        if array.nbytes:
            self.runtime.copy_to_host(array, address)
        return array

    def run(self, *launches: Launch) -> None:
        """Enqueue and wait."""
        for launch in launches:
            launch.enqueue(self.runtime)
        self.runtime.synchronize()

    def check_guards(self) -> None:
        """Fail where something was written before or after an array."""
        length = self._guard.size
        for address, nbytes in self._sizes.items():
            for side, guard in (("before", address - length), ("after", address + nbytes)):
                changed = np.flatnonzero(self.download(guard, length, np.uint8) != self._guard)
                assert changed.size == 0, (
                    f"a kernel wrote {side} an array of {nbytes} bytes: guard bytes {changed}"
                )

    def free(self) -> None:
        """Give all memory back."""
        while self._sizes:
            self.runtime.free(self._sizes.popitem()[0] - self._guard.nbytes)
