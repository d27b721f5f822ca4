"""Passes that the host executor recorded give what passes from Python give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rocmforge.cpu import executor as host
from rocmforge.cpu.backend import CpuBackend
from rocmforge.demo import demo_model
from rocmforge.engine import Engine
from rocmforge.model import decoder
from rocmforge.plan.graph import Op
from rocmforge.plan.operands import Rotation
from rocmforge.plan.records import Rope


def open_engine() -> Engine:
    return Engine.from_gguf(demo_model(), "cpu", threads=2, ctx=256, sequences=4)


def steps() -> Iterator[NDArray[np.float32]]:
    """Decode one to three sequences in turns: pages are added, prompts between, one leaves."""
    engine = open_engine()
    sequences = [engine.add_sequence() for _ in range(3)]
    for number, sequence in enumerate(sequences):
        yield engine.prefill(sequence, list(range(5, 6 + 40 * number)))
    for step in range(40):
        together = sequences[: 1 + step % 3]
        yield engine.decode(together, [7 + step + number for number in range(len(together))])
        if step == 20:
            yield engine.prefill(sequences[0], list(range(3, 103)))  # its buffers are larger
        if step == 30:
            engine.remove_sequence(sequences[1])
            sequences[1] = engine.add_sequence()  # other pages
            yield engine.prefill(sequences[1], [9, 8, 7])
    engine.close()


def test_recorded_passes_give_what_others_give(monkeypatch: pytest.MonkeyPatch) -> None:
    replayed = []
    take = host.BatchArrays.take
    monkeypatch.setattr(
        host.BatchArrays, "take", lambda self, other: (replayed.append(1), take(self, other))
    )
    recorded = list(steps())
    count = len(replayed)
    assert count > 15  # else nothing is compared
    monkeypatch.setattr(host, "KEPT", 0)
    for step, (got, wanted) in enumerate(zip(recorded, steps(), strict=True)):
        np.testing.assert_array_equal(got, wanted, err_msg=f"step {step}")
    assert len(replayed) == count


def test_the_oldest_recordings_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "KEPT", 1)
    wanted = list(steps())
    monkeypatch.setattr(host, "KEPT", 16)
    for got, other in zip(steps(), wanted, strict=True):
        np.testing.assert_array_equal(got, other)


def test_logits_are_the_callers_own() -> None:
    engine = open_engine()
    sequence = engine.add_sequence(64)
    engine.prefill(sequence, [1, 2, 3])
    engine.decode([sequence], [4])
    first = engine.decode([sequence], [4])
    kept = first.copy()
    engine.decode([sequence], [9])
    np.testing.assert_array_equal(first, kept)


def test_gate_up_and_swiglu_run_as_one_op(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = []
    take = CpuBackend.gate_up_swiglu
    monkeypatch.setattr(
        CpuBackend, "gate_up_swiglu", lambda *given: (fused.append(1), take(*given))
    )
    monkeypatch.delattr(CpuBackend, "swiglu")
    engine = open_engine()
    sequence = engine.add_sequence(64)
    for call in (
        lambda: engine.prefill(sequence, [1, 2, 3]),
        lambda: engine.decode([sequence], [4]),
    ):
        fused.clear()
        call()
        assert len(fused) == engine.config.n_layers


def test_scratch_memory_begins_at_a_cache_line(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    take = host.HostExecutor.buffer

    def kept(executor: host.HostExecutor, name: str, rows: int, columns: int) -> host.Floats:
        made.append(take(executor, name, rows, columns))
        return made[-1]

    monkeypatch.setattr(host.HostExecutor, "buffer", kept)
    next(steps())
    assert made
    assert all(held.ctypes.data % 64 == 0 for held in made)


def test_each_layer_turns_by_its_own_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    layer_ops = decoder._Decoder.layer
    chosen: dict[int, Rotation] = {}

    def other_in_layer_one(self: Any, w: Any) -> Iterator[Op]:
        for op in layer_ops(self, w):
            if isinstance(op, Rope):
                rotation = op.rotation
                if w.index == 1:
                    rotation = replace(
                        rotation, frequencies=rotation.frequencies / 8, magnitude=1.5
                    )
                chosen.setdefault(w.index, rotation)
                op = replace(op, rotation=chosen[w.index])
            yield op

    monkeypatch.setattr(decoder._Decoder, "layer", other_in_layer_one)
    turned: list[NDArray[np.float32]] = []
    take = CpuBackend.rope

    def rope(self: CpuBackend, x: Any, cos: Any, sin: Any, interleaved: bool) -> None:
        turned.append(cos.copy())
        take(self, x, cos, sin, interleaved)

    monkeypatch.setattr(CpuBackend, "rope", rope)
    engine = open_engine()
    engine.prefill(engine.add_sequence(), [1, 2, 3])
    assert len(turned) == 2 * engine.config.n_layers  # queries and keys
    for layer, rotation in chosen.items():
        angles = np.arange(3)[:, None] * rotation.frequencies
        wanted = rotation.magnitude * np.cos(angles)
        for cos in turned[2 * layer : 2 * layer + 2]:
            np.testing.assert_allclose(cos, wanted, rtol=1e-6)
