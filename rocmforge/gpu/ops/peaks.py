"""peaks: what a GPU can do at most, as launches that read or multiply and do nothing else.

Each says how much it does and which sum shows that all of it was done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from rocmforge.gpu.compiler import Build, Kernels, wave_size
from rocmforge.gpu.launch import Launch

FILE = "peaks.hip"
PRECISIONS = ("f32", "int8", "f16")
LAYOUTS = {"peak_reads": "PPiii", **{f"peak_{p}": "Pii" for p in PRECISIONS}}
BLOCKS = 8
"""Blocks for each compute unit: 64 waves of 32 or 32 of 64, as many as one holds or more."""

STEPS = {"f32": 8192, "int8": 8192, "f16": 512}
"""Steps of a launch, which the device's size makes no longer: some 2 ms."""

LEAST_LOADS = 256
"""Loads of a thread, of 16 bytes: some 0.3 ms."""

ELEMENT = 16  # bytes of a load
_LOADS = 8  # kLoads of the kernel


@dataclass(frozen=True)
class Constants:
    """Compile-time constants of peaks.hip.

    Parameters
    ----------
    THREADS
        Threads of a block.
    CHAINS
        Sums of a thread that do not wait for one another: more than a multiply-add's latency.
    TILES
        Sums of a wave of 16 × 16 that do not.
    """

    THREADS: int
    CHAINS: int
    TILES: int


@dataclass(frozen=True)
class PeakLaunch:
    """A launch, what it does, and what shows that it was done.

    Parameters
    ----------
    launch
        The kernel.
    amount
        Bytes read, or operations: multiply and add are two.
    wanted
        Sum of the words of `out`, modulo 2³².
    """

    launch: Launch
    amount: int
    wanted: int

    @staticmethod
    def total(out: NDArray[np.uint32]) -> int:
        """Sum of the words of `out`, to be compared with `wanted`."""
        return int(out.sum(dtype=np.uint32))


def choose(architecture: str) -> Constants:
    """Constants for an architecture: a lane of 64 holds half as much of a tile as one of 32."""
    return Constants(256, 16, 8 if wave_size(architecture) == 64 else 4)


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernels."""
    yield Build(FILE, LAYOUTS, asdict(choose(architecture)), hot=False)


def blocks(kernels: Kernels) -> int:
    """Blocks of a launch, each of which writes one word: (blocks,) uint32."""
    return BLOCKS * kernels.runtime.properties.compute_units


def peak_reads(
    kernels: Kernels, *, data: int, nbytes: int, word: int, out: int, least: int = LEAST_LOADS
) -> PeakLaunch:
    """Read memory, all of it at least once.

    Parameters
    ----------
    data
        Address of (nbytes / 4,) uint32, all of them `word`; aligned to 16.
    nbytes
        A multiple of 16, at most 2³⁵ − 16.
    word
        What is there.
    out
        `blocks` words.
    least
        Loads of a thread.
    """
    threads = blocks(kernels) * choose(kernels.runtime.properties.architecture).THREADS
    elements = nbytes // ELEMENT
    loads = -(-max(least, -(-elements // threads)) // _LOADS) * _LOADS
    launch = _launch(kernels, "peak_reads", data, out, elements, loads, threads)
    total = threads * loads
    return PeakLaunch(launch, ELEMENT * total, 4 * total * word % 2**32)


def peak_products(
    kernels: Kernels, *, precision: str, out: int, steps: int | None = None
) -> PeakLaunch:
    """Multiply and add.

    Parameters
    ----------
    precision
        "f32"; "int8": dot products of four bytes; "f16": 16 × 16 × 16 products of tile.h, which is
        matmul_prompt's way.
    out
        `blocks` words.
    steps
        A multiple of 8; by default `STEPS`.
    """
    properties = kernels.runtime.properties
    constants = choose(properties.architecture)
    steps = STEPS[precision] if steps is None else steps
    launch = _launch(kernels, f"peak_{precision}", out, steps, 1)
    threads = blocks(kernels) * constants.THREADS
    if precision == "f16":
        tiles = threads // properties.wave_size * constants.TILES
        first = tiles * (constants.TILES - 1) // 2  # tile c begins at c
        return PeakLaunch(
            launch, 2 * 16**3 * tiles * steps, 256 * (first + 16 * steps * tiles) % 2**32
        )
    width = 4 if precision == "int8" else 1
    chains = constants.CHAINS
    wanted = width * threads * steps * (chains * (chains + 1) // 2)
    return PeakLaunch(launch, 2 * width * threads * chains * steps, wanted % 2**32)


def _launch(kernels: Kernels, name: str, *values: int) -> Launch:
    constants = choose(kernels.runtime.properties.architecture)
    grid = (blocks(kernels), 1, 1)
    defines = asdict(constants)
    return kernels.launch(FILE, name, defines, grid, constants.THREADS, LAYOUTS[name], *values)
