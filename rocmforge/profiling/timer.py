"""A named timer: intervals between events of a GPU's stream, or of the host's clock.

    with KernelTimer("rmsnorm", runtime) as timer:
        launch.enqueue(runtime)
    print(timer.elapsed())

Events are recorded without waiting. Reading the time waits for the device, and ends the events.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np

from rocmforge.errors import DeviceError
from rocmforge.gpu.release import release_all
from rocmforge.gpu.runtime import Runtime

MOST_UNREAD = 1024
"""Intervals whose events are kept unread: another one reads the oldest first."""


@dataclass(frozen=True, slots=True)
class Times:
    """What some intervals add up to; all but `count` in seconds.

    Parameters
    ----------
    count
        How many there were.
    total, mean, minimum, maximum
        Of all of them; mean = total / count.
    p50, p95, p99
        Percentiles, interpolated linearly: p of n ascending times stands at p / 100 · (n - 1).
    """

    count: int
    total: float
    mean: float
    minimum: float
    maximum: float
    p50: float
    p95: float
    p99: float


def times_of(seconds: Sequence[float]) -> Times | None:
    """Add up intervals; see `Times`.

    Parameters
    ----------
    seconds
        Of each interval, in any order.

    Returns
    -------
    Times or None
        None of no intervals.
    """
    if not seconds:
        return None
    values = np.asarray(seconds, np.float64)
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    total = float(values.sum())
    return Times(
        count=values.size,
        total=total,
        mean=total / values.size,
        minimum=float(values.min()),
        maximum=float(values.max()),
        p50=float(p50),
        p95=float(p95),
        p99=float(p99),
    )


class KernelTimer:
    """A named timer that keeps what each of its intervals took.

    A `with` block is one interval; it can be used again and again. An interval that an exception
    ends is dropped.

    Around a single short kernel, events also see how long the host took to launch it. Take several
    launches as one interval, or `rocmforge.gpu.replay.Replay`, which replays them as a graph.

    Parameters
    ----------
    name
        For errors and tables.
    runtime
        The device whose events are recorded; None: the host's monotonic clock.
    stream
        Where the events are recorded; None: the device's default stream. Work on other streams
        that do not wait for this one is not in the interval.

    Raises
    ------
    ValueError
        A stream without a runtime; from the methods, a call out of order: the message names the
        timer, the call, and what was wanted before it.
    DeviceError
        From the methods: the device refuses an event. The timer keeps no event of that interval.
    """

    def __init__(self, name: str, runtime: Runtime | None = None, stream: Any = None) -> None:
        if runtime is None and stream is not None:
            raise ValueError(f"timer {name!r}: got a stream, wanted the runtime of its device too")
        self.name = name
        self._runtime = runtime
        self._stream = stream
        self._began: float | None = None  # by the host's clock
        self._running: tuple[Any, Any] | None = None
        self._unread: deque[tuple[Any, Any]] = deque()
        self._seconds: list[float] = []
        self._closed = False

    def __enter__(self) -> KernelTimer:
        """Start an interval; return the timer."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the interval, or drop it where the block raised, or has stopped it itself."""
        if error is None and self._is_running():
            self.stop()
        else:
            self._drop_running()

    def start(self) -> None:
        """Start an interval; ValueError where one is running, or the timer is closed."""
        self._refuse_closed("start()")
        if self._is_running():
            raise ValueError(f"timer {self.name!r}: got start() twice, wanted stop() between")
        runtime = self._runtime
        if runtime is None:
            self._began = time.perf_counter()
            return
        if len(self._unread) == MOST_UNREAD:
            self._read_oldest()
        first = runtime.create_event()
        try:
            pair = first, runtime.create_event()
        except BaseException:  # Ctrl-C too
            runtime.destroy_event(first)
            raise
        self._running = pair
        try:
            runtime.record_event(first, self._stream)
        except BaseException:
            self._drop_running()
            raise

    def stop(self) -> None:
        """Stop the interval, without waiting for the device; ValueError where none is running."""
        now = time.perf_counter()
        self._refuse_closed("stop()")
        if self._began is not None:
            self._seconds.append(now - self._began)
            self._began = None
            return
        if self._runtime is None or self._running is None:
            raise ValueError(f"timer {self.name!r}: got stop(), wanted start() before it")
        try:
            self._runtime.record_event(self._running[1], self._stream)
        except BaseException:
            self._drop_running()
            raise
        self._unread.append(self._running)
        self._running = None

    def elapsed(self) -> float:
        """Return the seconds of the last interval; waits until the device has come to its end.

        Raises
        ------
        ValueError
            No interval was stopped yet, or the timer is closed.
        """
        seconds = self._read("elapsed()")
        if not seconds:
            raise ValueError(f"timer {self.name!r}: got elapsed(), wanted start() and stop() first")
        return seconds[-1]

    def summary(self) -> Times | None:
        """Return what all stopped intervals add up to; waits as `elapsed` does.

        Returns
        -------
        Times or None
            None where no interval was stopped.

        Raises
        ------
        ValueError
            The timer is closed.
        """
        return times_of(self._read("summary()"))

    def close(self) -> None:
        """End the events that were not read, whatever fails; the timer is done. Idempotent."""
        self._closed = True
        self._began = None
        pairs = [*self._unread, *([self._running] if self._running else [])]
        self._unread.clear()
        self._running = None
        if pairs:
            self._destroy(*(event for pair in pairs for event in pair))

    def _is_running(self) -> bool:
        return self._began is not None or self._running is not None

    def _read(self, call: str) -> Sequence[float]:
        self._refuse_closed(call)
        while self._unread:
            self._read_oldest()
        return self._seconds

    def _read_oldest(self) -> None:
        """Wait for the end of the oldest unread interval, keep its time, end its events."""
        runtime = self._runtime
        assert runtime is not None
        start, end = self._unread.popleft()
        try:
            runtime.synchronize_event(end)
            seconds = runtime.elapsed_seconds(start, end)
        except BaseException:  # Ctrl-C too
            with suppress(DeviceError):  # the first error tells why
                self._destroy(start, end)
            raise
        self._seconds.append(seconds)
        self._destroy(start, end)

    def _drop_running(self) -> None:
        """Forget the interval that is running; what ended it is the error to show."""
        self._began = None
        pair, self._running = self._running, None
        if pair is not None:
            with suppress(DeviceError):
                self._destroy(*pair)

    def _destroy(self, *events: Any) -> None:
        assert self._runtime is not None
        release_all(*(partial(self._runtime.destroy_event, event) for event in events))

    def _refuse_closed(self, call: str) -> None:
        if self._closed:
            raise ValueError(f"timer {self.name!r}: got {call} after close(), wanted it before")
