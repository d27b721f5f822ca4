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
from planting import SLOWED, plant
from rich.console import Console
from rich.table import Table

from rocmforge.bench import exits, project
from rocmforge.bench.arguments import add_bench
from rocmforge.bench.asv import Builds, benchmarks_folder, read_thresholds
from rocmforge.bench.baseline import load_baseline, save_baseline
from rocmforge.bench.compare import compare
from rocmforge.bench.comparison import Row
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

VERSION = 2
ROOT = Path(__file__).resolve().parent.parent
PREPARE = project.preparation(ROOT)
STORED = "stored"  # in names of trials and runs
CONFIRMED = "check_regressions.py --confirm"  # so called in reports that are kept
GPU = (
    r"matmul\.Quantized\.time_matmul\('Q4_K', 1, 'gpu'\)",
    r"attention\.Decode\.time_attention\(4096, 'gpu'\)",
    r"dequantize\.Dequantize\.time_dequantize\('Q4_K', 'gpu'\)",
    r"rows\.Prompt\.track_us\('rmsnorm', 'gpu'\)",
    r"inference\.Prompt\.track_prefill_ms_per_token\('1.1B-Q4_K_M', 512, 'gpu'\)",
    r"inference\.Decode\.track_decode_ms_per_token\('1.1B-Q4_K_M', 1, 'gpu'\)",
)
"""What --gpu measures: one benchmark of each kind of work."""
EPILOG = """\
Without --planted: N runs, of HEAD and of a commit with the same files in turns; each is compared
with every run of the other commit, in both directions: 40 comparisons of 9 runs. With it: N
comparisons of HEAD with a commit whose ops and forward passes take so many percent longer.

With --stored the earlier side is one run of HEAD, stored as a baseline before all others: the later
commit, with or without a slowdown, is run N times, and judged by it as `rocmforge bench gate` does.

On a GPU a kernel of one thread follows each launch, in both commits. In the slower one it keeps the
device busy for the planted share of the time since the last one.

The table has all trials that HEAD has so far, with whatever was planted.

examples:
  studies/gate_trials.py --planted 25 --runs 3 --gpu
  studies/gate_trials.py --stored --runs 20 --bench "dequantize.*time.*'Q4_K', 'cpu'"

exit codes: 0 judged, 2 usage error or a broken file, 3 no trial, 130 interrupted (finished trials
are kept)
"""

Run = tuple[ResultSet, float]
"""What was measured, and the seconds that it took."""


class Series:
    """Builds, runs and judges; keeps runs and trials in a folder."""

    def __init__(self, work: Path, bench: Sequence[re.Pattern[str]], console: Console) -> None:
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
        self.benchmarks = benchmarks_folder(self.tree / "asv.conf.json")
        self.thresholds = read_thresholds(ROOT / "asv.conf.json")
        self.noise = known_noise(ROOT / "baselines", hardware)
        selection, chosen = project.choose(ROOT, bench, "quick")
        PREPARE.prepare_models(list(chosen), console)
        self.bench = project.options(selection)
        self.console = console

    def commit_with(self, planted: float | None, branch: str = "") -> str:
        """Return a commit on top of HEAD: with so many percent planted, or None: nothing at all."""
        branch = branch or ("same" if planted is None else f"planted-{planted:g}")
        tree = ("-C", str(self.tree))
        if not git(*tree, "branch", "--list", branch):
            git(*tree, "checkout", "--quiet", "--force", "--detach", self.commit)
            if planted is not None:
                plant(self.tree, planted)
            git(*tree, "add", "--all")
            who = ("-c", "user.name=trial", "-c", "user.email=trial@localhost")
            git(*tree, *who, "commit", "-qm", branch, "--allow-empty")
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
            "stored": name.startswith(STORED),
            "benchmarks": labels,
            "called": {rule: sorted(names & set(labels)) for rule, names in called.items()},
            "unsure": {x: rows[x].note for x in labels if rows[x].verdict is Verdict.CANNOT_TELL},
            "improved": [x for x in labels if rows[x].verdict is Verdict.IMPROVED],
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

    def stored(self, planted: float, runs: int) -> list[dict[str, Any]]:
        """Compare runs with one that was stored before: of a slower commit, or of an equal one."""
        before = self.run(self.commit_with(0), f"{STORED}-before")
        later = self.commit_with(planted, "" if planted else "equal")
        trials = []
        for number in range(runs):
            name = f"{STORED}-{planted:g}-{number:02}"
            trials.append(self.trial(name, planted, before, self.run(later, f"{name}-after")))
        return trials


def kept_trials(folders: Sequence[Path]) -> tuple[ResultSet, list[list[dict[str, Any]]]]:
    """Read what series kept: one of their runs, and the trials by their kind and what was planted.

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
    kinds: dict[tuple[bool, float], list[dict[str, Any]]] = {}
    for path in paths:
        trial = read_versioned_json(path, VERSION)
        kinds.setdefault((trial["stored"], trial["planted"]), []).append(trial)
    return load_baseline(runs[0]), [kinds[kind] for kind in sorted(kinds)]


def summarize(trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up trials of one kind."""
    rules = trials[0]["called"]
    return {
        "planted_percent": trials[0]["planted"],
        "stored_baseline": trials[0]["stored"],
        "comparisons": len(trials),
        "verdicts": sum(len(one["benchmarks"]) for one in trials),
        "suspects": sum(one["suspects"] for one in trials),
        "unsure": sum(len(one["unsure"]) for one in trials),
        "improved": sum(len(one["improved"]) for one in trials),
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
    for column in ("slower by", "rule", "called slower", "comparisons with any", "to confirm"):
        shown.add_column(column, justify="left" if column == "rule" else "right")
    for kind in kinds:
        for rule, counts in kind["rules"].items():
            called, alarmed = counts["regressions"], counts["comparisons_with_any"]
            by = ", stored" if kind["stored_baseline"] else ""
            shown.add_row(
                f"{kind['planted_percent']:g} %{by}",
                rule,
                f"{called} of {kind['verdicts']} ({100 * called / kind['verdicts']:.1f} %)",
                f"{alarmed} of {kind['comparisons']}",
                f"{kind['confirm_seconds']:.0f} s" if rule == CONFIRMED else "",
            )
        unsure, improved = kind["unsure"], kind["improved"]
        shown.add_row("", f"  cannot tell: {unsure}, improved: {improved}", "", "", "")
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
    parser.add_argument("--runs", type=int, metavar="N", help="(9; with --planted or --stored 1)")
    parser.add_argument(
        "--planted", action="append", type=float, metavar="PERCENT", help="may be repeated"
    )
    parser.add_argument(
        "--stored", action="store_true", help="compare with one run that was stored before"
    )
    add_bench(parser, "those of the quick profile")
    parser.add_argument(
        "--gpu", action="store_true", help=f"also those for trials of a GPU: {len(GPU)} benchmarks"
    )
    parser.add_argument(
        "--work", type=Path, default=ROOT / ".asv" / "trials", metavar="DIR", help="(.asv/trials)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the sums there")
    args = parser.parse_args(argv)
    single = bool(args.planted or args.stored)
    runs = args.runs or (1 if single else 9)
    if runs < (1 if single else 2):
        parser.error(f"--runs: got {runs}, wanted 2 or more, or 1 with --planted or --stored")
    if any(not 0 < percent < math.inf for percent in args.planted or ()):
        parser.error("--planted: wanted percent above 0")
    console = Console(width=120, highlight=False)

    def work() -> int:
        if not args.kept:
            chosen = [*args.bench, *map(re.compile, GPU if args.gpu else ())]
            series = Series(args.work, chosen, console)
            for percent in args.planted or ([0.0] if args.stored else ()):
                (series.stored if args.stored else series.slower)(percent, runs)
            if not single:
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
