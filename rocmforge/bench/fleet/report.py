"""What a fleet's command says in the end: what is gathered, what is missing, which box is odd."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rocmforge.bench import exits
from rocmforge.bench.files import write_json
from rocmforge.bench.fleet.boxes import Standing
from rocmforge.bench.fleet.parts import Part
from rocmforge.bench.fleet.runner import Outcome
from rocmforge.bench.fleet.store import Gathered
from rocmforge.bench.results import Status

VERSION = 1


def lines(
    wanted: Sequence[Part],
    parts: Mapping[Part, Gathered],
    outcome: Outcome,
    standings: Sequence[Standing],
) -> Iterator[str]:
    """Yield the lines of the report."""
    for part in wanted:
        if part in parts:
            yield f"gathered  {part.name}: {_said(parts[part])}"
    for part, failures in outcome.failures.items():
        if part in parts:
            yield f"retried   {part.name}: {'; '.join(failures)}"
    for part, why in outcome.missing.items():
        yield f"missing   {part.name}: {why}"
    for standing in standings:
        if standing.is_outlier:
            yield f"outlier   {standing}"
    if not standings:
        yield "boxes     no two of one kind with enough to compare"
    elif not any(standing.is_outlier for standing in standings):
        boxes = {(one.hardware_tag, one.box) for one in standings}
        yield f"boxes     {len(boxes)} compared with others of their kind, none is an outlier"
    done = sum(part in parts for part in wanted)
    yield f"fleet     {done} of {len(wanted)} parts gathered"


def _said(one: Gathered) -> str:
    """``n0, 41 s, 24 values, 1 failed``."""
    made = one.provenance
    seconds = (datetime.fromisoformat(made.ended) - datetime.fromisoformat(made.began)).seconds
    values = sum(result.status is Status.OK for result in one.results.results)
    failed = _failed(one)
    more = f", {failed} failed" if failed else ""
    return f"{made.box}, {seconds} s, {values} values{more}"


def _failed(one: Gathered) -> int:
    return sum(result.status is Status.FAILED for result in one.results.results)


def exit_code(wanted: Sequence[Part], parts: Mapping[Part, Gathered]) -> int:
    """Return the command's exit code: something is missing, or a benchmark failed, or 0."""
    if any(part not in parts for part in wanted):
        return exits.NOTHING_MEASURED
    return exits.FAILED if any(_failed(parts[part]) for part in wanted) else 0


def save(
    path: Path,
    wanted: Sequence[Part],
    parts: Mapping[Part, Gathered],
    outcome: Outcome,
    standings: Sequence[Standing],
) -> None:
    """Write the report for programs."""
    document: dict[str, Any] = {
        "version": VERSION,
        "gathered": {
            part.name: {
                **part.as_json(),
                "box": parts[part].provenance.box,
                "hardware_tag": parts[part].provenance.hardware_tag,
                "began": parts[part].provenance.began,
                "ended": parts[part].provenance.ended,
                "failed_benchmarks": _failed(parts[part]),
            }
            for part in wanted
            if part in parts
        },
        "missing": {part.name: why for part, why in outcome.missing.items()},
        "failed_attempts": {part.name: [*said] for part, said in outcome.failures.items()},
        "boxes": [
            {
                "hardware_tag": one.hardware_tag,
                "box": one.box,
                "what": one.what,
                "slowdown": one.slowdown,
                "benchmarks": one.count,
                "outlier": one.is_outlier,
            }
            for one in standings
        ],
    }
    write_json(path, document)
