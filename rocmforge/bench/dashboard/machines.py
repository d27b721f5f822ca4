"""Gathers all that is known of each machine: runs, baseline, comparisons, other reports.

It reads asv's results and the files under baselines/. What is missing is None.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rocmforge.bench.asv_results import RESULT_VERSION, BenchmarkInfo, read_result_file
from rocmforge.bench.baseline import load_baseline
from rocmforge.bench.compare import compare
from rocmforge.bench.comparison import Comparison
from rocmforge.bench.files import (
    kind_of,
    milliseconds,
    read_json,
    read_versioned_json,
    typed_field,
)
from rocmforge.bench.noise import known_noise
from rocmforge.bench.results import Result, ResultSet, Status
from rocmforge.bench.run_environment import with_stored_environments
from rocmforge.errors import ResultFileError
from rocmforge.hardware import Hardware


@dataclass(frozen=True, slots=True)
class Report:
    """A report beside a baseline, of a script in tools/: its file, its content, commit and date."""

    path: Path
    content: Mapping[str, Any]
    commit: str | None
    date: str


@dataclass(frozen=True, slots=True)
class Run:
    """A result file, by what it is: of its benchmarks only the names are read."""

    path: Path
    commit: str
    date: int
    asv_environment: str
    benchmarks: frozenset[str]


@dataclass(frozen=True, slots=True)
class Machine:
    """A kind of machine and everything that was measured on it.

    Parameters
    ----------
    tag
        Hardware tag: its folder in the results and under baselines/.
    hardware
        As the newest of its files says it; what none says is None.
    runs
        Every result file, in the order of the commits' dates.
    newest, previous
        Results of the two newest commits, in one environment if there is one that has both.
    earlier
        Every other run that has a benchmark which no later one has, oldest commit first.
    baseline
        The stored baseline.
    since_previous, since_baseline
        The newest run compared with the other two.
    peers
        Reports beside llama.cpp.
    gpu_speed, formats
        Reports of tools/gpu_speed.py and tools/compare_formats.py.
    """

    tag: str
    hardware: Hardware
    runs: tuple[Run, ...]
    newest: ResultSet | None
    previous: ResultSet | None
    earlier: tuple[ResultSet, ...]
    baseline: ResultSet | None
    since_previous: Comparison | None
    since_baseline: Comparison | None
    peers: tuple[Report, ...]
    gpu_speed: Report | None
    formats: Report | None


def read_machines(
    results: Path,
    baselines: Path,
    thresholds: Mapping[str, float],
    benchmarks: Mapping[str, BenchmarkInfo],
) -> list[Machine]:
    """Read every machine that has results or a baseline, in the order of their tags.

    Parameters
    ----------
    results
        asv's ``results_dir``; the environments of the processes lie beside it, if they were kept.
    baselines
        A folder for each kind of machine; need not exist.
    thresholds
        Of asv's configuration, for the comparisons.
    benchmarks
        What ``benchmarks.json`` says.

    Raises
    ------
    ResultFileError
        A file is broken.
    """
    tags = {path.parent.name for path in results.glob("*/machine.json")}
    tags |= {path.name for path in baselines.glob("*") if path.is_dir()}
    return [_read(tag, results, baselines, thresholds, benchmarks) for tag in sorted(tags)]


def read_runs(folder: Path) -> tuple[Run, ...]:
    """List the result files of a machine, oldest commit first.

    Raises
    ------
    ResultFileError
        A file is broken.
    """
    found = []
    for path in sorted(folder.glob("*.json")):
        if path.name == "machine.json":
            continue
        stored = read_versioned_json(path, RESULT_VERSION)
        named = typed_field(path, stored, "results", dict, "an object")
        run = Run(
            path=path,
            commit=typed_field(path, stored, "commit_hash", str, "a string"),
            date=milliseconds(path, "date", stored.get("date")) or 0,
            asv_environment=typed_field(path, stored, "env_name", str, "a string"),
            benchmarks=frozenset(named),
        )
        found.append(run)
    return tuple(sorted(found, key=lambda run: (run.date, run.commit, run.asv_environment)))


def two_newest(runs: Sequence[Run]) -> tuple[Run | None, Run | None]:
    """Return the runs of the newest commit and of the one before it, alike in environment."""
    commits: dict[str, dict[str, Run]] = defaultdict(dict)
    for run in runs:
        commits[run.commit][run.asv_environment] = run
    if not commits:
        return None, None
    *earlier, newest = commits.values()
    before = earlier[-1] if earlier else {}
    common = sorted(newest.keys() & before.keys()) or sorted(newest)
    same = before.get(common[0]) or next(iter(before.values()), None)
    return newest[common[0]], same


def with_more(runs: Sequence[Run], newest: Run | None) -> list[Run]:
    """Return the runs that have a benchmark which neither a later one has nor the newest."""
    seen = set(newest.benchmarks) if newest else set()
    found = []
    for run in reversed(runs):
        if run.benchmarks - seen:
            seen |= run.benchmarks
            found.append(run)
    return found[::-1]


def latest(machine: Machine) -> dict[str, tuple[Result, ResultSet]]:
    """Return each benchmark by its label, of the newest commit that has it, with the run it is of.

    That is the newest run, else an earlier one or the baseline. A run that skipped a benchmark does
    not hide what another measured. What only a GPU could run is left out where there is none.
    """
    stored = [machine.baseline] if machine.baseline else []
    older = sorted([*stored, *machine.earlier], key=lambda one: one.commit_date or 0)
    found: dict[str, tuple[Result, ResultSet]] = {}
    for results in [*older, machine.newest] if machine.newest else older:
        gpu = results.hardware.gpu_name or results.hardware.gpu_architecture
        for result in results.results:
            skipped = result.status is Status.SKIPPED
            needs_gpu = skipped and "'gpu'" in result.params
            if (gpu or not needs_gpu) and not (skipped and result.label in found):
                found[result.label] = result, results
    return found


def _read(
    tag: str,
    results: Path,
    baselines: Path,
    thresholds: Mapping[str, float],
    benchmarks: Mapping[str, BenchmarkInfo],
) -> Machine:
    runs = read_runs(results / tag)
    last, before_last = two_newest(runs)
    newest = load_run(last, benchmarks) if last else None
    previous = load_run(before_last, benchmarks) if before_last else None
    folder = baselines / tag
    stored = folder / "baseline.json"
    baseline = load_baseline(stored) if stored.exists() else None
    gpu_speed, formats = (_report(folder / f"{name}.json") for name in ("gpu_speed", "formats"))
    earlier = [load_run(run, benchmarks) for run in with_more(runs, last)]
    known = newest or baseline
    hardware = known.hardware if known else _named_by(gpu_speed)
    noise = known_noise(baselines, hardware)

    def since(before: ResultSet | None) -> Comparison | None:
        if before is None or newest is None:
            return None
        measured = {r.label for r in newest.results if r.status is not Status.SKIPPED}
        compared = compare(
            before, newest, noise=noise, thresholds=thresholds, select=measured.__contains__
        )
        other = sum(r.value is not None and r.label not in measured for r in before.results)
        note = f"{other} benchmarks that had a value were not measured in the newest run"
        return replace(compared, notes=(*compared.notes, note)) if other else compared

    return Machine(
        tag=tag,
        hardware=hardware,
        runs=runs,
        newest=newest,
        previous=previous,
        earlier=tuple(earlier),
        baseline=baseline,
        since_previous=since(previous),
        since_baseline=since(baseline),
        peers=tuple(read_report(path) for path in sorted(folder.glob("llama.cpp/*.json"))),
        gpu_speed=gpu_speed,
        formats=formats,
    )


def load_run(run: Run, benchmarks: Mapping[str, BenchmarkInfo]) -> ResultSet:
    """Read a run, with the environments of its processes."""
    return with_stored_environments(read_result_file(run.path, benchmarks))


def _report(path: Path) -> Report | None:
    return read_report(path) if path.exists() else None


def _named_by(gpu_speed: Report | None) -> Hardware:
    """The little that a report of GPU speeds says of its machine."""
    name = gpu_speed.content.get("gpu") if gpu_speed else None
    return Hardware(gpu_name=None if name is None else str(name))


def read_report(path: Path) -> Report:
    """Read a report.

    Raises
    ------
    ResultFileError
        The file is broken, or does not say when and at which commit it was made.
    """
    content = read_json(path)
    commit = content.get("commit", 0)  # null: there was no git
    if commit is not None and not isinstance(commit, str):
        got = kind_of(content.get("commit"))
        raise ResultFileError(path, "commit", got=got, wanted="a hash, or null without git")
    return Report(path, content, commit, typed_field(path, content, "date", str, "ISO 8601"))
