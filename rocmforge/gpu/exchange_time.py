"""Device time of sums over the devices of a group, as they run inside a captured graph.

By it a model whose matrices are split over GPUs chooses how these exchange numbers.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from threading import Timer

import numpy as np

from rocmforge.errors import DeviceError
from rocmforge.gpu.arrays import F16
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops.all_reduce import all_reduce
from rocmforge.gpu.ops.reduce_rmsnorm import reduce_rmsnorm
from rocmforge.gpu.peers import Group, Peers, Way
from rocmforge.gpu.replay import Replay

SIZES = tuple(1 << bits for bits in (12, 14, 16, 18, 20, 22, 25))
"""Bytes of the sums that are measured."""
CALLS = 64  # in a row: as many as a token of 32 layers has
TOKEN = 4096
"""Numbers of the sum by which a way to exchange is chosen: the residual of a token of 7B."""
ROUNDS = 3  # whose median counts
CLEARLY = 0.9  # of the time over peer access
LIMIT_S = 10.0  # for the first sum


def fastest_group(kernels: Sequence[Kernels]) -> Group:
    """Return devices as a group that exchanges numbers the faster way; see `exchange_seconds`.

    The host's memory has to be clearly faster: two ways that are alike do not take turns.
    Whoever calls closes the group.
    """
    times = exchange_seconds(kernels)
    host, peers = times.get("host memory"), times.get("peer access")
    through_host = host is not None and (peers is None or host < CLEARLY * peers)
    return Group([own.runtime for own in kernels], through_host)


def exchange_seconds(kernels: Sequence[Kernels]) -> dict[Way, float]:
    """Return the time of a sum of `TOKEN` numbers by each way in which devices can exchange them.

    Where cards cannot reach each other's memory, the host's is the only way. A way for which there
    is no memory, which fails, or gives a wrong sum, is none.

    Parameters
    ----------
    kernels
        Of two to `MOST_RANKS` open devices.

    Raises
    ------
    DeviceError, OutOfMemoryError, ValueError
        As of `Group`, where there is no way: what the last one failed of.
    """
    runtimes, times = [own.runtime for own in kernels], dict[Way, float]()
    failed: DeviceError | None = None
    for through_host in (False, True):
        try:
            with closing(Group(runtimes, through_host, few=True)) as group:
                _check(kernels, group)
                tried = [all_reduce_seconds(kernels, group, TOKEN) for _ in range(ROUNDS)]
                times[group.way] = statistics.median(tried)
                if group.way == "host memory":
                    break
        except DeviceError as error:
            failed = error
    if not times and failed is not None:
        raise failed
    return times


def _check(kernels: Sequence[Kernels], group: Group) -> None:
    """Sum other numbers of each device once; DeviceError where the sum is wrong, or does not come.

    A card may say that it reaches another one's memory and never do so.
    """
    ranks = len(kernels)
    wanted, got = ranks * (ranks + 1) / 2, np.empty(TOKEN, np.float32)
    late = Timer(LIMIT_S, group.stop)
    with _memory(kernels, group, got.nbytes) as parts:
        launches = []
        for own, x, peers in zip(kernels, parts, group.peers, strict=True):
            numbers = np.full(TOKEN, peers.rank + 1, np.float32)
            own.runtime.copy_to_device(x, numbers)
            launches.append(all_reduce(own, x=x, count=TOKEN, peers=peers))
        late.start()
        try:
            for own, its in zip(kernels, launches, strict=True):
                for launch in its:
                    launch.enqueue(own.runtime)
            _wait(kernels)
        finally:
            late.cancel()
        for own, x in zip(kernels, parts, strict=True):
            own.runtime.copy_to_host(got, x)
            if (got != wanted).any():
                raise DeviceError(
                    f"a sum over {ranks} GPUs by {group.way}: got {got.min():g} to {got.max():g} "
                    f"within {LIMIT_S:g} s, wanted {wanted:g}"
                )


def all_reduce_seconds(kernels: Sequence[Kernels], group: Group, count: int) -> float:
    """Return the time of one `all_reduce` of `count` float32, of the slowest device.

    Parameters
    ----------
    kernels
        Of the devices of the group, in their order.
    group
        What they exchange through.
    count
        A multiple of 4.
    """

    def launches(own: Kernels, peers: Peers, x: int) -> list[Launch]:
        return all_reduce(own, x=x, count=count, peers=peers)

    return _seconds(kernels, group, 4 * count, launches)


def reduce_rmsnorm_seconds(
    kernels: Sequence[Kernels], group: Group, rows: int, columns: int
) -> float:
    """Return the time of one `reduce_rmsnorm` of T rows and K columns, likewise."""
    x_bytes, norm_bytes = 4 * rows * columns, 4 * columns

    def launches(own: Kernels, peers: Peers, x: int) -> list[Launch]:
        norm, out = x + x_bytes, F16(x + x_bytes + norm_bytes)
        return [
            reduce_rmsnorm(
                own, x=x, norm=norm, out=out, rows=rows, columns=columns, eps=1e-5, peers=peers
            )
        ]

    return _seconds(kernels, group, x_bytes + norm_bytes + x_bytes // 2, launches)


def _seconds(
    kernels: Sequence[Kernels],
    group: Group,
    nbytes: int,
    launches_of: Callable[[Kernels, Peers, int], list[Launch]],
) -> float:
    """Time of what each device launches with memory of its own, filled with 0."""
    with _memory(kernels, group, nbytes) as places:
        (runtime, launches), *others = [
            (own.runtime, launches_of(own, peers, place) * CALLS)
            for own, peers, place in zip(kernels, group.peers, places, strict=True)
        ]
        with closing(Replay(runtime, launches, CALLS, others)) as replay:
            return replay.seconds()


@contextmanager
def _memory(kernels: Sequence[Kernels], group: Group, nbytes: int) -> Iterator[list[int]]:
    """Addresses of so many bytes of each device, filled with 0; in the end none waits any more."""
    with ExitStack() as stack:
        places = []
        for own in kernels:
            places.append(own.runtime.allocate(nbytes))
            stack.callback(own.runtime.free, places[-1])
            own.runtime.fill(places[-1], 0, nbytes)
        stack.callback(group.restart)
        stack.callback(_wait, kernels)
        stack.callback(group.stop)  # where one device alone has been started
        yield places


def _wait(kernels: Sequence[Kernels]) -> None:
    for own in kernels:
        own.runtime.synchronize()
