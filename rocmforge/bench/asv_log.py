"""Reads from what asv 0.6.6 printed why a benchmark failed or is n/a: its result files do not say.

Below the line with a benchmark's name stands what its processes printed, each behind the parameters
that it ran with.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rocmforge.bench.results import Result, Status
from rocmforge.errors import one_line

_NAME = re.compile(r"\[ *[\d.]+%\] ··· (?P<name>[\w.]+) ")
_SAID = re.compile(r"\[ *[\d.]+%\] ···· ?(?P<line>.*)")
_PARAMETERS = re.compile(r"\s*For parameters: (?P<params>.*)")
_SKIPPED = re.compile(r"asv: skipped: \w+\((?P<argument>.*)\)")
_RAISED = re.compile(r"asv: benchmark failed \(exit status 1\)")  # the exception stands above
_NO_REASON = {Status.FAILED: "it gave no value", Status.SKIPPED: "it gave no number"}
_NAMED = 3


def reasons(log: Path, results: Iterable[Result]) -> dict[str, str]:
    """Return why each result without a value has none, by its label.

    Parameters
    ----------
    log
        All that asv printed, with ``--show-stderr``.
    results
        Of that run.
    """
    results = list(results)
    names = [result.name for result in results]
    said = _last_lines(log.read_text(encoding="utf-8", errors="replace").splitlines(), names)
    return {
        result.label: one_line(_plain(said.get(result.label, _NO_REASON[result.status])))
        for result in results
        if result.status is not Status.OK
    }


def _last_lines(lines: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    """Return the last line that the processes of each benchmark printed, by its label."""
    found: dict[str, str] = {}
    name = label = None
    for line in lines:
        if named := _NAME.match(line):
            name, label = _whole(named["name"], names), None
            continue
        if name is None or line.startswith("·"):
            name = label = None
            continue
        first = _SAID.match(line)
        text = first["line"] if first else line
        label = name if first else label
        if params := _PARAMETERS.match(text):
            label = f"{name}({params['params']})"
        elif label is not None and text.strip() and not (label in found and _RAISED.search(text)):
            found[label] = text.strip()
    return found


def _whole(shown: str, names: Iterable[str]) -> str:
    """Return the name that asv shows without its beginning: it cuts long ones to the terminal."""
    if not shown.startswith("..."):
        return shown
    return next((name for name in names if name.endswith(shown[3:])), shown)


def _plain(said: str) -> str:
    """Return the message of an exception for which asv skips a benchmark, other text as it is."""
    skipped = _SKIPPED.fullmatch(said)
    if skipped is None:
        return said
    if not skipped["argument"]:
        return "it gave no reason"
    try:
        return str(ast.literal_eval(skipped["argument"]))
    except (ValueError, SyntaxError):
        return skipped["argument"]


def absent_lines(results: Sequence[Result], why: Mapping[str, str]) -> list[str]:
    """Say for all n/a benchmarks why: a line for each reason, with the first of their labels."""
    labels: dict[str, list[str]] = defaultdict(list)
    for result in results:
        if result.status is Status.SKIPPED:
            labels[why.get(result.label, _NO_REASON[Status.SKIPPED])].append(result.label)
    return [f"{reason}: {_listed(names)}" for reason, names in labels.items()]


def failed_lines(results: Sequence[Result], why: Mapping[str, str]) -> list[str]:
    """Say of each failed benchmark why."""
    return [
        f"{result.label}: {why.get(result.label, _NO_REASON[Status.FAILED])}"
        for result in results
        if result.status is Status.FAILED
    ]


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
