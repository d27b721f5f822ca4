"""add_scale: x + scale · y, element by element.

The residual of a layer is added by a matmul's last step; this is for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops.elements import blocks

FILE = "add_scale.hip"
LAYOUTS = {"add_scale": "PPPif"}


@dataclass(frozen=True)
class Constants:
    """Compile-time constants of add_scale.hip.

    Parameters
    ----------
    THREADS
        Threads of a block.
    """

    THREADS: int


def choose(architecture: str) -> Constants:
    """Constants for an architecture."""
    return Constants(256)


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernel."""
    yield Build(FILE, LAYOUTS, asdict(choose(architecture)))


def add_scale(kernels: Kernels, *, x: int, y: int, out: int, scale: float, count: int) -> Launch:
    """out = x + scale · y.

    Parameters
    ----------
    x, y, out
        (count,) float32, aligned to 16; out may be x or y.
    scale
        What y is multiplied with.
    count
        Elements, below 2³¹.
    """
    constants = choose(kernels.runtime.properties.architecture)
    return kernels.launch(
        FILE,
        "add_scale",
        asdict(constants),
        (blocks(count, constants.THREADS), 1, 1),
        constants.THREADS,
        LAYOUTS["add_scale"],
        *(x, y, out, count, scale),
    )
