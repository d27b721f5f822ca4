"""The environment of a run, one line a field: load, clocks, throttling, versions, marks.

A field that the benchmarks' processes did not report is n/a.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rocmforge.bench.formatting import NA, extremes, iso, measured
from rocmforge.bench.machine import LARGEST
from rocmforge.bench.results import ResultSet, Status
from rocmforge.bench.run_environment import marked_share
from rocmforge.bench.statistics import percentile


def environment_summary(results: ResultSet) -> dict[str, str]:
    """Sum up the environments of all results of a run, one line a field."""
    known = [result.environment for result in results.results if result.environment]
    cards = [card for one in known for card in _listed(one.get("gpus")) if isinstance(card, dict)]
    marked, timed = marked_share(results.results)
    states = [result.status for result in results.results]
    counts = ", ".join(f"{states.count(status)} {status.value}" for status in Status)
    processes = sum(int(number) for number in _numbers(known, "processes"))
    return {
        "commit, its date": measured(results.commit, iso(results.commit_date)),
        "environment": results.asv_environment,
        "benchmarks": counts,
        "marked": f"{marked} of {timed} timed ones",
        "processes": str(processes or NA),
        "other work, of CPU time": _shares(_numbers(known, "others_share")),
        "held back by a quota": _shares(_numbers(known, "quota_throttled_share")),
        "load average": extremes(_numbers(known, "load_average"), "", 1),
        "CPU clock": extremes(_spread(known, "cpu_mhz"), "MHz"),
        "governor": _words(one.get("governor") for one in known),
        "GPU clock": extremes(_spread(cards, "clock_mhz"), "MHz"),
        "GPU memory clock": extremes(_spread(cards, "memory_clock_mhz"), "MHz"),
        "GPU power": extremes(_spread(cards, "power_watts"), "W"),
        "GPU temperature": extremes(_spread(cards, "temperature_celsius"), "°C"),
        "GPU utilization": extremes([100 * v for v in _spread(cards, "utilization")], "%"),
        "GPU throttling": _throttling(cards),
        "versions": _versions(known),
    }


def marks(results: ResultSet) -> list[tuple[str, str]]:
    """Every marked benchmark with the reason."""
    return [(result.label, result.marked) for result in results.results if result.marked]


def _numbers(found: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    return _finite(one.get(key) for one in found)


def _spread(found: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    """All of the minima, means and maxima of a field."""
    return _finite(value for one in found for value in _listed(one.get(key)))


def _finite(values: Iterable[object]) -> list[float]:
    """Return the numbers among them: nobody has checked the environments in a baseline."""
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    return [float(v) for v in numbers if abs(v) < LARGEST]


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _shares(values: list[float]) -> str:
    if not values:
        return NA
    middle = percentile(sorted(values), 0.5)
    return f"median {100 * middle:.0f} %, worst {100 * max(values):.0f} %"


def _words(values: Iterable[object]) -> str:
    return ", ".join(sorted({str(value) for value in values if value})) or NA


def _throttling(cards: Iterable[Mapping[str, Any]]) -> str:
    """Every reason seen; "none" where the cards told and there was none."""
    told = [card["throttle"] for card in cards if isinstance(card.get("throttle"), list)]
    if not told:
        return NA
    return _words(reason for reasons in told for reason in reasons) if any(told) else "none"


def _versions(found: Iterable[Mapping[str, Any]]) -> str:
    versions = (one.get("versions") for one in found)
    pairs = (pair for one in versions if isinstance(one, Mapping) for pair in one.items())
    return ", ".join(sorted({f"{name} {value}" for name, value in pairs if value})) or NA
