"""Work on several devices side by side, in one host thread.

Work gives way at each `yield`. ``yield BARRIER``: no work goes on before all have come so far, as
where devices wait for each other, and none may be waited for before all have what the others wait
for. ``yield TURN``: the others may go on first, as where one would have too much under way.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from typing import TypeVar

BARRIER, TURN = True, False

R = TypeVar("R")
Work = Generator[bool, None, R]
"""Work of one device, and what it returns at its end."""


def lockstep(works: Sequence[Work[R]]) -> list[R]:
    """Do the works in turns, from barrier to barrier; return their results.

    All have the same barriers, and any number of turns between them. What one raises ends all.
    """
    results: dict[int, R] = {}
    waiting: set[int] = set()  # at a barrier
    with ExitStack() as stack:
        for work in works:
            stack.callback(work.close)
        while len(results) < len(works):
            for at, work in enumerate(works):
                if at in results or at in waiting:
                    continue
                try:
                    if next(work) == BARRIER:
                        waiting.add(at)
                except StopIteration as end:
                    results[at] = end.value
            if len(waiting) + len(results) == len(works):
                waiting.clear()
    return [results[at] for at in range(len(works))]


def alone(work: Work[R]) -> R:
    """Do a device's work that waits for no other device."""
    return lockstep([work])[0]
