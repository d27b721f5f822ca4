"""How lanes share the heads of an op that works head by head: rope, kv_append, rope_kv_append.

Up to 32 neighbouring lanes hold a head in registers, so that partners of a rotation, and numbers
that share a scale in the cache, lie in one wave.
"""

from __future__ import annotations

from dataclasses import dataclass

HEAD_THREADS = 128
MOST_ITEMS = 4
"""Vectors of a lane at most, where few lanes share a head: they take registers. Other numbers were
not measured."""


@dataclass(frozen=True)
class HeadShape:
    """Compile-time constants of a kernel that includes kernels/heads.h.

    Parameters
    ----------
    THREADS
        Threads of a block.
    SPAN
        Neighbouring lanes that share a head: 8, 16 or 32.
    ITEMS
        Vectors that a lane holds.
    VECTOR
        Numbers of a vector: 4, or 1 where the head dim or the rotated dims are no multiple of 4
        (of 8 for halves that are rotated against each other).
    """

    THREADS: int
    SPAN: int
    ITEMS: int
    VECTOR: int

    @property
    def heads(self) -> int:
        """Heads of a block."""
        return self.THREADS // self.SPAN


def head_shape(
    head_dim: int, rotated: int = 0, interleaved: bool = True, lanes: int = 32
) -> HeadShape:
    """Shape for a head dim and how many of its dims are rotated in which layout.

    At most `lanes` share a head, where a vector has 4 numbers and no lane holds more than
    `MOST_ITEMS` of them.
    """
    whole = head_dim % 4 == 0 and rotated % (4 if interleaved else 8) == 0
    vector = 4 if whole else 1
    vectors = head_dim // vector
    most = max(lanes, -(-vectors // MOST_ITEMS)) if whole else 32
    span = next(n for n in (8, 16, 32) if n >= min(vectors, most, 32))
    return HeadShape(HEAD_THREADS, span, -(-vectors // span), vector)
