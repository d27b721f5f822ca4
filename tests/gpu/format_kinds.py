"""A format of each kind, for tests of what kernels do with weights once they are unpacked.

All formats are unpacked by the same functions, which the tests of `matmul` hold against float64
for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from slow_parameters import others_slow

OF_EACH_KIND = {"F16", "Q8_0", "Q4_K", "Q6_K", "MXFP4"}
"""One of each of `kind_of` (gemv_constants.py): with scales of one level and of two, with and
without offsets; and one whose codes are looked up."""


def of_each_kind(names: Iterable[str]) -> list[Any]:
    """Return all names as parameters of a test; other formats run in `make test-all`."""
    return others_slow(names, OF_EACH_KIND)
