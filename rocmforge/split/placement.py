"""Which layers of a model lie on which GPU, by what they take and by what is free.

Numbers alone: no device is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

KEPT_BYTES, KEPT_SHARE = 512 << 20, 1 / 16
"""Of each GPU's free memory, kept for activations, tables and kernels; the larger of the two."""


def room(free: int) -> int:
    """Return what of a GPU's free bytes weights, keys and values may take."""
    return max(0, free - max(KEPT_BYTES, int(free * KEPT_SHARE)))


def split_layers(layers: Sequence[int], output: int, rooms: Sequence[int]) -> list[int]:
    """Return how many layers each GPU gets, in proportion to its room; at least one.

    Parameters
    ----------
    layers
        Bytes of each layer, in order; as many as there are GPUs, or more.
    output
        Bytes of what stands behind the last layer.
    rooms
        Bytes that each GPU has room for.
    """
    rooms = rooms if any(rooms) else [1] * len(rooms)
    whole, ends = sum(layers) + output, list(accumulate(layers))
    borders = [0]
    for gpus, before in enumerate(accumulate(rooms[:-1]), 1):
        wanted = whole * before / sum(rooms)
        most = len(layers) - (len(rooms) - gpus)
        ways = range(borders[-1] + 1, most + 1)
        borders.append(min(ways, key=lambda end: abs(ends[end - 1] - wanted)))
    return [end - start for start, end in pairwise([*borders, len(layers)])]


def taken_bytes(layers: Sequence[int], output: int, shares: Sequence[int]) -> list[int]:
    """Return the bytes that each GPU takes.

    Parameters
    ----------
    layers, output
        As of `split_layers`.
    shares
        How many of the layers each GPU gets, together all of them.
    """
    ends = accumulate(shares)
    taken = [sum(layers[end - own : end]) for own, end in zip(shares, ends, strict=True)]
    taken[-1] += output
    return taken


def fitting_layers(layers: Sequence[int], output: int, rooms: Sequence[int]) -> int:
    """Return how many of the last layers, with the output, have room on GPUs; 0: none.

    Parameters
    ----------
    layers, output, rooms
        As of `split_layers`, of all layers.
    """
    for count in range(len(layers), len(rooms) - 1, -1):
        left = layers[len(layers) - count :]
        taken = taken_bytes(left, output, split_layers(left, output, rooms))
        if all(nbytes <= most for nbytes, most in zip(taken, rooms, strict=True)):
            return count
    return 0
