"""How fast the machine itself is at the moment: two kernels that no commit changes.

They are numpy's, on one thread, so that they need nothing of the package that is measured. Their
rates are stored beside each measurement: two runs between which they moved differ for that reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

READ_BYTES = 64 << 20  # more than the last cache of most machines holds for one core
ROOTS = 4096  # float64, in and out: 64 KiB, which stay in the second cache
CALLS = 100
TRIES = 3  # the best counts: an interrupt is not the machine's speed


class Reference:
    """The reference kernels with their arrays; a reading takes about 10 ms."""

    def __init__(self) -> None:
        self._memory = np.ones(READ_BYTES // 8)  # written, else all pages are one page of zeros
        self._roots = np.full(ROOTS, 2.0)
        self._out = np.empty(ROOTS)

    def read(self) -> dict[str, float]:
        """Measure now.

        Returns
        -------
        dict
            ``read_gb_per_second``: of memory. ``square_roots_per_ns``: arithmetic, which follows
            the clock of the core and whoever shares it.
        """
        return {
            "read_gb_per_second": READ_BYTES / _best(self._memory.max) / 1e9,
            "square_roots_per_ns": CALLS * ROOTS / _best(self._square_roots) / 1e9,
        }

    def _square_roots(self) -> None:
        for _ in range(CALLS):
            np.sqrt(self._roots, out=self._out)


def _best(call: Callable[[], object]) -> float:
    seconds = []
    for _ in range(TRIES):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)
