"""A CPU's pass for timing: its steps are those of the pass, and timing them changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from rocmforge.cpu import executor as host
from rocmforge.cpu import timed_pass
from rocmforge.cpu.backend import CpuBackend
from rocmforge.demo import demo_model
from rocmforge.engine import Engine
from rocmforge.plan.records import Matmul

PROMPT = list(range(5, 45))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(timed_pass, "SHORTEST_S", 1e-4)
    with Engine.from_gguf(demo_model(), "cpu", threads=2, ctx=256, sequences=4) as engine:
        yield engine


def test_every_step_of_a_pass_is_timed(engine: Engine) -> None:
    executor = engine._executor
    assert isinstance(executor, host.HostExecutor)
    layers = engine.config.n_layers
    timed = engine.timed_pass([engine.add_sequence()], [PROMPT])
    assert {step.label: step.calls for step in timed.steps} == {
        "embed": 1,
        "rmsnorm_h": 2 * layers,
        "matmul_qkv": layers,
        "rope_q": layers,
        "rope_k": layers,
        "kv_append": layers,
        "attention": layers,
        "matmul_attention_output": layers,
        "gate_up_swiglu": layers,
        "matmul_down": layers,
        "select_outputs": 1,
        "rmsnorm_last": 1,
        "matmul_output": 1,
    }
    assert sum(step.calls for step in timed.steps) == len(executor._ops)
    products = sum(step.cost.weight_bytes for step in timed.steps if "mat" in step.label)
    packed = [op.weights for op in executor._ops if isinstance(op, Matmul)]
    assert products == sum(w.nbytes for weights in packed for w in weights)
    for step in timed.steps:
        assert 0 < step.seconds() < 1
    assert 0 < timed.seconds() < 1


@pytest.mark.parametrize("count", [1, 3])
def test_a_step_runs_each_call_once(
    engine: Engine, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., None]:
        take = getattr(CpuBackend, name)

        def noted(self: CpuBackend, *given: object, **options: object) -> None:
            seen[name] += 1
            take(self, *given, **options)

        return noted

    for name in ("matmul", "attention", "rmsnorm", "dequantize"):
        monkeypatch.setattr(CpuBackend, name, counted(name))
    monkeypatch.setattr(CpuBackend, "record", lambda self, calls: calls)
    timed = engine.timed_pass([engine.add_sequence()], [PROMPT[:count]])
    for step in timed.steps:
        seen.clear()
        step.run()
        op = step.label.partition("_")[0]
        if op in ("matmul", "attention", "rmsnorm", "embed"):
            assert seen == {"dequantize" if op == "embed" else op: step.calls}


def test_every_run_goes_on_from_what_the_pass_left(engine: Engine) -> None:
    sequences = [engine.add_sequence() for _ in range(2)]
    for sequence in sequences:
        engine.prefill(sequence, PROMPT)
    timed = engine.timed_pass(sequences, [[7], [9]])
    for step in timed.steps:
        step.seconds()
        once = [array.copy() for array, _ in step.written]
        for _ in range(20):
            step.seconds()
        for (array, _), wanted in zip(step.written, once, strict=True):
            np.testing.assert_array_equal(array, wanted, err_msg=step.label)
            assert np.isfinite(array).all()
            assert not ((array != 0) & (np.abs(array) < np.finfo(np.float32).tiny)).any()


def test_the_engine_goes_on_as_if_nothing_had_been_timed(engine: Engine) -> None:
    def answers(timed: bool) -> list[np.ndarray]:
        sequence = engine.add_sequence()
        engine.prefill(sequence, PROMPT)
        if timed:
            other = engine.add_sequence()
            engine.prefill(other, PROMPT[::-1])
            measured = engine.timed_pass([other], [[3]])
            measured.seconds()
            for step in measured.steps:
                step.seconds()
            measured.close()
            assert engine.cache.table.length(other) == len(PROMPT) + 1
            engine.remove_sequence(other)
        return [engine.decode([sequence], [token]) for token in (4, 5, 6)]

    for got, wanted in zip(answers(True), answers(False), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_pass_for_timing_writes_what_a_pass_writes(engine: Engine) -> None:
    timed, plain = engine.add_sequence(), engine.add_sequence()
    engine.timed_pass([timed], [PROMPT]).seconds()
    engine.prefill(plain, PROMPT)
    np.testing.assert_array_equal(engine.decode([timed], [9]), engine.decode([plain], [9]))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[1], [2]], "ids: got those of 2 sequences, wanted 1"),
        ([list(range(4)) * 80], "ids: got 320, wanted at most 256"),
        ([[]], "at least one id"),
        ([[10**9]], "ids: got 1000000000, wanted 0 to"),
    ],
)
def test_what_is_no_pass_is_refused(engine: Engine, ids: list[list[int]], message: str) -> None:
    sequence = engine.add_sequence()
    with pytest.raises(ValueError, match=message):
        engine.timed_pass([sequence], ids)
    assert engine.cache.table.length(sequence) == 0


def test_sequences_must_differ_and_fit_one_pass(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = engine.add_sequence()
    with pytest.raises(ValueError, match="wanted different ids"):
        engine.timed_pass([sequence, sequence], [[1], [2]])
    monkeypatch.setattr("rocmforge.cpu.executor.HostExecutor.prefill_chunk", 16)
    with pytest.raises(ValueError, match="ids: got 40, wanted at most 16 in one pass"):
        engine.timed_pass([sequence], [PROMPT])
