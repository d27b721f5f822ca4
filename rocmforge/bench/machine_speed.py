"""Whether the machine itself was as fast in two runs, so that a change can be the code's.

Each benchmark process measures two reference kernels beside its work, which no commit changes.
Where their rates moved between two runs, a change of a benchmark in the same direction, and no
larger, may be the machine's. The kernels run on the host: they say nothing about a GPU's own work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rocmforge.bench.decision import slowdown
from rocmforge.bench.reports import REFERENCE
from rocmforge.bench.results import Result
from rocmforge.bench.run_environment import is_timed
from rocmforge.bench.statistics import percentile

SCATTER = {"read_gb_per_second": 0.10, "square_roots_per_ns": 0.04}
"""How much the median readings of two equal runs differ (docs/VALIDATION.md); a larger difference
is the machine's."""
SESSION_MS = 3_600_000
"""Runs that are closer than this are taken for equally fast where no reference was recorded."""
_SAID = {
    "read_gb_per_second": "read memory at {:.0f} GB/s then and {:.0f} GB/s now",
    "square_roots_per_ns": "calculated at {:.2f} square roots per ns then and {:.2f} now",
}

Rates = Mapping[str, float]


def differing_conditions(before: Result, after: Result) -> str | None:
    """Say why the change between two results may be that of the machine; None: it is not.

    Parameters
    ----------
    before, after
        Of one benchmark, in one unit and direction.

    Returns
    -------
    str or None
        The rates of the reference kernel that explain the change; or, where a side has no such
        rates and they were measured more than an hour apart, that nothing is known. Always None of
        what is counted, and of a GPU's work.
    """
    old, new, direction = before.value, after.value, after.direction
    if not old or not new or direction is None or not is_timed(after) or of_gpu(after.params):
        return None
    if before.reference and after.reference:
        factor = slowdown(old, new, direction)
        return explanation(factor, before.reference, after.reference)
    return unrecorded(before.started_at, after.started_at)


def of_gpu(params: Iterable[str]) -> bool:
    """Whether parameters, as asv spells them, name a GPU as the device."""
    return "'gpu'" in params


def explanation(factor: float, before: Rates, after: Rates) -> str | None:
    """Say which reference kernel explains a slowdown; None: none does.

    Parameters
    ----------
    factor
        Slowdown, above 0; below 1 it is a speed-up.
    before, after
        Rates of the reference kernels.
    """
    change = max(factor, 1 / factor)
    for name in REFERENCE:
        if name not in before or name not in after:
            continue
        ratio = before[name] / after[name]  # above 1: the machine is slower now
        moved, known = max(ratio, 1 / ratio), 1 + SCATTER[name]
        if moved > known and (ratio > 1) == (factor > 1) and change <= moved * known:
            return f"the machine itself {_SAID[name].format(before[name], after[name])}"
    return None


def unrecorded(before_ms: int | None, after_ms: int | None) -> str | None:
    """Say that nothing is known of the machine's speed; None: measured within an hour, or unknown.

    Parameters
    ----------
    before_ms, after_ms
        Milliseconds since 1970, or None.
    """
    if before_ms is None or after_ms is None or abs(after_ms - before_ms) <= SESSION_MS:
        return None
    hours = abs(after_ms - before_ms) / SESSION_MS
    apart = f"{hours:.0f} hours" if hours < 48 else f"{hours / 24:.0f} days"
    apart = f"{60 * hours:.0f} minutes" if hours < 2 else apart
    return f"measured {apart} apart, and the machine's own speed was not recorded beside both"


def middle_rates(found: Sequence[Rates | None]) -> dict[str, float]:
    """Return the median of each rate over some results; none where one of them has none."""
    known = [rates for rates in found if rates]
    if len(known) < len(found):
        return {}
    return {
        name: percentile(sorted(rates[name] for rates in known), 0.5)
        for name in REFERENCE
        if known and all(name in rates for rates in known)
    }
