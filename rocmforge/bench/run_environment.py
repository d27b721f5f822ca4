"""The environment of each benchmark's processes, joined to its result and judged.

`with_stored_environments` adds what the processes reported (`rocmforge.bench.reports`) to the
results, and marks a result whose samples other work or throttling disturbed.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rocmforge.bench.defaults import OTHERS_LIMIT
from rocmforge.bench.reports import (
    REFERENCE,
    SHARES,
    Key,
    Report,
    read_reports,
    reports_path,
)
from rocmforge.bench.results import Result, ResultSet, Status
from rocmforge.bench.statistics import percentile
from rocmforge.errors import MeasurementError

UNLISTED_LIMIT = 0.50
"""Share of a GPU's time, before its first use here, above which it marks a benchmark though no
process is listed on it: in a container those of others never are. Below, it may be what is left in
the card's average of our own process before."""
QUOTA_LIMIT = 0.05
"""Share of the time for which a CPU quota may hold a benchmark back."""
REFUSED_SHARE = 0.5
"""Share of marked benchmarks among the timed ones above which a run is refused as a baseline."""
NO_MARK = frozenset({"power cap", "clocks setting", "sync boost", "display clocks"})
"""Reasons for lower clocks that do not mark: the card's own settings, the same in every run."""

_ROUNDED = 1e-5  # relative; reports keep six digits
_TIMES = re.compile(r"seconds|[mnµu]?s(/.+)?|times\b.*|.*/s")


def with_environments(
    results: Sequence[Result], reports: Mapping[Key, Sequence[Report]], limit: float = OTHERS_LIMIT
) -> tuple[Result, ...]:
    """Give each result what its processes reported, and its mark.

    Parameters
    ----------
    results
        All of a result file, in its order: their place says the index of their parameters.
    reports
        As `read_reports` returns them; results without a report stay as they are.
    limit
        Share of CPU or GPU time that other work may take, 0 … 1.
    """
    seen: dict[str, int] = defaultdict(int)
    joined = []
    for result in results:
        index = seen[result.name] if result.params else None
        seen[result.name] += 1
        joined.append(_joined(result, reports.get((result.name, index), []), limit))
    return tuple(joined)


def with_stored_environments(found: ResultSet, limit: float = OTHERS_LIMIT) -> ResultSet:
    """Add what the processes reported, where that lies beside asv's result file.

    Parameters
    ----------
    found
        Of one result file.
    limit
        As of `with_environments`.

    Raises
    ------
    ResultFileError
        The reports are broken.
    """
    reports = read_reports(reports_path(found.source))
    return dataclasses.replace(found, results=with_environments(found.results, reports, limit))


def is_timed(result: Result) -> bool:
    """Whether it is a time or a rate, which other work can spoil.

    Bytes, registers and quality are not. Multiples of an ideal time, whose unit begins with
    "times", are.
    """
    return result.status is Status.OK and bool(_TIMES.fullmatch(result.unit or ""))


def marked_share(results: Iterable[Result]) -> tuple[int, int]:
    """Return how many timed benchmarks are marked, and how many there are."""
    timed = [result for result in results if is_timed(result)]
    return sum(result.marked is not None for result in timed), len(timed)


def refusal(results: Sequence[Result]) -> str | None:
    """Say why a run cannot be used: most of its timed benchmarks are marked.

    Returns
    -------
    str or None
        The reason with the load and what to do; None where at most half are marked.
    """
    marked, timed = marked_share(results)
    if marked <= REFUSED_SHARE * timed:
        return None
    reasons = [result.marked for result in results if result.marked]
    worst = max(dict.fromkeys(reasons), key=reasons.count)
    return (
        f"{marked} of {timed} timed benchmarks were disturbed by other work or throttling "
        f"({worst}; worst load {_worst_load(results)}): stop what else runs on this machine, "
        "or let it cool, and measure again"
    )


def refuse_loaded(found: ResultSet) -> None:
    """Raise MeasurementError with the reason of `refusal`, where there is one."""
    refused = refusal(found.results)
    if refused:
        raise MeasurementError(f"{found.source}: {refused}")


def _worst_load(results: Iterable[Result]) -> str:
    shares = [r.environment.get("others_share") for r in results if r.environment and r.marked]
    known = [share for share in shares if share is not None]
    return f"{100 * max(known):.0f} % of the CPU time" if known else "n/a"


def _joined(result: Result, reports: Sequence[Report], limit: float) -> Result:
    medians = tuple(r.median for r in reports if r.median is not None)
    if not reports or not _between(result.value, medians):
        return result
    errors = [report.error for report in reports if report.error is not None]
    worst = max((r.environment for r in reports), key=lambda c: c.get("others_share") or 0.0)
    reasons = [_reason(report.environment, limit) for report in reports]
    marked = next((reason for reason in [_reason(worst, limit), *reasons] if reason), None)
    rates = {name: [x for r in reports for x in r.reference.get(name, ())] for name in REFERENCE}
    return dataclasses.replace(
        result,
        error=max(errors, default=None),
        environment={"processes": len(reports), **worst},
        marked=marked if is_timed(result) else None,
        process_medians=medians,
        reference={name: percentile(sorted(x), 0.5) for name, x in rates.items() if x} or None,
    )


def _between(value: float | None, medians: Sequence[float]) -> bool:
    """Whether these processes measured the value: the median of all lies between those of each.

    A run that was killed has reported, and asv has not stored it.
    """
    if value is None or not medians:
        return True
    room = _ROUNDED * max(map(abs, medians))
    return min(medians) - room <= value <= max(medians) + room


def _reason(environment: Mapping[str, Any], limit: float) -> str | None:
    """Why samples of this environment are marked; None: they are not."""
    others, quota = (environment.get(name) or 0.0 for name in SHARES)
    if others > limit:
        return f"other work took {100 * others:.0f} % of the CPU time"
    if quota > QUOTA_LIMIT:
        return f"a CPU quota held it back for {100 * quota:.0f} % of the time"
    for gpu in environment.get("gpus", ()):
        bad = sorted(set(gpu.get("throttle") or ()) - NO_MARK)
        if bad:
            return f"{gpu['device']} throttled: {', '.join(bad)}"
        before = gpu.get("utilization_before") or 0.0
        unlisted = gpu.get("other_processes") == 0
        if before > (max(limit, UNLISTED_LIMIT) if unlisted else limit):
            what = "work that no process list shows" if unlisted else "other work"
            return f"{what} kept {gpu['device']} busy for {100 * before:.0f} % of the time"
    return None
