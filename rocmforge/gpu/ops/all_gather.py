"""all_gather: the columns that each device of a group has, side by side on all of them.

They travel in words, as the numbers of `all_reduce` where these are few.
"""

from __future__ import annotations

from collections.abc import Iterator

from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.peers import BLOCK, LAYOUT, WORDS, Peers

FILE = "all_gather.hip"
LAYOUTS = {"all_gather": "PP" + "iii" + LAYOUT}
DEFINES = {"THREADS": BLOCK}


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernels."""
    yield Build(FILE, LAYOUTS, DEFINES)


def all_gather(
    kernels: Kernels, *, part: int, x: int, rows: int, columns: int, peers: Peers
) -> list[Launch]:
    """X = each rank's part, side by side. All ranks must run it, in the same order of calls.

    Parameters
    ----------
    part
        (T, V_r) float32: of rank r the columns from V · r // ranks on, up to the next rank's.
    x
        (T, V) float32.
    rows, columns
        T and V.
    peers
        This rank's view of its group.
    """
    total = rows * -(-columns // peers.ranks)
    launches = []
    for first in range(0, total, WORDS):
        count = min(WORDS, total - first)
        launches.append(
            kernels.launch(
                FILE,
                "all_gather",
                DEFINES,
                (-(-count // BLOCK), 1, 1),
                BLOCK,
                LAYOUTS["all_gather"],
                *(part, x, first, count, columns, *peers.of_words),
            )
        )
    return launches
