"""Decode steps of a model under different tables of constants: which table makes them faster.

A kernel that is the fastest by itself may leave less room for the next one to start early. So what
counts is the device time of whole steps, replayed in turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rocmforge.errors import DeviceError, OutOfMemoryError
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.executor import GpuExecutor
from rocmforge.gpu.fusion import Fusion
from rocmforge.gpu.release import release_all
from rocmforge.gpu.replay import Replay
from rocmforge.gpu.runtime import DeviceProperties
from rocmforge.gpu.tuning import Constants, Tuning
from rocmforge.ops.cases import relative_rms
from rocmforge.speed.tune_cases import Case

DEPTH = 60  # tokens before the step; with it they end within a page
WORTH = 0.995  # of the time of what there was: anything else has to be at least so fast
HOPELESS = 1.02  # of that time in the first round: there is no second one
ROUNDS = 5  # whose median counts
LAST_ROUNDS = 9  # the same of what is about to be kept
DIFFERENT = 3e-2
"""Relative RMS of a sequence's logits, at most. Sums in another order turn some 8-bit codes of
activations into their neighbours: 0.011 with 7B Q4_K_M. What a kernel does not write is NaN."""


@dataclass(frozen=True)
class Found:
    """What was found for one kernel, or one fusion.

    Parameters
    ----------
    key
        Of the table, or the name of the rule.
    shown
        The kernel or the fusion, for people.
    steps
        What was timed, as "7B Q4_K_M, 4 sequences".
    own, best
        Constants of the op, and the fastest.
    own_seconds, best_seconds
        Median device time of a step with each.
    tried, refused
        How many others were tried, and how many of them did not compile or gave other results.
    """

    key: str
    shown: str
    steps: str
    own: Constants
    best: Constants
    own_seconds: float
    best_seconds: float
    tried: int
    refused: int

    @property
    def changed(self) -> bool:
        """Whether the fastest is another than the op's own."""
        return self.best != self.own


@dataclass(frozen=True)
class _Asked(Tuning):
    """A table that notes what it is asked for."""

    keys: dict[tuple[object, ...], None] = field(default_factory=dict)

    def get(self, *key: object) -> Any:
        """As of `Tuning`."""
        self.keys[key] = None
        return super().get(*key)


@dataclass(frozen=True)
class _Trial:
    """A step under one table, to be replayed."""

    replay: Replay
    logits: Any  # (S, V) float32

    def seconds(self) -> float:
        return self.replay.seconds()


class Steps:
    """The step in which some sequences of a model grow by a token.

    Parameters
    ----------
    executor, kernels
        The model on a GPU. The tuning of the kernels is changed.
    vocab_size
        Of the model.
    count
        How many sequences; the executor's cache has room for `DEPTH` + 1 tokens of each.
    shown
        The step, for people.
    """

    def __init__(
        self,
        executor: GpuExecutor,
        kernels: Kernels,
        vocab_size: int,
        count: int,
        shown: str,
    ) -> None:
        self.shown = shown
        self._executor = executor
        self._kernels = kernels
        self._tuning = kernels.tuning  # outside trials
        self._ids: list[int] = []
        random = np.random.default_rng(count)
        ids = random.integers(0, vocab_size, (count, DEPTH + 1))
        try:
            for own in ids[:, :DEPTH]:
                self._ids.append(executor.cache.table.add_sequence(DEPTH + 1))
                last = np.array([DEPTH - 1], np.int32)
                executor.forward(own, self._ids[-1:], [DEPTH], last)
                executor.cache.table.mark(self._ids[-1])
        except BaseException:  # Ctrl-C too
            self.close()
            raise
        self._tokens = ids[:, DEPTH]

    @property
    def properties(self) -> DeviceProperties:
        """Of the device."""
        return self._kernels.runtime.properties

    def close(self) -> None:
        """End the sequences."""
        while self._ids:
            self._executor.cache.table.remove(self._ids.pop())

    def asked(self, table: Tuning) -> list[tuple[object, ...]]:
        """Return the keys that the step's kernels look up."""
        asked = _Asked(table.constants, table.without, table.date)
        self._builds(asked)
        return list(asked.keys)

    def best_constants(self, table: Tuning, case: Case) -> tuple[Tuning, Found]:
        """Return the table with the fastest constants of a case, and what was found."""
        table = table.changed(case.key, None)
        constants = case.own
        tried = refused = 0
        for moves in case.rounds:
            others = [one for one in moves(constants) if one != constants]
            held = table.changed(case.key, constants)
            place, wrong = self._fastest(held, [table.changed(case.key, one) for one in others])
            constants = constants if place is None else others[place]
            tried += len(others)
            refused += wrong
        other = table.changed(case.key, constants) if constants != case.own else table
        worth, own_s, other_s = self._judge(table, other)
        best = constants if worth else case.own
        return (other if worth else table), Found(
            case.key, case.shown, self.shown, case.own, best, own_s, other_s, tried, refused
        )

    def slower(self, table: Tuning, own: Tuning) -> float | None:
        """Seconds with the op's own constants, where a table makes the step slower or wrong."""
        if self._builds(table) == self._builds(own):
            return None
        own_times, times, alike = self._compared(own, table)
        return None if alike and not _is_worth(times, own_times) else statistics.median(own_times)

    def best_fusion(self, table: Tuning, rule: Fusion) -> tuple[Tuning, Found | None]:
        """Return the table with a rule where it is worth it, else without; None: it has no use."""
        fused = with_rule(table, rule)
        apart = replace(fused, without=(*fused.without, rule))
        if self._builds(fused) == self._builds(apart):
            return table, None
        place, refused = self._fastest(fused, [apart])
        worth, own_s, other_s = self._judge(fused, apart if place == 0 else fused)
        kept = {"fused": int(not worth)}
        shown = f"fusion {rule}"
        found = Found(rule, shown, self.shown, {"fused": 1}, kept, own_s, other_s, 1, refused)
        return (apart if worth else fused), found

    def _fastest(self, held: Tuning, others: Sequence[Tuning]) -> tuple[int | None, int]:
        """Place of the fastest table, None: that is `held`; and how many others are wrong."""
        for table in (held, *others):
            self._kernels.begin(self._builds(table))
        self._kernels.settle()  # compilers would disturb what is timed
        with self._under(held) as incumbent:
            ratios = [self._against(incumbent, other) for other in others]
        right = {place: ratio for place, ratio in enumerate(ratios) if ratio is not None}
        best = min(right, key=right.__getitem__, default=None)
        refused = len(ratios) - len(right)
        return (None if best is None or right[best] >= WORTH else best), refused

    def _against(self, incumbent: _Trial, table: Tuning) -> float | None:
        """Time of a step under a table by the incumbent's; None: it does not run, or is wrong."""
        try:
            with self._under(table) as trial:
                return _ratio(trial, incumbent) if _alike(trial, incumbent) else None
        except OutOfMemoryError:
            raise
        except DeviceError:  # a kernel does not compile, or the device does not take it
            return None

    def _judge(self, own: Tuning, other: Tuning) -> tuple[bool, float, float]:
        """Whether another table is worth it, and the median seconds of a step with each.

        The fastest of many was lucky too: only another run says how fast it is.
        """
        if other is own:
            with self._under(own) as held:
                seconds = statistics.median(held.seconds() for _ in range(ROUNDS))
            return False, seconds, seconds
        own_times, other_times, alike = self._compared(own, other)
        worth = alike and _is_worth(own_times, other_times)
        own_s = statistics.median(own_times)
        return worth, own_s, statistics.median(other_times) if worth else own_s

    def _compared(self, own: Tuning, other: Tuning) -> tuple[list[float], list[float], bool]:
        """Seconds of a step with each of two tables, in turns, and whether it gives the same."""
        with self._under(other) as trial, self._under(own) as held:
            own_times, other_times = _in_turns((held, trial), LAST_ROUNDS)
            return own_times, other_times, _alike(trial, held)

    @contextmanager
    def _tuned(self, table: Tuning) -> Iterator[None]:
        """Let passes that are made in the block take their constants from a table."""
        self._kernels.tuning = table
        try:
            yield
        finally:
            self._kernels.tuning = self._tuning

    def _builds(self, table: Tuning) -> list[Any]:
        with self._tuned(table):
            return self._executor.step_builds(len(self._ids))

    @contextmanager
    def _under(self, table: Tuning) -> Iterator[_Trial]:
        count, pages = len(self._ids), self._executor.cache.table
        rows = np.arange(count, dtype=np.int32)
        try:
            with self._tuned(table):
                made = self._executor.timed_pass(self._tokens, self._ids, [1] * count, rows)
        finally:
            for sequence in self._ids:
                pages.truncate(sequence, DEPTH)
        releases = [made.close]
        try:
            replay = Replay(self._kernels.runtime, made.launches, 1)
            releases.insert(0, replay.close)
            yield _Trial(replay, made.result().reshape(count, -1))
        finally:
            release_all(*releases)


def with_rule(table: Tuning, rule: str) -> Tuning:
    """Return a table that leaves a fusion on."""
    return replace(table, without=tuple(one for one in table.without if one != rule))


def _alike(trial: _Trial, incumbent: _Trial) -> bool:
    """Whether the logits of each sequence are as they were, but for the order of sums."""
    pairs = zip(trial.logits, incumbent.logits, strict=True)
    return all(relative_rms(own, held) <= DIFFERENT for own, held in pairs)


def _is_worth(before: Sequence[float], now: Sequence[float]) -> bool:
    """Whether times in turns say that a step is faster now: by the median, and in nearly all."""
    wins = sum(a < b for a, b in zip(now, before, strict=True))
    enough = statistics.median(now) <= WORTH * statistics.median(before)
    return enough and wins >= len(before) - 1


def _ratio(trial: _Trial, incumbent: _Trial) -> float:
    """Time of a trial by that of what holds; of one that is far behind, after one round."""
    _in_turns((trial, incumbent), 1)
    for rounds in (1, ROUNDS):
        own, held = map(statistics.median, _in_turns((trial, incumbent), rounds))
        if own > HOPELESS * held:
            break
    return own / held


def _in_turns(trials: Sequence[_Trial], rounds: int) -> list[list[float]]:
    """Seconds of each, timed in turns; each is the first in every other round."""
    times: list[list[float]] = [[] for _ in trials]
    order = list(zip(trials, times, strict=True))
    for _ in range(rounds):
        for trial, own in order:
            own.append(trial.seconds())
        order.reverse()
    return times
