"""What history.html loads of `bench confirm`: benchmarks of two commits, measured in turns.

They are the reports baselines/TAG/compare_commits*.json. A slowdown is confirmed where its interval
lies above 1, an improvement where it lies below.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rocmforge.bench.dashboard.machines import Machine, Report, read_report
from rocmforge.bench.dashboard.points import rounded
from rocmforge.bench.files import finite_number, typed_field
from rocmforge.errors import ResultFileError

REPORTS = "compare_commits*.json"


def confirmed_data(machines: Sequence[Machine], baselines: Path) -> list[dict[str, Any]]:
    """Return every benchmark that was measured in turns, the newest report first.

    Returns
    -------
    list of dict
        ``tag``; ``name`` and ``label``, without and with parameters; hashes ``before`` and
        ``after``; ``date``; ``slowdown`` with ``low`` and ``high``, None where the pairs are too
        few; ``pairs``, after over before of each pair of processes, in which more is worse.

    Raises
    ------
    ResultFileError
        A report lacks something.
    """
    found = [
        (machine.tag, read_report(path))
        for machine in machines
        for path in sorted((baselines / machine.tag).glob(REPORTS))
    ]
    found.sort(key=lambda one: one[1].date, reverse=True)
    return [row for tag, report in found for row in _rows(tag, report)]


def _rows(tag: str, report: Report) -> list[dict[str, Any]]:
    path, content = report.path, report.content
    before, after = (typed_field(path, content, key, str, "a hash") for key in ("before", "after"))
    rows = typed_field(path, content, "benchmarks", list, "a list")
    shown = []
    for row in rows:
        if not isinstance(row, dict):
            raise ResultFileError(path, "benchmarks", got=type(row).__name__, wanted="objects")
        label = typed_field(path, row, "benchmark", str, "a string")
        pairs = typed_field(path, row, "pairs", list, "a list of numbers")
        numbers = {key: _number(path, label, row.get(key)) for key in ("slowdown", "low", "high")}
        shown.append(
            {
                "tag": tag,
                "name": label.partition("(")[0],
                "label": label,
                "before": before,
                "after": after,
                "date": report.date[:10],
                **numbers,
                "pairs": [_number(path, label, pair) for pair in pairs],
            }
        )
    return shown


def _number(path: Path, label: str, value: object) -> float | None:
    if value is None:
        return None
    return rounded(finite_number(path, f"a slowdown of {label}", value))
