"""A device's copies of arrays that never change: norms' weights, biases, tables of rotations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge.array_types import Floats
from rocmforge.gpu.runtime import Runtime
from rocmforge.plan.operands import Rotation


class Constants:
    """Copies that are made when they are first asked for, and kept.

    Parameters
    ----------
    runtime
        The device.
    positions
        For how many the tables of rotations are.
    """

    def __init__(self, runtime: Runtime, positions: int) -> None:
        self._runtime = runtime
        self._positions = positions
        self._held: dict[
            int, tuple[int, NDArray[Any]]
        ] = {}  # holding an array keeps its id its own
        self._tables: dict[Rotation, tuple[Floats, Floats]] = {}

    @property
    def nbytes(self) -> int:
        """Memory that they take."""
        return sum(array.nbytes for _, array in self._held.values())

    def address(self, array: NDArray[Any]) -> int:
        """Address of the device's copy of an array."""
        held = self._held.get(id(array))
        if held is None:
            source = np.ascontiguousarray(array)
            address = self._runtime.allocate(array.nbytes)
            try:
                self._runtime.copy_to_device(address, source)
            except BaseException:  # Ctrl-C too
                self._runtime.free(address)
                raise
            held = self._held[id(array)] = (address, array)
        return held[0]

    def table(self, rotation: Rotation) -> tuple[int, int]:
        """Addresses of a rotation's cosines and sines."""
        if rotation not in self._tables:
            self._tables[rotation] = rotation.table(np.arange(self._positions))
        cos, sin = self._tables[rotation]
        return self.address(cos), self.address(sin)

    def releases(self) -> list[Callable[[], None]]:
        """Return what gives the memory back, once."""
        held, self._held = self._held, {}
        return [partial(self._runtime.free, address) for address, _ in held.values()]
