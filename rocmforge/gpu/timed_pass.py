"""A pass of a GPU for timing: the whole of it, and the same step of all its layers, as replays.

Tensors share no memory here, unlike in the executor's arena: a step that is repeated alone reads
what the pass left for it. A step that adds to the residual leaves something else there, in the end
NaN, of which a router would choose the same experts for all tokens. So the pass runs again before
each step is timed. The weights, keys and values that a step reads are those of all layers in turn,
as in the pass. What all layers have of them may fit a cache, though, where the rest of a pass would
have displaced it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge.gpu.batch_shape import BatchShape
from rocmforge.gpu.dtypes import F32, Place, Step
from rocmforge.gpu.input_block import InputBlock
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.lowering import Lowering
from rocmforge.gpu.observation import activation_bytes, step_cost
from rocmforge.gpu.pass_lowering import PassLowering
from rocmforge.gpu.pass_memory import PassMemory
from rocmforge.gpu.release import release_all
from rocmforge.gpu.replay import Replay
from rocmforge.gpu.runtime import Runtime
from rocmforge.plan.arena import ALIGNMENT
from rocmforge.plan.cost import Cost, Costs
from rocmforge.plan.graph import Graph
from rocmforge.plan.protocols import StageInput

NAN_BYTE = 0xFF
"""Of which float16 and float32 of NaN consist."""


@dataclass
class GpuTimedStep:
    """The same step of all layers; see `TimedStep`.

    Parameters
    ----------
    label, calls, cost
        As of `TimedStep`.
    runtime
        The device.
    launches
        Of all its calls, in the order of the pass.
    run_pass
        Runs the pass, and waits.
    """

    label: str
    calls: int
    cost: Cost
    runtime: Runtime
    launches: Sequence[Launch]
    run_pass: Callable[[], None]
    _replay: Replay | None = field(default=None, init=False)

    def seconds(self) -> float:
        """Replay the calls of all layers; return the device time of one call."""
        replay = self._ready()
        self.run_pass()
        return replay.seconds()

    def launch_seconds(self) -> float:
        """Return the time that the host needs to launch the kernels of one call, one by one."""
        return self._ready().launch_seconds()

    def close(self) -> None:
        """Give back the graph, if there is one. Idempotent."""
        replay, self._replay = self._replay, None
        if replay is not None:
            replay.close()

    def _ready(self) -> Replay:
        if self._replay is None:
            self._replay = Replay(self.runtime, self.launches, self.calls)
        return self._replay


@dataclass(frozen=True)
class _Copy:
    """A copy, as a replay takes it."""

    copy: Callable[[Any], None]

    def enqueue(self, runtime: Runtime, stream: Any = None) -> None:
        self.copy(stream)


class GpuTimedPass:
    """A pass; see `TimedPass`. It has run once when it is made.

    Parameters
    ----------
    lowering
        The device.
    shape, tokens, given
        The batch: its shape, its (T,) ids, where they stand, and of a stage what it received.
    steps
        Of the pass, in order.
    graph
        What the steps were made of.
    max_pages
        Most pages of one sequence.
    kv_token_bytes
        Bytes of one token's keys and values in one layer.
    """

    def __init__(
        self,
        lowering: Lowering,
        shape: BatchShape,
        tokens: NDArray[np.int64],
        given: StageInput,
        steps: Sequence[Step],
        graph: Graph,
        max_pages: int,
        kv_token_bytes: int,
    ) -> None:
        self.steps: tuple[GpuTimedStep, ...] = ()
        self._runtime = lowering.kernels.runtime
        self._lowering = lowering
        self._shape = shape
        self._inputs = InputBlock(
            self._runtime,
            max_pages,
            shape.tokens,
            shape.sequences,
            windowed=given.batch.in_windows is not None,
        )
        self._memory = 0
        self._host: NDArray[np.uint8] | None = None  # page-locked
        self._received: NDArray[np.uint8] | None = None  # page-locked too
        self._launches: list[list[Launch]] = []  # of each step
        self._whole: Replay | None = None
        batch = given.batch
        counts = np.diff(batch.starts).tolist()
        costs = Costs(
            counts, batch.lengths.tolist(), shape.output_rows, kv_token_bytes, activation_bytes
        )
        try:
            self._inputs.grow(shape.tokens, shape.sequences)
            self._inputs.fill(tokens, batch)
            address = self._place(steps)
            self._result_at = address((graph.result, F32))
            nbytes = 4 * shape.output_rows * graph.result.columns
            self._host = self._runtime.allocate_pinned(nbytes)
            if graph.received is not None and given.received is not None:
                self._received_at = address((graph.received, F32))
                self._received = self._runtime.allocate_pinned(given.received.nbytes)
                self._received.view(np.float32)[:] = given.received.reshape(-1)
            self._run()
            self.steps = self._grouped(steps, costs)
        except BaseException:  # Ctrl-C too
            self.close()
            raise

    def seconds(self) -> float:
        """Replay the pass with the copies of its inputs and result; return its device time."""
        if self._whole is None:
            self._whole = Replay(self._runtime, [self], calls=1)
        return self._whole.seconds()

    def copy_seconds(self) -> tuple[float, float]:
        """Replay either copy alone; return their device times, to the device and from it."""
        times = []
        for copy in (self._bring, self._take):
            replay = Replay(self._runtime, [_Copy(copy)], calls=1)
            try:
                times.append(replay.seconds())
            finally:
                replay.close()
        return times[0], times[1]

    @property
    def launches(self) -> list[Launch]:
        """Kernels of the pass, in their order."""
        return [launch for launches in self._launches for launch in launches]

    def result(self) -> NDArray[np.float32]:
        """Return what the pass gave the last time it ran with its copies: a row after the other."""
        assert self._host is not None
        return np.array(self._host.view(np.float32))

    def enqueue(self, runtime: Runtime, stream: Any = None) -> None:
        """Put the whole pass on a stream, as the executor does."""
        self._bring(stream)
        for launch in self.launches:
            launch.enqueue(runtime, stream)
        self._take(stream)

    def close(self) -> None:
        """Give back graphs and memory, whatever fails. Idempotent."""
        whole, self._whole = self._whole, None
        memory, self._memory = self._memory, 0
        host, self._host = self._host, None
        received, self._received = self._received, None
        releases: list[Callable[[], None]] = [step.close for step in self.steps]
        if whole is not None:
            releases.append(whole.close)
        if memory:
            releases.append(partial(self._runtime.free, memory))
        pinned = [held for held in (host, received) if held is not None]
        releases += [partial(self._runtime.free_pinned, held) for held in pinned]
        release_all(*releases, self._inputs.close)

    def _run(self) -> None:
        self.enqueue(self._runtime)
        self._runtime.synchronize()

    def _bring(self, stream: Any) -> None:
        self._inputs.send(stream)
        if self._received is not None:
            self._runtime.copy_to_device(self._received_at, self._received, stream)

    def _take(self, stream: Any) -> None:
        assert self._host is not None
        self._runtime.copy_to_host(self._host, self._result_at, stream)

    def _place(self, steps: Sequence[Step]) -> Callable[[Place], int]:
        """Give each tensor memory of its own, make the launches; return where each tensor is."""
        offsets: dict[Place, int] = {}
        end = 0
        for place in dict.fromkeys(p for step in steps for p in (*step.reads, *step.writes)):
            offsets[place] = end
            end += -(-self._lowering.nbytes(place, self._shape) // ALIGNMENT) * ALIGNMENT
        scratch = max(self._lowering.scratch_bytes(steps, self._shape).values(), default=0)
        base = self._memory = self._runtime.allocate(end + scratch)
        self._runtime.fill(base, NAN_BYTE, end + scratch)  # so that what no step writes shows

        def address(place: Place) -> int:
            return base + offsets[place]

        inputs = self._inputs.addresses()
        memory = PassMemory(self._lowering, self._shape, inputs, address, lambda _: base + end)
        lowering = PassLowering(memory)
        self._launches = [lowering.launches([step]) for step in steps]
        return address

    def _grouped(self, steps: Sequence[Step], costs: Costs) -> tuple[GpuTimedStep, ...]:
        groups: dict[str, list[int]] = {}
        for number, step in enumerate(steps):
            if not self._launches[number]:  # what is received is copied
                continue
            groups.setdefault(step.op.label, []).append(number)
        return tuple(
            GpuTimedStep(
                label,
                len(numbers),
                sum((step_cost(steps[n], costs) for n in numbers), Cost()),
                self._runtime,
                [launch for n in numbers for launch in self._launches[n]],
                self._run,
            )
            for label, numbers in groups.items()
        )
