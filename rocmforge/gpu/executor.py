"""Running a graph on a GPU: fused, its tensors in one arena, launches made once and kept.

A pass of single tokens is captured into a graph of the device and replayed: what differs from
token to token (ids, positions, page table, lengths) lies in device memory, where one copy brings
it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge.array_types import Floats, Ints
from rocmforge.errors import CompileError, DeviceError
from rocmforge.gpu.batch_shape import (
    LEAST_ROOM,
    BatchShape,
    batch_shape,
    prompt_shape,
    room_of,
    step_shape,
)
from rocmforge.gpu.cache import DeviceKVCache
from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.constants import Constants
from rocmforge.gpu.fusion import Fusion
from rocmforge.gpu.input_block import InputBlock
from rocmforge.gpu.kept_passes import KeptPasses
from rocmforge.gpu.lowering import GEMV_ROWS, Lowering
from rocmforge.gpu.observation import PassWatch, activation_bytes, facts
from rocmforge.gpu.passes import Running, sampling
from rocmforge.gpu.peers import NO_PEERS, Peers
from rocmforge.gpu.release import release_all
from rocmforge.gpu.slot import Slot, grow, memory
from rocmforge.gpu.timed_pass import GpuTimedPass
from rocmforge.kv.batch import Batch, extend, step_ahead
from rocmforge.plan.cost import Costs
from rocmforge.plan.graph import Graph
from rocmforge.plan.lockstep import BARRIER, TURN, Work, alone
from rocmforge.plan.observation import Observer
from rocmforge.plan.protocols import ExecutorMemory, Progress, StageInput
from rocmforge.sampling import choose

PREPARED = (640, 448, 320, 192, 64, 32)  # tokens of prompts whose kernels are compiled ahead
CHUNKS = (2048, 1024)  # tokens of a prompt in one pass, where the arena has room for them
ARENA_SHARE = 0.02  # of the device's memory, at most, for chunks above LEAST_ROOM
LAUNCHES = 8  # of one device in a row, while another one of its group waits for its own


class GpuExecutor:
    """Runs a graph on a GPU.

    Parameters
    ----------
    graph
        The forward pass; its matrices are the device's.
    kernels
        The device and its kernels.
    cache
        Keys and values of every sequence.
    ctx
        Most tokens of one sequence.
    fused
        Which neighbouring ops become one kernel; none: each op is one, but for what `pass_steps`
        always takes. None: as of `KeptPasses`.
    peers
        Of a device of a group, which has a part of each matrix: its view of the group.
    """

    def __init__(
        self,
        graph: Graph,
        kernels: Kernels,
        cache: DeviceKVCache,
        ctx: int,
        fused: Collection[Fusion] | None = None,
        peers: Peers = NO_PEERS,
    ) -> None:
        self.cache = cache
        self._graph = graph
        self._runtime = kernels.runtime
        self._constants = Constants(self._runtime, ctx)
        self._ctx = ctx
        self._max_pages = -(-ctx // cache.page_size)
        # A stage of several devices has no step behind it.
        whole = graph.received is None and len(sampling(graph.result)) > 0
        self._slots = tuple(
            Slot(
                self._runtime,
                InputBlock(
                    self._runtime, self._max_pages, LEAST_ROOM, GEMV_ROWS, bool(cache.windowed)
                ),
            )
            for _ in range(2 if whole else 1)
        )
        self._queued: Running | None = None  # behind the last pass, whose tokens it runs
        self._chosen: list[int] = []  # by the last pass
        self._busy = False  # whether anything may be on a stream
        self._kernels = kernels
        constants = self._constants
        lowering = Lowering(kernels, cache, ctx, constants.address, constants.table, peers=peers)
        self._passes = KeptPasses(graph, lowering, cache, fused, self._slots)
        self._grouped = peers.ranks > 1
        # What a step that is only queued may fail with: alone, a device runs it later.
        self._forgiven = () if self._grouped else (CompileError, DeviceError)
        self._copies: Any = self._runtime.create_stream()  # of inputs, while a step runs
        self._stream: Any = self._runtime.create_stream()  # None: closed
        self._watch = PassWatch(self._runtime, self._stream)
        self.observer: Observer | None = None
        self.runs_ahead = whole

    @cached_property
    def prefill_chunk(self) -> int:
        """Most tokens of a prompt to run in one pass: longer ones fill the device better."""
        most = ARENA_SHARE * self._runtime.memory_info()[1]
        shapes = (prompt_shape(tokens) for tokens in CHUNKS)
        plan = self._passes.plan
        fitting = (shape.tokens for shape in shapes if plan(room_of(shape)).nbytes <= most)
        return next(fitting, LEAST_ROOM)

    def prepare(self, progress: Progress | None = None) -> None:
        """Upload what never changes, and wait for the kernels that are being compiled.

        `GpuBackend.compile_ahead` began with those of most passes, and they are compiled side by
        side; what neither it nor this asked for, the first passes compile one after another.

        Parameters
        ----------
        progress
            Told after each kernel file how many are done, and of how many.

        Raises
        ------
        CompileError
            A kernel does not compile.
        """
        address, table = self._constants.address, self._constants.table
        decode = self._passes.builds([step_shape(1)], address, table)  # all constants are for it
        self._kernels.prepare(decode, progress)

    def builds(self) -> list[Build]:
        """Return what most passes need compiled, what takes longest first; nothing is uploaded."""
        shapes = [*map(prompt_shape, (self.prefill_chunk, *PREPARED)), step_shape(1)]
        return self._passes.builds(shapes, lambda array: 0, lambda rotation: (0, 0))

    def step_builds(self, sequences: int) -> list[Build]:
        """Return what a step of so many sequences needs compiled, by the tuning of the kernels."""
        constants = self._constants
        return self._passes.builds([step_shape(sequences)], constants.address, constants.table)

    def forward(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        rows: Ints,
        stage: StageInput | None = None,
    ) -> Floats:
        """Run the new tokens of some sequences; see `Executor.forward`."""
        return alone(self.forwarding(tokens, sequences, counts, rows, stage))

    def forwarding(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        rows: Ints,
        stage: StageInput | None = None,
    ) -> Work[Floats]:
        """Do as `forward`, in lockstep with other devices."""
        yield from self._settle()
        running = yield from self._start(tokens, sequences, counts, rows, None, stage)
        yield BARRIER
        result = yield from self._finish(running, counts)
        own: Floats = result.view(np.float32)
        return own

    def next_tokens(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        draws: NDArray[Any],
        following: NDArray[Any] | None = None,
        stage: StageInput | None = None,
    ) -> list[int]:
        """Run new tokens and choose the next ones; see `Executor.next_tokens`."""
        takes = self.takes(tokens, sequences, draws, stage)
        return alone(self.choosing(tokens, sequences, counts, draws, following, stage, takes))

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
        """Do as `next_tokens`, in lockstep with other devices.

        `takes`: the step is the queued one, as `takes` says of each device.
        """
        if takes:
            running = self._take(tokens, sequences, stage)
        else:
            yield from self._settle()
            rows = (np.cumsum(counts) - 1).astype(np.int32)
            running = yield from self._start(tokens, sequences, counts, rows, draws, stage)
        self._chosen = []  # not known before this pass has ended
        if following is not None and self.observer is None and running.shape.single:
            with suppress(*self._forgiven):  # the step that is wanted has not failed
                yield from self._queue(running, following, stage)
        yield BARRIER
        result = yield from self._finish(running, counts)
        chosen: list[int] = result[:, 0].tolist()
        if min(chosen) < 0:
            yield from self._refuse(running, chosen)
        self._chosen = chosen
        return chosen

    def _refuse(self, running: Running, chosen: list[int]) -> Work[None]:
        """Let the host choose where the device could not: it says what is wrong with the logits."""
        if self._queued is not None:  # its logits have taken the place of these
            yield from self._settle()
            rerun = replace(running, kept=self._passes.get((running.shape, True, 0, False)))
            yield from self._launch(rerun, None)
            yield BARRIER
            yield from self._settle()
        columns = self._graph.result.columns
        wrong = np.empty(columns, np.float32)
        for row, token in enumerate(chosen):
            if token < 0 and running.draws is not None:
                self._runtime.copy_to_host(wrong, running.kept.scores + row * wrong.nbytes)
                chosen[row] = choose(wrong, running.draws[row])

    def _shape(
        self,
        sequences: Sequence[int],
        counts: Sequence[int],
        rows: Ints,
        stage: StageInput | None,
    ) -> BatchShape:
        """Return the shape of a pass. The sequences of a stage have their new tokens already."""
        if max(counts) == 1:
            before = 0
        elif stage is None:
            before = sum(self.cache.table.length(sequence) for sequence in sequences)
        else:
            before = int(stage.batch.lengths.sum()) - sum(counts)
        return batch_shape(counts, rows, before)

    def _start(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        rows: Ints,
        draws: NDArray[Any] | None,
        stage: StageInput | None,
    ) -> Work[Running]:
        """Launch a pass, which gives its result to the host, or with draws its tokens."""
        watch = None if self.observer is None else self._watch
        if watch is not None:
            watch.begin()
        shape = self._shape(sequences, counts, rows, stage)
        if self._slots[0].inputs.needs_more(tokens.size, len(counts)):
            self._passes.forget()
            grow(self._slots, tokens.size, len(counts))
        columns = 1 if draws is not None else self._graph.result.columns
        self._passes.reserve_room(shape, columns)
        key = shape, draws is not None, 0, False
        kept = self._passes.get(key)
        # Nothing can fail from here on that leaves sequences longer than what was written.
        batch = extend(self.cache.table, sequences, counts) if stage is None else stage.batch
        if self._passes.outdated:  # the same launches with the cache's new addresses
            kept = self._passes.get(key)
        result = self._slots[0].result(shape.output_rows, columns)
        received = None if stage is None else self._slots[0].receive(stage.received)
        running = Running(kept, shape, tuple(sequences), tokens, draws, batch, result, received)
        yield BARRIER  # none waits for others before all have what they need
        yield from self._launch(running, watch)
        return running

    def _finish(self, running: Running, counts: Sequence[int]) -> Work[Ints]:
        """Wait for a pass, and return a copy of what it gave to the host."""
        watch = None if self.observer is None else self._watch
        if watch is not None:
            watch.host("wait")
        yield from self._ask(self._slots[running.kept.slot])
        if self._queued is None:
            self._synchronize()
        else:
            self._runtime.synchronize_event(self._slots[running.kept.slot].done)
        if watch is not None:
            watch.host("copy_out")
        running.kept.ran = True
        own: Ints = running.result.copy()
        if watch is not None and self.observer is not None:
            costs = self._costs(counts, running.batch, running.shape)
            facts_of = partial(facts, running.kept.steps, costs, running.shape.single)
            self.observer(watch.end(facts_of))
        return own

    def _queue(self, running: Running, draws: NDArray[Any], stage: StageInput | None) -> Work[None]:
        """Launch the step behind a step, where each sequence has a page for it.

        No sequence grows: that is for `_take`, once the host wants this step.
        """
        batch = step_ahead(self.cache.table, running.sequences) if stage is None else stage.ahead
        if batch is None or int(batch.positions.max()) >= self._ctx:
            return
        slot = 1 - running.kept.slot
        self._runtime.record_event(self._slots[running.kept.slot].done, self._stream)
        yield BARRIER  # all have what the step before waits for
        kept = self._passes.get((running.shape, True, slot, True))
        result = self._slots[slot].result(running.shape.output_rows, 1)
        queued = replace(running, kept=kept, draws=draws, batch=batch, result=result)
        yield from self._launch(queued, None)
        self._queued = queued

    def takes(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        draws: NDArray[Any],
        stage: StageInput | None,
    ) -> bool:
        """Whether the queued step is the one that is wanted."""
        queued = self._queued
        if queued is None or queued.draws is None or self.observer is not None:
            return False
        if tuple(sequences) != queued.sequences or tokens.tolist() != self._chosen:
            return False
        if draws.tobytes() != queued.draws.tobytes() or self._passes.outdated:
            return False
        batch = step_ahead(self.cache.table, sequences) if stage is None else stage.batch
        return batch is not None and batch.same_places(queued.batch)

    def _take(
        self, tokens: NDArray[np.int64], sequences: Sequence[int], stage: StageInput | None
    ) -> Running:
        """Return the queued step, and let its sequences grow."""
        queued = self._queued
        assert queued is not None
        if stage is None:
            self.cache.table.extend_all(sequences, [1] * len(sequences))
        self._queued = None
        return replace(queued, tokens=tokens)

    def _settle(self) -> Work[None]:
        """Wait for a queued step that is not wanted, or for a pass that was interrupted.

        What a queued step wrote lies behind the tokens of its sequences.
        """
        self._queued = None
        if self._busy:
            for slot in self._slots:
                yield from self._ask(slot)
            self._synchronize()

    def _ask(self, slot: Slot) -> Work[None]:
        """In a group, ask until a pass has ended: an error of any device is seen meanwhile."""
        while self._grouped and not self._runtime.is_done(slot.done):
            yield TURN

    def _synchronize(self) -> None:
        self._runtime.synchronize(self._copies)
        self._runtime.synchronize(self._stream)
        self._busy = False

    def _costs(self, counts: Sequence[int], batch: Batch, shape: BatchShape) -> Costs:
        token_bytes = self.cache.bytes_per_token // self.cache.n_layers
        lengths = batch.lengths.tolist()
        return Costs(counts, lengths, shape.output_rows, token_bytes, activation_bytes)

    def memory(self) -> ExecutorMemory:
        """Return what it holds now; see `Executor.memory`."""
        arena, constants = self._passes.arena_bytes, self._constants.nbytes
        return ExecutorMemory(arena, constants, *memory(self._slots))

    def timed_pass(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        rows: Ints,
        stage: StageInput | None = None,
    ) -> GpuTimedPass:
        """Run new tokens, and return their pass for timing; see `Executor.timed_pass`."""
        alone(self._settle())
        shape = self._shape(sequences, counts, rows, stage)
        self.cache.grow(self.cache.n_pages)  # the pass keeps its addresses, whatever runs later
        given = stage or StageInput(extend(self.cache.table, sequences, counts), None)
        return GpuTimedPass(
            self._passes.lowering,
            shape,
            tokens,
            given,
            self._passes.unsampled(self._passes.steps(room_of(shape))),
            self._graph,
            self._max_pages,
            self.cache.bytes_per_token // self.cache.n_layers,
        )

    def close(self) -> None:
        """Give back all memory but the cache's, the graphs and the stream, whatever fails.

        Idempotent: what a first call could not release is not tried again.
        """
        runtime, stream = self._runtime, self._stream
        if stream is None:
            return
        self._stream = None
        releases: list[Callable[[], None]] = [runtime.synchronize]
        releases += [slot.close for slot in self._slots]
        releases.append(self._watch.close)
        releases += self._passes.releases()
        releases += self._constants.releases()
        streams = self._copies, stream
        release_all(*releases, *(partial(runtime.destroy_stream, one) for one in streams))

    def abandon(self) -> None:
        """Wait for what runs, whatever becomes of it: a device of the group has failed."""
        self._queued = None
        with suppress(DeviceError):
            self._synchronize()

    def _launch(self, running: Running, watch: PassWatch | None) -> Work[None]:
        """Enqueue a pass; one of single tokens is captured the second time, and then replayed."""
        runtime, stream, kept = self._runtime, self._stream, running.kept
        self._busy = True
        inputs = self._slots[kept.slot].inputs
        inputs.fill(running.tokens, running.batch)
        if running.draws is not None:
            inputs.fill_draws(running.draws)
        if kept.chained:  # the step before runs meanwhile, and leaves the tokens
            inputs.send(self._copies, tokens=False)
            runtime.synchronize(self._copies)
            yield BARRIER  # before any has launches that wait for this one's
        if watch is not None:
            watch.host("launch")
        if running.shape.single and kept.ran and kept.graph is None:
            kept.graph = runtime.capture(stream, partial(alone, self._enqueue(running, None)))
        yield BARRIER  # likewise, where making a graph waits for the device
        if watch is not None:
            watch.mark()
        if kept.graph is None:
            yield from self._enqueue(running, watch)
        elif watch is None:
            runtime.launch_graph(kept.graph, stream)
        else:
            watch.launch("graph", partial(runtime.launch_graph, kept.graph, stream))
            watch.mark("graph")
        if self._grouped:
            runtime.record_event(self._slots[kept.slot].done, stream)

    def _enqueue(self, running: Running, watch: PassWatch | None) -> Work[None]:
        """Enqueue the copies and kernels of a pass; a watch sees each launch and each step.

        Devices of a group take turns, since one's launches wait for the other's.
        """
        runtime, stream, kept = self._runtime, self._stream, running.kept
        mark = _unmarked if watch is None else watch.mark
        if not kept.chained:
            self._slots[kept.slot].inputs.send(stream)
        if running.received is not None:
            runtime.copy_to_device(kept.received, running.received, stream)
        mark("host_to_device")
        enqueued = 0
        for step, launches in kept.steps:
            enqueued += len(launches)
            if enqueued > LAUNCHES:
                enqueued = 0
                yield TURN
            for launch in launches:
                if watch is None:
                    launch.enqueue(runtime, stream)
                else:
                    watch.launch(launch.name, partial(launch.enqueue, runtime, stream))
            mark(step.op.label)
        if running.draws is None:  # chosen tokens are there already
            runtime.copy_to_host(running.result, kept.scores, stream)
        mark("device_to_host")


def _unmarked(step: str) -> None:
    """Mark nothing: the pass is not observed."""
