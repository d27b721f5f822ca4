"""Which kernels a model's passes will need, known before its matrices are packed."""

from __future__ import annotations

from dataclasses import replace

from rocmforge.gpu.cache import DeviceKVCache
from rocmforge.gpu.compiler import Build, Kernels
from rocmforge.gpu.executor import GpuExecutor
from rocmforge.gpu.matrix import DeviceMatrix
from rocmforge.gpu.ops import pack
from rocmforge.plan.graph import Graph, Op
from rocmforge.plan.records import Embed, ExpertGateUp, ExpertMatmul, Matmul


def builds_ahead(graph: Graph, kernels: Kernels, cache: DeviceKVCache, ctx: int) -> list[Build]:
    """Return what packing and most passes need, packing first.

    Parameters
    ----------
    graph, cache, ctx
        As of `Backend.compile_ahead`.
    kernels
        The device; nothing is compiled.
    """
    ops = [_unplaced(op) for op in graph.ops]
    packed = dict.fromkeys(m.format for op in ops for m in _matrices(op) if pack.is_needed(m))
    builds = [Build(pack.FILE, pack.LAYOUTS, {"FORMAT": name}, hot=False) for name in packed]
    executor = GpuExecutor(Graph(ops, graph.result), kernels, cache, ctx)
    try:
        return builds + executor.builds()
    finally:
        executor.close()


def _matrices(op: Op) -> tuple[DeviceMatrix, ...]:
    match op:
        case Matmul():
            return op.weights
        case ExpertGateUp():
            return op.gate, op.up
        case ExpertMatmul():
            return (op.weight,)
        case _:
            return ()


def _unplaced(op: Op) -> Op:
    """Return an op whose matrices lie nowhere yet."""
    match op:
        case Matmul():
            return replace(op, weights=tuple(DeviceMatrix.at(0, *w) for w in op.weights))
        case ExpertGateUp():
            return replace(op, gate=DeviceMatrix.at(0, *op.gate), up=DeviceMatrix.at(0, *op.up))
        case ExpertMatmul():
            return replace(op, weight=DeviceMatrix.at(0, *op.weight))
        case Embed(embedding=embedding) if embedding.packed is not None:
            packed = DeviceMatrix.at(0, *embedding.packed)
            return replace(op, embedding=replace(embedding, packed=packed))
        case _:
            return op
