"""Reads what asv 0.6.6 writes, result files, benchmarks.json and machine.json, into `Result`s.

A broken file raises ResultFileError, which names it; it is never read as a pass. asv writes a
failed benchmark as null and a skipped one as NaN.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmforge.bench.files import (
    finite_number,
    is_strings,
    kind_of,
    milliseconds,
    read_versioned_json,
    typed_field,
)
from rocmforge.bench.git import find_commit
from rocmforge.bench.machine import MACHINE_VERSION, hardware_from_asv
from rocmforge.bench.results import Direction, Result, ResultSet, Status
from rocmforge.bench.statistics import Summary, summarize
from rocmforge.errors import MeasurementError, ResultFileError
from rocmforge.hardware import hardware_tag

RESULT_VERSION = 2
BENCHMARKS_VERSION = 2
MEASURE = (
    ".venv/bin/asv run --machine $(.venv/bin/rocmforge bench machine) --record-samples "
    "--show-stderr HEAD~2..HEAD"
)
"""The command that measures commits, as the README has it."""
MOST_SETS = 1 << 17  # of parameters, of one benchmark
_SPREAD = ("result", "samples", "stats_ci_99_a", "stats_ci_99_b", "stats_repeat")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_RESULT_NAME = re.compile(r"([0-9a-f]{8})-(.+)\.json")


@dataclass(frozen=True, slots=True)
class BenchmarkInfo:
    """What benchmarks.json says of one benchmark, as far as comparing needs it."""

    unit: str
    direction: Direction
    param_names: tuple[str, ...]


class ResultsDirectory:
    """asv's results directory, for one machine.

    Parameters
    ----------
    path
        asv's ``results_dir``.
    machine
        Name of the machine's folder; default: the only one there is, else the one of this
        machine's hardware tag.

    Raises
    ------
    ResultFileError
        The directory, benchmarks.json or machine.json is missing or broken.
    ValueError
        An unknown machine.
    MeasurementError
        There is no result file at all; or there are several machines, none of them this one, and
        none is named.
    """

    def __init__(self, path: Path | str, machine: str | None = None) -> None:
        """Find the machine and read what asv knows of the benchmarks."""
        self.path = Path(path)
        if not self.path.is_dir():
            raise ResultFileError(
                self.path, "results directory", got="none", wanted="a directory that asv run wrote"
            )
        self.machine = self._choose_machine(machine)
        self.benchmarks = read_benchmarks(self.path / "benchmarks.json")
        machine_file = self.path / self.machine / "machine.json"
        named = read_versioned_json(machine_file, MACHINE_VERSION).get("machine")
        if named != self.machine:
            raise ResultFileError(machine_file, "machine", got=named, wanted=self.machine)

    def _choose_machine(self, machine: str | None) -> str:
        found = sorted(folder.name for folder in self.path.iterdir() if _result_files(folder))
        if machine in found:
            return str(machine)
        if machine is not None and found:
            wanted = f"one of {', '.join(found)} (--machine)"
            raise ValueError(f"machine: got {machine}, wanted {wanted}")
        if len(found) == 1:
            return found[0]
        here = hardware_tag()
        if here in found:
            return here
        others = f" (--machine NAME judges another's: there are {len(found)})" if found else ""
        if (self.path.parent / ".asv" / "results" / here).is_dir():
            others += "; make bench keeps its results in .asv/results (--results .asv/results)"
        raise MeasurementError(
            f"{self.path}: nothing measured here yet, no result file of {here}: {MEASURE}{others}"
        )

    def files(self, commit: str | None = None) -> list[Path]:
        """Paths of the result files of the machine, or of one commit (at least 8 hex digits)."""
        files = _result_files(self.path / self.machine)
        return [f for f in files if commit is None or f.name.startswith(f"{commit[:8]}-")]

    def resolve(self, name: str, repository: Path | None = None) -> str:
        """Find a measured commit by anything that git understands, or by a prefix of its hash.

        Parameters
        ----------
        name
            Branch, tag, ``HEAD~2``, hash or prefix.
        repository
            Where git looks; default: the current directory.

        Raises
        ------
        ValueError
            Neither git nor the results know the name, or the prefix is ambiguous.
        MeasurementError
            git knows the commit, and it was never measured on this machine.
        """
        commit = find_commit(repository, name)
        if commit is not None and self.files(commit):
            return commit
        measured = {f.name[:8] for f in self.files()}
        short = name.lower()[:8]
        found = sorted(m for m in measured if m.startswith(short)) if len(short) >= 4 else []
        if len(found) > 1:
            raise ValueError(f"commit: got {name}, wanted one of {', '.join(found)}")
        if found:
            return found[0] if len(name) <= 8 else name.lower()
        if commit is not None:
            raise MeasurementError(
                f"commit {name} ({commit[:8]}): nothing measured here yet, no result of machine "
                f"{self.machine} in {self.path}: {MEASURE} (make bench keeps its results in "
                ".asv/results)"
            )
        raise ValueError(
            f"commit: got {name!r}, wanted one that git knows or a prefix (4 digits or more) of "
            f"one of {', '.join(sorted(measured))}"
        )

    def newest(self) -> str:
        """Return the measured commit with the latest commit date."""
        sets = [read_result_file(f, self.benchmarks) for f in self.files()]
        return max(sets, key=lambda s: (s.commit_date or 0, s.commit)).commit

    def load(self, commit: str, asv_environment: str | None = None) -> ResultSet:
        """Read the results of one commit.

        Parameters
        ----------
        commit
            As `resolve` returns it.
        environment
            asv's name of the environment; default: the only one there is.

        Raises
        ------
        ResultFileError
            A file of that commit is broken, or is of another commit that begins alike.
        ValueError
            Several environments and none named, or an unknown one.
        """
        sets = [read_result_file(f, self.benchmarks) for f in self.files(commit)]
        for found in sets:
            if not found.commit.startswith(commit):
                raise ResultFileError(found.source, "commit", got=found.commit, wanted=commit)
        chosen = [s for s in sets if asv_environment in (None, s.asv_environment)]
        if len(chosen) != 1:
            names = ", ".join(s.asv_environment for s in sets)
            raise ValueError(
                f"environment of {commit[:8]}: got {asv_environment or 'several'}, "
                f"wanted one of {names} (--environment)"
            )
        return chosen[0]

    def load_pair(
        self, before: str, after: str, asv_environment: str | None = None
    ) -> tuple[ResultSet, ResultSet]:
        """Read two commits; without a named environment, the only one that both were run in.

        Where they share none, each must have just one.

        Raises
        ------
        ValueError
            Both are the same commit, or as of `load`.
        ResultFileError
            As of `load`.
        """
        if before[:8] == after[:8]:
            raise ValueError(f"commits: got {after[:8]} twice, wanted two different ones")
        if asv_environment is None:
            old, new = (
                {read_result_file(f, self.benchmarks).asv_environment for f in self.files(commit)}
                for commit in (before, after)
            )
            if len(old & new) == 1:
                asv_environment = next(iter(old & new))
        return self.load(before, asv_environment), self.load(after, asv_environment)


def read_benchmarks(path: Path) -> dict[str, BenchmarkInfo]:
    """Read units, directions and parameter names from benchmarks.json.

    The direction is the attribute ``direction`` of the benchmark function; without it, a unit per
    second (``tokens/s``) is better higher and every other unit lower.

    Raises
    ------
    ResultFileError
        The file is missing or broken, or a direction is neither "lower" nor "higher".
    """
    infos = {}
    for name, entry in read_versioned_json(path, BENCHMARKS_VERSION).items():
        if name == "version":
            continue
        if not isinstance(entry, dict):
            raise ResultFileError(path, f"entry {name}", got=kind_of(entry), wanted="an object")
        unit = entry.get("unit")
        names = entry.get("param_names")
        if not isinstance(unit, str):
            raise ResultFileError(path, f"unit of {name}", got=kind_of(unit), wanted="a string")
        if not is_strings(names):
            raise ResultFileError(path, f"param_names of {name}", got=names, wanted="strings")
        spelled = entry.get("direction", "higher" if unit.endswith("/s") else "lower")
        if spelled not in ("lower", "higher"):
            raise ResultFileError(
                path, f"direction of {name}", got=spelled, wanted="'lower' or 'higher'"
            )
        infos[name] = BenchmarkInfo(unit, Direction(spelled), tuple(names))
    return infos


def read_result_file(path: Path, benchmarks: Mapping[str, BenchmarkInfo]) -> ResultSet:
    """Read one file ``<machine>/<commit8>-<environment>.json``.

    Raises
    ------
    ResultFileError
        The file is truncated, of another version, or contradicts itself or its name.
    """
    data = read_versioned_json(path, RESULT_VERSION)
    commit = typed_field(path, data, "commit_hash", str, "a string")
    if not _COMMIT.fullmatch(commit):  # it names folders and builds
        raise ResultFileError(path, "commit_hash", got=commit, wanted="40 digits, 0-9 and a-f")
    params = typed_field(path, data, "params", dict, "an object")
    columns = typed_field(path, data, "result_columns", list, "a list of column names")
    rows = typed_field(path, data, "results", dict, "an object")
    asv_environment = typed_field(path, data, "env_name", str, "a string")
    name = _RESULT_NAME.fullmatch(path.name)
    if name is None or name[1] != commit[:8]:
        raise ResultFileError(path, "commit_hash", got=commit, wanted="the one in the file's name")
    if params.get("machine") != path.parent.name:
        raise ResultFileError(
            path, "params.machine", got=params.get("machine"), wanted=path.parent.name
        )
    if not is_strings(columns) or not {"result", "params"} <= set(columns):
        raise ResultFileError(path, "result_columns", got=columns, wanted="result, params, …")
    results: list[Result] = []
    for benchmark, row in rows.items():
        if not isinstance(row, list) or len(row) > len(columns):
            raise ResultFileError(
                path,
                f"row of {benchmark}",
                got=kind_of(row),
                wanted=f"up to {len(columns)} columns",
            )
        cells = dict(itertools.zip_longest(columns, row))  # asv drops trailing nulls
        results.extend(_results(path, benchmark, cells, benchmarks.get(benchmark)))
    return ResultSet(
        source=path,
        machine=path.parent.name,
        commit=commit,
        commit_date=milliseconds(path, "date", data.get("date")),
        asv_environment=asv_environment,
        hardware=hardware_from_asv(params),
        results=tuple(results),
        suite=frozenset(benchmarks),
    )


def _results(
    path: Path, name: str, cells: Mapping[str, Any], info: BenchmarkInfo | None
) -> list[Result]:
    """Spread one row over its parameter sets, the last parameter varying fastest."""
    choices = cells["params"]
    if not isinstance(choices, list) or not all(is_strings(choice) for choice in choices):
        raise ResultFileError(path, f"params of {name}", got=choices, wanted="lists of strings")
    count = math.prod(map(len, choices))
    if count > MOST_SETS:
        wanted = f"at most {MOST_SETS:,} combinations"
        raise ResultFileError(path, f"params of {name}", got=f"{count:,}", wanted=wanted)
    combinations = list(itertools.product(*choices))
    if len(set(combinations)) != len(combinations):
        raise ResultFileError(path, f"params of {name}", got=choices, wanted="no value twice")
    columns = {key: _spread(path, name, key, cells, len(combinations)) for key in _SPREAD}
    version = cells.get("version")
    started_at = milliseconds(path, f"started_at of {name}", cells.get("started_at"))
    param_names = _param_names(info, len(choices))
    results = []
    for index, params in enumerate(combinations):
        cell = {key: column[index] for key, column in columns.items()}
        what = f"{name}({', '.join(params)})" if params else name
        value = _value(path, what, cell["result"])
        status = Status.OK if value is not None else _absent(cell["result"])
        samples = _samples(path, what, cell["samples"]) if value is not None else ()
        results.append(
            Result(
                name=name,
                param_names=param_names,
                params=params,
                status=status,
                value=value,
                summary=None if value is None else _summary(path, what, value, samples, cell),
                samples=samples,
                unit=info.unit if info else None,
                direction=info.direction if info else None,
                version=version if isinstance(version, str) else None,
                started_at=started_at,
            )
        )
    return results


def _spread(path: Path, name: str, key: str, cells: Mapping[str, Any], wanted: int) -> list[Any]:
    column = cells.get(key)
    if column is None:  # all failed, or not recorded
        return [None] * wanted
    if not isinstance(column, list) or len(column) != wanted:
        got = f"{len(column)} values" if isinstance(column, list) else kind_of(column)
        raise ResultFileError(path, f"{key} of {name}", got=got, wanted=f"{wanted} values")
    return column


def _value(path: Path, what: str, cell: object) -> float | None:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return None
    return finite_number(path, f"result of {what}", cell)


def _absent(cell: object) -> Status:
    return Status.FAILED if cell is None else Status.SKIPPED


def _samples(path: Path, what: str, cell: object) -> tuple[float, ...]:
    if cell is None:
        return ()
    if not isinstance(cell, list):
        raise ResultFileError(path, f"samples of {what}", got=kind_of(cell), wanted="a list")
    return tuple(finite_number(path, f"sample {i} of {what}", s) for i, s in enumerate(cell))


def _summary(
    path: Path, what: str, value: float, samples: Sequence[float], cell: Mapping[str, Any]
) -> Summary:
    """Statistics of the samples; without samples, what asv kept; of a lone number, itself."""
    repeat = cell["stats_repeat"]
    if samples or repeat is None:
        return summarize(samples or (value,))
    iterations = int(finite_number(path, f"stats_repeat of {what}", repeat))
    if iterations < 1:
        raise ResultFileError(path, f"stats_repeat of {what}", got=repeat, wanted="at least 1")
    return Summary(
        mean=None,
        minimum=None,
        maximum=None,
        p50=value,
        p95=None,
        p99=None,
        iterations=iterations,
        ci_low=_interval_end(cell["stats_ci_99_a"], -math.inf),
        ci_high=_interval_end(cell["stats_ci_99_b"], math.inf),
    )


def _interval_end(cell: object, unknown: float) -> float:
    return cell if isinstance(cell, float) and not math.isnan(cell) else unknown


def _param_names(info: BenchmarkInfo | None, count: int) -> tuple[str, ...]:
    """Names of the parameters; numbered ones where benchmarks.json is of another suite."""
    if info and len(info.param_names) == len(set(info.param_names)) == count:
        return info.param_names
    return tuple(f"param{i + 1}" for i in range(count))


def _result_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(f for f in folder.iterdir() if _RESULT_NAME.fullmatch(f.name))
