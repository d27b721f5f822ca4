"""What an engine of a fleet does: says which boxes there are, starts tasks, watches and ends them.

Results come by the inbox and not by the engine, so that one that was given up may still arrive.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from rocmforge.bench.fleet.worker import Task


@dataclass(frozen=True, slots=True)
class Ended:
    """What an engine knows of a job that runs no more.

    Parameters
    ----------
    box
        Where it ran; None: the engine does not know, or it never ran.
    why
        How it ended, for the case that no bundle of it came.
    """

    box: str | None
    why: str


class Engine(Protocol):
    """Boxes, each of one kind, and a queue before them."""

    @property
    def name(self) -> str:
        """As ``--engine`` has it."""

    @property
    def reason(self) -> str:
        """Why jobs wait, where a queue of others is before the boxes and says it; else empty."""

    def boxes(self) -> dict[str, set[str]]:
        """Return the boxes that work now, by kind of machine."""

    def submit(self, tasks: Sequence[Task], avoid: Collection[str]) -> list[str]:
        """Queue tasks of one kind, not on boxes that are to be avoided; return a job for each.

        DeviceError where the engine takes no such tasks.
        """

    def poll(self, jobs: Collection[str]) -> dict[str, Ended]:
        """Return those of the jobs that have ended."""

    def cancel(self, jobs: Collection[str]) -> None:
        """End jobs, whether they run or wait; nothing happens to those that have ended."""
