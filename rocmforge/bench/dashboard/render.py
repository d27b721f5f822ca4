"""Writes our pages and what they draw.

The templates in page/ escape everything: anybody may have written the files that names and machines
come from. What scripts draw lies in data/ (`data_files.py`).
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rocmforge import env
from rocmforge.bench import formatting
from rocmforge.bench.dashboard import overview
from rocmforge.bench.dashboard.asv_pages import ASV_PAGE
from rocmforge.bench.dashboard.compare_data import compare_data
from rocmforge.bench.dashboard.conditions_data import conditions_data
from rocmforge.bench.dashboard.confirmed_data import confirmed_data
from rocmforge.bench.dashboard.data_files import write_data
from rocmforge.bench.dashboard.formats_data import formats_data
from rocmforge.bench.dashboard.history_data import history_data
from rocmforge.bench.dashboard.kernels_data import kernels_data
from rocmforge.bench.dashboard.machines import Machine, Report
from rocmforge.bench.dashboard.roofline_data import roofline_data
from rocmforge.bench.dashboard.run_environments import environment_summary
from rocmforge.bench.dashboard.scaling_data import scaling_data
from rocmforge.bench.dashboard.speeds import DECODE, Speed, speeds
from rocmforge.bench.dashboard.ttft_data import ttft_data
from rocmforge.bench.git import Commit
from rocmforge.bench.results import ResultSet

PAGE = Path(__file__).resolve().parent / "page"


@dataclass(frozen=True, slots=True)
class Page:
    """A page: page/NAME.html, and page/NAME.js where it is drawn by a script."""

    name: str
    title: str


PAGES = (
    Page("index", "Overview"),
    Page("history", "History"),
    Page("compare", "Compare"),
    Page("models", "Models"),
    Page("roofline", "Roofline"),
    Page("formats", "Formats"),
    Page("ttft", "First token"),
    Page("scaling", "Batch and depth"),
    Page("kernels", "Kernels"),
    Page("conditions", "Conditions"),
    Page("commits", "Commits"),
)


@dataclass(frozen=True, slots=True)
class Site:
    """All that is shown.

    Parameters
    ----------
    machines
        Every machine that has anything.
    runs
        The runs of each by its tag, oldest commit first.
    commits
        What git knows of commits, by hash.
    baselines
        Where baselines and noise lie.
    thresholds
        Of asv's configuration.
    """

    machines: Sequence[Machine]
    runs: Mapping[str, Sequence[ResultSet]]
    commits: Mapping[str, Commit]
    baselines: Path
    thresholds: Mapping[str, float]


def write_pages(pages: Path, site: Site) -> None:
    """Write our pages, and their data, into the folder of asv's."""
    found = [speeds(machine) for machine in site.machines]
    headline = overview.choose_headline(found)
    cards = [
        _card(machine, rows, site.runs[machine.tag], headline)
        for machine, rows in zip(site.machines, found, strict=True)
    ]
    content: dict[str, dict[str, Any]] = {
        "index": {"cards": cards, "headline": headline},
        "commits": {"commits": _commits(site)},
    }
    made = datetime.now(timezone.utc).isoformat(timespec="minutes")
    for page in PAGES:
        script = (PAGE / f"{page.name}.js").exists()
        shared = {**asdict(page), "pages": PAGES, "made": made, "script": script}
        text = _templates().get_template(f"{page.name}.html")
        rendered = text.render(**shared, **content.get(page.name, {}))
        (pages / f"{page.name}.html").write_text(rendered, encoding="utf-8")
    for file in PAGE.iterdir():
        if file.suffix in (".css", ".js"):
            shutil.copyfile(file, pages / file.name)
    write_data(pages, "index", {card["tag"]: card["spark"] for card in cards})
    rows = [
        {"tag": m.tag, **asdict(row)}
        for m, own in zip(site.machines, found, strict=True)
        for row in own
    ]
    write_data(pages, "models", rows)
    for name, drawn in _data(site):
        write_data(pages, name, drawn)


def _data(site: Site) -> Iterator[tuple[str, Any]]:
    """What scripts draw: the name and the content of each data file."""
    machines, runs = site.machines, site.runs
    yield from history_data(machines, runs, site.commits, site.baselines, site.thresholds)
    yield from compare_data(machines, runs, site.thresholds)
    yield "confirmed", confirmed_data(machines, site.baselines)
    yield "roofline", roofline_data(machines)
    yield "formats", formats_data(machines)
    yield "ttft", ttft_data(machines)
    yield "scaling", scaling_data(machines)
    yield "kernels", kernels_data([run for found in runs.values() for run in found])
    yield "conditions", conditions_data(machines, runs)


@functools.cache
def _templates() -> Environment:
    pages = Environment(
        loader=FileSystemLoader(PAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.globals |= {
        "asv_page": ASV_PAGE,
        "na": formatting.NA,
        "formatting": formatting,
        "figure": overview.figure,
    }
    return pages


def _card(
    machine: Machine,
    rows: Sequence[Speed],
    runs: Sequence[ResultSet],
    headline: overview.Headline | None,
) -> dict[str, Any]:
    """Everything that the overview says of one machine."""
    said = environment_summary(machine.newest) if machine.newest else {}
    figures = headline.figures(rows) if headline else {}
    decode = figures.get(DECODE)
    return {
        "tag": machine.tag,
        "title": _title(machine),
        "verdicts": overview.verdicts(machine),
        "figures": figures,
        "peers": overview.beside_peer(rows, headline, figures) if headline else {},
        "share": overview.roofline_share(machine, headline, decode) if headline else None,
        "spark": overview.sparkline(runs, headline),
        "conditions": overview.conditions(machine.newest, said),
        "sources": _sources(machine),
        "hardware": _hardware(machine),
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


def _commits(site: Site) -> list[dict[str, Any]]:
    """Every measured commit, newest first, with its subject and the machines."""
    found: dict[str, dict[str, Any]] = {}
    for tag, runs in site.runs.items():
        for run in runs:
            known = site.commits.get(run.commit)
            new = {
                "date": run.commit_date or 0,
                "tags": [],
                "subject": known.subject if known else formatting.NA,
            }
            commit = found.setdefault(run.commit, new)
            commit["tags"] += [tag] * (tag not in commit["tags"])
    ordered = sorted(found.items(), key=lambda item: -item[1]["date"])
    return [
        {"commit": name, **said, "date": formatting.iso(said["date"])} for name, said in ordered
    ]
