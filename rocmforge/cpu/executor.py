"""Running a graph on a backend whose arrays are the host's: one call of the backend a record.

Keeps the buffers between passes. A pass of single tokens, as in decoding, is recorded and run again
without Python between its ops.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge.array_types import Floats, Ints
from rocmforge.cpu.cache import PagedKVCache
from rocmforge.cpu.host_backend import HostBackend
from rocmforge.cpu.memory import aligned_zeros
from rocmforge.cpu.observation import Stamps, facts, float_bytes, floats, observed_pass
from rocmforge.cpu.timed_pass import HostTimedPass, HostTimedStep
from rocmforge.kv.batch import Batch, Queries, Slots, extend
from rocmforge.plan.cost import Cost, Costs
from rocmforge.plan.fused_records import GateUpSwiglu
from rocmforge.plan.fusion import Rule, fuse, gate_up_swiglu
from rocmforge.plan.graph import Graph, Op, rotations
from rocmforge.plan.observation import Observer
from rocmforge.plan.operands import Rotation, Tensor
from rocmforge.plan.protocols import ExecutorMemory, MatrixShape, Progress, StageInput
from rocmforge.plan.records import (
    AddExperts,
    Attention,
    Embed,
    ExpertGateUp,
    ExpertMatmul,
    Gelu,
    KvAppend,
    Layernorm,
    Matmul,
    Receive,
    Rmsnorm,
    Rope,
    Route,
    SelectOutputs,
    Softcap,
    Swiglu,
)
from rocmforge.sampling import choose

HOST_RULES: tuple[Rule, ...] = (gate_up_swiglu,)
"""The rules for which host backends have an op."""
KEPT = 16  # recorded passes
PassKey = tuple[int, int, int, int]
"""Of a pass of single tokens: tokens, rows whose logits are wanted, most pages of a sequence, and
in how many parts it is recorded."""
Parts = Sequence[tuple[bool, Sequence[Op]]]
"""Ops that are run together, and whether they need Python."""
Do = Callable[[Callable[[], None]], None]
"""Runs a part of a pass."""


class OnHost:
    """Base of backends whose arrays are the host's: memory, cache, executor and clock."""

    def free_bytes(self) -> None:
        """Return None: the memory is the host's."""

    def expect(self, matrices: Sequence[MatrixShape]) -> None:
        """Take nothing ahead: the system rounds by 4 KiB, and each matrix is freed alone."""

    def compile_ahead(self, graph: Graph, cache: PagedKVCache, ctx: int) -> None:
        """Compile nothing: the ops are compiled with the package."""

    def cache(
        self,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        n_pages: int,
        page_size: int,
        dtype: str,
        windows: Sequence[int | None] = (),
    ) -> PagedKVCache:
        """Return an empty KV cache in host memory; see `Backend.cache`."""
        return PagedKVCache(n_layers, n_kv_heads, head_dim, n_pages, page_size, dtype, windows)

    def executor(
        self: HostBackend[Any], graph: Graph, cache: PagedKVCache, ctx: int
    ) -> HostExecutor:
        """Return what runs a graph; see `Backend.executor`."""
        return HostExecutor(graph, self, cache)

    def seconds(self) -> float:
        """Wall-clock time: an op is done when its call returns."""
        return time.perf_counter()

    def timed(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """Return what runs the next of the calls each time; see `Backend.timed`."""
        turns = itertools.cycle(calls)
        return lambda: next(turns)()


@dataclass(frozen=True)
class BatchArrays:
    """What ops read of a batch: where its tokens stand, and the angles there.

    Parameters
    ----------
    batch
        The batch.
    tables
        Cosines and sines (T, R / 2) for each rotation of the graph.
    """

    batch: Batch
    tables: dict[Rotation, tuple[Floats, Floats]]

    def take(self, other: BatchArrays) -> None:
        """Hold what another one of the same shapes holds, in the same memory."""
        for name in _READ:
            getattr(self.batch, name)[:] = getattr(other.batch, name)
        own, theirs = self.batch.in_windows, other.batch.in_windows
        if own is not None and theirs is not None:  # the rest is the batch's own
            own.pages[:], own.page_table[:] = theirs.pages, theirs.page_table
        for rotation, (cos, sin) in self.tables.items():
            cos[:], sin[:] = other.tables[rotation]


def _at_once(part: Callable[[], None]) -> None:
    part()


_READ = tuple(field.name for record in (Slots, Queries) for field in fields(record))


@dataclass(frozen=True)
class _RecordedPass:
    """A recorded pass: its parts, None where Python has to do the op, and what they read."""

    arrays: BatchArrays
    parts: Sequence[Callable[[], None] | None]


class HostExecutor:
    """Runs a graph on a backend whose arrays are the host's.

    Parameters
    ----------
    graph
        The forward pass; its matrices packed by `backend`.
    backend
        Runs the ops.
    cache
        Keys and values of every sequence.
    rules
        Which neighbouring ops become one; none, for comparisons: each op is one.
    """

    prefill_chunk = 512

    def __init__(
        self,
        graph: Graph,
        backend: HostBackend[Any],
        cache: PagedKVCache,
        rules: Sequence[Rule] = HOST_RULES,
    ) -> None:
        self.backend = backend
        self.cache = cache
        self._angles = {r: r.table(np.arange(0)) for r in rotations(graph.ops)}
        self._buffers: dict[str, Floats] = {}
        self._grown = 0  # times that one was
        self._passes: OrderedDict[PassKey, _RecordedPass] = OrderedDict()  # use the buffers
        self._ops, self.result = _own_result(fuse(graph.ops, rules), graph.result)
        by_python = itertools.groupby(self._ops, self._needs_python)
        self._parts: Parts = [(needs, list(ops)) for needs, ops in by_python]
        self._labels = [op.label for op in self._ops]
        self._single_ops: Parts = [(self._needs_python(op), [op]) for op in self._ops]
        self.observer: Observer | None = None
        self.runs_ahead = False

    def prepare(self, progress: Progress | None = None) -> None:
        """Nothing to do: the kernels came compiled."""

    def forward(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        rows: Ints,
        stage: StageInput | None = None,
    ) -> Floats:
        """Run the new tokens of some sequences; see `Executor.forward`."""
        if self.observer is not None:
            return self._observed(self.observer, tokens, sequences, counts, rows, stage)
        return self._pass(tokens, rows, *self._given(sequences, counts, stage))

    def _given(
        self, sequences: Sequence[int], counts: Sequence[int], stage: StageInput | None
    ) -> tuple[Batch, Floats | None]:
        """Where the new tokens stand, and what is received; of a whole model sequences grow."""
        if stage is None:
            return extend(self.cache.table, sequences, counts), None
        return stage.batch, stage.received

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
        rows = (np.cumsum(counts) - 1).astype(np.int32)
        logits = self.forward(tokens, sequences, counts, rows, stage)
        return [choose(row, draw) for row, draw in zip(logits, draws, strict=True)]

    def memory(self) -> ExecutorMemory:
        """Return what it holds now; see `Executor.memory`."""
        activations = sum(held.nbytes for held in self._buffers.values())
        angles = sum(cos.nbytes + sin.nbytes for cos, sin in self._angles.values())
        return ExecutorMemory(activations, angles, inputs=0, page_table=0, pinned=0)

    def timed_pass(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        rows: Ints,
        stage: StageInput | None = None,
    ) -> HostTimedPass:
        """Run new tokens, and return their pass for timing; see `Executor.timed_pass`."""
        batch, received = self._given(sequences, counts, stage)
        run = _Run(self, tokens, rows, self._arrays(batch), received)
        run.steps(self._ops)  # leaves in the buffers what steps read that are run alone
        kv_token_bytes = self.cache.bytes_per_token // self.cache.n_layers
        costs = Costs(counts, batch.lengths.tolist(), rows.size, kv_token_bytes, float_bytes)
        groups: dict[str, list[Op]] = {}
        for op in self._ops:
            groups.setdefault(op.label, []).append(op)
        steps = [self._timed_step(run, label, ops, costs) for label, ops in groups.items()]
        return HostTimedPass(steps, functools.partial(self._pass, tokens, rows, batch, received))

    def _timed_step(self, run: _Run, label: str, ops: Sequence[Op], costs: Costs) -> HostTimedStep:
        """Time ops as a pass runs them: those of single tokens recorded."""
        calls: Callable[[], None] = functools.partial(run.steps, ops)
        written = [
            run.array(tensor) for tensor in dict.fromkeys(t for op in ops for t in op.writes)
        ]
        kept = [(array, array.copy()) for array in written]
        if run.single and not any(map(self._needs_python, ops)):
            calls = self.backend.record(calls)
        cost = sum((costs.of(op, floats(op.reads), floats(op.writes)) for op in ops), Cost())
        return HostTimedStep(label, len(ops), cost, calls, kept)

    def _arrays(self, batch: Batch) -> BatchArrays:
        length, at = int(batch.lengths.max()), batch.positions
        tables = {}
        for rotation, (cos, sin) in self._angles.items():
            if len(cos) < length:  # twice as many, so that few passes compute any
                new = rotation.table(np.arange(len(cos), 1 << (length - 1).bit_length()))
                cos, sin = np.concatenate([cos, new[0]]), np.concatenate([sin, new[1]])
                self._angles[rotation] = cos, sin
            tables[rotation] = cos[at], sin[at]
        return BatchArrays(batch, tables)

    def _observed(
        self,
        observer: Observer,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        rows: Ints,
        stage: StageInput | None,
    ) -> Floats:
        """Run new tokens with a stamp around each op; single tokens are recorded op by op."""
        begin = time.perf_counter()
        batch, received = self._given(sequences, counts, stage)
        stamps = Stamps(self._labels)
        logits = self._pass(tokens, rows, batch, received, self._single_ops, stamps.run)
        end = time.perf_counter()
        lengths = batch.lengths.tolist()
        kv_token_bytes = self.cache.bytes_per_token // self.cache.n_layers
        costs = Costs(counts, lengths, rows.size, kv_token_bytes, float_bytes)
        told = functools.partial(facts, self.backend, self._ops, costs, tokens.size, rows.size)
        observer(observed_pass(begin, end, stamps, told))
        return logits

    def _pass(
        self,
        tokens: NDArray[np.int64],
        rows: Ints,
        batch: Batch,
        received: Floats | None,
        parts: Parts | None = None,
        do: Do = _at_once,
    ) -> Floats:
        """Run new tokens whose places are taken, each part by `do`."""
        parts = self._parts if parts is None else parts
        run = _Run(self, tokens, rows, self._arrays(batch), received)
        if not run.single:
            for _, ops in parts:
                do(functools.partial(run.steps, ops))
            return run.result
        key = tokens.size, rows.size, batch.page_table.shape[1], len(parts)
        recorded = self._passes.get(key)
        if recorded is None:
            return self._record(key, run, parts, do)
        self._passes.move_to_end(key)
        recorded.arrays.take(run.arrays)
        run.arrays = recorded.arrays
        for (_, ops), part in zip(parts, recorded.parts, strict=True):
            do(part or functools.partial(run.steps, ops))
        return run.result

    def _needs_python(self, op: Op) -> bool:
        """Whether the backend does not run it, or it writes to memory that is the caller's."""
        return isinstance(op, (Embed, Receive, SelectOutputs)) or self.result in op.writes

    def _record(self, key: PassKey, run: _Run, parts: Parts, do: Do) -> Floats:
        """Run a pass of single tokens; keep what runs it again, unless buffers grew meanwhile."""
        grown = self._grown
        recorded: list[Callable[[], None] | None] = []

        def record(steps: Callable[[], None]) -> None:
            recorded.append(self.backend.record(steps))

        for needs_python, ops in parts:
            steps = functools.partial(run.steps, ops)
            if needs_python:
                do(steps)
                recorded.append(None)
            else:
                do(functools.partial(record, steps))
        if grown == self._grown:
            self._passes[key] = _RecordedPass(run.arrays, recorded)
        if len(self._passes) > KEPT:
            self._passes.popitem(last=False)
        return run.result

    def close(self) -> None:
        """Nothing to do: memory goes with the object."""

    def buffer(self, name: str, rows: int, columns: int) -> Floats:
        """Scratch memory (rows, columns), kept between calls and grown as needed."""
        held = self._buffers.get(name)
        if held is None or held.size < rows * columns:
            self._grown += 1
            self._passes.clear()
            held = self._buffers[name] = aligned_zeros((rows * columns,), np.dtype(np.float32))
        return held[: rows * columns].reshape(rows, columns)


def _own_result(ops: Sequence[Op], result: Tensor) -> tuple[Sequence[Op], Tensor]:
    """Have a tensor for the result that nothing but the last op touches: it is the caller's memory.

    A stage's result is changed by every layer, in scratch memory.
    """
    if result.rows == "outputs":
        return ops, result
    own = Tensor(f"{result.name}_out", result.columns, "outputs")
    return [*ops, SelectOutputs(result, own)], own


class _Run:
    """One pass of one batch."""

    def __init__(
        self,
        executor: HostExecutor,
        tokens: NDArray[np.int64],
        rows: Ints,
        arrays: BatchArrays,
        received: Floats | None,
    ) -> None:
        self.executor = executor
        self.backend = executor.backend
        self.tokens = tokens
        self.rows = rows
        self.arrays = arrays
        self.received = received
        self.single = arrays.batch.lengths.size == tokens.size
        self.result = np.empty((rows.size, executor.result.columns), np.float32)

    def array(self, tensor: Tensor) -> Floats:
        if tensor is self.executor.result:  # the caller's own, so no scratch memory
            return self.result
        rows = self.tokens.size if tensor.rows == "tokens" else self.rows.size
        return self.executor.buffer(tensor.name, rows, tensor.columns)

    def batch(self, op: KvAppend | Attention) -> Batch:
        """Where the tokens stand in the memory of the op's layer."""
        return self.arrays.batch.of(op.layer in self.executor.cache.windowed)

    def indices(self, tensor: Tensor) -> Ints:
        """A tensor whose numbers are int32 in the memory of float32."""
        return self.array(tensor).view(np.int32)

    def heads(self, tensor: Tensor, head_dim: int) -> Floats:
        """A tensor as (T, heads, D)."""
        return self.array(tensor).reshape(self.tokens.size, -1, head_dim)

    def steps(self, ops: Sequence[Op]) -> None:
        for op in ops:
            self.step(op)

    def step(self, op: Op) -> None:
        backend, array, heads = self.backend, self.array, self.heads
        cache = self.executor.cache
        match op:
            case Matmul():
                outs = [array(out) for out in op.outs]
                backend.matmul(array(op.x), op.weights, outs, op.biases, op.accumulate, op.scale)
            case Rmsnorm():
                shape = (-1, op.weight.size)
                x, out = array(op.x).reshape(shape), array(op.out).reshape(shape)
                backend.rmsnorm(x, op.weight, op.eps, out, op.accumulate)
            case Layernorm():
                backend.layernorm(array(op.x), op.weight, op.bias, op.eps, array(op.out))
            case Rope():
                cos, sin = self.arrays.tables[op.rotation]
                backend.rope(heads(op.x, op.head_dim), cos, sin, op.rotation.interleaved)
            case KvAppend():
                k, v = heads(op.k, op.head_dim), heads(op.v, op.head_dim)
                backend.kv_append(k, v, cache.k[op.layer], cache.v[op.layer], self.batch(op))
            case Attention():
                q, out = heads(op.q, op.head_dim), heads(op.out, op.head_dim)
                k_pages, v_pages = cache.k[op.layer], cache.v[op.layer]
                backend.attention(
                    q,
                    k_pages,
                    v_pages,
                    self.batch(op),
                    op.scale,
                    out,
                    window=op.window,
                    softcap=op.softcap,
                    sinks=op.sinks,
                )
            case GateUpSwiglu():
                backend.gate_up_swiglu(array(op.x), op.gate, op.up, op.activation, array(op.out))
            case Swiglu():
                backend.swiglu(
                    array(op.gate), array(op.up), array(op.out), activation=op.activation
                )
            case Gelu():
                backend.gelu(array(op.x), array(op.out))
            case Softcap():
                backend.softcap(array(op.x), op.cap, array(op.x))
            case Route():
                scores, which, shares = array(op.scores), self.indices(op.experts), array(op.shares)
                kind = op.normalized, op.sigmoid
                backend.route(scores, *kind, op.scale, op.bias, which, shares)
            case ExpertGateUp():
                x, which, out = array(op.x), self.indices(op.experts), array(op.out)
                biases = op.gate_bias, op.up_bias
                backend.expert_gate_up_swiglu(
                    x, op.gate, op.up, biases, op.activation, which, op.count, out
                )
            case ExpertMatmul():
                x, which, out = array(op.x), self.indices(op.experts), array(op.out)
                backend.expert_matmul(x, op.weight, op.bias, which, op.count, out)
            case AddExperts():
                if not op.accumulate:
                    array(op.x)[:] = 0.0
                backend.add_experts(array(op.parts), array(op.shares), array(op.x))
            case Embed():
                table, out = op.embedding, array(op.out)
                backend.dequantize(table.rows[self.tokens], table.format, out)
                if op.scale != 1.0:
                    out *= np.float32(op.scale)
            case Receive():
                array(op.out)[:] = self.received
            case SelectOutputs():
                # Rows are in range; mode "raise" would write to a copy first.
                np.take(array(op.x), self.rows, axis=0, out=array(op.out), mode="clip")
            case _:
                raise NotImplementedError(f"no host backend runs {type(op).__name__}")
