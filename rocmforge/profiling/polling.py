"""A thread that looks at a source again and again while something else runs.

A source that fails or hangs becomes a remark, and takes nothing else with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from rocmforge.errors import one_line

PATIENCE_S = 2.0
"""How long the end waits for a look that is under way."""

SHARE, ALLOWANCE_S = 0.01, 0.005
"""CPU time that looking may take: a share of the time that passes, and what it may take besides.
The search for a source does not count."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Source(Protocol[T_co]):
    """What is looked at."""

    @property
    def name(self) -> str:
        """What it is, for people."""

    def samples(self) -> Sequence[T_co]:
        """Return what there is since the last call."""

    def end(self) -> None:
        """Let go of it."""


class Poller(Generic[T]):
    """Looks at a source from now until `close`, in a thread of its own.

    Parameters
    ----------
    find
        Finds the source, or None; called in the thread, since that may fail or hang too.
    period_seconds
        Between two looks. They are rarer where the source is slow, or where looking would take more
        than `SHARE` of a CPU's time.
    at_once
        Whether the first look is at once, or after the first period. The last is at the end.

    Attributes
    ----------
    name : str or None
        Of the source; None as long as none was found.
    cpu_seconds : float
        CPU time of the thread.
    """

    def __init__(
        self,
        find: Callable[[], Source[T] | None],
        period_seconds: float,
        *,
        at_once: bool = True,
    ) -> None:
        self.name: str | None = None
        self.cpu_seconds = 0.0
        self._find = find
        self._period = period_seconds
        self._at_once = at_once
        self._lock = threading.Lock()
        self._found: list[T] = []
        self._looks = 0
        self._failures: list[str] = []
        self._remarks: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def samples(self) -> list[T]:
        """Return the samples since the last `take`, which stay."""
        with self._lock:
            return self._found.copy()

    def take(self) -> list[T]:
        """Return the samples since the last call."""
        with self._lock:
            taken, self._found = self._found, []
        return taken

    def remarks(self) -> tuple[str, ...]:
        """Return what went wrong until now."""
        failures = self._failures
        told = f"{self.name}: {len(failures)} of {self._looks} looks failed"
        first = (f"{told}, the first with {failures[0]}",) if failures else ()
        return first + tuple(self._remarks)

    def close(self) -> None:
        """Look once more and stop. A look that takes too long is left to itself. Idempotent."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            what = self.name or "the search for a source"
            self._remarks.append(f"{what}: no answer for {PATIENCE_S:g} s, left to itself")

    def _run(self) -> None:
        try:
            source = self._find()
        except Exception as error:
            self._remarks.append(_told(error))
            return
        if source is None:
            return
        self.name = source.name
        searching = time.thread_time()  # once, with the import of a package
        if self._at_once:
            self._look(source)
        begin = due = time.perf_counter()
        while True:
            looking = max(0.0, self.cpu_seconds - searching)
            affordable = begin + (looking - ALLOWANCE_S) / SHARE
            due = max(due + self._period, affordable, time.perf_counter())
            stopped = self._stop.wait(due - time.perf_counter())
            self._look(source)
            if stopped:
                break
        try:
            source.end()
        except Exception as error:
            self._remarks.append(_told(error))

    def _look(self, source: Source[T]) -> None:
        self._looks += 1
        try:
            new = source.samples()
        except Exception as error:
            self._failures.append(_told(error))
        else:
            with self._lock:
                self._found += new
        self.cpu_seconds = time.thread_time()


def _told(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}")
