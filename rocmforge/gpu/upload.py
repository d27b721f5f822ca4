"""Bytes of a mapped file into device memory, through page-locked buffers in turns.

While one buffer is on its way to the device, the next is filled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge.errors import DeviceError
from rocmforge.gpu.release import release_all
from rocmforge.gpu.runtime import Runtime

PIECE_BYTES = 32 << 20
COPY_THREADS = 4  # one core copies slower than the bus takes it
_BUFFERS = 2


class Uploader:
    """Copies arrays to the device in order, on a stream of its own.

    Parameters
    ----------
    runtime
        The device.

    Attributes
    ----------
    stream
        Where the copies are enqueued; what uses their result is enqueued there too.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._pinned: list[NDArray[np.uint8]] = []
        self._sent: list[Any] = []
        self._pool = ThreadPoolExecutor(COPY_THREADS)
        self._turn = 0
        self._staging: tuple[int, int] = (0, 0)
        self.stream: Any = runtime.create_stream()
        try:
            for _ in range(_BUFFERS):
                self._pinned.append(runtime.allocate_pinned(PIECE_BYTES))
                self._sent.append(runtime.create_event())
        except DeviceError:
            self.close()
            raise

    def copy(
        self, target: int, source: NDArray[Any], on_piece: Callable[[], None] | None = None
    ) -> None:
        """Enqueue a copy; the source may be let go when it returns.

        Parameters
        ----------
        target
            Address of device memory.
        source
            C-contiguous array.
        on_piece
            Called after each piece that was read.
        """
        for at, piece in _pieces(source, on_piece):
            buffer, sent = self._pinned[self._turn], self._sent[self._turn]
            self._turn = (self._turn + 1) % _BUFFERS
            self._runtime.synchronize_event(sent)
            self._fill(buffer[: piece.size], piece)
            self._runtime.copy_to_device(target + at, buffer[: piece.size], self.stream)
            self._runtime.record_event(sent, self.stream)

    def copy_on_host(
        self, target: NDArray[np.uint8], source: NDArray[Any], on_piece: Callable[[], None] | None
    ) -> None:
        """Copy to memory of the host, and wait; otherwise as `copy`."""
        for at, piece in _pieces(source, on_piece):
            self._fill(target[at : at + piece.size], piece)

    def staging(self, nbytes: int) -> int:
        """Address of device memory that holds a matrix of the file until it is packed."""
        address, size = self._staging
        if size < nbytes:
            self._runtime.synchronize(self.stream)
            if address:
                self._runtime.free(address)
            self._staging = (0, 0)
            self._staging = (self._runtime.allocate(nbytes), nbytes)
        return self._staging[0]

    def close(self) -> None:
        """Wait for what is under way and give back all that the copies needed."""
        runtime, (address, _) = self._runtime, self._staging
        release_all(
            partial(runtime.synchronize, self.stream),
            self._pool.shutdown,
            *(partial(runtime.destroy_event, event) for event in self._sent),
            *(partial(runtime.free_pinned, buffer) for buffer in self._pinned),
            *([partial(runtime.free, address)] if address else []),
            partial(runtime.destroy_stream, self.stream),
        )

    def _fill(self, buffer: NDArray[np.uint8], piece: NDArray[np.uint8]) -> None:
        step = -(-piece.size // COPY_THREADS)
        parts = [slice(at, at + step) for at in range(0, piece.size, step)]
        list(self._pool.map(lambda part: np.copyto(buffer[part], piece[part]), parts))


def _pieces(
    source: NDArray[Any], on_piece: Callable[[], None] | None
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Bytes of a C-contiguous array, and where they begin; calls `on_piece` once they were read."""
    flat = source.reshape(-1).view(np.uint8)
    for at in range(0, flat.size, PIECE_BYTES):
        yield at, flat[at : at + PIECE_BYTES]
        if on_piece is not None:
            on_piece()
