"""sample: draws the next token of each row of logits on the device, as `Sampler` does on the host.

Temperature, top-k, top-p, min-p, then one draw by a uniform number that the host gives. The
parameters of each row lie in device memory, so that the launches stay the same while they change.
Not here: the repetition penalty, and random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rocmforge.gpu.compiler import Build, Kernels, wave_size
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops.argmax import argmax_parts, parts_bytes, vector

__all__ = ["builds", "choose", "parts_bytes", "sample"]

FILE = "sample.hip"
LAYOUTS = {"sample": "PPPPPi"}
MAX_COLUMNS = 1 << 21
SHORT_ROW = 16384


@dataclass(frozen=True)
class Constants:
    """Compile-time constants of sample.hip.

    Parameters
    ----------
    THREADS
        Threads of a block, which has one row.
    VECTOR
        Columns of a load: 4, or 1 where the columns are no multiple of 4.
    AHEAD
        Loads that a thread has in flight.
    """

    THREADS: int
    VECTOR: int
    AHEAD: int


def choose(architecture: str, columns: int) -> Constants:
    """Constants for an architecture and a row's length."""
    own = vector(columns)
    if columns <= SHORT_ROW:
        return Constants(256, own, 2)
    # As many bytes in flight; more loads a thread would spill scalar registers on gfx942.
    if wave_size(architecture) == 64:
        return Constants(1024, own, 2)
    return Constants(512, own, 4)


def builds(architecture: str) -> Iterator[Build]:
    """Every way in which the op compiles its kernel."""
    for columns in (32000, 32001, 1000):
        constants = choose(architecture, columns)
        yield Build(FILE, LAYOUTS, asdict(constants), hot=constants.VECTOR == 4)


def sample(
    kernels: Kernels,
    *,
    logits: int,
    out: int,
    draws: int,
    parts: int,
    rows: int,
    columns: int,
    host: int = 0,
) -> tuple[Launch, Launch]:
    """out[t] = the token of row t at which the running sum of the kept weights passes its share.

    Parameters
    ----------
    logits
        (T, V) float32, aligned to 16; −∞ forbids a token. Not changed.
    out
        (T,) int32; −1 where the row holds NaN or +∞ or forbids every token.
    draws
        (T,) records `rocmforge.sampling.DRAW`, aligned to 16.
    parts
        `parts_bytes(T)` of memory for between the launches, aligned to 16.
    rows, columns
        T, at most 65535, and V, at most MAX_COLUMNS.
    host
        (T,) int32 in page-locked memory, which gets the tokens too; 0: none.

    Notes
    -----
    The steps and the order of the draw are those of `Sampler.sample`, and so is the token for the
    same uniform number, but where the host's or the device's rounding decides: weights are summed
    here as multiples of 2⁻⁴² of the likeliest one's, exactly; exp and the division by the
    temperature differ in their last bits. A weight below 2⁻⁴² is never drawn.
    """
    constants = choose(kernels.runtime.properties.architecture, columns)
    first = argmax_parts(kernels, logits=logits, parts=parts, rows=rows, columns=columns)
    second = kernels.launch(
        FILE,
        "sample",
        asdict(constants),
        (rows, 1, 1),
        constants.THREADS,
        LAYOUTS["sample"],
        *(logits, parts, draws, out, host, columns),
    )
    return first, second
