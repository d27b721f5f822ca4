"""Repeated wall-clock measurements as lists of samples, for benchmarks.

Takes something to call, returns what each repetition took. Knows no unit but seconds, no op and no
model, and draws no conclusion: statistics belong to `rocmforge.regress`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

FEWEST = 4
MOST = 20
BUDGET_S = 1.0
SHORTEST_S = 2e-3


def collect(
    measure: Callable[[], float],
    *,
    fewest: int = FEWEST,
    most: int = MOST,
    budget: float = BUDGET_S,
    warmup: int = 1,
) -> list[float]:
    """Call `measure` again and again and return its values.

    Parameters
    ----------
    measure
        Does the work once and returns a figure of it, in any unit.
    fewest, most
        Samples to take: `fewest` in any case, then more while the budget lasts, up to `most`.
    budget
        Wall-clock seconds after which no further sample is begun.
    warmup
        Calls before the first sample, whose values are dropped.

    Raises
    ------
    ValueError
        A count is out of order, or `measure` returned something that is not finite.
    """
    if not 1 <= fewest <= most or warmup < 0:
        raise ValueError(
            f"samples: got fewest {fewest}, most {most}, warmup {warmup}, "
            "wanted 1 ≤ fewest ≤ most and warmup ≥ 0"
        )
    for _ in range(warmup):
        measure()
    samples: list[float] = []
    begin = time.perf_counter()
    while len(samples) < fewest or (len(samples) < most and time.perf_counter() - begin < budget):
        value = measure()
        if not math.isfinite(value):
            raise ValueError(f"sample {len(samples)}: got {value}, wanted a finite number")
        samples.append(value)
    return samples


def seconds_per_call(
    call: Callable[[], object],
    *,
    fewest: int = FEWEST,
    most: int = MOST,
    budget: float = BUDGET_S,
    shortest: float = SHORTEST_S,
) -> list[float]:
    """Time a function: seconds a call, one value a sample.

    A function faster than `shortest` is called several times a sample, so that the clock's own
    cost and resolution do not count. The calls that find out how many are the warm-up.

    Parameters
    ----------
    call
        The work.
    fewest, most, budget
        As in `collect`.
    shortest
        Least seconds of a sample.

    Raises
    ------
    ValueError
        As of `collect`.
    """
    number = 1
    while (took := _timed(call, number)) < shortest:
        number = max(2 * number, math.ceil(number * shortest / max(took, 1e-9)))
    return collect(
        lambda: _timed(call, number) / number, fewest=fewest, most=most, budget=budget, warmup=1
    )


def _timed(call: Callable[[], object], number: int) -> float:
    begin = time.perf_counter()
    for _ in range(number):
        call()
    return time.perf_counter() - begin
