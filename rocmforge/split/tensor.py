"""Running a model of which each of several GPUs has a part of every matrix: tensor parallelism.

All parts run the same passes side by side, and sum what they add to the residual stream over the
devices. Each then has the whole of it, and the same logits: the first one's are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rocmforge.array_types import Floats, Ints
from rocmforge.errors import DeviceError
from rocmforge.kv.batch import extend, step_ahead
from rocmforge.plan.lockstep import Work, lockstep
from rocmforge.plan.observation import ObservedPass, Observer
from rocmforge.plan.protocols import ExecutorMemory, Progress, StageExecutor, StageInput, TimedPass
from rocmforge.split.cache import SplitCache
from rocmforge.split.executor import SeveralExecutors

R = TypeVar("R")


class PartExecutor(StageExecutor, Protocol):
    """An executor of one part of each matrix, which runs in lockstep with those of the others."""

    def forwarding(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        rows: Ints,
        stage: StageInput | None = None,
    ) -> Work[Floats]:
        """Do as `forward`."""

    def choosing(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        draws: NDArray[Any],
        following: NDArray[Any] | None = None,
        stage: StageInput | None = None,
        takes: bool = False,
    ) -> Work[list[int]]:
        """Do as `next_tokens`; `takes`: by the queued step."""

    def takes(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        draws: NDArray[Any],
        stage: StageInput | None,
    ) -> bool:
        """Whether the queued step is the one that is wanted."""

    def abandon(self) -> None:
        """Wait for what runs, whatever becomes of it."""


class Exchange(Protocol):
    """What the devices sum through."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes on each device."""

    def stop(self) -> None:
        """Let no device wait any longer for another one."""

    def restart(self) -> None:
        """Begin anew, once no device runs any more."""


class TensorExecutor(SeveralExecutors[PartExecutor]):
    """Runs a model of which each device has a part of every matrix; see `Executor`.

    Parameters
    ----------
    parts
        The executors, at least two. Whoever made them closes them.
    exchange
        Of the devices.
    cache
        Of all parts: each has the keys and values of its heads.
    """

    def __init__(
        self, parts: Sequence[PartExecutor], exchange: Exchange, cache: SplitCache
    ) -> None:
        super().__init__(parts, cache)
        self._exchange = exchange
        self._stopped = False  # whether a pass has failed, and the exchange is to begin anew
        self.runs_ahead = parts[0].runs_ahead

    def _observe(self, observer: Observer | None) -> None:
        """What the first device tells of a pass is for the observer."""
        first, *others = self._executors
        first.observer = observer
        for part in others:  # all do the same
            part.observer = None if observer is None else _ignored

    def prepare(self, progress: Progress | None = None) -> None:
        """Do ahead what would delay the first passes of each device."""
        count = len(self._executors)

        def told(rank: int, done: int, of: int) -> None:
            if progress is not None:
                progress(rank * of + done, count * of)

        for rank, part in enumerate(self._executors):
            part.prepare(partial(told, rank))

    def forward(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        rows: Ints,
    ) -> Floats:
        """Run the new tokens of some sequences; see `Executor.forward`.

        After an error of a device the sequences are as long as before, and further calls are
        allowed.
        """

        def logits(given: StageInput) -> list[Work[Floats]]:
            return [
                part.forwarding(tokens, sequences, counts, rows, given) for part in self._executors
            ]

        return self._run(sequences, counts, logits, ahead=False)[0]

    def next_tokens(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        draws: NDArray[Any],
        following: NDArray[Any] | None = None,
    ) -> list[int]:
        """Run new tokens, and let each device choose; see `Executor.next_tokens`.

        Errors are as of `forward`; DeviceError besides, where devices choose different tokens.
        """

        def chosen(given: StageInput) -> list[Work[list[int]]]:
            taken = all(part.takes(tokens, sequences, draws, given) for part in self._executors)
            return [
                part.choosing(tokens, sequences, counts, draws, following, given, taken)
                for part in self._executors
            ]

        first, *others = self._run(sequences, counts, chosen, ahead=following is not None)
        for other in others:
            if other != first:
                raise DeviceError(f"split mode tensor: got tokens {first} and {other} of two GPUs")
        return first

    def _run(
        self,
        sequences: Sequence[int],
        counts: Sequence[int],
        works: Callable[[StageInput], list[Work[R]]],
        ahead: bool,
    ) -> list[R]:
        """Let all devices do their works side by side; return their results.

        Where one fails, none waits for it, and the sequences are as long as before.
        """
        if self._stopped:
            self._restart()
        table = self.cache.table
        with self._as_before(sequences):
            batch = extend(table, sequences, counts)
            given = StageInput(batch, None, step_ahead(table, sequences) if ahead else None)
            try:
                return lockstep(works(given))
            except BaseException:  # Ctrl-C too
                self._stopped = True
                self._exchange.stop()
                self._restart()
                raise

    def _restart(self) -> None:
        """Begin anew once no device runs; where a device is lost, the next call says so."""
        for part in self._executors:
            part.abandon()
        with suppress(DeviceError):
            self._exchange.restart()
            self._stopped = False

    def memory(self) -> ExecutorMemory:
        """Return what all devices hold now; see `Executor.memory`."""
        held = super().memory()
        exchanged = len(self._executors) * self._exchange.nbytes
        return replace(held, activations=held.activations + exchanged)

    def timed_pass(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        rows: Ints,
    ) -> TimedPass:
        """Refuse: steps that wait for other devices cannot be repeated alone."""
        raise ValueError(
            f"timing of single steps: got a model whose matrices are split over "
            f"{len(self._executors)} GPUs, wanted split mode layer, or one GPU"
        )


def _ignored(seen: ObservedPass) -> None:
    """Tell nobody."""
