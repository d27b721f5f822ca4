"""What roofline.html loads: shares of the roofline, and the rates that were reached.

A roofline benchmark's value is its time over the least time that the device could take; the share
is the inverse, 1 is the roofline.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from rocmforge.bench.dashboard.machines import Machine, latest
from rocmforge.bench.dashboard.points import DEVICE, point, rounded
from rocmforge.bench.formatting import plain_params
from rocmforge.bench.results import Result

UNIT = "times ideal"
RATES = ("GB/s", "GFLOP/s")
COMMAND = "rocmforge bench run --bench roofline"
_SUITE = "roofline."
_READS = "read_gb_per_second"


def roofline_data(machines: Sequence[Machine]) -> dict[str, Any]:
    """Return shares and rates of each machine, each benchmark of the newest commit that has it.

    Returns
    -------
    dict
        ``machines``: each with its ``tag``; ``shares``, points with ``device``, ``work`` and
        ``what``; ``rates``, the same with ``unit``; ``reads``, GB/s that the CPU read from memory
        in the processes that measured, None where it was not recorded.
    """
    return {"command": COMMAND, "machines": [_of(machine) for machine in machines]}


def _of(machine: Machine) -> dict[str, Any]:
    shares, rates = [], []
    found = latest(machine).values()
    for result, run in found:
        if not result.value or not 0 < 1 / result.value < math.inf:
            continue
        named = {DEVICE: plain_params(result).get(DEVICE, ""), "what": what(result)}
        if result.unit == UNIT and result.name.startswith(_SUITE):
            shares.append({**named, "work": work(result), **point(result, run, lambda x: 1 / x)})
        elif result.unit in RATES:
            rates.append({**named, "work": work(result), "unit": result.unit, **point(result, run)})
    rates.sort(key=lambda one: RATES.index(one["unit"]))
    reads = _reads(result for result, _ in found)
    return {"tag": machine.tag, "shares": shares, "rates": rates, "reads": reads}


def _reads(results: Iterable[Result]) -> float | None:
    """Median of the CPU's reads from memory, over the benchmarks; GB/s."""
    known = [one.reference[_READS] for one in results if one.reference and _READS in one.reference]
    return rounded(median(known)) if known else None


def work(result: Result) -> str:
    """Name the kind of work: ``matmul, 1 token``, or of a rate ``rows.Prompt, 512 tokens``."""
    kind, _, metric = result.name.rpartition(".")
    if result.name.startswith(_SUITE):
        kind = kind.removeprefix(_SUITE).lower()
    side = re.fullmatch("track_(input|output)_.*", metric)
    tokens = plain_params(result).get("tokens")
    more = [side[1]] if side else []
    more += [f"{tokens} token{'s' * (tokens != '1')}"] if tokens else []
    return ", ".join([kind, *more])


def what(result: Result) -> str:
    """Name what was worked on: a format, a model, a context, a step of a pass."""
    params = plain_params(result)
    shown = [value for key, value in params.items() if key not in (DEVICE, "tokens")]
    words = ", ".join(shown) or result.name
    return f"context {words}" if "context" in params else words
