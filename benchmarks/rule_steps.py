"""A fusion rule on a device: the steps with it and those without it, checked, ready for timing."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from rocmforge.cpu.executor import HOST_RULES, HostExecutor
from rocmforge.plan.graph import Graph
from rocmforge.plan.protocols import Backend, Executor, TimedPass, TimedStep
from rocmforge.testing import ReferenceBackend, check_close

from . import rule_graphs
from .checks import note_error
from .cold import cold_bytes
from .devices import backend

WAYS = ("fused", "unfused")
CONTEXT = 9  # tokens before those that are timed
PAGE_SIZE = 32
TOLERANCE = 0.05  # three products of activations in int8, and keys and values in q8_0


@functools.cache
def rule_steps(
    rule: str, work: str, tokens: int, way: str, device: str
) -> tuple[tuple[TimedStep, ...], int]:
    """Return the steps that one way has and the other one has not, and how many calls they are.

    Parameters
    ----------
    rule
        A name of `rule_graphs.EXAMPLES`.
    work
        Format of the weights, or dtype of the cache.
    tokens
        New tokens of the one sequence.
    way, device
        "fused" or "unfused", "cpu" or "gpu".

    Raises
    ------
    MeasurementError
        The logits of either way are wrong.
    NotImplementedError
        The device fuses nothing here, or is not there.
    """
    on = backend(device)
    made = rule_graphs.EXAMPLES[rule](work, cold_bytes(on.name), on.pack)
    kv_dtype = work if rule in ("rope_kv_append", "rope_attention") else "f16"
    wanted = _reference(rule, work, tokens)
    passes: dict[str, TimedPass] = {}
    for each in WAYS:
        what = f"{rule} {work}, {tokens} tokens, {each}"
        executor = _executor(on, made.graph, kv_dtype, made.copies, tokens, rule, each)
        for got, right in zip(_logits(executor, tokens), wanted, strict=True):
            note_error(check_close(what, got, right, TOLERANCE))
        passes[each] = executor.timed_pass(*_batch(executor, tokens))
    others = {step.label for other in WAYS if other != way for step in passes[other].steps}
    own = tuple(step for step in passes[way].steps if step.label not in others)
    if not own:
        raise NotImplementedError(f"{rule}: no kernel of this device for {work}, {tokens} tokens")
    return own, made.copies


def _executor(
    on: Backend[Any],
    graph: Graph,
    kv_dtype: str,
    layers: int,
    tokens: int,
    rule: str,
    way: str,
) -> Executor:
    """Return what runs a graph with one rule or with none."""
    heads, head_dim = rule_graphs.HEADS, rule_graphs.HEAD_DIM
    ctx = CONTEXT + 2 * tokens
    pages = -(-ctx // PAGE_SIZE)
    cache: Any = on.cache(layers, heads, head_dim, pages, PAGE_SIZE, kv_dtype)
    if on.name == "cpu":
        rules = [known for known in HOST_RULES if known.__name__ == rule and way == "fused"]
        return HostExecutor(graph, on, cache, rules)
    gpu: Any = on
    made: Executor = gpu.executor(graph, cache, ctx, (rule,) if way == "fused" else ())
    return made


def _reference(rule: str, work: str, tokens: int) -> list[np.ndarray]:
    """The logits that the reference computes of one copy, which those of the last copy are."""
    on = ReferenceBackend()
    made = rule_graphs.EXAMPLES[rule](work, 1, on.pack)
    cache = on.cache(
        made.copies,
        rule_graphs.HEADS,
        rule_graphs.HEAD_DIM,
        -(-(CONTEXT + tokens) // PAGE_SIZE),
        PAGE_SIZE,
        "f32",
    )
    return _logits(on.executor(made.graph, cache, CONTEXT + tokens), tokens)


def _logits(executor: Executor, tokens: int) -> list[np.ndarray]:
    """Logits after a short prompt, and after the tokens behind it."""
    sequence = executor.cache.table.add_sequence()
    try:
        return [
            executor.forward(_ids(count), [sequence], [count], np.array([count - 1], np.int32))
            for count in (CONTEXT, tokens)
        ]
    finally:
        executor.cache.table.remove(sequence)


def _batch(executor: Executor, tokens: int) -> tuple[Any, ...]:
    """The tokens that are timed, behind a short prompt."""
    sequence = executor.cache.table.add_sequence()
    executor.forward(_ids(CONTEXT), [sequence], [CONTEXT], np.array([0], np.int32))
    return _ids(tokens), [sequence], [tokens], np.array([tokens - 1], np.int32)


def _ids(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, rule_graphs.TOKENS, count)
