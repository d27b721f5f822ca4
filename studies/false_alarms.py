"""How often the gate is wrong where nothing changed: pairs of runs of one commit, by several rules.

Reads the runs that `rocmforge bench noise` kept, calls `rocmforge.bench`, prints a table. A pair
counts in both directions. The noise that our rule knows is that of the other runs alone.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rocmforge.bench import exits
from rocmforge.bench.baseline import load_baseline
from rocmforge.bench.compare import compare
from rocmforge.bench.comparison import THRESHOLD
from rocmforge.bench.decision import Verdict, slowdown
from rocmforge.bench.defaults import FEWEST_RUNS
from rocmforge.bench.files import write_json
from rocmforge.bench.noise import Noise, learn
from rocmforge.bench.results import Result, ResultSet
from rocmforge.errors import MeasurementError
from rocmforge.hardware import hardware_tag

FEWEST = FEWEST_RUNS + 2  # so that two others are left to learn noise from
EPILOG = """\
exit codes: 0 judged, 2 usage error or a broken file, 3 fewer than four runs
"""
Rule = Callable[[ResultSet, ResultSet, dict[str, Noise]], set[str]]
"""Names what it calls a regression."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        description="Judge every pair of runs of one commit; count what is called a regression.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("folder", type=Path, help="where `rocmforge bench noise` keeps its runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write it there")
    args = parser.parse_args(argv)

    def work() -> int:
        report = judge([load_baseline(path) for path in sorted(args.folder.glob("*.json"))])
        Console(width=120, highlight=False).print(table(report))
        if args.json:
            write_json(args.json, report)
            print(f"written {os.path.relpath(args.json)}")
        return 0

    return exits.run(parser.prog, work)


def judge(runs: Sequence[ResultSet]) -> dict[str, Any]:
    """Count, for each rule, the verdicts "regression" and the comparisons with any.

    Raises
    ------
    MeasurementError
        Fewer than four runs, or nothing in them.
    ValueError
        Runs of different commits or hardware.
    """
    if len(runs) < FEWEST:
        raise MeasurementError(f"got {len(runs)} runs, wanted at least {FEWEST}")
    learn(runs)  # they belong together
    called = dict.fromkeys(RULES, 0)
    alarmed = dict.fromkeys(RULES, 0)
    verdicts = comparisons = 0
    for one, other in itertools.permutations(range(len(runs)), 2):
        noise = learn([run for k, run in enumerate(runs) if k not in (one, other)])
        comparisons += 1
        verdicts += len({r.label for run in (runs[one], runs[other]) for r in run.results})
        for name, rule in RULES.items():
            found = rule(runs[one], runs[other], noise)
            called[name] += len(found)
            alarmed[name] += bool(found)
    if not verdicts:
        raise MeasurementError("these runs have no benchmark")
    return {
        "hardware_tag": hardware_tag(runs[0].hardware),
        "commit": runs[0].commit,
        "runs": len(runs),
        "comparisons": comparisons,
        "verdicts": verdicts,
        "rules": {
            name: {"regressions": called[name], "comparisons_with_any": alarmed[name]}
            for name in RULES
        },
    }


def table(report: dict[str, Any]) -> Table:
    """Lay out the counts as shares."""
    verdicts, comparisons = report["verdicts"], report["comparisons"]
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("rule")
    shown.add_column(f"called a regression, of {verdicts}", justify="right")
    shown.add_column(f"comparisons with any, of {comparisons}", justify="right")
    for name, row in report["rules"].items():
        called, alarmed = row["regressions"], row["comparisons_with_any"]
        shown.add_row(
            name,
            f"{called} ({100 * called / verdicts:.2f} %)",
            f"{alarmed} ({100 * alarmed / comparisons:.1f} %)",
        )
    return shown


def _plain(before: ResultSet, after: ResultSet, noise: dict[str, Noise]) -> set[str]:
    """Medians alone."""
    return {new.label for old, new in _pairs(before, after) if _slower(old, new)}


def _asv(before: ResultSet, after: ResultSet, noise: dict[str, Noise]) -> set[str]:
    """What `asv compare --factor 1.1` marks with +, where it reads the direction right."""
    from asv._stats import is_different

    found = set()
    for old, new in _pairs(before, after):
        few = min(len(old.samples), len(new.samples)) < 2
        stats = [_asv_stats(result) for result in (old, new)]
        if _slower(old, new) and (few or is_different(old.samples, new.samples, *stats)):
            found.add(new.label)
    return found


def _ours_without_noise(before: ResultSet, after: ResultSet, noise: dict[str, Noise]) -> set[str]:
    return _ours(before, after, {})


def _ours(before: ResultSet, after: ResultSet, noise: dict[str, Noise]) -> set[str]:
    rows = compare(before, after, noise=noise).with_verdict(Verdict.REGRESSION)
    return {row.label for row in rows}


RULES: dict[str, Rule] = {
    "medians differ by 10 %": _plain,
    "asv compare": _asv,
    "rank test, no noise known": _ours_without_noise,
    "check_regressions.py": _ours,
}


def _pairs(before: ResultSet, after: ResultSet) -> list[tuple[Result, Result]]:
    old = {result.label: result for result in before.results}
    return [(old[result.label], result) for result in after.results if result.label in old]


def _slower(old: Result, new: Result) -> bool:
    if old.value is None or new.value is None or new.direction is None:
        return False
    return slowdown(old.value, new.value, new.direction) > 1 + THRESHOLD


def _asv_stats(result: Result) -> dict[str, Any]:
    summary = result.summary
    low, high = (summary.ci_low, summary.ci_high) if summary else (None, None)
    return {"ci_99_a": low, "ci_99_b": high, "repeat": len(result.samples)}


if __name__ == "__main__":
    sys.exit(main())
