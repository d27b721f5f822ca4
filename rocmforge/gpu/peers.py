"""Memory through which the GPUs of a group exchange numbers; kernels/peers.h says how.

Each GPU, a rank, has inboxes into which all others write. They lie in its own memory where each
card can write into the others', and else in page-locked memory of the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rocmforge.gpu.release import release_all
from rocmforge.gpu.runtime import Runtime

MOST_RANKS = 8
WORDS = 1 << 18
"""Numbers of a call that travel as words, at most: tokens of 32 sequences and 8,192 columns."""
BLOCK = 256  # words of a block
CHUNK = 4096  # numbers that travel together
NUMBERS = 1 << 24
"""Numbers of a call that travel as they are, of all ranks together, but for rounding to whole
chunks; more are several calls."""
LAYOUT = "P" * MOST_RANKS + "PPPiii"
"""Of `Peers` in kernels/peers.h."""

Way = Literal["peer access", "host memory"]
"""How the numbers travel."""


@dataclass(frozen=True)
class Peers:
    """One rank's view of its group, as kernels take it.

    Parameters
    ----------
    rank, ranks
        Its number from 0, and how many there are.
    of_words, of_chunks
        The members of `Peers` in kernels/peers.h for calls of few and of many numbers.
    """

    rank: int
    ranks: int
    of_words: tuple[int, ...]
    of_chunks: tuple[int, ...]

    @property
    def room(self) -> int:
        """Numbers that a rank sends in one call as they are, at most."""
        return -(-NUMBERS // (self.ranks * CHUNK)) * CHUNK

    @property
    def flags(self) -> int:
        """Flags behind them: of each chunk, and two as `reduce_rmsnorm` rounds T / ranks up."""
        return self.room // CHUNK + 2


NO_PEERS = Peers(0, 1, (0,) * len(LAYOUT), (0,) * len(LAYOUT))
"""Of a device alone, for which no sum over devices runs."""


class Group:
    """GPUs that exchange numbers.

    Parameters
    ----------
    runtimes
        Two to `MOST_RANKS` open devices.
    through_host
        Exchange through the host's memory whatever the cards can do.
    few
        Have memory only for calls of few numbers, up to `WORDS`.

    Attributes
    ----------
    way
        How the numbers travel.
    peers
        Each rank's view.

    Raises
    ------
    ValueError
        There are too few or too many.
    DeviceError
        A card that could reach another one's memory does not.
    OutOfMemoryError
        The inboxes do not fit.
    """

    def __init__(
        self, runtimes: Sequence[Runtime], through_host: bool = False, few: bool = False
    ) -> None:
        if not 2 <= len(runtimes) <= MOST_RANKS:
            raise ValueError(f"GPUs: got {len(runtimes)}, wanted 2 to {MOST_RANKS}")
        self._runtimes = tuple(runtimes)
        self._memory: list[tuple[Runtime, int, int]] = []  # of devices, which `restart` sets to 0
        self._arrays: list[NDArray[np.uint8]] = []  # likewise, of the host
        self._releases: list[Callable[[], None]] = []
        self.way: Way = "host memory" if through_host or not self._reach() else "peer access"
        try:
            self.peers = self._peers(few)
        except BaseException:  # Ctrl-C too
            self.close()
            raise

    def _reach(self) -> bool:
        """Let each card write into the others' memory; whether all of them can."""
        pairs = [(a, b) for a in self._runtimes for b in self._runtimes if a is not b]
        if not all(a.can_reach(b) for a, b in pairs):
            return False
        for a, b in pairs:
            a.reach(b)
        return True

    def _peers(self, few: bool) -> tuple[Peers, ...]:
        ranks = len(self._runtimes)
        self._stop: NDArray[np.uint32] = self._pinned(self._runtimes[0], 4).view(np.uint32)
        words = [self._inbox(runtime, 2 * ranks * WORDS * 8) for runtime in self._runtimes]
        sizes = Peers(0, ranks, (), ())
        room, flags = (0, 0) if few else (sizes.room, sizes.flags)
        nbytes = 4 * ranks * (2 * room + flags)
        chunks = words if few else [self._inbox(runtime, nbytes) for runtime in self._runtimes]
        return tuple(
            Peers(
                rank,
                ranks,
                self._view(rank, words, WORDS, 0),
                self._view(rank, chunks, room, flags),
            )
            for rank in range(ranks)
        )

    def _view(self, rank: int, inboxes: Sequence[int], room: int, flags: int) -> tuple[int, ...]:
        """Members of `Peers` in kernels/peers.h."""
        calls = self._own(self._runtimes[rank], 4 * max(2, WORDS // BLOCK))
        unused = (0,) * (MOST_RANKS - len(inboxes))
        return (*inboxes, *unused, calls, self._stop.ctypes.data, room, rank, len(inboxes), flags)

    def _inbox(self, runtime: Runtime, nbytes: int) -> int:
        if self.way == "host memory":
            memory = self._pinned(runtime, nbytes)
            return memory.ctypes.data
        return self._own(runtime, nbytes)

    def _own(self, runtime: Runtime, nbytes: int) -> int:
        """Address of memory of a device that other devices may write, filled with 0."""
        address = runtime.allocate_shared(nbytes)
        self._releases.append(partial(runtime.free, address))
        runtime.fill(address, 0, nbytes)
        self._memory.append((runtime, address, nbytes))
        return address

    def _pinned(self, runtime: Runtime, nbytes: int) -> NDArray[np.uint8]:
        memory = runtime.allocate_pinned(nbytes)
        self._releases.append(partial(runtime.free_pinned, memory))
        memory[:] = 0
        self._arrays.append(memory)
        return memory

    @property
    def nbytes(self) -> int:
        """Memory that it takes on each device, or for each in the host's."""
        device = sum(nbytes for _, _, nbytes in self._memory)
        return (device + sum(memory.nbytes for memory in self._arrays)) // len(self._runtimes)

    def stop(self) -> None:
        """Let no kernel wait any longer for another device: one has failed."""
        self._stop[:] = 1

    def restart(self) -> None:
        """Begin anew after `stop`, once no kernel of the group runs any more."""
        for runtime, address, nbytes in self._memory:
            runtime.fill(address, 0, nbytes)
        for memory in self._arrays:
            memory[:] = 0

    def close(self) -> None:
        """Give the memory back, whatever fails. Idempotent."""
        releases, self._releases = self._releases, []
        release_all(*releases)
