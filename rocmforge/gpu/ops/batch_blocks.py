"""How many blocks share the work of a launch of matmul_batch: a formula that was fitted to times.

What the blocks share, and how, is in kernels/batch_parts.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

MOST_PARTS = 16  # of a band of rows
COUNTERS = 1 << 14
"""Most counters of `matmul_batch.Scratch.arrivals` that a launch uses."""


class Sharing(IntEnum):
    """How blocks share bands of rows; SHARING of kernels/batch_parts.h."""

    OWN = 0
    """Each band has blocks of its own, which share its steps."""
    EVEN = 1
    """All blocks share the steps of all bands, so that one may have parts of two bands."""
    PAIRS = 2
    """Likewise; of two blocks that share a band, the second one keeps its sums in registers. Fewer
    sums go to memory, and the kernel is larger: on an H200 it gains where many sums are shared."""


@dataclass(frozen=True)
class Cost:
    """How long a block takes. The unit is a step of a block of 64 tokens, alone on a compute unit.

    Parameters
    ----------
    start
        For its start and end.
    begin
        For the beginning of each other band.
    step
        For a step, alone on a compute unit.
    crowd
        How much longer each other block of the compute unit makes a step: a share of it.
    part
        What each part of a band adds to the whole.
    least_steps
        Of a part.
    """

    start: float
    begin: float
    step: float
    crowd: float
    part: float
    least_steps: int = 2


# Fitted to times of 65 to 1,024 tokens with eleven shapes, some in four formats, on an H200
# (2026-11-27; of up to 64 tokens with nine shapes, 2026-11-24 and -26), and not measured elsewhere.
# What is chosen by them took at most 1.09 of the least time that was found, 1.01 on average.
NARROW_COST = Cost(start=8, begin=3, step=1, crowd=0.4, part=0.35)
WIDE_COST = Cost(start=12, begin=8, step=2, crowd=0, part=1.5)
TALL_COST = Cost(start=12, begin=8, step=1.9, crowd=0, part=1.5)
"""Not fitted: `WIDE_COST`, but for the step. Whole passes of 512 to 2,048 tokens of 7B took 0.90 to
0.99 of the time with it (2026-11-28)."""
F32_COST = Cost(start=8, begin=3, step=6, crowd=0.8, part=0.35, least_steps=1)
"""Of F32, fitted to routers of mixtures of experts. With 128 rows of 2,048 columns, parts of one
step took 5.5 and 9.8 µs of 16 and 128 tokens, of two steps 9.3 and 11.6; of 512 tokens 14.5 and
11.8."""


@dataclass(frozen=True)
class Work:
    """What the blocks of a launch share, and where they run.

    Parameters
    ----------
    bands
        Bands of `matmul_batch.Constants.rows` rows, of all matrices.
    steps
        Of a block that has all columns.
    token_tiles
        Tiles of tokens; each has as many blocks.
    compute_units
        Of the device.
    resident
        Blocks that a compute unit runs at a time.
    cost
        How long the blocks take.
    """

    bands: int
    steps: int
    token_tiles: int
    compute_units: int
    resident: int
    cost: Cost

    def time(self, count: int) -> float:
        """How long that many blocks of each tile of tokens take, in the unit of `Cost`."""
        cost = self.cost
        busiest = -(-self.token_tiles * count // self.compute_units)
        full, rest = divmod(busiest, self.resident)
        rounds = [self.resident] * full + [rest] * (rest > 0)
        crosses = count % self.bands > 0 and self.bands % count > 0  # from band to band
        begins = crosses + -(-self.bands // count) - 1
        start, own = cost.start + cost.begin * begins, self.bands * self.steps / count
        parts = count / self.bands + crosses
        times = (start + own * cost.step * (1 + cost.crowd * (n - 1)) for n in rounds)
        return sum(times) + cost.part * parts


@cache
def blocks(work: Work, *, even: bool) -> int:
    """How many blocks share the steps of all bands of rows, so that it takes least time.

    Either each band has one or more blocks of its own. Or there are as many blocks as run at a
    time, and most have the end of a band and the beginning of the next. With several tiles of
    tokens there may be fewer blocks than bands. With one there never are: a step of 64 sequences
    of 8B, whose output matrix has 1,002 bands, took 1.02 of its time.

    Parameters
    ----------
    work
        What they share.
    even
        Whether a block may have parts of two bands.
    """
    bands, tiles = work.bands, work.token_tiles
    if bands * tiles > COUNTERS:  # then no band is shared
        return bands
    most = max(1, min(MOST_PARTS, work.steps // work.cost.least_steps))
    counts = [bands * parts for parts in range(1, most + 1)]
    if even:
        all_at_once = (n * work.compute_units // tiles for n in range(1, work.resident + 1))
        counts += [
            count
            for count in all_at_once
            if (0 if tiles > 1 else bands) < count <= most * bands
            and countable(bands * work.steps, count)
        ]
    return min(counts, key=work.time)


def countable(all_steps: int, count: int) -> bool:
    """Whether blocks can share all steps and tell their own: they multiply 32-bit integers."""
    return all_steps * count < 1 << 31


def can_be_even(architecture: str) -> bool:
    """Whether blocks may have parts of two bands.

    Of CUDA's devices only an H200 was measured. AMD's were not. There the kernel takes up to 36
    registers more, and gate and up of 64 tokens would spill on gfx1100.
    """
    return architecture.startswith("sm_")


def choose_sharing(work: Work, count: int, possible: Sequence[Sharing]) -> Sharing:
    """Choose how blocks share bands, among `possible`; OWN where steps are not `countable`."""
    if count % work.bands > 0:  # a block has parts of two bands
        wanted = Sharing.PAIRS if count < work.bands else Sharing.EVEN
    else:
        wanted = Sharing.OWN
        if not countable(work.bands * work.steps, count):
            return wanted
    return max((one for one in possible if one <= wanted), default=possible[0])
