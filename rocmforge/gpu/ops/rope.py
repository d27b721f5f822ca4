"""rope: rotates pairs of each head's numbers by angles of the token's position, in place.

rope_kv_append does the same to queries and keys and fills the cache in one launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops.attention import HEAD_DIMS
from rocmforge.gpu.ops.heads import HeadShape, head_shape

FILE = "rope.hip"
LAYOUTS = {"rope": "PPPPiii"}


@dataclass(frozen=True)
class Constants(HeadShape):
    """Compile-time constants of rope.hip.

    Parameters
    ----------
    THREADS, SPAN, ITEMS, VECTOR
        How lanes share heads.
    INTERLEAVED
        1: pairs are (2i, 2i + 1); 0: (i, i + R / 2).
    """

    INTERLEAVED: int


def choose(architecture: str, head_dim: int, rotated: int, interleaved: bool) -> Constants:
    """Constants for an architecture and a rotation."""
    shape = head_shape(head_dim, rotated, interleaved)
    return Constants(**asdict(shape), INTERLEAVED=int(interleaved))


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernel."""
    chosen = {
        choose(architecture, head_dim, head_dim, interleaved): True
        for head_dim in (*HEAD_DIMS, 13)
        for interleaved in (False, True)
    }
    for constants in chosen:
        yield Build(FILE, LAYOUTS, asdict(constants), hot=constants.VECTOR == 4)


def rope(
    kernels: Kernels,
    *,
    x: int,
    cos: int,
    sin: int,
    positions: int,
    tokens: int,
    heads: int,
    head_dim: int,
    rotated: int,
    interleaved: bool,
) -> Launch:
    """Each pair (a, b) of the first R dims becomes (a cos − b sin, a sin + b cos).

    Parameters
    ----------
    x
        (T, H, D) float32, aligned to 16; rotated in place.
    cos, sin
        (context, R / 2) float32, aligned to 16: of the angles of each position.
    positions
        (T,) int32: rows of cos and sin.
    tokens, heads, head_dim
        T, H and D.
    rotated
        R, even, at most D.
    interleaved
        Pairs are (2i, 2i + 1) if true (llama), (i, i + R / 2) if not (qwen2, qwen3).
    """
    constants = choose(kernels.runtime.properties.architecture, head_dim, rotated, interleaved)
    return kernels.launch(
        FILE,
        "rope",
        asdict(constants),
        (tokens, -(-heads // constants.heads), 1),
        constants.THREADS,
        LAYOUTS["rope"],
        *(x, cos, sin, positions, heads, head_dim, rotated),
    )
