"""`bench fleet`: makes the engine, runs what is missing, merges, publishes, reports."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from rocmforge.bench import project
from rocmforge.bench.dashboard.publish import publish
from rocmforge.bench.defaults import BASELINES, CONFIG
from rocmforge.bench.fleet import report
from rocmforge.bench.fleet.boxes import standings
from rocmforge.bench.fleet.engine import Engine
from rocmforge.bench.fleet.local import LocalEngine, boxes_here
from rocmforge.bench.fleet.parts import Part, missing, wanted_parts
from rocmforge.bench.fleet.ray_cluster import RayEngine
from rocmforge.bench.fleet.runner import Runner
from rocmforge.bench.fleet.slurm import SlurmEngine, keep_diagnoses
from rocmforge.bench.fleet.store import Store, expired
from rocmforge.bench.fleet.worker import Task
from rocmforge.bench.git import ask_git, commit_hash
from rocmforge.bench.head import plain_console
from rocmforge.errors import MeasurementError

INTERVALS_S = {"local": 0.2, "ray": 1.0, "slurm": 3.0}


def run_fleet(args: argparse.Namespace) -> int:
    """Run the fleet's command; return the exit code."""
    root, console = project.root(), plain_console()
    commits = [one for name in args.commits or ["HEAD"] for one in named_commits(root, name)]
    store = Store(args.out, args.results or args.out / "results")
    engine = _engine(args, store)
    kinds = list(dict.fromkeys(args.kind)) or sorted(engine.boxes())
    if not kinds:
        raise MeasurementError(
            f"--engine {engine.name}: got no box of a kind that is known by its name (gfx942, "
            "sm_90, cpu): docs/FLEET.md says how nodes name theirs"
        )
    wanted = wanted_parts(
        commits, kinds, args.boxes, args.profile, [one.pattern for one in args.bench], args.command
    )
    if args.dry_run:
        return _show_plan(engine, store, wanted, console)
    repository = args.repository or str(root)

    def task(part: Part, token: str) -> Task:
        return Task(part, token, repository, args.max_load, args.minutes)

    with store.alone():
        interval = INTERVALS_S[engine.name]
        runner = Runner(engine, store, task, args.tries, console.print, interval)
        try:
            outcome = runner.run(wanted)
        finally:  # what came before an interrupt is merged too
            parts = store.merge()
        dropped = expired(parts, args.keep, wanted) if args.keep else []
        others = {*store.in_the_way(parts), *store.drop(parts, dropped)}
        if others:
            what = f"{len(others)} files of {store.results} that this fleet did not write"
            console.print(f"kept      {what}: {min(others)}{' …' if len(others) > 1 else ''}")
        for part in dropped:
            console.print(f"dropped   {parts.pop(part).provenance.part.name}")
        keep_diagnoses(args.out / "slurm")
        found = standings(parts.values())
        for line in report.lines(wanted, parts, outcome, found):
            console.print(line)
        report.save(args.out / "report.json", wanted, parts, outcome, found)
        if parts:
            page = publish(
                CONFIG, store.results, args.out / "html", BASELINES, args.out / "log", console.print
            )
            console.print(f"published {page}")
    return report.exit_code(wanted, parts)


def named_commits(root: Path, name: str) -> Sequence[str]:
    """Return the full hashes of a commit, or of a range ``A..B``, the oldest first.

    Raises
    ------
    ValueError
        git knows no such commit, or the range is empty.
    """
    if ".." not in name:
        return [commit_hash(root, name)]
    words = ("rev-list", "--reverse", "--end-of-options", name, "--")
    found = (ask_git(root, *words) or "").split()
    if not found:
        raise ValueError(f"commits: got {name!r}, wanted a range as HEAD~3..HEAD with a commit")
    return found


def _engine(args: argparse.Namespace, store: Store) -> Engine:
    if args.engine == "slurm":
        return SlurmEngine(store.inbox, args.out / "slurm", args.minutes, args.slurm)
    if args.engine == "ray":
        return RayEngine(store.inbox, args.address)
    return LocalEngine(boxes_here(), store.inbox)


def _show_plan(engine: Engine, store: Store, wanted: Sequence[Part], console: Console) -> int:
    """Show the boxes, and what is gathered and what would be measured."""
    for kind, boxes in sorted(engine.boxes().items()):
        console.print(f"boxes     {kind}: {', '.join(sorted(boxes))}")
    left = missing(wanted, store.known())
    for part in wanted:
        console.print(f"{'missing ' if part in left else 'gathered'}  {part.name}")
    console.print(f"fleet     {len(wanted) - len(left)} of {len(wanted)} parts gathered")
    return 0
