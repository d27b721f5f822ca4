"""reduce_rmsnorm: the RMSNorm of a sum over devices, on all of them, for prompts.

Each device adds up and norms its own tokens. What the others have of these travels as float16, in
rows that are scaled to its range, and so do the norms: for two devices half the bytes of the sum.
"""

from __future__ import annotations

from collections.abc import Iterator

from rocmforge.gpu.arrays import F16
from rocmforge.gpu.compiler import Build, Kernels, wave_size
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.peers import LAYOUT, Peers

FILE = "reduce_rmsnorm.hip"
LAYOUTS = {"reduce_rmsnorm": "PPPiifi" + LAYOUT}
THREADS = 256
BLOCKS = 4
"""Of a compute unit: all of them run at the same time."""
COLUMNS = 8
"""K is a multiple of it."""
_DEFINES = {"THREADS": THREADS, "BLOCKS": BLOCKS}


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernel.

    With waves of 64 lanes about 57 scalar registers spill into vector registers, of which there are
    enough; that has not been measured, nor tuned.
    """
    yield Build(FILE, LAYOUTS, _DEFINES, hot=wave_size(architecture) == 32)


def runs(rows: int, columns: int, peers: Peers) -> bool:
    """Whether there is room for what travels of T rows and K columns."""
    if rows < peers.ranks or columns % COLUMNS:
        return False
    share = _share(rows, peers)
    parts = (peers.ranks - 1) * share
    numbers = (parts + rows) * columns // 2 + parts
    return numbers <= peers.ranks * peers.room and 2 * share <= peers.flags


def _share(rows: int, peers: Peers) -> int:
    """Return how many rows a rank adds up at most."""
    return -(-rows // peers.ranks)


def own_rows(rows: int, peers: Peers) -> tuple[int, int]:
    """First and end of the rows that a rank adds up; their x is added there, and nowhere else."""
    return rows * peers.rank // peers.ranks, rows * (peers.rank + 1) // peers.ranks


def reduce_rmsnorm(
    kernels: Kernels,
    *,
    x: int,
    norm: int,
    out: F16,
    rows: int,
    columns: int,
    eps: float,
    peers: Peers,
) -> Launch:
    """Out = RMSNorm of the sum of every rank's x; x = the sum, of this rank's `own_rows` alone.

    What the others have of a row is rounded to float16.

    Parameters
    ----------
    x
        (T, K) float32, aligned to 16.
    norm
        (K,) float32, aligned to 16.
    out
        (T, K), aligned to 16.
    rows, columns
        T and K, which `runs`.
    eps
        Added to the mean square.
    peers
        This rank's view of its group.
    """
    blocks = min(BLOCKS * kernels.runtime.properties.compute_units, _share(rows, peers))
    return kernels.launch(
        FILE,
        "reduce_rmsnorm",
        _DEFINES,
        (blocks, 1, 1),
        THREADS,
        LAYOUTS["reduce_rmsnorm"],
        *(x, norm, out.address, rows, columns, eps, blocks, *peers.of_chunks),
    )
