"""Running a graph on a GPU: fused, its tensors in one arena, launches made once and kept.

A pass of single tokens is captured into a graph of the device and replayed: what differs from
token to token (ids, positions, page table, lengths) lies in device memory, where one copy brings
it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge.array_types import Floats, Ints
from rocmforge.gpu.batch_shape import BatchShape
from rocmforge.gpu.cache import DeviceKVCache
from rocmforge.gpu.compiler import Build, BuildRecorder, Kernels
from rocmforge.gpu.dtypes import F32, Place, Step, lifetimes
from rocmforge.gpu.fusion import Fusion, pass_steps, wanted_fusions
from rocmforge.gpu.input_block import InputBlock
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.lowering import GEMV_ROWS, Lowering
from rocmforge.gpu.observation import PassWatch, activation_bytes, facts
from rocmforge.gpu.ops.sample import parts_bytes
from rocmforge.gpu.pass_lowering import PassLowering
from rocmforge.gpu.release import release_all
from rocmforge.gpu.timed_pass import GpuTimedPass
from rocmforge.kv.batch import Batch, extend
from rocmforge.plan.arena import assign
from rocmforge.plan.cost import Costs
from rocmforge.plan.graph import Graph, Rotation, Sample, Tensor
from rocmforge.plan.observation import Observer
from rocmforge.plan.protocols import ExecutorMemory, Progress
from rocmforge.sampling import choose

PASSES = 32  # batch shapes whose launches are kept
PREPARED = (1, 32, 512)  # tokens of the passes whose kernels are compiled ahead
LEAST_ROOM = 512  # tokens that the arena has room for once it is needed for more than a few
CHUNKS = (2048, 1024)  # tokens of a prompt in one pass, where the arena has room for them
ARENA_SHARE = 0.02  # of the device's memory, at most, for chunks above LEAST_ROOM


@dataclass
class _CapturedPass:
    """The launches of one batch shape, by steps; `graph` once they were captured.

    `result` is copied to the host: the tokens where the last step chooses them, or the logits.
    """

    steps: Sequence[tuple[Step, Sequence[Launch]]]
    logits: int
    result: int
    graph: Any = None
    ran: bool = False


@dataclass(frozen=True)
class _Plan:
    """Steps of a class of shapes, and where their tensors lie in the arena."""

    steps: list[Step]
    offsets: dict[Any, int]
    nbytes: int
    scratch: int


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
        Which neighbouring ops become one kernel; none: each op is one. None: the rules that were
        measured as worth it on this device, or all.
    """

    def __init__(
        self,
        graph: Graph,
        kernels: Kernels,
        cache: DeviceKVCache,
        ctx: int,
        fused: Collection[Fusion] | None = None,
    ) -> None:
        self.cache = cache
        self._graph = graph
        self._runtime = kernels.runtime
        self._fused = wanted_fusions(kernels.tuning) if fused is None else fused
        self._constants: dict[int, tuple[int, Any]] = {}
        self._ctx = ctx
        self._tables: dict[Rotation, tuple[Floats, Floats]] = {}
        self._max_pages = -(-ctx // cache.page_size)
        self._inputs = InputBlock(self._runtime, self._max_pages, LEAST_ROOM, GEMV_ROWS)
        self._kernels = kernels
        self._lowering = Lowering(kernels, cache, ctx, self._constant, self._table)
        self._plans: dict[BatchShape, _Plan] = {}
        self._passes: OrderedDict[tuple[BatchShape, bool], _CapturedPass] = OrderedDict()
        self._sample = Sample(
            graph.logits,
            Tensor("parts_of_logits", parts_bytes(1) // 4, graph.logits.rows),
            Tensor("next_token", 1, graph.logits.rows),
        )
        self._moves = cache.moves
        self._arena = (0, 0)
        self._result: NDArray[np.uint8] | None = None  # page-locked
        self._stream: Any = self._runtime.create_stream()  # None: closed
        self._watch = PassWatch(self._runtime, self._stream)
        self.observer: Observer | None = None

    @cached_property
    def prefill_chunk(self) -> int:
        """Most tokens of a prompt to run in one pass: longer ones fill the device better."""
        most = ARENA_SHARE * self._runtime.memory_info()[1]
        shapes = (BatchShape(tokens, 1, (tokens - 1,), False, tokens) for tokens in CHUNKS)
        fitting = (shape.tokens for shape in shapes if self._plan(_room(shape)).nbytes <= most)
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
        decode = self._builds((1,), self._constant, self._table)  # which every constant is for
        self._kernels.prepare(decode, progress)

    def builds(self) -> list[Build]:
        """Return what most passes need compiled; nothing is uploaded."""
        sizes = (*PREPARED, self.prefill_chunk)
        return self._builds(sizes, lambda array: 0, lambda rotation: (0, 0))

    def _builds(
        self,
        sizes: Sequence[int],
        constant: Callable[[Any], int],
        table: Callable[[Rotation], tuple[int, int]],
    ) -> list[Build]:
        """Kernels of passes of so many tokens; `constant` and `table` as of `Lowering`."""
        recorder = BuildRecorder(self._runtime, self._kernels.tuning)
        lowering = replace(self._lowering, kernels=recorder, constant=constant, table=table)
        batch = self._inputs.addresses()
        for tokens in sizes:
            outputs = None if tokens == 1 else (tokens - 1,)
            shape = BatchShape(tokens, 1, outputs, tokens == 1, tokens)
            PassLowering(lowering, shape, batch, lambda place: 0, 0).launches(self._steps(shape))
        return recorder.builds

    def forward(
        self, tokens: NDArray[np.int64], sequences: Sequence[int], counts: Sequence[int], rows: Ints
    ) -> Floats:
        """Run the new tokens of some sequences; see `Executor.forward`."""
        own: Floats = self._observed_pass(tokens, sequences, counts, rows, None)[0].view(np.float32)
        return own

    def next_tokens(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        draws: NDArray[Any],
    ) -> list[int]:
        """Run new tokens and choose the next ones; see `Executor.next_tokens`."""
        rows = (np.cumsum(counts) - 1).astype(np.int32)
        own, logits = self._observed_pass(tokens, sequences, counts, rows, draws)
        chosen: list[int] = own[:, 0].tolist()
        for row, token in enumerate(chosen):
            if token < 0:  # the host knows how to say what is wrong with these logits
                columns = self._graph.logits.columns
                wrong = np.empty(columns, np.float32)
                self._runtime.copy_to_host(wrong, logits + row * wrong.nbytes)
                chosen[row] = choose(wrong, draws[row])
        return chosen

    def _observed_pass(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        rows: Ints,
        draws: NDArray[Any] | None,
    ) -> tuple[Ints, int]:
        """Run a pass; its tokens as int32, or its logits without draws, and the logits' address."""
        watch = None if self.observer is None else self._watch
        if watch is not None:
            watch.begin()
        shape = _shape(counts, rows)
        if self._inputs.needs_more(tokens.size, len(counts)):
            self._forget()
            self._inputs.grow(tokens.size, len(counts))
        result = self._host_result(shape, 1 if draws is not None else self._graph.logits.columns)
        key = shape, draws is not None
        kept = self._pass(key)
        # Nothing can fail from here on that leaves sequences longer than what was written.
        batch = extend(self.cache.table, sequences, counts)
        if self._moves != self.cache.moves:  # the same launches with the cache's new addresses
            kept = self._pass(key)
        self._inputs.fill(tokens, batch)
        if draws is not None:
            self._inputs.fill_draws(draws)
        self._run(kept, shape, result, watch)
        own = result.copy()
        if watch is not None and self.observer is not None:
            costs = self._costs(counts, batch, shape)
            self.observer(watch.end(partial(facts, kept.steps, costs, shape.single)))
        return own, kept.logits

    def _costs(self, counts: Sequence[int], batch: Batch, shape: BatchShape) -> Costs:
        token_bytes = self.cache.bytes_per_token // self.cache.n_layers
        lengths = batch.lengths.tolist()
        return Costs(counts, lengths, shape.output_rows, token_bytes, activation_bytes)

    def memory(self) -> ExecutorMemory:
        """Return what it holds now; see `Executor.memory`."""
        inputs = self._inputs.nbytes
        return ExecutorMemory(
            activations=self._arena[1],
            constants=sum(array.nbytes for _, array in self._constants.values()),
            inputs=inputs,
            page_table=self._inputs.page_table_bytes,
            pinned=inputs + (0 if self._result is None else self._result.nbytes),
        )

    def timed_pass(
        self, tokens: NDArray[np.int64], sequences: Sequence[int], counts: Sequence[int], rows: Ints
    ) -> GpuTimedPass:
        """Run new tokens, and return their pass for timing; see `Executor.timed_pass`."""
        shape = _shape(counts, rows)
        self.cache.grow(self.cache.n_pages)  # the pass keeps its addresses, whatever runs later
        return GpuTimedPass(
            self._lowering,
            shape,
            tokens,
            extend(self.cache.table, sequences, counts),
            self._steps(_room(shape))[:-1],
            self._graph.logits,
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
        passes, self._passes = self._passes, OrderedDict()
        constants, self._constants = self._constants, {}
        (arena, _), self._arena = self._arena, (0, 0)
        result, self._result = self._result, None
        releases: list[Callable[[], None]] = [runtime.synchronize, self._inputs.close]
        releases.append(self._watch.close)
        releases += [partial(self._drop, kept) for kept in passes.values()]
        releases += [partial(runtime.free, address) for address, _ in constants.values()]
        if arena:
            releases.append(partial(runtime.free, arena))
        if result is not None:
            releases.append(partial(runtime.free_pinned, result))
        release_all(*releases, partial(runtime.destroy_stream, stream))

    def _run(
        self, kept: _CapturedPass, shape: BatchShape, result: Ints, watch: PassWatch | None
    ) -> None:
        """Enqueue and wait; single tokens are captured the second time, and then replayed."""
        runtime, stream = self._runtime, self._stream
        if watch is not None:
            watch.host("launch")
        if shape.single and kept.ran and kept.graph is None:
            kept.graph = runtime.capture(stream, partial(self._enqueue, kept, result, None))
        if watch is not None:
            watch.mark()
        if kept.graph is None:
            self._enqueue(kept, result, watch)
        elif watch is None:
            runtime.launch_graph(kept.graph, stream)
        else:
            watch.launch("graph", partial(runtime.launch_graph, kept.graph, stream))
            watch.mark("graph")
        if watch is not None:
            watch.host("wait")
        runtime.synchronize(stream)
        if watch is not None:
            watch.host("copy_out")
        kept.ran = True

    def _enqueue(self, kept: _CapturedPass, result: Ints, watch: PassWatch | None) -> None:
        """Enqueue the copies and kernels of a pass; a watch sees each launch and each step."""
        runtime, stream = self._runtime, self._stream
        mark = _unmarked if watch is None else watch.mark
        self._inputs.send(stream)
        mark("host_to_device")
        for step, launches in kept.steps:
            for launch in launches:
                if watch is None:
                    launch.enqueue(runtime, stream)
                else:
                    watch.launch(launch.name, partial(launch.enqueue, runtime, stream))
            mark(step.op.label)
        runtime.copy_to_host(result, kept.result, stream)
        mark("device_to_host")

    def _pass(self, key: tuple[BatchShape, bool]) -> _CapturedPass:
        """Return the pass of a shape, with or without the choice of the next tokens."""
        if self._moves != self.cache.moves:
            self._forget()
            self._moves = self.cache.moves
        kept = self._passes.get(key)
        if kept is None:
            kept = self._build(*key)
            self._passes[key] = kept
            if len(self._passes) > PASSES:
                self._drop(self._passes.popitem(last=False)[1])
        self._passes.move_to_end(key)
        return kept

    def _build(self, shape: BatchShape, chooses: bool) -> _CapturedPass:
        room = _room(shape)
        if room not in self._plans:
            self._plans[room] = self._plan(room)
        plan = self._plans[room]
        base = self._reserve(plan.nbytes + plan.scratch)

        def address(place: Place) -> int:
            return base + plan.offsets[place]

        lowering = PassLowering(
            self._lowering, shape, self._inputs.addresses(), address, base + plan.nbytes
        )
        chosen = plan.steps if chooses else plan.steps[:-1]
        steps = [(step, lowering.launches([step])) for step in chosen]
        logits = address((self._graph.logits, F32))
        return _CapturedPass(
            steps, logits, address((self._sample.token, F32)) if chooses else logits
        )

    def _steps(self, room: BatchShape) -> list[Step]:
        """Return the steps of a pass; the last one chooses the next tokens."""
        return pass_steps((*self._graph.ops, self._sample), self._lowering, room, self._fused)

    def _plan(self, room: BatchShape) -> _Plan:
        lowering = self._lowering
        steps = self._steps(room)
        held = lifetimes(steps, lambda place: lowering.nbytes(place, room))
        # One or the other is copied to the host after the last step.
        held[self._graph.logits, F32].read(len(steps))
        held[self._sample.token, F32].read(len(steps))
        offsets, total = assign(held)
        return _Plan(steps, offsets, total, lowering.scratch_bytes(steps, room))

    def _reserve(self, nbytes: int) -> int:
        """Address of the arena, at least so large; passes made for a smaller one are dropped."""
        address, size = self._arena
        if size < nbytes:
            self._forget()
            self._arena = (0, 0)
            if address:
                self._runtime.free(address)
            self._arena = (self._runtime.allocate(nbytes), nbytes)
        return self._arena[0]

    def _constant(self, array: NDArray[Any]) -> int:
        """Address of the device's copy of an array that never changes."""
        held = self._constants.get(id(array))
        if held is None:
            source = np.ascontiguousarray(array)
            address = self._runtime.allocate(array.nbytes)
            try:
                self._runtime.copy_to_device(address, source)
            except BaseException:  # Ctrl-C too
                self._runtime.free(address)
                raise
            held = self._constants[id(array)] = (address, array)  # holding it keeps the id its own
        return held[0]

    def _table(self, rotation: Rotation) -> tuple[int, int]:
        """Addresses of a rotation's cosines and sines."""
        if rotation not in self._tables:
            self._tables[rotation] = rotation.table(np.arange(self._ctx))
        cos, sin = self._tables[rotation]
        return self._constant(cos), self._constant(sin)

    def _host_result(self, shape: BatchShape, columns: int) -> Ints:
        """Page-locked memory (rows, columns) for what the host wants of a pass."""
        rows = shape.output_rows
        nbytes = 4 * rows * columns
        if self._result is None or self._result.size < nbytes:
            self._forget()
            if self._result is not None:
                self._runtime.free_pinned(self._result)
            self._result = None
            self._result = self._runtime.allocate_pinned(nbytes)
        words: Ints = self._result[:nbytes].view(np.int32)
        return words.reshape(rows, columns)

    def _forget(self) -> None:
        """Drop all passes: an address that they hold is about to change."""
        while self._passes:
            self._drop(self._passes.popitem()[1])

    def _drop(self, kept: _CapturedPass) -> None:
        if kept.graph is not None:
            self._runtime.destroy_graph(kept.graph)


def _unmarked(step: str) -> None:
    """Mark nothing: the pass is not observed."""


def _shape(counts: Sequence[int], rows: Ints) -> BatchShape:
    tokens = sum(counts)
    return BatchShape(
        tokens=tokens,
        sequences=len(counts),
        outputs=None if rows.size == tokens else tuple(rows.tolist()),  # each comes once, in order
        single=max(counts) == 1,
        longest=max(counts),
    )


def _room(shape: BatchShape) -> BatchShape:
    """The largest shape that shares a plan with this one."""
    tokens = _rounded(shape.tokens)
    outputs = _rounded(shape.output_rows)
    return replace(
        shape,
        tokens=tokens,
        sequences=tokens if shape.single else 1,
        outputs=None if outputs == tokens else tuple(range(outputs)),
        longest=1,
    )


def _rounded(rows: int) -> int:
    return GEMV_ROWS if rows <= GEMV_ROWS else max(LEAST_ROOM, 1 << (rows - 1).bit_length())
