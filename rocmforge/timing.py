"""Repeated wall-clock measurements as lists of samples, for benchmarks.

Takes something to call, warms it up until it is steady, returns the seconds of each repetition.
`rocmforge.bench` has the statistics.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

FEWEST = 4
MOST = 20
BUDGET_S = 1.0
SHORTEST_S = 2e-3
WARMUP_BUDGET_S = 0.3
WARMUP_MOST = 16  # warm-up calls, however much of the budget is left
STEADY = 3  # calls that must lie close together
STEADY_WITHIN = 0.10  # largest over smallest of them, less 1


def collect(
    measure: Callable[[], float],
    *,
    fewest: int = FEWEST,
    most: int = MOST,
    budget: float = BUDGET_S,
    warmup: int = 1,
    warmup_budget: float = WARMUP_BUDGET_S,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Call `measure` again and again and return its values.

    First come warm-up calls, whose values are dropped: `warmup` of them, then more until the last
    three lie within 10 % of each other, `warmup_budget` is spent, or there were 16.

    Parameters
    ----------
    measure
        Does the work once and returns a figure of it, in any unit.
    fewest, most
        Samples to take: `fewest` in any case, then more while the budget lasts, up to `most`.
    budget
        Seconds after which no further sample is begun.
    warmup
        Fewest calls before the first sample.
    warmup_budget
        Seconds after which no further warm-up call is begun; 0: there are `warmup` of them.
    clock
        Seconds since any moment, for both budgets.

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
    warm: list[float] = []
    begin = clock()
    while len(warm) < warmup or (
        not _steady(warm) and len(warm) < WARMUP_MOST and clock() - begin < warmup_budget
    ):
        warm.append(measure())
    samples: list[float] = []
    begin = clock()
    while len(samples) < fewest or (len(samples) < most and clock() - begin < budget):
        value = measure()
        if not math.isfinite(value):
            raise ValueError(f"sample {len(samples)}: got {value}, wanted a finite number")
        samples.append(value)
    return samples


def _steady(values: list[float]) -> bool:
    last = values[-STEADY:]
    return len(last) == STEADY and max(last) <= (1 + STEADY_WITHIN) * min(last)


def seconds_per_call(
    call: Callable[[], object],
    *,
    fewest: int = FEWEST,
    most: int = MOST,
    budget: float = BUDGET_S,
    shortest: float = SHORTEST_S,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Time a function: seconds a call, one value a sample.

    A function faster than `shortest` is called several times a sample, so that the clock's own
    cost and resolution do not count; where `clock` leaves out part of what a call takes, as that of
    a device does with copies, wall time is what must not be shorter. The calls that find out how
    many come before the warm-up of `collect`.

    Parameters
    ----------
    call
        The work.
    fewest, most, budget
        As in `collect`.
    shortest
        Least seconds of a sample, by `clock` or by the wall.
    clock
        Seconds since any moment, of whatever is to be timed; it must advance with the work.

    Raises
    ------
    ValueError
        As of `collect`.
    """
    number = 1
    while (took := _longer(call, number, clock)) < shortest:
        number = max(2 * number, math.ceil(number * shortest / max(took, 1e-9)))
    return collect(
        lambda: _timed(call, number, clock) / number,
        fewest=fewest,
        most=most,
        budget=budget,
    )


def _longer(call: Callable[[], object], number: int, clock: Callable[[], float]) -> float:
    begin = time.perf_counter()
    return max(_timed(call, number, clock), time.perf_counter() - begin)


def _timed(call: Callable[[], object], number: int, clock: Callable[[], float]) -> float:
    begin = clock()
    for _ in range(number):
        call()
    return clock() - begin
