"""Device time of launches: captured into one graph, replayed, and timed between two events.

Events around single launches from Python would time the host, which needs longer to launch most
kernels than they run. A replay costs one call of the host for hundreds of kernels, and the device
is busy with another replay while the host makes it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from rocmforge.gpu.release import release_all
from rocmforge.gpu.runtime import Runtime

SHORTEST_S = 2e-3
"""Device time of a replay, at least: events and the start of a graph take some microseconds."""
MOST_LAUNCHES = 1 << 16  # of one graph


class Enqueued(Protocol):
    """A launch, or whatever else can be put on a stream."""

    def enqueue(self, runtime: Runtime, stream: Any = None) -> None:
        """Put it on a stream."""


class Replay:
    """Launches as a graph that is repeated until it is long enough to be timed.

    Parameters
    ----------
    runtime
        The device. Its memory that the launches use must stay as it is until `close`.
    launches
        In their order, at least one.
    calls
        How many calls of an op they are together: times are of one.
    others
        Other devices and their launches, where launches wait for those of other devices: all run
        at the same time, and times are those of the slowest.

    Raises
    ------
    DeviceError
        A launch fails, or the device cannot capture it.
    """

    def __init__(
        self,
        runtime: Runtime,
        launches: Sequence[Enqueued],
        calls: int,
        others: Sequence[tuple[Runtime, Sequence[Enqueued]]] = (),
    ) -> None:
        self._calls = calls
        self._repeats = 0
        self._devices: list[_Device] = []
        try:
            for own, its_launches in ((runtime, launches), *others):
                self._devices.append(_Device(own, its_launches))
                own.synchronize()
            self._lengthen()
        except BaseException:  # Ctrl-C too
            self.close()
            raise

    def seconds(self) -> float:
        """Replay once; return the device time of one call."""
        return self._replayed() / (self._repeats * self._calls)

    def launch_seconds(self) -> float:
        """Return the host's time for one call's launches outside a graph; the device follows."""
        begin = time.perf_counter()
        for device in self._devices:
            device.enqueue(1)
        seconds = time.perf_counter() - begin
        for device in self._devices:
            device.wait()
        return seconds / self._calls

    def close(self) -> None:
        """Give back the graphs, the events and the streams. Idempotent."""
        release_all(*(device.close for device in self._devices))

    def _lengthen(self) -> None:
        """Capture, once or several times in a row, what lasts at least `SHORTEST_S`."""
        most = max(1, MOST_LAUNCHES // max(device.launches for device in self._devices))
        wanted = 1
        while wanted > self._repeats:
            for device in self._devices:
                device.capture(wanted)
            self._repeats = wanted
            took = max(self._replayed(), 1e-9)
            wanted = min(most, math.ceil(wanted * SHORTEST_S / took))

    def _replayed(self) -> float:
        """Device time of the second of two replays."""
        for device in self._devices:
            device.start()
        return max([device.seconds() for device in self._devices])


class _Device:
    """What a replay runs on one device."""

    def __init__(self, runtime: Runtime, launches: Sequence[Enqueued]) -> None:
        self._runtime = runtime
        self._launches = tuple(launches)
        self._graph: Any = None
        self._stream = runtime.create_stream()
        self._events = runtime.create_event(), runtime.create_event()

    @property
    def launches(self) -> int:
        return len(self._launches)

    def capture(self, repeats: int) -> None:
        self._drop()
        self._graph = self._runtime.capture(self._stream, partial(self.enqueue, repeats))

    def enqueue(self, repeats: int) -> None:
        runtime, stream = self._runtime, self._stream
        for launch in self._launches * repeats:
            launch.enqueue(runtime, stream)

    def start(self) -> None:
        """Replay twice; events stand around the second time."""
        runtime, stream, (start, end) = self._runtime, self._stream, self._events
        runtime.launch_graph(self._graph, stream)
        runtime.record_event(start, stream)
        runtime.launch_graph(self._graph, stream)
        runtime.record_event(end, stream)

    def seconds(self) -> float:
        """Wait; return the time between the events."""
        start, end = self._events
        self._runtime.synchronize_event(end)
        return self._runtime.elapsed_seconds(start, end)

    def wait(self) -> None:
        self._runtime.synchronize(self._stream)

    def close(self) -> None:
        runtime, stream = self._runtime, self._stream
        if stream is None:
            return
        self._stream = None
        self._drop()
        release_all(
            *(partial(runtime.destroy_event, event) for event in self._events),
            partial(runtime.destroy_stream, stream),
        )

    def _drop(self) -> None:
        graph, self._graph = self._graph, None
        if graph is not None:
            self._runtime.destroy_graph(graph)
