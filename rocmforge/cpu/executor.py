"""Running a graph on a backend whose arrays are the host's: one call of the backend a record.

Keeps the buffers between passes. A pass of single tokens, as in decoding, is recorded and run again
without Python between its ops. It knows no model and no text.
"""

from __future__ import annotations

import functools
import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge.backend import Floats, HostBackend, Ints
from rocmforge.cpu.cache import PagedKVCache, aligned_zeros
from rocmforge.kv.batch import Batch, extend
from rocmforge.plan.fusion import fuse, gate_up_swiglu
from rocmforge.plan.graph import (
    Attention,
    Embed,
    GateUpSwiglu,
    Graph,
    KvAppend,
    Matmul,
    Op,
    Rmsnorm,
    Rope,
    Rotation,
    SelectOutputs,
    Swiglu,
    Tensor,
)

KEPT = 16  # recorded passes
Shape = tuple[int, int, int]
"""Of a pass of single tokens: tokens, rows whose logits are wanted, most pages of a sequence."""


@dataclass(frozen=True)
class Inputs:
    """What changes from one pass to the next of the same shape, as the ops read it."""

    cos: Floats
    sin: Floats
    pages: Ints
    offsets: Ints
    page_table: Ints
    lengths: Ints
    starts: Ints

    @classmethod
    def of(cls, batch: Batch, rotation: Rotation) -> Inputs:
        """Of a batch: where its tokens stand, and the angles there."""
        cos, sin = rotation.table(batch.positions)
        where = batch.pages, batch.offsets, batch.page_table, batch.lengths, batch.starts
        return cls(cos, sin, *where)

    def take(self, other: Inputs) -> None:
        """Hold what another one of the same shape holds, in the same memory."""
        for name in self.__dataclass_fields__:
            getattr(self, name)[:] = getattr(other, name)


@dataclass(frozen=True)
class _Program:
    """A recorded pass: its parts, None where Python has to do the op, and what they read."""

    inputs: Inputs
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
    """

    def __init__(self, graph: Graph, backend: HostBackend[Any], cache: PagedKVCache) -> None:
        self.graph = graph
        self.backend = backend
        self.cache = cache
        self._buffers: dict[str, Floats] = {}
        self._grown = 0  # times that one was
        self._programs: OrderedDict[Shape, _Program] = OrderedDict()  # use the buffers
        self._ops = fuse(graph.ops, (gate_up_swiglu,))
        by_python = itertools.groupby(self._ops, self._needs_python)
        self._parts = [(needs, list(ops)) for needs, ops in by_python]

    def forward(
        self, tokens: NDArray[np.int64], sequences: Sequence[int], counts: Sequence[int], rows: Ints
    ) -> Floats:
        """Run the new tokens of some sequences; see `Executor.forward`."""
        inputs = Inputs.of(extend(self.cache.table, sequences, counts), self.graph.rotation)
        if max(counts) > 1:
            run = _Run(self, tokens, rows, inputs)
            run.steps(self._ops)
            return run.logits
        shape = tokens.size, rows.size, inputs.page_table.shape[1]
        program = self._programs.get(shape)
        if program is None:
            return self._record(shape, tokens, rows, inputs)
        self._programs.move_to_end(shape)
        program.inputs.take(inputs)
        run = _Run(self, tokens, rows, program.inputs)
        for (_, ops), recorded in zip(self._parts, program.parts, strict=True):
            if recorded:
                recorded()
            else:
                run.steps(ops)
        return run.logits

    def _needs_python(self, op: Op) -> bool:
        """Whether the backend does not run it, or it writes to memory that is the caller's."""
        return isinstance(op, (Embed, SelectOutputs)) or self.graph.logits in op.writes

    def _record(
        self, shape: Shape, tokens: NDArray[np.int64], rows: Ints, inputs: Inputs
    ) -> Floats:
        """Run a pass of single tokens; keep what runs it again, unless buffers grew meanwhile."""
        run = _Run(self, tokens, rows, inputs)
        grown = self._grown
        parts: list[Callable[[], None] | None] = []
        for needs_python, ops in self._parts:
            steps = functools.partial(run.steps, ops)
            if needs_python:
                steps()
            parts.append(None if needs_python else self.backend.record(steps))
        if grown == self._grown:
            self._programs[shape] = _Program(inputs, parts)
        if len(self._programs) > KEPT:
            self._programs.popitem(last=False)
        return run.logits

    def close(self) -> None:
        """Nothing to do: memory goes with the object."""

    def buffer(self, name: str, rows: int, columns: int) -> Floats:
        """Scratch memory (rows, columns), kept between calls and grown as needed."""
        held = self._buffers.get(name)
        if held is None or held.size < rows * columns:
            self._grown += 1
            self._programs.clear()
            held = self._buffers[name] = aligned_zeros((rows * columns,), np.dtype(np.float32))
        return held[: rows * columns].reshape(rows, columns)


class _Run:
    """One pass of one batch."""

    def __init__(
        self, executor: HostExecutor, tokens: NDArray[np.int64], rows: Ints, inputs: Inputs
    ) -> None:
        self.executor = executor
        self.backend = executor.backend
        self.graph = executor.graph
        self.geometry = executor.graph.geometry
        self.tokens = tokens
        self.rows = rows
        self.inputs = inputs
        self.logits = np.empty((rows.size, self.graph.logits.columns), np.float32)

    def array(self, tensor: Tensor) -> Floats:
        if tensor is self.graph.logits:  # the caller's own, so no scratch memory
            return self.logits
        rows = self.tokens.size if tensor.rows == "tokens" else self.rows.size
        return self.executor.buffer(tensor.name, rows, tensor.columns)

    def steps(self, ops: Sequence[Op]) -> None:
        for op in ops:
            self.step(op)

    def step(self, op: Op) -> None:
        backend, array = self.backend, self.array
        match op:
            case Matmul():
                outs = [array(out) for out in op.outs]
                backend.matmul(array(op.x), op.weights, outs, op.biases, op.accumulate)
            case Rmsnorm():
                shape = (-1, op.weight.size)
                x, out = array(op.x).reshape(shape), array(op.out).reshape(shape)
                backend.rmsnorm(x, op.weight, op.eps, out)
            case Rope():
                heads = (self.tokens.size, -1, self.geometry.head_dim)
                interleaved = self.geometry.interleaved
                cos, sin = self.inputs.cos, self.inputs.sin
                backend.rope(array(op.x).reshape(heads), cos, sin, interleaved)
            case KvAppend():
                self._kv_append(op)
            case Attention():
                self._attention(op)
            case GateUpSwiglu():
                backend.gate_up_swiglu(array(op.x), op.gate, op.up, array(op.out))
            case Swiglu():
                backend.swiglu(array(op.gate), array(op.up), array(op.out))
            case Embed():
                table = op.embedding
                backend.dequantize(table.rows[self.tokens], table.format, array(op.out))
            case SelectOutputs():
                array(op.out)[:] = array(op.x)[self.rows]
            case _:
                raise NotImplementedError(f"no host backend runs {type(op).__name__}")

    def _kv_append(self, op: KvAppend) -> None:
        shape = (self.tokens.size, self.geometry.kv_heads, self.geometry.head_dim)
        k, v = self.array(op.k).reshape(shape), self.array(op.v).reshape(shape)
        cache, inputs = self.executor.cache, self.inputs
        pages, offsets = inputs.pages, inputs.offsets
        self.backend.kv_append(k, v, cache.k[op.layer], cache.v[op.layer], pages, offsets)

    def _attention(self, op: Attention) -> None:
        shape = (self.tokens.size, self.geometry.heads, self.geometry.head_dim)
        cache, inputs = self.executor.cache, self.inputs
        self.backend.attention(
            self.array(op.q).reshape(shape),
            cache.k[op.layer],
            cache.v[op.layer],
            inputs.page_table,
            inputs.lengths,
            inputs.starts,
            op.scale,
            self.array(op.out).reshape(shape),
        )
