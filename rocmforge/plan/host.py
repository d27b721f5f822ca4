"""Running a graph on a backend whose arrays are the host's: one call of the backend a record.

Keeps the buffers between passes. It does not fuse; it knows no model and no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge.backend import Backend, Floats, Ints
from rocmforge.kv.batch import Batch, extend
from rocmforge.kv.cache import PagedKVCache
from rocmforge.plan.graph import (
    Attention,
    Embed,
    Graph,
    KvAppend,
    Matmul,
    Op,
    Rmsnorm,
    Rope,
    SelectOutputs,
    Swiglu,
    Tensor,
)


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

    def __init__(self, graph: Graph, backend: Backend[Any], cache: PagedKVCache) -> None:
        self.graph = graph
        self.backend = backend
        self.cache = cache
        self._buffers: dict[str, Floats] = {}

    def forward(
        self, tokens: NDArray[np.int64], sequences: Sequence[int], counts: Sequence[int], rows: Ints
    ) -> Floats:
        """Run the new tokens of some sequences; see `Executor.forward`."""
        batch = extend(self.cache.table, sequences, counts)
        run = _Run(self, tokens, rows, batch)
        for op in self.graph.ops:
            run.step(op)
        return run.logits

    def close(self) -> None:
        """Nothing to do: memory goes with the object."""

    def buffer(self, name: str, rows: int, columns: int) -> Floats:
        """Scratch memory (rows, columns), kept between calls and grown as needed."""
        held = self._buffers.get(name)
        if held is None or held.size < rows * columns:
            held = self._buffers[name] = np.empty(rows * columns, np.float32)
        return held[: rows * columns].reshape(rows, columns)


class _Run:
    """One pass of one batch."""

    def __init__(
        self, executor: HostExecutor, tokens: NDArray[np.int64], rows: Ints, batch: Batch
    ) -> None:
        self.executor = executor
        self.backend = executor.backend
        self.graph = executor.graph
        self.geometry = executor.graph.geometry
        self.tokens = tokens
        self.rows = rows
        self.batch = batch
        self.cos, self.sin = self.graph.rotation.table(batch.positions)
        self.logits = np.empty((rows.size, self.graph.logits.columns), np.float32)

    def array(self, tensor: Tensor) -> Floats:
        if tensor is self.graph.logits:  # the caller's own, so no scratch memory
            return self.logits
        rows = self.tokens.size if tensor.rows == "tokens" else self.rows.size
        return self.executor.buffer(tensor.name, rows, tensor.columns)

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
                backend.rope(array(op.x).reshape(heads), self.cos, self.sin, interleaved)
            case KvAppend():
                self._kv_append(op)
            case Attention():
                self._attention(op)
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
        cache, batch = self.executor.cache, self.batch
        pages, offsets = batch.pages, batch.offsets
        self.backend.kv_append(k, v, cache.k[op.layer], cache.v[op.layer], pages, offsets)

    def _attention(self, op: Attention) -> None:
        shape = (self.tokens.size, self.geometry.heads, self.geometry.head_dim)
        cache, batch = self.executor.cache, self.batch
        self.backend.attention(
            self.array(op.q).reshape(shape),
            cache.k[op.layer],
            cache.v[op.layer],
            batch.page_table,
            batch.lengths,
            batch.starts,
            op.scale,
            self.array(op.out).reshape(shape),
        )
