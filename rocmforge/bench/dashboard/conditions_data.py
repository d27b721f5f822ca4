"""What conditions.html loads: in what conditions each run was measured, joules per token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from rocmforge.bench.dashboard.machines import Machine
from rocmforge.bench.dashboard.points import point, rounded
from rocmforge.bench.dashboard.run_environments import environment_summary, marks
from rocmforge.bench.formatting import NA, iso, plain_params
from rocmforge.bench.machine import LARGEST
from rocmforge.bench.results import Result, ResultSet
from rocmforge.bench.run_environment import marked_share

ENERGY = "inference.Energy.track_joules_per_token"
COMMAND = "rocmforge bench run --bench inference.Energy"
GPU_FIELDS = {
    "gpu_clock": ("clock_mhz", "MHz"),
    "gpu_memory_clock": ("memory_clock_mhz", "MHz"),
    "gpu_power": ("power_watts", "W"),
    "gpu_temperature": ("temperature_celsius", "°C"),
}
FIELDS = {
    "load": ("others_share", "%"),
    "load_average": ("load_average", ""),
    "cpu_clock": ("cpu_mhz", "MHz"),
}


def conditions_data(
    machines: Sequence[Machine], runs: Mapping[str, Sequence[ResultSet]]
) -> dict[str, Any]:
    """Return the conditions of every run.

    Parameters
    ----------
    machines
        All there is to show.
    runs
        The runs of each machine by its tag, oldest commit first, with their environments.

    Returns
    -------
    dict
        ``units`` of each field; ``machines``: each with its ``tag``; ``runs``: ``commit``,
        ``date``, ``measured`` (the day), ``marked`` and ``timed`` (numbers of benchmarks),
        ``throttling`` (reasons; None: not recorded) and, by field, least, median and most over all
        processes; ``energy``: points with ``model``, in joules per token; ``said``: every field
        that was recorded, in words, of the newest run, the one before and the baseline, by
        ``sides``; ``marks``: benchmark and reason, of the newest run.
    """
    units = {name: unit for name, (_, unit) in {**FIELDS, **GPU_FIELDS}.items()}
    found = [
        {
            "tag": machine.tag,
            "runs": [_conditions(run) for run in runs[machine.tag]],
            "energy": _energy([*_stored(machine), *runs[machine.tag]]),
            **_in_words(machine),
        }
        for machine in machines
    ]
    return {"command": COMMAND, "units": units, "machines": found}


def _in_words(machine: Machine) -> dict[str, Any]:
    """What is known of the runs that are compared, and why benchmarks of the newest are marked."""
    runs = {"newest run": machine.newest, "one before": machine.previous}
    runs["baseline"] = machine.baseline
    said = {side: environment_summary(run) for side, run in runs.items() if run}
    fields = {
        field: [column[field] for column in said.values()]
        for field in next(iter(said.values()), ())
    }
    known = [[field, *row] for field, row in fields.items() if {*row} != {NA}]
    return {
        "sides": [*said],
        "said": known,
        "marks": marks(machine.newest) if machine.newest else [],
    }


def _stored(machine: Machine) -> list[ResultSet]:
    return [machine.baseline] if machine.baseline else []


def _conditions(run: ResultSet) -> dict[str, Any]:
    known = [result.environment for result in run.results if result.environment]
    cards = [card for one in known for card in _list(one.get("gpus")) if isinstance(card, dict)]
    marked, timed = marked_share(run.results)
    spreads = {name: _spread(known, key) for name, (key, _) in FIELDS.items()}
    spreads["load"] = spreads["load"] and [round(100 * share, 3) for share in spreads["load"]]
    spreads |= {name: _spread(cards, key) for name, (key, _) in GPU_FIELDS.items()}
    told = [card["throttle"] for card in cards if isinstance(card.get("throttle"), list)]
    return {
        "commit": run.commit[:8],
        "date": (iso(run.commit_date) or "")[:10] or None,
        "measured": _day(run.results),
        "marked": marked,
        "timed": timed,
        "throttling": sorted({str(one) for reasons in told for one in reasons}) if told else None,
        **{name: one and [rounded(value) for value in one] for name, one in spreads.items()},
    }


def _day(results: Iterable[Result]) -> str | None:
    started = [result.started_at for result in results if result.started_at is not None]
    return (iso(max(started)) or "")[:10] if started else None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _spread(found: Iterable[Mapping[str, Any]], key: str) -> list[float] | None:
    """Least, median and most of a field; each process has one number, or least, mean and most."""
    low, middle, high = [], [], []
    for one in found:
        value = one.get(key)
        numbers = _numbers(value if isinstance(value, list) else [value])
        if numbers:
            low.append(min(numbers))
            middle.append(numbers[len(numbers) // 2])
            high.append(max(numbers))
    return [min(low), median(middle), max(high)] if low else None


def _numbers(values: Iterable[object]) -> list[float]:
    """Return the numbers among them: nobody has checked the environments in a baseline."""
    known = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    return [float(v) for v in known if abs(v) < LARGEST]


def _energy(runs: Iterable[ResultSet]) -> list[dict[str, Any]]:
    """One point for each commit and model, oldest first, of the last of the runs that has it."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for run in sorted(runs, key=lambda run: run.commit_date or 0):
        for result in run.results:
            if result.name == ENERGY and result.value is not None:
                model = plain_params(result).get("model", "")
                found[(result.commit or run.commit)[:8], model] = {
                    "model": model,
                    **point(result, run),
                }
    return [*found.values()]
