"""The environment of each benchmark's process: stored, read back, judged.

Each process of asv leaves one small JSON file: the benchmark, the index of its parameters, the
worst error against the reference, and the environment of the run. `with_environments` adds them to
the results, and marks a result whose samples other work or throttling disturbed.
"""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocmforge.bench.defaults import OTHERS_LIMIT
from rocmforge.bench.files import (
    finite_number,
    is_strings,
    kind_of,
    read_versioned_json,
    typed_field,
    write_json,
)
from rocmforge.bench.results import Result, ResultSet, Status
from rocmforge.errors import MeasurementError, ResultFileError

REPORT_VERSION = 1
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

_SHARES = ("others_share", "quota_throttled_share")
_TIMES = re.compile(r"seconds|[mnµu]?s(/.+)?|times\b.*|.*/s")


def write_report(
    folder: Path,
    benchmark: str,
    index: int | None,
    error: float | None,
    environment: Mapping[str, Any],
) -> Path:
    """Write the report of one process, whole or not at all.

    Parameters
    ----------
    folder
        Made where it is not there.
    benchmark, index
        asv's name without parameters, and the index of the parameters; None: it has none.
    error
        Worst relative error against the reference that this process found, None: it checked none.
    environment
        JSON-ready; see `rocmforge.profiling.run_environment.Conditions`.
    """
    path = folder / f"{_stem(benchmark, index)}.{uuid.uuid4().hex[:12]}.json"
    document = {"version": REPORT_VERSION, "benchmark": benchmark, "index": index}
    write_json(path, {**document, "error": error, "conditions": dict(environment)})
    return path


def forget(folder: Path, benchmarks: Iterable[tuple[str, int | None]]) -> None:
    """Remove the reports of benchmarks that are about to be measured again."""
    stems = {_stem(name, index) for name, index in benchmarks}
    for path in _reports(folder):
        if path.name.rsplit(".", 2)[0] in stems:
            path.unlink()


def with_environments(
    results: Sequence[Result], folder: Path, limit: float = OTHERS_LIMIT
) -> tuple[Result, ...]:
    """Give each result the error and the environment of its processes, and its mark.

    Parameters
    ----------
    results
        All of a result file, in its order: their place says the index of their parameters.
    folder
        Where `write_report` wrote; results without a report stay as they are.
    limit
        Share of CPU or GPU time that other work may take, 0 … 1.

    Raises
    ------
    ResultFileError
        A report is broken.
    """
    found: dict[tuple[str, int | None], list[dict[str, Any]]] = defaultdict(list)
    for path in _reports(folder):
        report = _read_report(path)
        found[report["benchmark"], report["index"]].append(report)
    seen: dict[str, int] = defaultdict(int)
    joined = []
    for result in results:
        index = seen[result.name] if result.params else None
        seen[result.name] += 1
        joined.append(_joined(result, found.get((result.name, index), []), limit))
    return tuple(joined)


def with_stored_environments(
    found: ResultSet, results: Path, limit: float = OTHERS_LIMIT
) -> ResultSet:
    """Add the environment of each process, where asv's results have it beside them.

    Parameters
    ----------
    found
        Of one commit.
    results
        asv's ``results_dir``; the reports of a commit lie in ``../conditions/<commit>``.
    limit
        As of `with_environments`.

    Raises
    ------
    ResultFileError
        As of `with_environments`.
    """
    folder = results.parent / "conditions" / found.commit
    return dataclasses.replace(found, results=with_environments(found.results, folder, limit))


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


def _joined(result: Result, reports: Sequence[Mapping[str, Any]], limit: float) -> Result:
    if not reports:
        return result
    errors = [report["error"] for report in reports if report["error"] is not None]
    worst = max((r["conditions"] for r in reports), key=lambda c: c.get("others_share") or 0.0)
    reasons = [_reason(report["conditions"], limit) for report in reports]
    marked = next((reason for reason in [_reason(worst, limit), *reasons] if reason), None)
    return dataclasses.replace(
        result,
        error=max(errors, default=None),
        environment={"processes": len(reports), **worst},
        marked=marked if is_timed(result) else None,
    )


def _reason(environment: Mapping[str, Any], limit: float) -> str | None:
    """Why samples of this environment are marked; None: they are not."""
    others, quota = (environment.get(name) or 0.0 for name in _SHARES)
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


def _read_report(path: Path) -> dict[str, Any]:
    report = read_versioned_json(path, REPORT_VERSION)
    typed_field(path, report, "benchmark", str, "a string")
    index = report.get("index")
    if index is not None and (isinstance(index, bool) or not isinstance(index, int)):
        raise ResultFileError(path, "index", got=kind_of(index), wanted="a number or null")
    environment = typed_field(path, report, "conditions", dict, "an object")
    for name in _SHARES:
        if environment.get(name) is not None:
            finite_number(path, name, environment[name])
    gpus = environment.get("gpus", [])
    if not isinstance(gpus, list) or not all(isinstance(gpu, dict) for gpu in gpus):
        raise ResultFileError(path, "gpus", got=kind_of(gpus), wanted="a list of GPUs")
    for gpu in gpus:
        _check_gpu(path, gpu)
    error = report.get("error")
    kept = None if error is None else finite_number(path, "error", error)
    return {**report, "index": index, "error": kept}


def _check_gpu(path: Path, gpu: Mapping[str, Any]) -> None:
    """Refuse what `_reason` could not read."""
    typed_field(path, gpu, "device", str, "the name of one of the gpus")
    throttle = gpu.get("throttle")
    if throttle is not None and not is_strings(throttle):
        raise ResultFileError(path, "throttle", got=kind_of(throttle), wanted="strings or null")
    for name in ("utilization_before", "other_processes"):
        if gpu.get(name) is not None:
            finite_number(path, name, gpu[name])


def _reports(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json")) if folder.is_dir() else []


def _stem(benchmark: str, index: int | None) -> str:
    return benchmark if index is None else f"{benchmark}-{index}"
