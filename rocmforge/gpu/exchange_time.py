"""Device time of a sum over the devices of a group, as it runs inside a captured graph."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.ops.all_reduce import all_reduce
from rocmforge.gpu.peers import Group
from rocmforge.gpu.replay import Replay

SIZES = tuple(1 << bits for bits in (12, 14, 16, 18, 20, 22, 25))
"""Bytes of the sums that are measured."""
CALLS = 64  # in a row: as many as a token of 32 layers has


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
    with ExitStack() as stack:
        parts = []
        for own, peers in zip(kernels, group.peers, strict=True):
            x = own.runtime.allocate(4 * count)
            stack.callback(own.runtime.free, x)
            own.runtime.fill(x, 0, 4 * count)
            launches = all_reduce(own, x=x, count=count, peers=peers) * CALLS
            parts.append((own.runtime, launches))
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
