"""What the whole package works on: `Result`, one benchmark with one set of parameters, and runs."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rocmforge.bench.statistics import Summary
from rocmforge.hardware import Hardware


class Status(str, enum.Enum):
    """What became of one benchmark with one set of parameters."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


class Direction(str, enum.Enum):
    """Which way a metric is better."""

    LOWER = "lower"
    HIGHER = "higher"


@dataclass(frozen=True, slots=True)
class Result:
    """One benchmark with one set of parameters.

    Parameters
    ----------
    name
        asv's name without parameters, e.g. ``"matmul.Matmul.track_ms"``.
    param_names, params
        Names, and values as ``repr`` strings, e.g. ``("'Q4_0'", "8")``.
    status, value
        The value, in ``unit``, is None unless the status is ok. It is the median of the samples
        where the benchmark has samples.
    summary
        Statistics of the samples, or what was kept of them; None unless the status is ok.
    samples
        Every sample in ``unit``; empty where asv did not record them.
    unit, direction
        None where benchmarks.json does not know the benchmark.
    version
        asv's hash of the benchmark's code. Equal hashes measure the same thing.
    started_at
        Milliseconds since 1970, or None.
    error
        Worst relative error against the reference that its processes found; None: not recorded.
    environment
        Environment of the process that other work disturbed most, JSON-ready, and the number of
        ``processes``; None: not recorded.
    marked
        Why its samples cannot be trusted (other work, throttling), or None.
    process_medians
        Median of each process that measured it, in ``unit``; empty: not recorded.
    reference
        Rates of the reference kernels that its processes measured beside it: how fast the machine
        itself was (`rocmforge.bench.reports.REFERENCE`); None: not recorded.
    commit, hardware
        Of this result, where they differ from those of its set: it was kept from an earlier run.
    """

    name: str
    param_names: tuple[str, ...]
    params: tuple[str, ...]
    status: Status
    value: float | None
    summary: Summary | None
    samples: tuple[float, ...]
    unit: str | None
    direction: Direction | None
    version: str | None
    started_at: int | None
    error: float | None = None
    environment: Mapping[str, Any] | None = None
    marked: str | None = None
    commit: str | None = None
    hardware: Hardware | None = None
    process_medians: tuple[float, ...] = ()
    reference: Mapping[str, float] | None = None

    @property
    def label(self) -> str:
        """Name with parameters as asv prints it, e.g. ``"suite.time_op('Q4_0', 8)"``."""
        return f"{self.name}({', '.join(self.params)})" if self.params else self.name


@dataclass(frozen=True, slots=True)
class ResultSet:
    """All results of one run: one machine, one commit, one environment of asv.

    ``uncommitted_changes`` says that the tree differed from the commit. ``suite`` has the names of
    all benchmarks that could have been selected; empty: unknown.
    """

    source: Path
    machine: str
    commit: str
    commit_date: int | None
    asv_environment: str
    hardware: Hardware
    results: tuple[Result, ...]
    uncommitted_changes: bool = False
    suite: frozenset[str] = frozenset()

    def only(self, named: Callable[[str], object]) -> ResultSet:
        """Return the run with those results alone whose label is named."""
        return replace(self, results=tuple(r for r in self.results if named(r.label)))
