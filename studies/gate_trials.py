"""How often the gate is right: commits that are the same, and commits with a slowdown planted.

Builds HEAD and copies of it below .asv/trials, runs the quick profile of both, has the gate's rule
and others judge them, then measures suspects again as `rocmforge bench confirm` does. A trial is
kept when it ends, so that an interrupted series goes on. Marks for other load are not used here:
the gate gets the machine as it is.
"""

from __future__ import annotations

import argparse
import functools
import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from false_alarms import RULES
from rich.console import Console
from rich.table import Table

from rocmforge.bench import exits, project
from rocmforge.bench.arguments import add_bench
from rocmforge.bench.asv import Builds, benchmarks_folder, read_thresholds
from rocmforge.bench.baseline import load_baseline, save_baseline
from rocmforge.bench.compare import Row, compare
from rocmforge.bench.confirm import confirm, suspects
from rocmforge.bench.decision import Verdict
from rocmforge.bench.files import read_json, read_versioned_json, write_json
from rocmforge.bench.git import run_git
from rocmforge.bench.interleaved import measure_pair
from rocmforge.bench.machine import register_here
from rocmforge.bench.noise import known_noise
from rocmforge.bench.results import ResultSet
from rocmforge.errors import MeasurementError
from rocmforge.hardware import detect, hardware_tag

VERSION = 1
ROOT = Path(__file__).resolve().parent.parent
PREPARE = project.preparation(ROOT)
CONFIRMED = "check_regressions.py --confirm"  # so called in reports that are kept
SLOWED = re.compile(
    r"((matmul|dequantize|attention|rows|roofline)\.\w+|fusion\.(?!GateUp)\w+"
    r"|inference\.(Prompt|Decode))"
    r"\.(time|track)_(?!launches)"
)
"""Benchmarks that a planted slowdown slows by all of it: calls of ops, and passes of a model."""
PLACES = {
    "rocmforge/ops/api.py": "for name in ('matmul', 'dequantize', 'rmsnorm', 'rope', 'softmax', "
    "'swiglu', 'attention'):\n    globals()[name] = _slowed(globals()[name])\n",
    "rocmforge/cpu/executor.py": "HostExecutor.forward = _slowed(HostExecutor.forward)\n",
}
PLANT = """

def _slowed(call):
    from time import perf_counter

    def slow(*args, **more):
        begin = perf_counter()
        value = call(*args, **more)
        end = begin + {factor} * (perf_counter() - begin)
        while perf_counter() < end:
            pass
        return value

    return slow


"""
POOL = "rocmforge/cpu/threads.cpp"
SPIN = "constexpr auto kSpin = std::chrono::microseconds("
"""Where the pool says how long its threads stay awake: longer than what is planted in an op, or
waking them would come on top of it. The commit that it is compared with gets that too."""
EPILOG = """\
Without --planted: N runs, of HEAD and of a commit with the same files in turns; each is compared
with every run of the other commit, in both directions: 40 comparisons of 9 runs. With it: N
comparisons of HEAD with a commit whose ops and forward passes take so many percent longer.

The table has all trials that HEAD has so far, with whatever was planted.

exit codes: 0 judged, 2 usage error or a broken file, 3 no trial, 130 interrupted (finished trials
are kept)
"""

Run = tuple[ResultSet, float]
"""What was measured, and the seconds that it took."""


class Series:
    """Builds, runs and judges; keeps runs and trials in a folder."""

    def __init__(self, work: Path, bench: Sequence[str], console: Console) -> None:
        self.commit, changed = project.head(ROOT)
        if changed:
            raise ValueError("the working tree has changes: commit them, for commits are built")
        self.folder = work / self.commit[:12]
        self.folder.mkdir(parents=True, exist_ok=True)
        hardware = detect()
        machine = register_here()
        self.tree = self.folder / "repository"
        if not (self.tree / ".git").exists():
            git("clone", "--quiet", str(ROOT), str(self.tree))
        self.builds = Builds(self.tree, self.folder / "asv", machine)
        self.benchmarks = benchmarks_folder(ROOT / "asv.conf.json")
        self.thresholds = read_thresholds(ROOT / "asv.conf.json")
        self.noise = known_noise(ROOT / "baselines", hardware)
        self.bench = project.options(PREPARE.select(bench, "quick"))
        self.console = console

    def commit_with(self, planted: float | None) -> str:
        """Return a commit on top of HEAD: with a slowdown of so many percent, or None: nothing."""
        branch = "same" if planted is None else f"planted-{planted:g}"
        tree = ("-C", str(self.tree))
        if not git(*tree, "branch", "--list", branch):
            git(*tree, "checkout", "--quiet", "--force", "--detach", self.commit)
            if planted is not None:
                plant(self.tree, planted)
            who = ("-c", "user.name=trial", "-c", "user.email=trial@localhost")
            git(*tree, *who, "commit", "-qam", branch, "--allow-empty")
            git(*tree, "branch", branch)
            git(*tree, "checkout", "--quiet", "--detach", self.commit)
        return git(*tree, "rev-parse", branch)

    def run(self, commit: str, name: str) -> Run:
        """Run the profile once, or read the run of that name; also return its seconds."""
        kept, clock = self.folder / f"{name}.json", self.folder / f"{name}.seconds.json"
        if not kept.exists():
            self.builds.prepare(commit)
            begin = time.monotonic()
            found = self.builds.run(commit, *self.bench)
            write_json(clock, {"seconds": time.monotonic() - begin})
            save_baseline(kept, found)
            self.console.print(f"run {name}: {time.monotonic() - begin:.0f} s")
        return load_baseline(kept), read_json(clock)["seconds"]

    def trial(self, name: str, planted: float, one: Run, other: Run) -> dict[str, Any]:
        """Have each rule judge two runs, and measure suspects again; or read that trial."""
        kept = self.folder / f"{name}.trial.json"
        if kept.exists():
            return read_json(kept)
        before, after = one[0], other[0]
        found = compare(before, after, noise=self.noise, thresholds=self.thresholds)
        rows = {row.label: row for row in found.rows if row.before and row.after}
        labels = [label for label in rows if not planted or SLOWED.match(label)]
        called = {rule: judge(before, after, self.noise) for rule, judge in RULES.items()}
        again = suspects([rows[label] for label in labels])
        settled: dict[str, Row] = {}
        begin = time.monotonic()
        commits = before.commit, after.commit
        pythons = self.builds.prepare(commits[0]), self.builds.prepare(commits[1])
        measure = functools.partial(measure_pair, pythons, (self.benchmarks,) * 2)
        confirm(again, commits, measure, settled)
        rows |= settled
        called[CONFIRMED] = {x for x in labels if rows[x].verdict is Verdict.REGRESSION}
        trial = {
            "version": VERSION,
            "commit": self.commit,
            "planted": planted,
            "benchmarks": labels,
            "called": {rule: sorted(names & set(labels)) for rule, names in called.items()},
            "unsure": [x for x in labels if rows[x].verdict is Verdict.CANNOT_TELL],
            "suspects": len(again),
            "ratios": {label: rows[label].ratio for label in labels},
            "run_seconds": one[1] + other[1],
            "confirm_seconds": time.monotonic() - begin,
        }
        write_json(kept, trial)
        self.console.print(
            f"trial {name}: {len(labels)} benchmarks, {len(again)} suspects, "
            f"{len(called[CONFIRMED])} called, {trial['confirm_seconds']:.0f} s"
        )
        return trial

    def same(self, runs: int) -> list[dict[str, Any]]:
        """Compare runs of two commits that do not differ: each with all of the other, both ways."""
        commits = (self.commit, self.commit_with(None))
        done: list[Run] = []
        trials = []
        for number in range(runs):
            run = self.run(commits[number % 2], f"same-{number:02}")
            for earlier in range(1 - number % 2, number, 2):
                other = done[earlier]
                trials.append(self.trial(f"same-{earlier:02}-{number:02}", 0, other, run))
                trials.append(self.trial(f"same-{number:02}-{earlier:02}", 0, run, other))
            done.append(run)
        return trials

    def slower(self, planted: float, runs: int) -> list[dict[str, Any]]:
        """Compare a commit in which 0 percent are planted with one that is slower by so many."""
        plain, slowed = self.commit_with(0), self.commit_with(planted)
        trials = []
        for number in range(runs):
            name = f"planted-{planted:g}-{number:02}"
            before = self.run(plain, f"{name}-before")
            trials.append(self.trial(name, planted, before, self.run(slowed, f"{name}-after")))
        return trials


def plant(tree: Path, planted: float) -> None:
    """Have the ops and forward passes in a source tree take so many percent longer.

    Raises
    ------
    MeasurementError
        The thread pool there does not say how long it stays awake.
    """
    for name, ending in PLACES.items() if planted else ():
        with (tree / name).open("a", encoding="utf-8") as file:
            file.write(PLANT.format(factor=1 + planted / 100) + ending)
    pool = (tree / POOL).read_text(encoding="utf-8")
    if SPIN not in pool:
        raise MeasurementError(f"{tree / POOL}: wanted {SPIN!r} in it")
    (tree / POOL).write_text(pool.replace(SPIN, SPIN + "20 * "), encoding="utf-8")


def kept_trials(folders: Sequence[Path]) -> tuple[ResultSet, list[list[dict[str, Any]]]]:
    """Read what series kept: one of their runs, and the trials by what was planted.

    Raises
    ------
    MeasurementError
        There are none.
    ResultFileError
        A file is broken.
    """
    paths = sorted(path for folder in folders for path in folder.rglob("*.trial.json"))
    names = ("same-00.json", "*-before.json")
    runs = [run for path in paths[:1] for name in names for run in path.parent.glob(name)]
    if not runs:
        raise MeasurementError(f"{', '.join(map(str, folders))}: no finished trial")
    kinds: dict[float, list[dict[str, Any]]] = {}
    for path in paths:
        trial = read_versioned_json(path, VERSION)
        kinds.setdefault(trial["planted"], []).append(trial)
    return load_baseline(runs[0]), [kinds[planted] for planted in sorted(kinds)]


def summarize(trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up trials of one kind."""
    rules = trials[0]["called"]
    return {
        "planted_percent": trials[0]["planted"],
        "comparisons": len(trials),
        "verdicts": sum(len(one["benchmarks"]) for one in trials),
        "suspects": sum(one["suspects"] for one in trials),
        "unsure": sum(len(one["unsure"]) for one in trials),
        "run_seconds": median(one["run_seconds"] for one in trials),
        "confirm_seconds": median(one["confirm_seconds"] for one in trials),
        "rules": {
            rule: {
                "regressions": sum(len(one["called"][rule]) for one in trials),
                "comparisons_with_any": sum(bool(one["called"][rule]) for one in trials),
            }
            for rule in rules
        },
    }


def table(kinds: Sequence[Mapping[str, Any]]) -> Table:
    """Lay out, for each kind of trial and each rule, the share that is called a regression."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("slower by", "rule", "called", "comparisons with any", "to confirm"):
        shown.add_column(column, justify="left" if column == "rule" else "right")
    for kind in kinds:
        for rule, counts in kind["rules"].items():
            called, alarmed = counts["regressions"], counts["comparisons_with_any"]
            shown.add_row(
                f"{kind['planted_percent']:g} %",
                rule,
                f"{called} of {kind['verdicts']} ({100 * called / kind['verdicts']:.1f} %)",
                f"{alarmed} of {kind['comparisons']}",
                f"{kind['confirm_seconds']:.0f} s" if rule == CONFIRMED else "",
            )
    return shown


def git(*words: str) -> str:
    """Run git; return what it says."""
    done = run_git(None, *words)
    if done.returncode:
        raise MeasurementError(f"git {words[-1]}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        description="Measure how often the gate is right: nothing planted, or a slowdown.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "kept",
        nargs="*",
        type=Path,
        metavar="DIR",
        help="add up the trials kept there, and measure nothing",
    )
    parser.add_argument("--runs", type=int, metavar="N", help="(9; with --planted 1)")
    parser.add_argument(
        "--planted", action="append", type=float, metavar="PERCENT", help="may be repeated"
    )
    add_bench(parser, "those of the quick profile")
    parser.add_argument(
        "--work", type=Path, default=ROOT / ".asv" / "trials", metavar="DIR", help="(.asv/trials)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the sums there")
    args = parser.parse_args(argv)
    runs = args.runs or (1 if args.planted else 9)
    if runs < (1 if args.planted else 2):
        parser.error(f"--runs: got {runs}, wanted 2 or more, or 1 with --planted")
    if any(not 0 < percent < math.inf for percent in args.planted or ()):
        parser.error("--planted: wanted percent above 0")
    console = Console(width=120, highlight=False)

    def work() -> int:
        if not args.kept:
            chosen = [one.pattern for one in args.bench]
            series = Series(args.work, chosen, console)
            for percent in args.planted or ():
                series.slower(percent, runs)
            if not args.planted:
                series.same(runs)
        run, kinds = kept_trials(args.kept or [series.folder])
        found = [summarize(trials) for trials in kinds]
        console.print(table(found))
        if args.json:
            said = {"hardware_tag": hardware_tag(run.hardware), "cpu_name": run.hardware.cpu_name}
            write_json(
                args.json,
                {"version": VERSION, "commit": kinds[0][0]["commit"], **said, "trials": found},
            )
        return 0

    return exits.run(parser.prog, work, "finished trials are kept")


if __name__ == "__main__":
    sys.exit(main())
