"""The noise of each benchmark: how much its medians differ between runs of one commit.

`noise.json` beside a baseline keeps the median of every run: the noise floor can be computed in
another way later, without measuring again. What nobody measured again and again has the floor of
`process_floors`, which every run that is judged brings along.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rocmforge.bench.defaults import FEWEST_RUNS
from rocmforge.bench.files import (
    finite_number,
    kind_of,
    read_versioned_json,
    typed_field,
    write_json,
)
from rocmforge.bench.results import Result, ResultSet
from rocmforge.bench.run_environment import is_timed
from rocmforge.bench.statistics import percentile
from rocmforge.errors import MeasurementError, ResultFileError
from rocmforge.hardware import Hardware, hardware_tag

VERSION = 1
KIN_SHARE = 0.90
"""Share of the pairs of a kind that differ by less than its floor."""
FEWEST_PAIRS = 5
"""Pairs of processes of which fewer say too little: those of the whole device count instead."""


@dataclass(frozen=True, slots=True)
class Noise:
    """What runs of one commit say of one benchmark.

    Parameters
    ----------
    unit
        Of the medians.
    version
        asv's hash of the benchmark's code; None: unknown.
    medians
        Of the runs that measured it, in their order. Marked runs (other work, throttling) are left
        out, unless fewer than two others remain.
    marked
        Number of runs that were marked.
    """

    unit: str
    version: str | None
    medians: tuple[float, ...]
    marked: int

    @property
    def spread(self) -> float:
        """Width of the middle half of the runs: (q75 − q25) / median."""
        ordered = sorted(self.medians)
        middle = percentile(ordered, 0.5)
        width = percentile(ordered, 0.75) - percentile(ordered, 0.25)
        return width / abs(middle) if middle else 0.0

    @property
    def floor(self) -> float:
        """Noise floor: the largest change between two runs of the same commit, max / min − 1."""
        low, high = min(self.medians), max(self.medians)
        if low == high:
            return 0.0
        return high / low - 1 if low > 0 else float("inf")


def learn(runs: Sequence[ResultSet]) -> dict[str, Noise]:
    """Collect the medians of every benchmark that at least two runs measured.

    Parameters
    ----------
    runs
        Of one commit on one machine, at least two.

    Raises
    ------
    MeasurementError
        Fewer than two runs.
    ValueError
        Runs of different commits or hardware: what differs between those is not noise.
    """
    if len(runs) < FEWEST_RUNS:
        raise MeasurementError(f"noise: got {len(runs)} run, wanted at least {FEWEST_RUNS}")
    for run in runs[1:]:
        if run.commit != runs[0].commit:
            raise ValueError(
                f"{run.source}: got commit {run.commit[:8]}, wanted {runs[0].commit[:8]} as in "
                f"{runs[0].source}: a difference between commits is not noise"
            )
        if run.hardware.identity() != runs[0].hardware.identity():
            raise ValueError(f"{run.source}: got other hardware than in {runs[0].source}")
    measured = [
        {r.label: r for r in run.results if r.value is not None and r.unit is not None}
        for run in runs
    ]
    labels = dict.fromkeys(label for run in measured for label in run)
    found: dict[str, Noise] = {}
    for label in labels:
        results = [run[label] for run in measured if label in run]
        quiet = [result for result in results if result.marked is None]
        kept = quiet if len(quiet) >= FEWEST_RUNS else results
        if len(results) >= FEWEST_RUNS:
            found[label] = Noise(
                unit=results[0].unit or "",
                version=results[0].version,
                medians=tuple(r.value for r in kept if r.value is not None),
                marked=sum(r.marked is not None for r in results),
            )
    return found


def process_floors(runs: Sequence[ResultSet]) -> dict[str, float]:
    """Return a noise floor for every timed benchmark, from how its processes differ within a run.

    ``floor = max(own difference, 90th percentile of the differences of its kind)``, a difference
    being max / min − 1 of the medians of the processes of one run. A kind is one benchmark function
    on one device, whatever its other parameters: one pair of processes alone says little.

    Parameters
    ----------
    runs
        Those that are compared. Each counts for itself: what differs between them may be a change.

    Returns
    -------
    dict
        By ``name(parameters)``; empty where no run has medians of its processes.
    """
    kinds: dict[tuple[str, str], list[float]] = defaultdict(list)
    own: dict[str, float] = defaultdict(float)
    timed = [result for run in runs for result in run.results if is_timed(result)]
    for result in timed:
        if (found := _process_difference(result)) is not None:
            name, device = _kind(result)
            kinds[name, device].append(found)
            kinds["", device].append(found)
            own[result.label] = max(own[result.label], found)
    floors = {}
    for result in timed:
        name, device = _kind(result)
        kin = kinds.get((name, device), [])
        pairs = sorted(kin if len(kin) >= FEWEST_PAIRS else kinds.get(("", device), []))
        if pairs:
            floors[result.label] = max(own.get(result.label, 0.0), percentile(pairs, KIN_SHARE))
    return floors


def _kind(result: Result) -> tuple[str, str]:
    devices = [param for param in result.params if param in ("'cpu'", "'gpu'")]
    return result.name, devices[0] if devices else ""


def _process_difference(result: Result) -> float | None:
    """Return max / min − 1 over the processes; None: fewer than two, or other work disturbed it."""
    medians = result.process_medians
    if result.marked or len(medians) < FEWEST_RUNS or min(medians) <= 0:
        return None
    return max(medians) / min(medians) - 1


def noise_path(folder: Path, hardware: Hardware) -> Path:
    """Where the noise of a kind of machine lies: ``<folder>/<hardware tag>/noise.json``."""
    return folder / hardware_tag(hardware) / "noise.json"


def save_noise(path: Path, noise: dict[str, Noise], run: ResultSet) -> None:
    """Write what was learned; `run` says of which commit and hardware. An older file is replaced.

    Raises
    ------
    MeasurementError
        There is nothing to write; an older file stays.
    """
    if not noise:
        raise MeasurementError("noise: no benchmark was measured by two runs")
    write_json(
        path,
        {
            "version": VERSION,
            "hardware_tag": hardware_tag(run.hardware),
            "commit": run.commit,
            "benchmarks": {label: asdict(one) for label, one in noise.items()},
        },
    )


def load_noise(path: Path) -> dict[str, Noise]:
    """Read what `save_noise` wrote.

    Raises
    ------
    ResultFileError
        The file is missing, broken or of another version; the message names the entry.
    """
    document = read_versioned_json(path, VERSION)
    entries = typed_field(path, document, "benchmarks", dict, "an object")
    return {label: _entry(path, label, entry) for label, entry in entries.items()}


def known_noise(folder: Path, hardware: Hardware) -> dict[str, Noise]:
    """Read the noise of a kind of machine; empty where nobody measured it."""
    path = noise_path(folder, hardware)
    return load_noise(path) if path.exists() else {}


def _entry(path: Path, label: str, entry: object) -> Noise:
    if not isinstance(entry, dict):
        raise ResultFileError(path, label, got=kind_of(entry), wanted="an object")
    stored: list[Any] = typed_field(path, entry, "medians", list, f"a list in {label}")
    medians = tuple(finite_number(path, f"medians of {label}", value) for value in stored)
    if len(medians) < FEWEST_RUNS or min(medians) < 0:
        raise ResultFileError(
            path, f"medians of {label}", got=stored, wanted="two or more, none below 0"
        )
    marked, version = entry.get("marked"), entry.get("version")
    if isinstance(marked, bool) or not isinstance(marked, int) or marked < 0:
        raise ResultFileError(path, f"marked of {label}", got=marked, wanted="a count")
    if version is not None and not isinstance(version, str):
        raise ResultFileError(path, f"version of {label}", got=version, wanted="a string or null")
    unit = typed_field(path, entry, "unit", str, f"a string in {label}")
    return Noise(unit=unit, version=version, medians=medians, marked=marked)
