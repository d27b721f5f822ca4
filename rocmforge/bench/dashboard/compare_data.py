"""What compare.html loads: the medians of each run with their intervals, and judged comparisons.

A catalogue has every benchmark with its parameters once; a run's file has columns of numbers that
point into it. The page divides the medians of any two runs. Verdicts are those of
`rocmforge.bench.compare`, of the pairs that it judged; the page makes none of its own.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocmforge.bench.compare import threshold_of
from rocmforge.bench.comparison import THRESHOLD, Comparison
from rocmforge.bench.dashboard.machines import Machine, latest
from rocmforge.bench.dashboard.points import BETTER, DEVICE, rounded
from rocmforge.bench.dashboard.speeds import Speed, speeds, split_model
from rocmforge.bench.decision import Verdict
from rocmforge.bench.formatting import ends, iso, plain_params
from rocmforge.bench.results import Result, ResultSet, Status
from rocmforge.bench.run_environment import is_timed
from rocmforge.bench.tables import summary_line

FIRST = "compare"


class Catalogue:
    """Every benchmark with its parameters that has a value anywhere, by label.

    Parameters
    ----------
    results
        Of all runs.
    thresholds
        Of asv's configuration.
    """

    def __init__(self, results: Iterable[Result], thresholds: Mapping[str, float]) -> None:
        found = {result.label: result for result in results if result.status is Status.OK}
        self._results = [found[label] for label in sorted(found)]
        self._places = {result.label: at for at, result in enumerate(self._results)}
        self._versions: dict[str, dict[str | None, int]] = defaultdict(dict)
        self._thresholds = {re.compile(name): value for name, value in thresholds.items()}

    def place(self, label: str) -> int | None:
        """Return the index of a benchmark; None: nothing has a value of it."""
        return self._places.get(label)

    def version(self, result: Result) -> int:
        """Return a number that tells the versions of a benchmark's code apart."""
        known = self._versions[result.name]
        return known.setdefault(result.version, len(known))

    def columns(self) -> dict[str, list[Any]]:
        """Return the catalogue by columns.

        ``better`` is -1 where lower is better. ``elsewhere`` is one number for benchmarks that
        differ in the device alone, ``group`` for those that differ in the format alone.
        """
        keys: dict[tuple[str, ...], int] = {}

        def key(result: Result, params: Mapping[str, str]) -> int:
            named = (result.name, *(f"{name}={value}" for name, value in params.items()))
            return keys.setdefault(named, len(keys))

        columns: dict[str, list[Any]] = defaultdict(list)
        for result in self._results:
            params = plain_params(result)
            kind, others = _format_of(params)
            without_device = {name: x for name, x in params.items() if name != DEVICE}
            columns["name"].append(result.name)
            columns["params"].append(", ".join(f"{name} {x}" for name, x in params.items()))
            columns["unit"].append(result.unit or "")
            columns["better"].append(BETTER[result.direction])
            columns["timed"].append(int(is_timed(result)))
            columns["threshold"].append(threshold_of(result.label, THRESHOLD, self._thresholds))
            columns[DEVICE].append(params.get(DEVICE))
            columns["elsewhere"].append(key(result, without_device))
            columns["format"].append(kind)
            columns["group"].append(None if kind is None else key(result, others))
        return columns


def _format_of(params: Mapping[str, str]) -> tuple[str | None, dict[str, str]]:
    """The format that parameters name, if they name one, and the parameters without it."""
    if "format" in params:
        return params["format"], {name: x for name, x in params.items() if name != "format"}
    model, kind = split_model(params.get("model", ""))
    return kind, {**params, "model": model}


def compare_data(
    machines: Sequence[Machine],
    runs: Mapping[str, Sequence[ResultSet]],
    thresholds: Mapping[str, float],
) -> Iterator[tuple[str, Any]]:
    """Yield the name and the content of each data file, `FIRST` last.

    Parameters
    ----------
    machines
        All there is to show.
    runs
        The runs of each machine by its tag, oldest commit first.
    thresholds
        Of asv's configuration.
    """
    stored = {m.tag: [*([m.baseline] if m.baseline else []), *runs[m.tag]] for m in machines}
    every = (one for found in stored.values() for run in found for one in run.results)
    catalogue = Catalogue(every, thresholds)
    files = (f"{FIRST}/{number}" for number in itertools.count())
    shown = []
    for machine in machines:
        own = {run.source: next(files) for run in stored[machine.tag]}
        for run in stored[machine.tag]:
            yield own[run.source], run_columns(run.results, catalogue)
        newest, judged = next(files), []
        newest_results = [found for found, _ in latest(machine).values()]
        yield newest, run_columns(newest_results, catalogue)
        for before, comparison in (
            (machine.previous, machine.since_previous),
            (machine.baseline, machine.since_baseline),
        ):
            if before and machine.newest and comparison:
                judged.append([own[before.source], own[machine.newest.source], next(files)])
                yield judged[-1][-1], verdicts(comparison, catalogue)
        shown.append(
            {
                "tag": machine.tag,
                "device": "gpu" if machine.hardware.gpu_name else "cpu",
                "newest": newest,
                "formats": _formats(newest_results),
                "runs": list(_described(stored[machine.tag], own, machine.baseline)),
                "judged": judged,
                "peer": [_beside_peer(row) for row in speeds(machine) if row.ratio is not None],
            }
        )
    yield FIRST, {"catalogue": catalogue.columns(), "machines": shown}


def _formats(results: Iterable[Result]) -> list[str]:
    """The formats that share a benchmark with another one, those that share most first."""
    groups: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for result in results:
        kind, others = _format_of(plain_params(result))
        if kind is not None and result.value is not None:
            group = (result.name, *others.values())
            groups[group].add(kind)
    shared = Counter(kind for kinds in groups.values() if len(kinds) > 1 for kind in kinds)
    return sorted(shared, key=lambda kind: (-shared[kind], kind))


def _described(
    runs: Sequence[ResultSet], files: Mapping[Path, str], baseline: ResultSet | None
) -> Iterator[dict[str, Any]]:
    """Say of each run what the page lists; ``id`` names it in the page's address."""
    met: Counter[str] = Counter()
    for run in runs:
        stored = run is baseline
        name = f"baseline-{run.commit[:8]}" if stored else run.commit[:8]
        met[name] += 1
        date = (iso(run.commit_date) or "")[:10] or None
        named = name if met[name] == 1 else f"{name}-{met[name]}"
        yield {
            "id": named,
            "file": files[run.source],
            "commit": run.commit,
            "date": date,
            "baseline": stored,
        }


def run_columns(results: Iterable[Result], catalogue: Catalogue) -> dict[str, Any]:
    """Return what a run measured, by columns: median, ends of its 99 % interval, version of code.

    ``marked`` has the reasons by place, ``failed`` the places of what failed.
    """
    found: dict[str, Any] = {name: [] for name in ("place", "median", "low", "high", "version")}
    marked, failed = {}, []
    for result in results:
        place = catalogue.place(result.label)
        if place is None:
            continue
        if result.status is Status.FAILED:
            failed.append(place)
        if result.value is None:
            continue
        low, high = ends(result.summary) if is_timed(result) else (result.value, result.value)
        cells = (place, *map(rounded, (result.value, low, high)), catalogue.version(result))
        for column, cell in zip(found.values(), cells, strict=True):
            column.append(cell)
        if result.marked:
            marked[place] = result.marked
    return {**found, "marked": marked, "failed": failed}


def verdicts(comparison: Comparison, catalogue: Catalogue) -> dict[str, Any]:
    """Return what comparing said: as a whole, and of each benchmark its verdict and a note."""
    rows = [(catalogue.place(row.label), row) for row in comparison.rows]
    return {
        "outcome": summary_line(comparison),
        "notes": [*_mismatch(comparison), *comparison.notes],
        "rows": {
            place: [row.verdict.value, row.note]
            for place, row in rows
            if place is not None and row.verdict is not Verdict.SKIPPED
        },
    }


def _mismatch(comparison: Comparison) -> list[str]:
    """One sentence where the hardware forbids comparing."""
    if not comparison.mismatches:
        return []
    return [f"the hardware differs: {'; '.join(map(str, comparison.mismatches))}"]


def _beside_peer(row: Speed) -> dict[str, Any]:
    """One speed of ours and llama.cpp's; the ratio's ends are of the lowest and highest round."""
    named = {name: getattr(row, name) for name in ("model", "format", "phase", "setting", "device")}
    numbers = {name: rounded(getattr(row, name)) for name in ("value", "peer", "ratio")}
    ends = {"low": rounded(row.ratio_low), "high": rounded(row.ratio_high)}
    return {**named, **numbers, **ends, "unit": row.unit, "commit": row.commit, "date": row.date}
