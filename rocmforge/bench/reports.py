"""Reads what each benchmark process reported beside asv's result file.

A process appends one line of JSON to ``<machine>/<commit8>-<environment>.jsonl``: the benchmark,
the index of its parameters, its own median, the worst error against the reference, the rates of two
reference kernels, and the environment of the run. asv takes no file of that name for a result, and
a clone carries it. benchmarks/recording.py writes it.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmforge.bench.files import (
    finite_number,
    is_strings,
    kind_of,
    parse_json,
    read_text,
    typed_field,
)
from rocmforge.errors import ResultFileError

REPORT_VERSION = 2
REFERENCE = ("read_gb_per_second", "square_roots_per_ns")
"""Rates of the reference kernels: reading memory, and arithmetic on one core."""
SHARES = ("others_share", "quota_throttled_share")

Key = tuple[str, int | None]


@dataclass(frozen=True, slots=True)
class Report:
    """What one process says of itself.

    Parameters
    ----------
    error
        Worst relative error against the reference that it found, None: it checked none.
    median
        Of its own samples, in the unit of the benchmark; None: it failed.
    reference
        Rates of the reference kernels before and after it measured, by the names of `REFERENCE`.
    environment
        JSON-ready; see `rocmforge.profiling.run_environment.RunEnvironment`.
    """

    error: float | None
    median: float | None
    reference: Mapping[str, tuple[float, ...]]
    environment: Mapping[str, Any]


def reports_path(result_file: Path) -> Path:
    """Where the processes that made a result file of asv reported."""
    return result_file.with_suffix(".jsonl")


def read_reports(path: Path) -> dict[Key, list[Report]]:
    """Read the reports of the stored samples, by benchmark and index of its parameters.

    A later run of asv replaces what an earlier one reported of a benchmark, unless it was told to
    append its samples. A file that is not there has no reports.

    Raises
    ------
    ResultFileError
        A line is broken, or of another version; the message has its number.
    """
    return {
        key: [_report(where, data) for where, data in lines]
        for key, lines in _current(path).items()
    }


def compact(path: Path) -> bytes:
    """Return a file of reports without those that later runs replaced; errors as `read_reports`."""
    lines = (data for lines in _current(path).values() for _, data in lines)
    return "".join(json.dumps(data, separators=(",", ":")) + "\n" for data in lines).encode()


def _current(path: Path) -> dict[Key, list[tuple[Path, dict[str, Any]]]]:
    """Return the lines that were not replaced, each with its place for messages."""
    if not os.path.lexists(path) or (path.is_file() and not path.stat().st_size):
        return {}  # empty: the disk was full
    found: dict[Key, list[tuple[Path, dict[str, Any]]]] = defaultdict(list)
    last: dict[Key, str] = {}
    lines = read_text(path, "reports").removesuffix("\n").split("\n")
    for number, line in enumerate(lines, 1):
        where = Path(f"{path}, line {number}")
        data = parse_json(where, line)
        if not isinstance(data, dict):
            raise ResultFileError(where, "content", got=kind_of(data), wanted="an object")
        if data.get("version") != REPORT_VERSION or isinstance(data["version"], bool):
            got = data.get("version")
            raise ResultFileError(where, "version", got=got, wanted=REPORT_VERSION)
        key, run = _key(where, data), typed_field(where, data, "run", str, "a string")
        appends = typed_field(where, data, "appends", bool, "true or false")
        if last.get(key) != run and not appends:
            found[key] = []
        last[key] = run
        found[key].append((where, data))
    return dict(found)


def _key(path: Path, data: Mapping[str, Any]) -> Key:
    index = data.get("index")
    if index is not None and (isinstance(index, bool) or not isinstance(index, int)):
        raise ResultFileError(path, "index", got=kind_of(index), wanted="a number or null")
    return typed_field(path, data, "benchmark", str, "a string"), index


def _report(path: Path, data: Mapping[str, Any]) -> Report:
    environment = typed_field(path, data, "conditions", dict, "an object")
    for name in SHARES:
        if environment.get(name) is not None:
            finite_number(path, name, environment[name])
    gpus = environment.get("gpus", [])
    if not isinstance(gpus, list) or not all(isinstance(gpu, dict) for gpu in gpus):
        raise ResultFileError(path, "gpus", got=kind_of(gpus), wanted="a list of GPUs")
    for gpu in gpus:
        _check_gpu(path, gpu)
    rates = typed_field(path, data, "reference", dict, "an object")
    error, median = (
        None if data.get(name) is None else finite_number(path, name, data[name])
        for name in ("error", "median")
    )
    return Report(
        error=error,
        median=median,
        reference={name: _readings(path, name, rates[name]) for name in REFERENCE if name in rates},
        environment=environment,
    )


def _readings(path: Path, name: str, stored: object) -> tuple[float, ...]:
    if not isinstance(stored, list):
        raise ResultFileError(path, name, got=kind_of(stored), wanted="a list of rates")
    readings = tuple(finite_number(path, name, one) for one in stored)
    if not readings or min(readings) <= 0:
        raise ResultFileError(path, name, got=stored, wanted="rates above 0")
    return readings


def _check_gpu(path: Path, gpu: Mapping[str, Any]) -> None:
    """Refuse what the marks of `run_environment` could not read."""
    typed_field(path, gpu, "device", str, "the name of one of the gpus")
    throttle = gpu.get("throttle")
    if throttle is not None and not is_strings(throttle):
        raise ResultFileError(path, "throttle", got=kind_of(throttle), wanted="strings or null")
    for name in ("utilization_before", "other_processes"):
        if gpu.get(name) is not None:
            finite_number(path, name, gpu[name])
