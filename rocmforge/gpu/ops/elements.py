"""Constants of the ops that work element by element: quantize, swiglu, add_scale.

A thread takes four elements.
"""

from __future__ import annotations

from dataclasses import dataclass

VECTOR = 4


@dataclass(frozen=True)
class Constants:
    """Compile-time constants of quantize.hip and swiglu.hip.

    Parameters
    ----------
    THREADS
        Threads of a block.
    OUT
        Dtype of the output, one of `output.dtypes`.
    """

    THREADS: int
    OUT: str


def choose(architecture: str, out: str) -> Constants:
    """Constants for an architecture and an output dtype."""
    return Constants(256, out)


def blocks(count: int, threads: int) -> int:
    """Blocks of some threads, four elements each, for `count` elements."""
    return -(-count // (VECTOR * threads))
