"""Reads the baselines of the earlier prototype, which kept statistics in ms and no samples.

`baselines.<benchmark>` has name, timestamp, hardware, metrics and metadata, as ours do; without a
version of the form, units, directions or samples. Knows no verdict.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from rocmforge.bench.files import finite_number, kind_of, typed_field
from rocmforge.bench.records import Direction, Record, ResultSet, Status
from rocmforge.bench.statistics import Summary
from rocmforge.errors import MeasurementError, ResultFileError
from rocmforge.hardware import Hardware

ENVIRONMENT = "prototype"
HARDWARE = ("gpu_name", "gpu_architecture", "rocm_version", "cpu_arch", "os", "python_version")
_RUST = "rust_version"  # in place of python_version
_UNKNOWN = ("", "unknown", "none", "n/a")
_LADDER = ("min_ms", "p50_ms", "p95_ms", "p99_ms", "max_ms")
_YEAR_10000 = 253_402_300_800
_RFC_3339 = re.compile(r"([\d-]{10})[T ]([\d:]{8})(?:\.\d+)?(Z|[+-]\d\d:\d\d)")


def is_prototype(document: Mapping[str, Any]) -> bool:
    """Whether a baseline is of the prototype's form: ours say a version and a hardware tag."""
    metadata = document.get("metadata")
    return isinstance(metadata, dict) and not {"schema_version", "hardware_tag"} & set(metadata)


def read_prototype(path: Path, document: Mapping[str, Any]) -> ResultSet:
    """Turn the prototype's document into records: ms, lower is better, no samples.

    Parameters
    ----------
    path
        Where it was read, for errors.
    document
        The whole file. Metrics may lie in the entry itself; timestamps are seconds since 1970 or
        RFC 3339. Metrics without a place in a Summary are left out.

    Raises
    ------
    ResultFileError
        An entry lacks or contradicts something, or they are of several kinds of hardware.
    MeasurementError
        It has no benchmark.
    """
    entries = typed_field(path, document, "baselines", dict, "an object")
    if not entries:
        raise MeasurementError(f"{path}: no benchmark: nothing measured")
    checked = {label: typed_field(path, entries, label, dict, "an object") for label in entries}
    machines = {label: _hardware(path, label, entry) for label, entry in checked.items()}
    first = next(iter(machines))
    for label, machine in machines.items():
        if machine != machines[first]:
            raise ResultFileError(
                path, f"hardware of {label}", got=machine, wanted=f"that of {first}"
            )
    metadata = typed_field(path, document, "metadata", dict, "an object")
    commit = metadata.get("commit") or metadata.get("git_commit")
    known = {field.name for field in fields(Hardware)}
    return ResultSet(
        source=path,
        machine="unknown",
        commit=commit if isinstance(commit, str) else "unknown",
        commit_date=None,
        environment=ENVIRONMENT,
        hardware=machines[first],
        records=tuple(_record(path, label, entry) for label, entry in checked.items()),
        unsaid=frozenset(known - set(HARDWARE)),
    )


def _hardware(path: Path, label: str, entry: Mapping[str, Any]) -> Hardware:
    stored = typed_field(path, entry, "hardware", dict, f"an object in {label}")
    values: dict[str, str | None] = {}
    for key in HARDWARE:
        value = stored.get(key)
        if key not in stored and not (key == "python_version" and _RUST in stored):
            raise ResultFileError(path, f"hardware of {label}", got=sorted(stored), wanted=key)
        if value is not None and not isinstance(value, str):
            raise ResultFileError(
                path, f"{key} of {label}", got=kind_of(value), wanted="a string or null"
            )
        values[key] = None if value is None or value.strip().lower() in _UNKNOWN else value
    system = values["os"]
    if system and system.islower():  # as Rust spells it: linux
        values["os"] = system.capitalize()
    return Hardware(**values)  # type: ignore[arg-type]


def _record(path: Path, label: str, entry: Mapping[str, Any]) -> Record:
    summary = _summary(path, label, entry)
    return Record(
        name=label,
        param_names=(),
        params=(),
        status=Status.OK,
        value=summary.p50,
        summary=summary,
        samples=(),
        unit="ms",
        direction=Direction.LOWER,
        version=None,
        started_at=_milliseconds(path, label, entry.get("timestamp")),
    )


def _summary(path: Path, label: str, entry: Mapping[str, Any]) -> Summary:
    metrics = entry.get("metrics", entry)
    if not isinstance(metrics, dict):
        raise ResultFileError(path, f"metrics of {label}", got=kind_of(metrics), wanted="an object")
    values: dict[str, float] = {}
    for key in ("avg_ms", *_LADDER):
        values[key] = finite_number(path, f"{key} of {label}", metrics.get(key))
    steps = [values[key] for key in _LADDER]
    if steps != sorted(steps) or steps[0] < 0:
        raise ResultFileError(
            path, f"metrics of {label}", got=steps, wanted="0 ≤ min ≤ p50 ≤ p95 ≤ p99 ≤ max"
        )
    count = metrics.get("iterations")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ResultFileError(path, f"iterations of {label}", got=count, wanted="at least 1")
    return Summary(
        mean=values["avg_ms"],
        minimum=values["min_ms"],
        maximum=values["max_ms"],
        p50=values["p50_ms"],
        p95=values["p95_ms"],
        p99=values["p99_ms"],
        iterations=count,
        ci_low=-math.inf,
        ci_high=math.inf,
    )


def _milliseconds(path: Path, label: str, value: object) -> int | None:
    what = f"timestamp of {label}"
    if value is None:
        return None
    if not isinstance(value, str):
        seconds = finite_number(path, what, value)
        if not 0 <= seconds < _YEAR_10000:
            raise ResultFileError(path, what, got=value, wanted="seconds since 1970")
        return round(seconds * 1000)
    if re.fullmatch(r"\d{1,11}", value):
        return int(value) * 1000
    found = _RFC_3339.fullmatch(value.upper())
    try:
        if found is None:
            raise ValueError("not of that form")
        zone = "+00:00" if found[3] == "Z" else found[3]
        moment = datetime.datetime.fromisoformat(f"{found[1]}T{found[2]}{zone}")
    except ValueError as error:
        raise ResultFileError(path, what, got=value, wanted="seconds or RFC 3339") from error
    return round(moment.timestamp() * 1000)
