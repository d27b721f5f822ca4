"""What scaling.html loads: decoded tokens per second over sequences and over the context."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rocmforge.bench.dashboard.machines import Machine, latest
from rocmforge.bench.dashboard.points import DEVICE, point
from rocmforge.bench.formatting import plain_params

RATE = "inference.Decode.track_decode_tokens_per_second"
BATCHES = (RATE, "inference.Decode.track_decode_ms_per_token")
DEPTHS = (
    "inference.Context.track_decode_ms_per_token",
    "inference.LargeContext.track_decode_ms_per_token",
)
COMMANDS = {
    "batches": "rocmforge bench run --bench inference.Decode",
    "depths": "rocmforge bench run --bench inference.Context",
}


def scaling_data(machines: Sequence[Machine]) -> dict[str, Any]:
    """Return the curves of each machine, each point of the newest commit that has it.

    Milliseconds per token become tokens per second: all sequences' together, as the benchmark of
    several sequences counts.

    Returns
    -------
    dict
        ``machines``: each with its ``tag``; ``batches`` and ``depths``: points with ``model``,
        ``device``, ``kv`` (dtype of the cache, None: not a parameter) and ``at``, the number of
        sequences or of tokens in the context.
    """
    found = [
        {
            "tag": machine.tag,
            "batches": [*_curve(machine, BATCHES, "batch")],
            "depths": [*_curve(machine, DEPTHS, "context")],
        }
        for machine in machines
    ]
    return {"commands": COMMANDS, "machines": found}


def _curve(machine: Machine, names: Sequence[str], along: str) -> Iterator[dict[str, Any]]:
    """One point for each set of parameters: of the newest commit, then of the first benchmark."""
    best: dict[tuple[Any, ...], tuple[int, int, dict[str, Any]]] = {}
    for result, run in latest(machine).values():
        params = plain_params(result)
        if result.name not in names or not result.value or not 0 < 1000 / result.value < math.inf:
            continue
        if not params.get(along, "").isdigit():
            continue
        named = {
            "model": params.get("model", ""),
            DEVICE: params.get(DEVICE, ""),
            "kv": params.get("kv"),
            "at": int(params[along]),
        }
        shown = point(result, run, _same if result.name == RATE else _per_second)
        rank = (run.commit_date or 0, -names.index(result.name))
        key = tuple(named.values())
        if key not in best or best[key][:2] < rank:
            best[key] = (*rank, {**named, **shown})
    for _, _, found in sorted(best.values(), key=lambda one: one[2]["at"]):
        yield found


def _same(value: float) -> float:
    return value


def _per_second(milliseconds: float) -> float:
    return 1000 / milliseconds
