"""Measures HEAD: makes models and asv's settings, runs asv, reads its results.

Writes below .asv/, to the model cache and to asv's own ~/.asv-machine.json.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rocmforge.bench import asv, project
from rocmforge.bench.asv_log import absent_lines, reasons
from rocmforge.bench.asv_results import ResultsDirectory
from rocmforge.bench.baseline import baseline_path, save_baseline
from rocmforge.bench.machine import register_here
from rocmforge.bench.other_work import refuse_busy
from rocmforge.bench.reports import reports_path
from rocmforge.bench.results import ResultSet, Status
from rocmforge.bench.run_environment import with_stored_environments
from rocmforge.errors import MeasurementError, ResultFileError
from rocmforge.hardware import detect

WORK = Path(".asv")
RESULTS = WORK / "results"
UNCOMMITTED = WORK / "uncommitted"
"""In place of `WORK` where the tree has changes: its results are those of no commit."""
PLAIN_WIDTH = 200  # columns, where the output is no terminal and COLUMNS does not say
_PROGRESS = re.compile(
    r"(\[ *\d|·)(?!.*(=====|For parameters|asv: skipped))|asv: error|\s*[\w.]*Error: "
)  # of asv's output


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """What was measured of HEAD.

    Parameters
    ----------
    results
        The results of the selection, with their environments.
    selection
        The expressions that chose them.
    machine
        Its name among asv's results.
    stored
        The results as a baseline, for programs; an older one where nothing has a value.
    log
        What asv printed.
    reports
        The environment of each process.
    reasons
        Why what has no value has none, by label.
    """

    results: ResultSet
    selection: list[str]
    machine: str
    stored: Path
    log: Path
    reports: Path
    reasons: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def failed(self) -> list[str]:
        """Labels of the benchmarks that gave an error."""
        return [r.label for r in self.results.results if r.status is Status.FAILED]

    @property
    def has_values(self) -> bool:
        """Whether any benchmark has a value."""
        return any(r.status is Status.OK for r in self.results.results)


def measure_head(
    bench: Sequence[re.Pattern[str]],
    profile: str,
    max_load: float,
    console: Console,
    refusing: bool = False,
) -> Run:
    """Run the chosen benchmarks of the checkout on HEAD, as one run for each suite.

    Parameters
    ----------
    bench, profile
        As of `project.choose`. The quick profile is one run in all.
    max_load
        Share of the CPU time of other work that marks a benchmark.
    console
        Gets the progress.
    refusing
        Whether to measure nothing where other work keeps the machine busy at the start.

    Raises
    ------
    ValueError
        No repository, a wrong environment, or no such benchmark.
    MeasurementError
        All benchmarks are n/a, or the machine is busy; the message says why.
    ResultFileError
        asv failed; its log says why.
    """
    root = project.root()
    commit, dirty = project.head(root)
    prepare = project.preparation(root)
    prepare.check_environment()
    selection, chosen = project.choose(root, bench, profile)
    project.write_config(root, WORK)
    work = UNCOMMITTED if dirty else WORK
    if dirty:
        asv.write_config(root, work)
    prepare.prepare_models(list(chosen), console)
    machine = register_here()
    console.print(f"commit    {commit[:8]}{' with uncommitted changes' if dirty else ''}")
    console.print(f"machine   {machine}")
    log = WORK / "bench.log"
    if refusing:
        refuse_busy(max_load)
    whole = profile == "quick" and not bench
    batches = [selection] if whole else project.by_suite(selection, chosen)
    log.unlink(missing_ok=True)
    for number, batch in enumerate(batches, 1):
        if len(batches) > 1:
            console.print(f"suite     {number} of {len(batches)}")
        _run_asv(work, machine, commit, batch, log, console)
    results = _load(work, machine, commit, selection, max_load)
    results = dataclasses.replace(results, uncommitted_changes=dirty)
    why = reasons(log, results.results)
    _refuse_nothing(results, why)
    stored = baseline_path(WORK / "baselines", results.hardware)
    found = Run(results, selection, machine, stored, log, reports_path(results.source), why)
    if found.has_values:
        save_baseline(stored, results)
    return found


def _refuse_nothing(results: ResultSet, why: Mapping[str, str]) -> None:
    """Raise MeasurementError with all reasons where everything is n/a."""
    if all(result.status is Status.SKIPPED for result in results.results):
        said = "".join(f"\n  n/a: {line}" for line in absent_lines(results.results, why))
        raise MeasurementError(f"nothing measured: no benchmark has a value here{said}")


def _run_asv(
    work: Path,
    machine: str,
    commit: str,
    selection: Sequence[str],
    log: Path,
    console: Console,
) -> None:
    """Run the benchmarks; progress to the terminal, everything to the log."""
    more = [*asv.FORKED, *project.options(selection)]
    command = asv.run_command(work, sys.executable, commit, machine, *more)

    def show(line: str) -> None:
        if _PROGRESS.match(line):
            console.print(Text(line.rstrip()))

    begin = time.time()
    code = asv.run(command, log, show)
    name = asv.result_file(machine, commit, asv.asv_environment_name(sys.executable))
    written = work / "results" / name
    fresh = written.exists() and written.stat().st_mtime >= begin
    if code not in (0, asv.FAILURES) or not fresh:
        raise ResultFileError(
            log, "asv run", got=f"exit {code}", wanted="results; the log says why"
        )


def _load(
    work: Path, machine: str, commit: str, selection: Sequence[str], max_load: float
) -> ResultSet:
    """Read the results that the selection names; those of other runs are left out."""
    found = ResultsDirectory(work / "results", machine).load(
        commit, asv.asv_environment_name(sys.executable)
    )
    chosen = with_stored_environments(found, max_load).only(project.naming(selection))
    # asv names the environment, and Python too, after the interpreter's path
    here = dataclasses.replace(found.hardware, python_version=detect().python_version)
    return dataclasses.replace(chosen, asv_environment="existing", hardware=here)
