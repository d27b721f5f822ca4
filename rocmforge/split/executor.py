"""Running a model on several devices: stage after stage, each with its own executor.

Activations cross from one device to the next as float32 rows in the host's memory. The stages of
one pass follow each other: no two devices work at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from rocmforge.array_types import Floats, Ints
from rocmforge.kv.batch import extend
from rocmforge.plan.cost import Cost
from rocmforge.plan.observation import ObservedPass, Observer
from rocmforge.plan.protocols import (
    ExecutorMemory,
    Progress,
    StageExecutor,
    StageInput,
    TimedPass,
    TimedStep,
)
from rocmforge.split.cache import SplitCache
from rocmforge.split.observation import merged

R = TypeVar("R")
E = TypeVar("E", bound=StageExecutor)


class SeveralExecutors(Generic[E]):
    """What runs a model on several devices has an executor on each.

    Parameters
    ----------
    executors
        At least two. Whoever made them closes them.
    cache
        Of all of them.
    """

    def __init__(self, executors: Sequence[E], cache: SplitCache) -> None:
        self.cache = cache
        self._executors = tuple(executors)
        self._observer: Observer | None = None

    @property
    def prefill_chunk(self) -> int:
        """Most tokens of a prompt to run in one pass: what each device takes."""
        return min(own.prefill_chunk for own in self._executors)

    @property
    def observer(self) -> Observer | None:
        """Told of each pass."""
        return self._observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self._observer = observer
        self._observe(observer)

    def _observe(self, observer: Observer | None) -> None:
        """Let the executors tell what the observer is to be told."""
        raise NotImplementedError

    @contextmanager
    def _as_before(self, sequences: Sequence[int]) -> Iterator[None]:
        """Where a pass fails, make its sequences as long as they were; Ctrl-C too."""
        table = self.cache.table
        lengths = [table.length(sequence) for sequence in sequences]
        try:
            yield
        except BaseException:
            for sequence, length in zip(sequences, lengths, strict=True):
                with suppress(ValueError):  # released by another thread
                    table.truncate(sequence, length)
            raise

    def memory(self) -> ExecutorMemory:
        """Return what the devices hold now, all together; see `Executor.memory`."""
        held = [own.memory() for own in self._executors]
        return ExecutorMemory(
            activations=sum(each.activations for each in held),
            constants=sum(each.constants for each in held),
            inputs=sum(each.inputs for each in held),
            page_table=sum(each.page_table for each in held),
            pinned=sum(each.pinned for each in held),
        )

    def close(self) -> None:
        """Nothing to do: the executors are closed by whoever made them."""


class SplitExecutor(SeveralExecutors[StageExecutor]):
    """Runs a model whose layers lie on several devices; see `Executor`.

    Parameters
    ----------
    stages
        The executors of the stages, first to last, at least two. Whoever made them closes them.
    names
        Of their devices, as "cpu" and "hip:0".
    cache
        Of all stages.
    """

    def __init__(
        self, stages: Sequence[StageExecutor], names: Sequence[str], cache: SplitCache
    ) -> None:
        super().__init__(stages, cache)
        self._names = tuple(names)
        self._seen: list[ObservedPass] = []  # what the stages of the pass that runs have told
        self.runs_ahead = False

    def _observe(self, observer: Observer | None) -> None:
        """All stages of a pass are one to the observer."""
        for stage in self._executors:
            stage.observer = None if observer is None else self._seen.append

    def prepare(self, progress: Progress | None = None) -> None:
        """Do ahead what would delay the first passes of each stage."""
        for stage in self._executors:
            stage.prepare(progress)

    def forward(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        rows: Ints,
    ) -> Floats:
        """Run the new tokens of some sequences; see `Executor.forward`."""

        def logits(last: StageExecutor, given: StageInput) -> Floats:
            return last.forward(tokens, sequences, counts, rows, given)

        return self._run(tokens, sequences, counts, logits)

    def next_tokens(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        draws: NDArray[Any],
        following: NDArray[Any] | None = None,
    ) -> list[int]:
        """Run new tokens, and let the last stage choose; see `Executor.next_tokens`."""

        def chosen(last: StageExecutor, given: StageInput) -> list[int]:
            return last.next_tokens(tokens, sequences, counts, draws, stage=given)

        return self._run(tokens, sequences, counts, chosen)

    def _run(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        finish: Callable[[StageExecutor, StageInput], R],
    ) -> R:
        """Run all stages but the last one, then `finish` with that one.

        Where a stage fails, the sequences are as long as before: later stages lack the tokens.
        """
        self._seen.clear()
        every = np.arange(tokens.size, dtype=np.int32)
        with self._as_before(sequences):
            given = StageInput(extend(self.cache.table, sequences, counts), None)
            for stage in self._executors[:-1]:
                x = stage.forward(tokens, sequences, counts, every, given)
                given = StageInput(given.batch, x)
            result = finish(self._executors[-1], given)
        if self._observer is not None:
            self._observer(merged(self._names, tuple(self._seen)))
        return result

    def timed_pass(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        rows: Ints,
    ) -> SplitTimedPass:
        """Run new tokens, and return their pass for timing; see `Executor.timed_pass`."""
        every = np.arange(tokens.size, dtype=np.int32)
        last = self._executors[-1]
        timed: list[TimedPass] = []
        with self._as_before(sequences), ExitStack() as undo:
            given = StageInput(extend(self.cache.table, sequences, counts), None)
            for own in self._executors:
                wanted = rows if own is last else every
                timed.append(own.timed_pass(tokens, sequences, counts, wanted, given))
                undo.callback(timed[-1].close)
                if own is not last:
                    x = own.forward(tokens, sequences, counts, every, given)
                    given = StageInput(given.batch, x)
            undo.pop_all()
        return SplitTimedPass(self._names, timed)


@dataclass(frozen=True)
class _NamedStep:
    """A step of a stage; its label begins with its device."""

    device: str
    step: TimedStep

    @property
    def label(self) -> str:
        """Name of the step, as "hip:0 attention"."""
        return f"{self.device} {self.step.label}"

    @property
    def calls(self) -> int:
        """As of the step."""
        return self.step.calls

    @property
    def cost(self) -> Cost:
        """As of the step."""
        return self.step.cost

    def seconds(self) -> float:
        """As of the step."""
        return self.step.seconds()


class SplitTimedPass:
    """A pass; see `TimedPass`.

    Parameters
    ----------
    names, timed
        Of each stage, its device's name and its pass.
    """

    def __init__(self, names: Sequence[str], timed: Sequence[TimedPass]) -> None:
        self._timed = tuple(timed)
        self.steps: tuple[TimedStep, ...] = tuple(
            _NamedStep(name, step)
            for name, each in zip(names, timed, strict=True)
            for step in each.steps
        )

    def seconds(self) -> float:
        """Run the pass of each stage again; return their seconds together."""
        return sum(each.seconds() for each in self._timed)

    def copy_seconds(self) -> tuple[float, float] | None:
        """Return the device time of all copies to devices and from them; None: there are none."""
        found = [copied for each in self._timed if (copied := each.copy_seconds()) is not None]
        if not found:
            return None
        return sum(there for there, _ in found), sum(back for _, back in found)

    def close(self) -> None:
        """Give back what timing needed, whatever fails."""
        with ExitStack() as stack:
            for each in self._timed:
                stack.callback(each.close)
