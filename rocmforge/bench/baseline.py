"""Baselines: one JSON file per kind of machine, with statistics and samples of every benchmark.

`baselines.<benchmark>` holds name, timestamp, hardware, metrics and metadata; the names of the
metrics end in their unit, samples are in the benchmark's own.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from rocmforge.bench.files import (
    finite_number,
    is_strings,
    kind_of,
    milliseconds,
    read_json,
    refuse_loss,
    typed_field,
    write_json,
)
from rocmforge.bench.machine import LARGEST, LONGEST
from rocmforge.bench.results import Direction, Result, ResultSet, Status
from rocmforge.bench.statistics import Summary
from rocmforge.errors import MeasurementError, ResultFileError
from rocmforge.hardware import Hardware, hardware_tag

SCHEMA_VERSION = 1
SAMPLE_DIGITS = 6
STORE = "rocmforge bench run --profile full --save-baseline"
HARDWARE_KEYS = (
    *("gpu_name", "gpu_architecture", "rocm_version", "hip_version"),
    *("cpu_arch", "os", "python_version"),
)
_NUMBERS = ("cpu_count", "ram_bytes", "power_cap_watts")
_MS_PER = {"seconds": 1e3, "s": 1e3, "ms": 1.0, "us": 1e-3, "µs": 1e-3, "ns": 1e-6}
_STATISTICS = {
    "avg": "mean",
    "min": "minimum",
    "max": "maximum",
    "p50": "p50",
    "p95": "p95",
    "p99": "p99",
    "ci99_low": "ci_low",
    "ci99_high": "ci_high",
}
_BACKEND_PARAMS = ("backend", "device")
_FORMAT_PARAMS = ("format", "fmt")
_WANTED = {
    int: f"a number below {LARGEST:.0e} or null",
    str: f"str of at most {LONGEST} characters or null",
}
_CHANGED = "uncommitted_changes"


def no_baseline(hardware: Hardware) -> str:
    """Say that a kind of machine has no baseline, and which command stores one."""
    return f"no baseline for this machine ({hardware_tag(hardware)}) yet: {STORE} stores one"


def baseline_path(folder: Path, hardware: Hardware) -> Path:
    """Where the baseline of a kind of machine lies: ``<folder>/<hardware tag>/baseline.json``."""
    return folder / hardware_tag(hardware) / "baseline.json"


def metric_suffix(unit: str) -> tuple[str, float]:
    """Return what a metric's name ends in, and the factor from the unit to the stored value.

    Times are stored in ms (``"ms", 1e3`` for seconds); any other unit is spelled out and kept:
    ``tokens/s`` gives ``"tokens_per_s", 1.0``.
    """
    if unit in _MS_PER:
        return "ms", _MS_PER[unit]
    spelled = re.sub(r"[^a-z0-9]+", "_", unit.lower().replace("/", "_per_")).strip("_")
    return spelled or "value", 1.0


def measured(results: ResultSet) -> dict[str, Result]:
    """Return the results that a baseline can hold, by label: with a value, unit and direction."""
    return {
        result.label: result
        for result in results.results
        if result.status is Status.OK and result.unit is not None
    }


def save_baseline(
    path: Path, results: ResultSet, failed: Iterable[str] = (), skipped: Iterable[str] = ()
) -> int:
    """Write the benchmarks that were measured as a baseline; an older one is replaced whole.

    Parameters
    ----------
    path
        Target file; its folder is made.
    results
        One run. Failed and skipped benchmarks are listed by name and hold no metrics.
    failed, skipped
        Names to list beside those of the run.

    Returns
    -------
    int
        Number of benchmarks in the baseline.

    Raises
    ------
    MeasurementError
        Not one benchmark was measured; an older file stays as it is.
    ResultFileError
        The run does not say on what hardware it was made.
    """
    entries = measured(results)
    if not entries:
        raise MeasurementError(f"{results.source}: no benchmark with a value: nothing measured")
    if not results.hardware.is_known():
        raise ResultFileError(
            results.source,
            "hardware",
            got="neither CPU nor GPU",
            wanted="a run on a machine that `rocmforge bench machine` made known to asv",
        )
    document = {
        "baselines": {name: _entry(r, results.hardware) for name, r in entries.items()},
        "metadata": {
            "schema_version": SCHEMA_VERSION,
            "hardware_tag": hardware_tag(results.hardware),
            "hardware": asdict(results.hardware),
            "machine": results.machine,
            "commit": results.commit,
            "commit_date": _iso(results.commit_date),
            _CHANGED: results.uncommitted_changes,
            "environment": results.asv_environment,
            "failed": [*failed, *_labels(results, Status.FAILED)],
            "skipped": [*skipped, *_labels(results, Status.SKIPPED)],
        },
    }
    write_json(path, document)
    return len(entries)


def refuse_smaller(path: Path, results: ResultSet) -> None:
    """Raise ValueError where the baseline at `path` has benchmarks that were not measured now."""
    new = measured(results)
    if new:
        refuse_loss(path, (result.label for result in load_baseline(path).results), new)


def replacements(stored: ResultSet, fresh: ResultSet) -> dict[str, Result]:
    """Return what a refresh puts into a baseline, by label.

    All that was measured anew, but what is marked now and was not when it was stored.
    """
    good = {result.label for result in stored.results if result.marked is None}
    return {
        label: result
        for label, result in measured(fresh).items()
        if result.marked is None or label not in good
    }


def refreshed(stored: ResultSet, fresh: ResultSet) -> ResultSet:
    """Return a baseline with what was measured anew in place of what it had, the rest as it was.

    Parameters
    ----------
    stored
        The baseline. Its results keep the commit and the software that they were measured with.
    fresh
        A later run on the same hardware; only its `replacements` count.
    """
    kept = {
        result.label: replace(
            result,
            commit=result.commit or stored.commit,
            hardware=result.hardware or stored.hardware,
        )
        for result in stored.results
    }
    results = {**kept, **replacements(stored, fresh)}
    return replace(fresh, source=stored.source, results=tuple(results.values()))


def save_refreshed(path: Path, fresh: ResultSet) -> int:
    """Refresh the baseline at `path`; names that it lists as failed or skipped stay listed.

    Returns
    -------
    int
        Number of benchmarks in the baseline.
    """
    metadata = read_json(path)["metadata"]
    merged = refreshed(load_baseline(path), fresh)
    valued = {result.label for result in merged.results}
    lists = []
    for key, status in (("failed", Status.FAILED), ("skipped", Status.SKIPPED)):
        listed = metadata.get(key, [])
        if not is_strings(listed):
            raise ResultFileError(path, f"metadata.{key}", got=kind_of(listed), wanted="names")
        names = dict.fromkeys([*listed, *_labels(fresh, status)])
        lists.append([name for name in names if name not in valued])
    return save_baseline(path, merged, *lists)


def load_baseline(path: Path) -> ResultSet:
    """Read a baseline; its medians become the results' values, in the benchmarks' own units.

    Raises
    ------
    ResultFileError
        The file is missing, truncated, of another version, or an entry lacks or contradicts
        something; the message names the file and the entry.
    """
    document = read_json(path)
    entries = typed_field(path, document, "baselines", dict, "an object")
    metadata = typed_field(path, document, "metadata", dict, "an object")
    version = metadata.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise ResultFileError(path, "metadata.schema_version", got=version, wanted=SCHEMA_VERSION)
    place = "metadata.hardware"
    hardware = _hardware(path, typed_field(path, metadata, "hardware", dict, "an object"), place)
    commit_date = metadata.get("commit_date")
    changed = _optional(path, "metadata.uncommitted_changes", metadata.get(_CHANGED), bool)
    return ResultSet(
        source=path,
        machine=typed_field(path, metadata, "machine", str, "a string"),
        commit=typed_field(path, metadata, "commit", str, "a string"),
        commit_date=None if commit_date is None else _milliseconds(path, commit_date),
        asv_environment=typed_field(path, metadata, "environment", str, "a string"),
        hardware=hardware,
        results=tuple(_result(path, label, entries[label], hardware) for label in entries),
        uncommitted_changes=bool(changed),
    )


def _entry(result: Result, hardware: Hardware) -> dict[str, Any]:
    summary = result.summary
    if summary is None or result.unit is None or result.direction is None:
        raise ValueError(f"result {result.label}: got no value or unit, wanted a measured one")
    suffix, scale = metric_suffix(result.unit)
    metrics: dict[str, float | int | None] = {}
    for key, attribute in _STATISTICS.items():
        value = getattr(summary, attribute)
        finite = value is not None and math.isfinite(value)
        metrics[f"{key}_{suffix}"] = value * scale if finite else None
    metrics["iterations"] = summary.iterations
    params = dict(zip(result.param_names, result.params, strict=True))
    return {
        "name": result.label,
        "timestamp": _iso(result.started_at),
        "hardware": {key: getattr(result.hardware or hardware, key) for key in HARDWARE_KEYS},
        "metrics": metrics,
        "metadata": {
            "backend": _named_param(params, _BACKEND_PARAMS),
            "format": _named_param(params, _FORMAT_PARAMS),
            "benchmark": result.name,
            "params": params,
            "unit": result.unit,
            "direction": result.direction.value,
            "version": result.version,
            "commit": result.commit,
            "error": result.error,
            "conditions": result.environment,
            "marked": result.marked,
            "process_medians": [_rounded(median) for median in result.process_medians],
            "reference": result.reference,
            "samples": [_rounded(sample) for sample in result.samples],
        },
    }


def _result(path: Path, label: str, entry: object, hardware: Hardware) -> Result:
    if not isinstance(entry, dict):
        raise ResultFileError(path, label, got=kind_of(entry), wanted="an object")
    metadata = typed_field(path, entry, "metadata", dict, f"an object in {label}")
    metrics = typed_field(path, entry, "metrics", dict, f"an object in {label}")
    stored = typed_field(path, entry, "hardware", dict, f"an object in {label}")
    params = typed_field(path, metadata, "params", dict, f"an object in {label}")
    unit = typed_field(path, metadata, "unit", str, f"a string in {label}")
    direction = metadata.get("direction")
    version, timestamp = metadata.get("version"), entry.get("timestamp")
    said = {key: stored.get(key) for key in HARDWARE_KEYS}
    own = _hardware(path, {**asdict(hardware), **said}, f"hardware of {label}")
    if own.identity() != hardware.identity():
        wanted = {key: getattr(hardware, key) for key in HARDWARE_KEYS}
        raise ResultFileError(path, f"hardware of {label}", got=stored, wanted=wanted)
    if direction not in ("lower", "higher"):
        raise ResultFileError(
            path, f"direction of {label}", got=direction, wanted="'lower' or 'higher'"
        )
    if not is_strings(list(params.values())):
        raise ResultFileError(path, f"params of {label}", got=params, wanted="strings")
    summary = _summary(path, label, metrics, unit)
    result = Result(
        name=typed_field(path, metadata, "benchmark", str, f"a string in {label}"),
        param_names=tuple(params),
        params=tuple(params.values()),
        status=Status.OK,
        value=summary.p50,
        summary=summary,
        samples=_numbers(path, f"samples of {label}", metadata.get("samples")),
        unit=unit,
        direction=Direction(direction),
        version=version if isinstance(version, str) else None,
        started_at=None if timestamp is None else _milliseconds(path, timestamp),
        error=_optional_error(path, label, metadata.get("error")),
        environment=_optional(path, f"conditions of {label}", metadata.get("conditions"), dict),
        marked=_optional(path, f"marked of {label}", metadata.get("marked"), str),
        commit=_optional(path, f"commit of {label}", metadata.get("commit"), str),
        hardware=None if own == hardware else own,
        process_medians=_numbers(
            path, f"process_medians of {label}", metadata.get("process_medians")
        ),
        reference=_rates(path, label, metadata.get("reference")),
    )
    if entry.get("name") != label or result.label != label:
        got = f"{entry.get('name')}, {result.label}"
        raise ResultFileError(path, "name and parameters", got=got, wanted=label)
    return result


def _rounded(value: float) -> float:
    return float(f"{value:.{SAMPLE_DIGITS}g}")


def _numbers(path: Path, what: str, stored: object) -> tuple[float, ...]:
    """Numbers of an entry; none in older baselines."""
    if stored is None:
        return ()
    if not isinstance(stored, list):
        raise ResultFileError(path, what, got=kind_of(stored), wanted="a list")
    return tuple(finite_number(path, f"{what}, number {i}", s) for i, s in enumerate(stored))


def _rates(path: Path, label: str, stored: object) -> dict[str, float] | None:
    """Rates of the reference kernels of an entry; None in older baselines."""
    found: dict[str, Any] | None = _optional(path, f"reference of {label}", stored, dict)
    rates = {}
    for name, rate in (found or {}).items():
        what = f"reference.{name} of {label}"
        rates[name] = finite_number(path, what, rate)
        if rates[name] <= 0:
            raise ResultFileError(path, what, got=rate, wanted="a rate above 0")
    return rates or None


def _optional_error(path: Path, label: str, value: object) -> float | None:
    return None if value is None else finite_number(path, f"error of {label}", value)


def _optional(path: Path, what: str, value: object, kind: type) -> Any:
    """Value of a key that older baselines lack; ResultFileError where it is of another type."""
    if value is not None and not isinstance(value, kind):
        raise ResultFileError(path, what, got=kind_of(value), wanted=f"{kind.__name__} or null")
    return value


def _summary(path: Path, label: str, metrics: Mapping[str, Any], unit: str) -> Summary:
    suffix, scale = metric_suffix(unit)
    values: dict[str, float | None] = {}
    for key, attribute in _STATISTICS.items():
        name = f"{key}_{suffix}"
        if name not in metrics:
            raise ResultFileError(path, f"metrics of {label}", got=sorted(metrics), wanted=name)
        stored = metrics[name]
        what = f"{name} of {label}"
        values[attribute] = None if stored is None else finite_number(path, what, stored) / scale
    median = values["p50"]
    if median is None:
        raise ResultFileError(path, f"p50_{suffix} of {label}", got="null", wanted="a number")
    ladder = [values[key] for key in ("minimum", "p50", "p95", "p99", "maximum")]
    known = [value for value in ladder if value is not None]
    if known != sorted(known):
        raise ResultFileError(path, f"metrics of {label}", got=known, wanted="min ≤ p50 ≤ … ≤ max")
    iterations = metrics.get("iterations")
    if iterations is not None and (
        isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1
    ):
        raise ResultFileError(path, f"iterations of {label}", got=iterations, wanted="at least 1")
    low, high = values["ci_low"], values["ci_high"]
    return Summary(
        mean=values["mean"],
        minimum=values["minimum"],
        maximum=values["maximum"],
        p50=median,
        p95=values["p95"],
        p99=values["p99"],
        iterations=iterations,
        ci_low=-math.inf if low is None else low,
        ci_high=math.inf if high is None else high,
    )


def _hardware(path: Path, stored: Mapping[str, Any], what: str) -> Hardware:
    values: dict[str, Any] = {}
    for field in fields(Hardware):
        value = stored.get(field.name)
        kind = int if field.name in _NUMBERS else str
        if not _fits(value, kind):
            raise ResultFileError(path, f"{what}.{field.name}", got=value, wanted=_WANTED[kind])
        values[field.name] = value
    return Hardware(**values)


def _fits(value: object, kind: type) -> bool:
    """Whether a value may stand for a field of the hardware."""
    if value is None:
        return True
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST
    return isinstance(value, str) and len(value) <= LONGEST


def _named_param(params: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """Value of the first parameter that has one of the names, without the quotes of its repr."""
    found = [params[name] for name in names if name in params]
    return found[0].strip("'\"") if found else None


def _labels(results: ResultSet, status: Status) -> list[str]:
    return [result.label for result in results.results if result.status is status]


def _iso(moment_ms: int | None) -> str | None:
    if moment_ms is None:
        return None
    moment = datetime.datetime.fromtimestamp(moment_ms / 1000, datetime.timezone.utc)
    return moment.isoformat(timespec="milliseconds")


def _milliseconds(path: Path, timestamp: object) -> int | None:
    try:
        moment = datetime.datetime.fromisoformat(str(timestamp))
    except ValueError as error:
        raise ResultFileError(path, "timestamp", got=timestamp, wanted="ISO 8601") from error
    if moment.tzinfo is None:
        raise ResultFileError(path, "timestamp", got=timestamp, wanted="ISO 8601 with a time zone")
    return milliseconds(path, "timestamp", round(moment.timestamp() * 1000))
