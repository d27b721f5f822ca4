"""argmax: the likeliest token of each row of logits, on the device.

Two launches: the best of some parts of each row side by side, then the best of those.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.launch import Launch

FILE = "argmax.hip"
LAYOUTS = {"argmax_parts": "PPi", "argmax": "PP"}
PARTS = 512
"""Parts of a row: kParts of kernels/parts.h."""
LANES = 16
"""Lanes that read a part: kPartLanes of kernels/argmax.hip."""


@dataclass(frozen=True)
class Constants:
    """Compile-time constants of argmax.hip.

    Parameters
    ----------
    THREADS
        Threads of a block; `LANES` of them read one part of a row.
    VECTOR
        Columns of a load: 4, or 1 where the columns are no multiple of 4.
    AHEAD
        Loads that a thread has in flight: 1, 2 or 4, by how many its share of a part takes. Those
        beyond its share read the part's last vector again. 2 and 4 were not measured.
    """

    THREADS: int
    VECTOR: int
    AHEAD: int


def choose(architecture: str, columns: int) -> Constants:
    """Constants for an architecture and a row's length."""
    own = vector(columns)
    loads = -(-columns // (own * PARTS * LANES))
    return Constants(256, own, 1 if loads == 1 else 2 if loads == 2 else 4)


def vector(columns: int) -> int:
    """Columns of a load; `sample` finds the parts again by it."""
    return 1 if columns % 4 else 4


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernels."""
    for columns in (32000, 65536, 128256, 1001, 10001, 32001):
        constants = choose(architecture, columns)
        yield Build(FILE, LAYOUTS, asdict(constants), hot=constants.VECTOR == 4)


def parts_bytes(rows: int) -> int:
    """Memory between the two launches: (T, PARTS) records of 16 bytes."""
    return 16 * PARTS * rows


def argmax_parts(kernels: Kernels, *, logits: int, parts: int, rows: int, columns: int) -> Launch:
    """Find the best of each part of each row: the first half of `argmax` and of `sample`."""
    constants = choose(kernels.runtime.properties.architecture, columns)
    return kernels.launch(
        FILE,
        "argmax_parts",
        asdict(constants),
        (PARTS * LANES // constants.THREADS, rows, 1),
        constants.THREADS,
        LAYOUTS["argmax_parts"],
        *(logits, parts, columns),
    )


def argmax(
    kernels: Kernels, *, logits: int, out: int, parts: int, rows: int, columns: int
) -> tuple[Launch, Launch]:
    """out[t] = the column of the largest logit of row t, the lowest among equals.

    Parameters
    ----------
    logits
        (T, V) float32, aligned to 16. NaN never wins; a row of nothing but NaN gives 0.
    out
        (T,) int32.
    parts
        `parts_bytes(T)` of memory for between the launches, aligned to 16.
    rows, columns
        T, at most 65535, and V.
    """
    properties = kernels.runtime.properties
    first = argmax_parts(kernels, logits=logits, parts=parts, rows=rows, columns=columns)
    second = kernels.launch(
        FILE,
        "argmax",
        asdict(choose(properties.architecture, columns)),
        (rows, 1, 1),
        properties.wave_size,
        LAYOUTS["argmax"],
        *(parts, out),
    )
    return first, second
