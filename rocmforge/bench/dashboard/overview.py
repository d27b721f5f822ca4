"""What the first page says of each machine: verdicts, and the figures of one model and prompt.

The model and the prompt are the same on every machine: those that most machines have measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocmforge.bench import formatting
from rocmforge.bench.baseline import STORE
from rocmforge.bench.comparison import Comparison
from rocmforge.bench.dashboard.machines import Machine, latest
from rocmforge.bench.dashboard.points import DEVICE, rounded, usable
from rocmforge.bench.dashboard.speeds import DECODE, PHASES, PREFILL, SHORT, TTFT, Speed
from rocmforge.bench.decision import Verdict
from rocmforge.bench.formatting import NA, iso, plain_params
from rocmforge.bench.results import Result, ResultSet

ROOFLINE = "roofline.Decode.track_inverse_roofline_fraction"
DECODING = ("one sequence", "batch 1", f"context of {SHORT}", "a token")
"""Settings that are the decoding of one sequence behind a short prompt."""
SOURCES = (
    "newest run",
    "an earlier run",
    "interleaved with llama.cpp",
    "gpu_speed.json",
    "baseline",
)
"""Which figure counts where several sources have one."""
MEASURE = "rocmforge bench run"
FEWEST_POINTS = 5
"""Commits of which a line says more than its two ends."""
COMPARED = (Verdict.REGRESSION, Verdict.CANNOT_TELL, Verdict.IMPROVED, Verdict.OK)
"""Verdicts of benchmarks that have a value on both sides."""
SHOWN = (
    Verdict.REGRESSION,
    Verdict.FAILED,
    Verdict.MISSING,
    Verdict.IMPROVED,
    Verdict.CANNOT_TELL,
    Verdict.NOT_COMPARABLE,
    Verdict.HARDWARE_MISMATCH,
)
"""Verdicts that a card counts, in this order."""


@dataclass(frozen=True, slots=True)
class Headline:
    """What the figures are of."""

    model: str
    format: str | None
    prompt: int

    @property
    def title(self) -> str:
        """As people read it."""
        return " ".join(filter(None, (self.model, self.format)))

    def figures(self, rows: Iterable[Speed]) -> dict[str, Speed]:
        """Return the machine's figure of each phase that has one, those of decode's device first.

        Rows of decode's device and source count before others, so that a card compares alike.
        """
        settings = {
            DECODE: DECODING,
            PREFILL: (f"prompt of {self.prompt}",),
            TTFT: (f"prompt of {self.prompt}",),
        }
        own = [
            row
            for row in rows
            if (row.model, row.format) == (self.model, self.format)
            and row.setting in settings[row.phase]
            and usable(row.value)
        ]
        found: dict[str, Speed] = {}
        for phase in (DECODE, PREFILL, TTFT):
            fitting = [row for row in own if row.phase == phase]
            if fitting:
                found[phase] = min(fitting, key=lambda row: _rank(row, found.get(DECODE)))
        return found


def _rank(row: Speed, decode: Speed | None) -> tuple[bool, bool, bool, int, float]:
    """Smallest for the row that counts most beside the figure of decode, if there is one."""
    near = (False, False, False)
    if decode is not None:
        near = (
            kind_of_device(row) != kind_of_device(decode),
            row.device != decode.device,
            row.source != decode.source,
        )
    source = SOURCES.index(row.source) if row.source in SOURCES else len(SOURCES)
    return *near, source, -(row.value or 0.0) if row.phase != TTFT else (row.value or 0.0)


def kind_of_device(row: Speed) -> str | None:
    """``cpu`` where a row names threads; else its device."""
    return "cpu" if row.device and "thread" in row.device else row.device


def choose_headline(machines: Sequence[Sequence[Speed]]) -> Headline | None:
    """Return the model and prompt that most machines have, then the one with most figures.

    None where no machine has a figure.

    Parameters
    ----------
    machines
        The speeds of each.
    """
    having: Counter[Headline] = Counter()
    counts: Counter[Headline] = Counter()
    for rows in machines:
        named = {
            Headline(row.model, row.format, int(row.setting.removeprefix("prompt of ")))
            for row in rows
            if row.phase == PREFILL
            and usable(row.value)
            and row.setting.removeprefix("prompt of ").isdigit()
        }
        for one in named:
            having[one] += 1
            counts[one] += len(one.figures(rows))
    if not counts:
        return None
    return max(counts, key=lambda one: (having[one], counts[one], one.title, one.prompt))


def verdicts(machine: Machine) -> list[dict[str, str]]:
    """Say in a sentence each what the newest run is beside the last run and the baseline."""
    if machine.newest is None:
        stored = machine.baseline
        since = f" since its baseline of {stored.commit[:8]}" if stored else ""
        said = f"Not measured{since}. On such a machine {MEASURE} does it."
        return [{"title": "Newest run", "outcome": NA, "said": said}]
    pairs = (
        ("Since the last run", machine.since_previous, machine.previous),
        ("Since the baseline", machine.since_baseline, machine.baseline),
    )
    told = [{"title": title, **_verdict(found, before)} for title, found, before in pairs]
    if machine.baseline is None:
        told[-1]["said"] = f"No baseline for this machine yet: `{STORE}` stores one."
    return told


def _verdict(comparison: Comparison | None, before: ResultSet | None) -> dict[str, str]:
    if comparison is None or before is None:
        return {"outcome": NA, "said": "There is nothing to compare with."}
    if comparison.mismatches:
        return {
            "outcome": Verdict.HARDWARE_MISMATCH.value,
            "said": f"It was other hardware: {'; '.join(map(str, comparison.mismatches))}.",
        }
    counts = Counter(row.verdict for row in comparison.rows)
    compared = sum(counts[one] for one in COMPARED)
    found = ", ".join(f"{counts[one]:,} {one.value}" for one in SHOWN if counts[one])
    found = found or ("no change" if compared else "nothing to compare")
    outcome = comparison.outcome.name.lower().replace("_", " ")
    unclear = compared and counts[Verdict.CANNOT_TELL] > compared / 2
    unclear = unclear or counts[Verdict.NOT_COMPARABLE] > compared
    if unclear and not counts[Verdict.REGRESSION]:
        outcome = Verdict.CANNOT_TELL.value  # a pass would read as: not slower
    benchmarks = "benchmark" if compared == 1 else "benchmarks"
    return {
        "outcome": outcome,
        "said": f"{compared:,} {benchmarks} beside {before.commit[:8]}: {found}.",
    }


def roofline_share(
    machine: Machine, headline: Headline, decode: Speed | None
) -> tuple[float, str] | None:
    """Return decode's share of the least time that its device could take, and of which commit.

    None where it was not measured on the device of the figure.
    """
    model = f"{headline.model}-{headline.format}"
    for result, run in latest(machine).values():
        params = plain_params(result)
        named = result.name == ROOFLINE and params.get("model") == model
        alike = decode is not None and params.get(DEVICE) == kind_of_device(decode)
        if named and alike and result.value and usable(share := 1 / result.value):
            return share, result.commit or run.commit
    return None


def beside_peer(
    rows: Iterable[Speed], headline: Headline, figures: Mapping[str, Speed]
) -> dict[str, Speed]:
    """Return what was measured beside llama.cpp on the devices of the figures, by phase."""
    found = {}
    for phase, shown in figures.items():
        own = [
            row
            for row in rows
            if row.ratio is not None
            and row.phase == phase
            and kind_of_device(row) == kind_of_device(shown)
        ]
        found.update(headline.figures(own))
    return found


def sparkline(runs: Sequence[ResultSet], headline: Headline | None) -> dict[str, Any] | None:
    """Return the whole models' benchmark with most commits, the headline's model first.

    Its points are of one environment and of the newest version of its code, none of them marked.

    Returns
    -------
    dict
        ``label``, ``unit``, ``better``, and ``points``: day, commit, value, oldest first.
    """
    found: dict[tuple[str, str], list[list[Any]]] = {}
    first: dict[tuple[str, str], Result] = {}
    newest: dict[str, str | None] = {}
    for run in runs:
        newest |= {one.name: one.version for one in run.results if one.value is not None}
    for run in runs:
        for result in run.results:
            if (
                result.name in PHASES
                and PHASES[result.name][0] != TTFT
                and result.value is not None
                and result.version == newest[result.name]
                and not result.marked
            ):
                day = (iso(run.commit_date) or "")[:10] or None
                key = result.label, run.asv_environment
                found.setdefault(key, []).append([day, run.commit[:8], rounded(result.value)])
                first[key] = result
    if max(map(len, found.values()), default=0) < 2:
        return None
    wanted = f"{headline.model}-{headline.format}" if headline else ""
    label = max(
        found,
        key=lambda one: (
            min(len(found[one]), FEWEST_POINTS),
            wanted == plain_params(first[one]).get("model"),
            PHASES[first[one].name][0] == DECODE,
            len(found[one]),
            first[one].unit == "tokens/s",
        ),
    )
    result = first[label]
    return {
        "label": ", ".join([PHASES[result.name][0], *_words(plain_params(result))]),
        "name": result.name,
        "unit": result.unit or "",
        "better": formatting.better(result.direction),
        "points": found[label],
    }


def _words(params: Mapping[str, str]) -> list[str]:
    """Write parameters for people: a number needs its name."""
    return [f"{name} {value}" if value.isdigit() else value for name, value in params.items()]


def figure(row: Speed) -> str:
    """Write a value with its unit: four digits, thousands apart."""
    if row.value is None or not usable(row.value):
        return NA
    if not 1e-3 <= row.value < 1e15:
        return f"{row.value:.4g} {row.unit}"
    digits = max(0, 3 - math.floor(math.log10(row.value)))
    return f"{row.value:,.{digits}f} {row.unit}"


def conditions(run: ResultSet | None, said: Mapping[str, str]) -> str:
    """Say in a line in what conditions a run was measured."""
    if run is None:
        return NA
    wanted = ("other work, of CPU time", "marked", "GPU clock", "GPU power", "GPU throttling")
    return "; ".join(f"{name} {said[name]}" for name in wanted if said.get(name, NA) != NA) or NA
