"""Where the tensors of a pass lie: from lifetimes to offsets in one arena.

Buffers whose lifetimes overlap get disjoint ranges, others share memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

ALIGNMENT = 256


@dataclass
class Lifetime:
    """Size of a buffer, and the steps in which it holds something.

    Parameters
    ----------
    nbytes
        Its size.
    spans
        First and last step of each time that it is filled, both included.
    """

    nbytes: int
    spans: list[tuple[int, int]] = field(default_factory=list)

    def write(self, step: int) -> None:
        """Note that the buffer is filled anew."""
        self.spans.append((step, step))

    def read(self, step: int) -> None:
        """Note that what it holds is needed until then."""
        first, _ = self.spans[-1]
        self.spans[-1] = (first, step)

    def meets(self, other: Lifetime) -> bool:
        """Whether both hold something in the same step; linear in the number of spans."""
        mine, others = iter(self.spans), iter(other.spans)
        a, b = next(mine, None), next(others, None)
        while a is not None and b is not None:
            if a[0] <= b[1] and b[0] <= a[1]:
                return True
            if a[1] < b[1]:
                a = next(mine, None)
            else:
                b = next(others, None)
        return False


def assign(lifetimes: Mapping[Hashable, Lifetime]) -> tuple[dict[Hashable, int], int]:
    """Give each buffer an offset: largest first, each at the lowest place that is free.

    Parameters
    ----------
    lifetimes
        Buffers by any key.

    Returns
    -------
    offsets
        By key, multiples of 256 bytes.
    total
        Bytes of the arena.
    """
    offsets: dict[Hashable, int] = {}
    total = 0
    for key in sorted(lifetimes, key=lambda k: (-lifetimes[k].nbytes, repr(k))):
        own = lifetimes[key]
        size = -(-own.nbytes // ALIGNMENT) * ALIGNMENT
        taken = (
            (at, at + -(-lifetimes[other].nbytes // ALIGNMENT) * ALIGNMENT)
            for other, at in offsets.items()
            if own.meets(lifetimes[other])
        )
        offsets[key] = _lowest_gap(sorted(taken), size)
        total = max(total, offsets[key] + size)
    return offsets, total


def _lowest_gap(taken: Iterable[tuple[int, int]], size: int) -> int:
    at = 0
    for first, end in taken:
        if first - at >= size:
            break
        at = max(at, end)
    return at
