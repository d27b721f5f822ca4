"""Device time of sums over the devices of a group, as they run inside a captured graph.

By it a model that is split over GPUs chooses how these exchange numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress

from rocmforge.errors import OutOfMemoryError
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


def fastest_group(kernels: Sequence[Kernels]) -> tuple[Group, dict[Way, float]]:
    """Return devices as a group that exchanges numbers the faster way, and each way's time.

    The time is of a sum of `TOKEN` numbers, in seconds. Where cards cannot reach each other's
    memory, the host's is the only way. A way for which there is no memory is none.

    Parameters
    ----------
    kernels
        Of two to `MOST_RANKS` open devices. Whoever calls closes the group.

    Raises
    ------
    DeviceError, OutOfMemoryError, ValueError
        As of `Group`.
    """
    runtimes, times = [own.runtime for own in kernels], dict[Way, float]()
    for through_host in (False, True):
        with suppress(OutOfMemoryError), closing(Group(runtimes, through_host, few=True)) as group:
            if group.way not in times:
                times[group.way] = all_reduce_seconds(kernels, group, TOKEN)
    fastest = min(times, key=times.__getitem__, default="peer access")
    return Group(runtimes, through_host=fastest == "host memory"), times


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
    with ExitStack() as stack:
        parts = []
        for own, peers in zip(kernels, group.peers, strict=True):
            memory = own.runtime.allocate(nbytes)
            stack.callback(own.runtime.free, memory)
            own.runtime.fill(memory, 0, nbytes)
            parts.append((own.runtime, launches_of(own, peers, memory) * CALLS))
        (runtime, launches), *others = parts
        stack.callback(group.restart)
        stack.callback(_wait, kernels)
        stack.callback(group.stop)  # where one device alone has been started
        replay = Replay(runtime, launches, CALLS, others)
        stack.callback(replay.close)
        return replay.seconds()


def _wait(kernels: Sequence[Kernels]) -> None:
    for own in kernels:
        own.runtime.synchronize()
