"""all_reduce: the sum of what each device of a group has, on all of them.

Few numbers travel in words that say of which call they are; many as they are, in chunks with a
flag each. Both are in place, and every device gets the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator

from rocmforge.gpu.arrays import Q8
from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops.output import addresses
from rocmforge.gpu.peers import BLOCK, CHUNK, LAYOUT, WORDS, Peers

FILE, CHUNKS_FILE = "all_reduce.hip", "all_reduce_chunks.hip"
LAYOUTS = {"all_reduce": "PP" + "PPP" + "P" + "ii" + LAYOUT}
CHUNKS_LAYOUTS = {"all_reduce_chunks": "Pii" + LAYOUT}
THREADS = BLOCK
CHUNK_BLOCKS = 4
"""Blocks of all_reduce_chunks for each multiprocessor: all of them run at the same time."""


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernels."""
    for normed in (0, 1):
        yield Build(FILE, LAYOUTS, _defines(normed))
    yield Build(CHUNKS_FILE, CHUNKS_LAYOUTS, _CHUNKS)


def all_reduce(kernels: Kernels, *, x: int, count: int, peers: Peers) -> list[Launch]:
    """X = the sum of every rank's x. All ranks must run it, in the same order of calls.

    Parameters
    ----------
    x
        (count,) float32, aligned to 16.
    count
        A multiple of 4.
    peers
        This rank's view of its group.
    """
    if count <= WORDS:
        return [_words(kernels, x, count, peers)]
    most = CHUNK_BLOCKS * kernels.runtime.properties.compute_units
    launches = []
    for start in range(0, count, peers.room):
        part = min(peers.room, count - start)
        blocks = min(most, -(-part // CHUNK))
        launches.append(
            kernels.launch(
                CHUNKS_FILE,
                "all_reduce_chunks",
                _CHUNKS,
                (blocks, 1, 1),
                THREADS,
                CHUNKS_LAYOUTS["all_reduce_chunks"],
                *(x + 4 * start, part, blocks, *peers.of_chunks),
            )
        )
    return launches


def all_reduce_rmsnorm(
    kernels: Kernels,
    *,
    x: int,
    norm: int,
    normed: Q8,
    squares: int,
    rows: int,
    columns: int,
    peers: Peers,
) -> Launch:
    """X = the sum of every rank's x; normed = x · norm; squares = the sums of x² of 32 columns.

    Parameters
    ----------
    x
        (T, K) float32, T · K at most `WORDS`, K a multiple of 32.
    norm
        (K,) float32.
    normed
        (T, K): the RMSNorm of x, but for the factors of `squares`.
    squares
        (T, K / 32) float32.
    rows, columns
        T and K.
    peers
        This rank's view of its group.
    """
    return _words(kernels, x, rows * columns, peers, norm, addresses(normed), squares, columns)


def _words(
    kernels: Kernels,
    x: int,
    count: int,
    peers: Peers,
    norm: int = 0,
    normed: tuple[int, int, int] = (0, 0, 0),
    squares: int = 0,
    columns: int = 1,
) -> Launch:
    return kernels.launch(
        FILE,
        "all_reduce",
        _defines(int(norm != 0)),
        (-(-count // THREADS), 1, 1),
        THREADS,
        LAYOUTS["all_reduce"],
        *(x, norm, *normed, squares, count, columns, *peers.of_words),
    )


def _defines(normed: int) -> dict[str, int]:
    return {"THREADS": THREADS, "NORMED": normed}


_CHUNKS = {"THREADS": THREADS, "CHUNK": CHUNK}
