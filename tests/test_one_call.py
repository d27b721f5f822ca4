"""One engine, several threads: calls that overlap are refused, calls in turn are not."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rocmforge.engine import Engine
from rocmforge.errors import EngineInUseError
from rocmforge.model.synthetic import make_model
from rocmforge.one_call import Calls, one_call
from rocmforge.sampling import SamplingParams


class Door:
    """Calls that wait until they are told to return."""

    def __init__(self) -> None:
        self._calls: Calls = {}
        self.entered, self.leave = threading.Event(), threading.Event()

    @one_call
    def wait(self) -> str:
        """Return when told."""
        self.entered.set()
        assert self.leave.wait(10)
        return "left"

    @one_call
    def quick(self, inside: Callable[[], object] = lambda: None) -> object:
        """Return at once."""
        return inside()


def in_thread(target: Callable[[], object], name: str = "other") -> threading.Thread:
    thread = threading.Thread(target=target, name=name)
    thread.start()
    return thread


def test_an_overlapping_call_is_refused_and_says_who_is_inside() -> None:
    door = Door()
    other = in_thread(door.wait, "worker")
    assert door.entered.wait(10)
    for _ in range(2):
        with pytest.raises(
            EngineInUseError,
            match=r"Door\.quick in thread 'MainThread': got an engine in use by Door\.wait in "
            "thread 'worker', wanted one call at a time: wait until",
        ):
            door.quick()
    door.leave.set()
    other.join()
    assert door.quick(lambda: 3) == 3
    assert door._calls == {}


def test_a_call_inside_a_call_is_refused_and_so_leaves_the_outer_one_alone() -> None:
    door = Door()
    with pytest.raises(EngineInUseError, match=r"in use by Door\.quick in thread 'MainThread'"):
        door.quick(door.quick)
    assert door.quick(lambda: 3) == 3


def test_a_note_that_an_interrupt_left_behind_does_not_count() -> None:
    door = Door()
    frames: list[Any] = []
    door.quick(lambda: frames.append(sys._getframe(2)))
    door._calls[object()] = ("Door.quick", frames[0])
    thread = in_thread(door.quick)
    thread.join()
    assert door._calls == {}


def test_of_many_threads_one_at_a_time_is_inside() -> None:
    inside, most, refused, done = 0, 0, 0, 0
    door, gate = Door(), threading.Barrier(4)

    def body() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        sum(i for i in range(50))  # a generator: hides the stack where it stops
        inside -= 1

    def attempt() -> None:
        nonlocal refused, done
        try:
            door.quick(body)
            done += 1
        except EngineInUseError:
            refused += 1

    def work() -> None:
        gate.wait()
        attempts, until = 0, time.monotonic() + 20
        while attempts < 300 or (refused == 0 and time.monotonic() < until):  # beside other load
            attempt()
            attempts += 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in [in_thread(work) for _ in range(4)]:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert most == 1
    assert min(done, refused) > 0
    assert door._calls == {}


# --- an engine


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = make_model(tmp_path_factory.mktemp("model") / "m.gguf", "tiny", "Q8_0", layers=2)
    with Engine.from_gguf(path, "cpu", ctx=64, threads=1, sequences=4, page_size=16) as engine:
        yield engine


def ids_of(engine: Engine, prompt: list[int]) -> list[int]:
    return [token.id for token in engine.generate([prompt], SamplingParams(max_tokens=12))]


def test_two_threads_at_once_get_right_tokens_or_an_error(engine: Engine) -> None:
    wanted = {first: ids_of(engine, [first, 5, 9]) for first in (1, 2)}
    wrong: list[int] = []
    refused = [0]
    gate = threading.Barrier(2)

    def attempt(first: int) -> None:
        try:
            if ids_of(engine, [first, 5, 9]) != wanted[first]:
                wrong.append(first)
        except EngineInUseError:
            refused[0] += 1

    def work(first: int) -> None:
        gate.wait()
        for _ in range(8):
            attempt(first)

    for thread in [in_thread(lambda first=first: work(first)) for first in wanted]:
        thread.join()
    assert wrong == []
    assert refused[0] > 0
    allocator = engine.cache.table.allocator
    assert allocator.n_free == allocator.n_pages


def test_every_door_is_refused_while_another_thread_is_inside(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = engine.add_sequence(8)
    entered, leave = threading.Event(), threading.Event()
    forward = engine._executor.forward

    def slow(*arguments: Any) -> Any:
        entered.set()
        assert leave.wait(10)
        return forward(*arguments)

    monkeypatch.setattr(engine._executor, "forward", slow)
    got: list[Any] = []
    other = in_thread(lambda: got.append(engine.prefill(sequence, [1, 2])), "worker")
    assert entered.wait(10)
    for call in (
        lambda: engine.prefill(sequence, [1]),
        lambda: engine.decode([sequence], [1]),
        lambda: engine.logits([1]),
        engine.add_sequence,
        lambda: engine.remove_sequence(sequence),
        lambda: next(engine.generate([[1]])),
        engine.close,
    ):
        with pytest.raises(EngineInUseError, match=r"in use by Engine.prefill in thread 'worker'"):
            call()
    with pytest.raises(KeyboardInterrupt), engine:  # which closing does not hide
        raise KeyboardInterrupt
    with pytest.raises(EngineInUseError), engine:
        pass
    engine.release(engine)
    leave.set()
    other.join()
    monkeypatch.undo()
    np.testing.assert_allclose(got[0], engine.logits([1, 2])[-1], atol=1e-3)
    engine.remove_sequence(sequence)


def test_generations_of_two_threads_that_take_turns_are_right(engine: Engine) -> None:
    prompts = {0: [1, 5, 9], 1: [2, 5, 9]}
    wanted = {turn: ids_of(engine, prompt) for turn, prompt in prompts.items()}
    got: dict[int, list[int]] = {0: [], 1: []}
    turns = [threading.Semaphore(1), threading.Semaphore(0)]

    def work(mine: int) -> None:
        generation = engine.generate([prompts[mine]], SamplingParams(max_tokens=12))
        for _ in range(12):
            assert turns[mine].acquire(timeout=10)
            got[mine].append(next(generation).id)
            turns[1 - mine].release()

    for thread in [in_thread(lambda mine=mine: work(mine)) for mine in (0, 1)]:
        thread.join()
    assert got == wanted
