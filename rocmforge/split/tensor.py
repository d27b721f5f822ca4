"""Running a model of which each of several GPUs has a part of every matrix: tensor parallelism.

All parts run the same passes side by side, and sum what they add to the residual stream over the
devices. Each then has the whole of it, and the same logits: the first one's are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
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
from rocmforge.split.executor import forget, held_together

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
    ) -> Work[list[int]]:
        """Do as `next_tokens`."""

    def abandon(self) -> None:
        """Wait for what runs, whatever becomes of it."""


class Exchange(Protocol):
    """What the devices sum through."""

    def stop(self) -> None:
        """Let no device wait any longer for another one."""

    def restart(self) -> None:
        """Begin anew, once no device runs any more."""


class TensorExecutor:
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
        self.cache = cache
        self._parts = tuple(parts)
        self._exchange = exchange
        self._observer: Observer | None = None
        self.runs_ahead = parts[0].runs_ahead

    @property
    def prefill_chunk(self) -> int:
        """Most tokens of a prompt to run in one pass: what each device takes."""
        return min(part.prefill_chunk for part in self._parts)

    @property
    def observer(self) -> Observer | None:
        """Told of each pass on the first device."""
        return self._observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self._observer = observer
        first, *others = self._parts
        first.observer = observer
        for part in others:  # all do the same
            part.observer = None if observer is None else _ignored

    def prepare(self, progress: Progress | None = None) -> None:
        """Do ahead what would delay the first passes of each device."""
        for part in self._parts:
            part.prepare(progress)

    def forward(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        rows: Ints,
    ) -> Floats:
        """Run the new tokens of some sequences; see `Executor.forward`."""

        def logits(part: PartExecutor, given: StageInput) -> Work[Floats]:
            return part.forwarding(tokens, sequences, counts, rows, given)

        return self._run(sequences, counts, logits, ahead=False)

    def next_tokens(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        draws: NDArray[Any],
        following: NDArray[Any] | None = None,
    ) -> list[int]:
        """Run new tokens, and let each device choose; see `Executor.next_tokens`."""

        def chosen(part: PartExecutor, given: StageInput) -> Work[list[int]]:
            return part.choosing(tokens, sequences, counts, draws, following, given)

        return self._run(sequences, counts, chosen, ahead=following is not None)

    def _run(
        self,
        sequences: Sequence[int],
        counts: Sequence[int],
        work: Callable[[PartExecutor, StageInput], Work[R]],
        ahead: bool,
    ) -> R:
        """Let all devices do the same work; return the first one's result.

        Where one fails, none waits for it, and the sequences are as long as before.
        """
        table = self.cache.table
        batch = extend(table, sequences, counts)
        given = StageInput(batch, None, step_ahead(table, sequences) if ahead else None)
        try:
            return lockstep([work(part, given) for part in self._parts])[0]
        except BaseException:  # Ctrl-C too
            self._exchange.stop()
            for part in self._parts:
                part.abandon()
            with suppress(DeviceError):  # a device that is lost: what comes next says so
                self._exchange.restart()
            forget(table, sequences, counts)
            raise

    def memory(self) -> ExecutorMemory:
        """Return what all devices hold now; see `Executor.memory`."""
        return held_together([part.memory() for part in self._parts])

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
            f"{len(self._parts)} GPUs, wanted split mode layer, or one GPU"
        )

    def close(self) -> None:
        """Nothing to do: the parts are closed by whoever made them."""


def _ignored(seen: ObservedPass) -> None:
    """Tell nobody."""
