"""Work on several devices side by side: each does its next part in turn, in one host thread.

A part ends with a `yield`. Where devices wait for each other, none of them may be waited for before
all have been given what the others wait for.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from typing import TypeVar

R = TypeVar("R")
Work = Generator[None, None, R]
"""Work of one device, and what it returns at its end."""


def lockstep(works: Sequence[Work[R]]) -> list[R]:
    """Do the works part by part, the first part of all, then the second; return their results.

    What one raises ends all of them.
    """
    results: dict[int, R] = {}
    with ExitStack() as stack:
        for work in works:
            stack.callback(work.close)
        while len(results) < len(works):
            for at, work in enumerate(works):
                if at not in results:
                    try:
                        next(work)
                    except StopIteration as end:
                        results[at] = end.value
    return [results[at] for at in range(len(works))]


def alone(work: Work[R]) -> R:
    """Do a device's work that waits for no other device."""
    return lockstep([work])[0]
