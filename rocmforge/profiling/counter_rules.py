"""What limits a kernel or a run, by what a profiler counted: the rules, the numbers, what to try.

Counters differ from card to card (`counters.py`), so a rule looks at a share that any of several
counters gives, and holds only where one of them is there. `bottleneck.py` has the rules for our own
telemetry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields

from rocmforge.profiling.bottleneck import COPIED, NAMES, WAITING
from rocmforge.profiling.profile import Bound, Verdict
from rocmforge.profiling.readers.records import Recording

BUSY = 0.6  # share from which on a unit, or the memory, is the limit
STALLED = 0.3  # of the time: units of memory cannot go on
WAITED = 0.5  # of the waves' time: they wait for what they asked for
MISSED = 0.5  # of the requests to L2, from which on memory serves them
FEW_WAVES = 0.25  # of those that fit
CONFLICTS = 0.1  # of the accesses to LDS
KIB = 1024

Counters = Mapping[str, "float | None"]


@dataclass(frozen=True, slots=True)
class Counted:
    """What a profiler's counters say of a kernel, as shares from 0 to 1; None: not counted.

    Parameters
    ----------
    bandwidth
        Bytes a second to and from memory.
    of_peak
        That, of what the device reaches.
    l2_hits
        Of all requests to L2.
    memory_busy, memory_stalled
        Of the time: units of vector memory work, and cannot go on.
    waiting
        Of the waves' time: they wait for data or another wave.
    alu_busy
        Of the time: vector or matrix units work, whichever more.
    occupancy
        Waves of all that fit.
    lds_conflicts
        Of the accesses to LDS, or the time.
    """

    bandwidth: float | None = None
    of_peak: float | None = None
    l2_hits: float | None = None
    memory_busy: float | None = None
    memory_stalled: float | None = None
    waiting: float | None = None
    alu_busy: float | None = None
    occupancy: float | None = None
    lds_conflicts: float | None = None


def counted(
    counters: Counters, seconds: float | None = None, peak_bytes_per_second: float | None = None
) -> Counted:
    """Return what counters of one dispatch, or their means, say.

    Parameters
    ----------
    counters
        By the tools' names; None: not valid.
    seconds
        Of the dispatch; None: no bandwidth is known.
    peak_bytes_per_second
        That the device reads at most; None: not known.
    """

    def percent(*names: str) -> float | None:
        found = [value / 100 for name in names if (value := counters.get(name)) is not None]
        return max(found, default=None)

    hits = percent("L2CacheHit")
    if hits is None:
        hits = _hits(counters, "TCC_HIT_sum", "TCC_MISS_sum")
    if hits is None:
        hits = _hits(counters, "GL2C_HIT_sum", "GL2C_MISS_sum")
    moved = [counters.get(name) for name in ("FETCH_SIZE", "WRITE_SIZE")]
    known = [value * KIB for value in moved if value is not None]
    bandwidth = sum(known) / seconds if known and seconds else None
    at_peak = None if bandwidth is None or not peak_bytes_per_second else peak_bytes_per_second
    waiting = percent("WAVE_DEP_WAIT")
    if waiting is None:
        waiting = _ratio(counters.get("SQ_WAIT_ANY"), counters.get("SQ_WAVE_CYCLES"))
    return Counted(
        bandwidth=bandwidth,
        of_peak=bandwidth / at_peak if bandwidth is not None and at_peak else None,
        l2_hits=hits,
        memory_busy=percent("MemUnitBusy"),
        memory_stalled=percent("MemUnitStalled", "WriteUnitStalled"),
        waiting=waiting,
        alu_busy=percent("VALUBusy", "MfmaUtil"),
        occupancy=percent("OccupancyPercent"),
        lds_conflicts=percent("LDSBankConflict"),
    )


def kernel_verdict(kernel: str, found: Counted) -> Verdict:
    """Say what limits a kernel; "none" where no counter says it."""
    bound = next(bound for bound, holds in RULES if holds(found))
    return Verdict(
        subject=kernel,
        bound=bound,
        summary=f"{kernel} is {NAMES[bound]}.",
        evidence=tuple(_evidence(found)),
        advice=tuple(_advice(found, bound)),
    )


def run_verdict(recording: Recording) -> Verdict | None:
    """Say whether copies or gaps between kernels limit a run; None where it has no kernel's times.

    A gap is where no kernel of any queue runs, between the first and the last. Copies count from
    the first kernel to the end of the last: those before it brought the weights.
    """
    kernels = sorted(
        (d.start_ns, d.end_ns)
        for d in recording.dispatches
        if d.start_ns is not None and d.end_ns is not None
    )
    if not kernels:
        return None
    first, last = kernels[0][0], max(end for _, end in kernels)
    span = last - first
    idle = 1 - _union(kernels) / span if span > 0 else 0.0
    copies = sorted(
        (max(c.start_ns, first), min(c.end_ns, last))
        for c in recording.copies
        if c.start_ns is not None and c.end_ns is not None
    )
    copied = _union(copies) / span if span > 0 else 0.0
    bound: Bound = "transfer" if copied >= COPIED else "launch" if idle >= WAITING else "none"
    return Verdict(
        subject="the run",
        bound=bound,
        summary=f"The run is {NAMES[bound]}.",
        evidence=(
            f"No kernel runs in {idle:.1%} of the time from the first to the last.",
            f"Copies take {copied:.1%} of that time.",
        ),
        advice=_RUN_ADVICE[bound],
    )


def _reaches(value: float | None, limit: float) -> bool:
    return value is not None and value >= limit


def _below(value: float | None, limit: float) -> bool:
    return value is not None and value < limit


def _memory(c: Counted) -> bool:
    if _reaches(c.of_peak, BUSY) or _reaches(c.memory_stalled, STALLED):
        return True
    if _reaches(c.memory_busy, BUSY) and (c.memory_busy or 0) > (c.alu_busy or 0):
        return True
    return _reaches(c.waiting, WAITED) and _below(c.l2_hits, 1 - MISSED)


RULES: tuple[tuple[Bound, Callable[[Counted], bool]], ...] = (
    ("compute", lambda c: _reaches(c.alu_busy, BUSY) and not _reaches(c.of_peak, BUSY)),
    ("memory", _memory),
    ("occupancy", lambda c: _below(c.occupancy, FEW_WAVES)),
    ("none", lambda c: True),
)
"""In the order of trying."""

_WORDS: dict[str, str] = {
    "of_peak": "It moves {:.0%} of the bytes that the device reads at most.",
    "l2_hits": "{:.0%} of the requests to L2 are hits.",
    "memory_busy": "Units of vector memory work for {:.0%} of the time.",
    "memory_stalled": "Units of vector memory are stalled for {:.0%} of the time.",
    "waiting": "Waves wait for {:.0%} of their time.",
    "alu_busy": "Vector or matrix units work for {:.0%} of the time.",
    "occupancy": "{:.0%} of the waves that fit are there.",
    "lds_conflicts": "Conflicts of LDS banks take {:.0%}.",
}

_ADVICE: dict[Bound, str] = {
    "memory": "Move fewer bytes: a smaller format, fused ops, or tiles that are read once.",
    "compute": "Fewer or cheaper instructions help: matrix units, dot products of int8, fewer "
    "conversions.",
    "occupancy": "More waves hide the waiting: fewer registers and less LDS a block (see the "
    "columns VGPRs and LDS), or smaller blocks in a larger grid.",
    "none": "No counter of this recipe says it. Try --recipe stall, and --recipe compute-unit.",
}
_RUN_ADVICE: dict[Bound, tuple[str, ...]] = {
    "transfer": ("Keep data on the device, and look at the card's link.",),
    "launch": ("Launch ahead or capture a graph, so that the device does not wait for the host.",),
    "none": (),
}


def _evidence(found: Counted) -> Iterable[str]:
    if found.bandwidth is not None:
        yield f"It moves {found.bandwidth / 1e9:.3g} GB/s to and from memory."
    for name in (field.name for field in fields(found)):
        value = getattr(found, name)
        if value is not None and name in _WORDS:
            yield _WORDS[name].format(value)


def _advice(found: Counted, bound: Bound) -> Iterable[str]:
    yield _ADVICE[bound]
    if bound == "memory" and _below(found.l2_hits, 1 - MISSED):
        yield "Most requests miss L2: let blocks that run together read the same rows."
    if _reaches(found.lds_conflicts, CONFLICTS):
        yield "Pad the rows in LDS: banks are in conflict."


def _hits(counters: Counters, hits: str, misses: str) -> float | None:
    hit, missed = counters.get(hits), counters.get(misses)
    if hit is None or missed is None:
        return None
    return _ratio(hit, hit + missed)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _union(intervals: Iterable[tuple[int, int]]) -> int:
    """Length of what sorted intervals cover together."""
    total, reached = 0, None
    for start, end in intervals:
        begin = start if reached is None else max(start, reached)
        total += max(0, end - begin)
        reached = end if reached is None else max(reached, end)
    return total
