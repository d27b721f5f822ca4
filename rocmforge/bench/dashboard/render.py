"""Writes our pages: the summary of all machines, and the list of measured commits.

The templates in page/ escape everything: anybody may have written the files that names and machines
come from.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rocmforge import env
from rocmforge.bench import formatting
from rocmforge.bench.compare import Comparison, Row
from rocmforge.bench.dashboard.asv_pages import ASV_PAGE, showable
from rocmforge.bench.dashboard.machines import Machine, Report, latest
from rocmforge.bench.dashboard.roofline_chart import charts
from rocmforge.bench.dashboard.run_environments import environment_summary, marks
from rocmforge.bench.dashboard.speeds import HEADLINES, headlines, speeds
from rocmforge.bench.git import ask_git
from rocmforge.bench.results import Result, ResultSet
from rocmforge.bench.tables import FINE, comparison_cells, summary_line, worst_first

PAGE = Path(__file__).resolve().parent / "page"


@dataclass(frozen=True, slots=True)
class Changes:
    """A comparison in words; ``line`` says why there is none where there are no rows."""

    title: str
    line: str
    notes: Sequence[str] = ()
    rows: Sequence[dict[str, Any]] = ()
    outcome: str = formatting.NA


def write_pages(pages: Path, machines: Sequence[Machine], repository: Path) -> None:
    """Write our pages into the folder of asv's.

    Parameters
    ----------
    pages
        Has asv's pages; gets ours.
    machines
        All there is to show.
    repository
        Where git knows the commits' subjects.
    """
    made = datetime.now(timezone.utc).isoformat(timespec="minutes")
    views = [_view(machine) for machine in machines]
    for name, content in (
        ("index.html", {"machines": views, "phases": tuple(HEADLINES)}),
        ("commits.html", {"commits": _commits(machines, repository)}),
    ):
        text = _templates().get_template(name).render(made=made, **content)
        (pages / name).write_text(text, encoding="utf-8")
    for file in PAGE.iterdir():
        if file.suffix in (".css", ".js"):
            shutil.copyfile(file, pages / file.name)


@functools.cache
def _templates() -> Environment:
    pages = Environment(
        loader=FileSystemLoader(PAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.globals |= {"asv_page": ASV_PAGE, "na": formatting.NA, "formatting": formatting}
    return pages


def _view(machine: Machine) -> dict[str, Any]:
    """Everything that the summary says of one machine."""
    rows = speeds(machine)
    runs = {"newest run": machine.newest, "one before": machine.previous}
    runs["baseline"] = machine.baseline
    said = {name: environment_summary(run) for name, run in runs.items() if run}
    fields = {
        field: [column[field] for column in said.values()]
        for field in next(iter(said.values()), ())
    }
    results = latest(machine)
    return {
        "tag": machine.tag,
        "title": _title(machine),
        "hardware": _hardware(machine),
        "sources": _sources(machine),
        "speeds": rows,
        "headlines": headlines(rows),
        "charts": charts(results.values()),
        "changes": _all_changes(machine),
        "runs": list(said),
        "environments": {name: row for name, row in fields.items() if {*row} != {formatting.NA}},
        "unrecorded": [name for name, row in fields.items() if {*row} == {formatting.NA}],
        "marks": {name: marks(run) for name, run in runs.items() if run},
        "results": [_result(machine, *found) for found in results.values()],
    }


def _title(machine: Machine) -> str:
    hardware = machine.hardware
    name = hardware.gpu_name or hardware.cpu_name or machine.tag
    override = hardware.gfx_override
    return f"{name} under {env.GFX_OVERRIDE}={override}" if override else name


def _hardware(machine: Machine) -> dict[str, str]:
    named = {}
    for field, value in asdict(machine.hardware).items():
        if field == "gfx_override":
            continue  # part of the title
        if field == "ram_bytes" and value is not None:
            named["ram"] = f"{value / 2**30:.1f} GiB"
        else:
            name = field.removesuffix("_bytes").replace("_", " ")
            named[name] = formatting.NA if value is None else str(value)
    return named


def _sources(machine: Machine) -> dict[str, str]:
    """What there is of a machine, each with commit and date."""
    commits = len({run.commit for run in machine.runs})
    reports = machine.peers[:1]
    return {
        "newest run": _measured(machine.newest),
        "commits": str(commits) if commits else formatting.NA,
        "baseline": _measured(machine.baseline),
        "llama.cpp": _reported(reports[0] if reports else None),
        "GPU speeds": _reported(machine.gpu_speed),
        "formats": _reported(machine.formats),
    }


def _measured(results: ResultSet | None) -> str:
    if results is None:
        return formatting.NA
    return formatting.measured(results.commit, formatting.iso(results.commit_date))


def _reported(report: Report | None) -> str:
    return formatting.NA if report is None else formatting.measured(report.commit, report.date)


def _all_changes(machine: Machine) -> list[Changes]:
    if machine.newest is None:
        return [Changes("newest run", f"{formatting.NA}: no run in the results")]
    return [
        _changes("newest run since the one before", machine, machine.since_previous),
        _changes("newest run since the stored baseline", machine, machine.since_baseline),
    ]


def _changes(title: str, machine: Machine, comparison: Comparison | None) -> Changes:
    if comparison is None:
        return Changes(title, f"{formatting.NA}: nothing to compare with")
    listed = [row for row in worst_first(comparison) if row.verdict not in FINE]
    return Changes(
        title=title,
        line=summary_line(comparison),
        notes=[
            f"before: {comparison.commits[0][:8]}, after: {comparison.commits[1][:8]}",
            *(f"hardware differs: {difference}" for difference in comparison.mismatches),
            *comparison.notes,
        ],
        rows=[_changed(machine, row) for row in listed],
        outcome=comparison.outcome.name.lower(),
    )


def _changed(machine: Machine, row: Row) -> dict[str, Any]:
    _, _, params, before, after, ratio, interval, unit, _ = comparison_cells(row, row.threshold)
    return {
        "verdict": row.verdict.value,
        "name": row.name,
        "params": params.replace("'", ""),
        "link": _link(machine, row.name, row.params),
        "before": before,
        "after": after,
        "unit": unit,
        "ratio": row.ratio,
        "ratio_text": ratio,
        "interval": interval or formatting.NA,
        "better": formatting.better(row.direction),
        "threshold": f"{100 * row.threshold:g} %",
        "note": row.note,
    }


def _result(machine: Machine, result: Result, results: ResultSet) -> dict[str, Any]:
    unit = result.unit or ""
    plain = formatting.plain_params(result)
    params = dict(zip(result.param_names, result.params, strict=True))
    return {
        "name": result.name,
        "params": ", ".join(f"{name}={value}" for name, value in plain.items()),
        "link": _link(machine, result.name, params),
        "value": result.value,
        "text": formatting.value_and_unit(result.value, unit),
        "interval": formatting.interval(*formatting.ends(result.summary), unit),
        "samples": result.summary.iterations if result.summary else None,
        "better": formatting.better(result.direction),
        "error": result.error,
        "marked": result.marked,
        "status": result.status.value,
        "measured": formatting.measured(
            result.commit or results.commit,
            formatting.iso(result.started_at or results.commit_date),
        ),
    }


def _link(machine: Machine, name: str, params: dict[str, str]) -> str | None:
    """Address of asv's graph of one benchmark on one machine; None: asv has none."""
    known = any(name in run.benchmarks for run in machine.runs)
    if not known or not showable(name, {"params": [*params.values()]}):
        return None
    pairs = [("machine", machine.tag), *((f"p-{key}", value) for key, value in params.items())]
    chosen = "&".join(f"{quote(key, safe='')}={quote(value, safe='')}" for key, value in pairs)
    return f"{ASV_PAGE}#{quote(name, safe='')}?{chosen}"


def _commits(machines: Sequence[Machine], repository: Path) -> list[dict[str, Any]]:
    """Every measured commit, newest first, with its subject and the machines."""
    said = ask_git(repository, "log", "--all", "-z", "--encoding=UTF-8", "--format=%H %s") or ""
    subjects = dict(entry.split(" ", 1) for entry in said.split("\0") if entry)
    found: dict[str, dict[str, Any]] = {}
    for machine in machines:
        for run in machine.runs:
            new = {"date": run.date, "tags": [], "subject": subjects.get(run.commit, formatting.NA)}
            commit = found.setdefault(run.commit, new)
            commit["tags"] += [machine.tag] * (machine.tag not in commit["tags"])
    ordered = sorted(found.items(), key=lambda item: -item[1]["date"])
    return [
        {"commit": name, **said, "date": formatting.iso(said["date"])} for name, said in ordered
    ]
