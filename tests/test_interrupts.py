"""Ctrl-C between any two steps of generating: no page of the KV cache is lost, nothing stays shut.

A trace function raises KeyboardInterrupt before the k-th bytecode of the package. What a pass
computes is that of a stand-in here and there, so that many points are tried in a second.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from model.small_models import written
from numpy.typing import NDArray

import rocmforge.engine
from rocmforge.chat import KeptSequence
from rocmforge.engine import Engine
from rocmforge.generation import Generation
from rocmforge.kv.allocator import BlockAllocator
from rocmforge.kv.batch import extend
from rocmforge.kv.page_table import PageTable
from rocmforge.kv.page_use import page_use
from rocmforge.model.synthetic import make_model
from rocmforge.sampling import SamplingParams, choose

PACKAGE = str(Path(rocmforge.engine.__file__).parent)
V = 32
PAGES = 8
PROMPTS = [[1, 2, 3], list(range(4, 24)), [9]]
PARAMS = SamplingParams(max_tokens=3)
WANTED = {0: [4, 5, 6], 1: [24, 25, 26], 2: [10, 11, 12]}


@contextmanager
def interrupt_before(bytecode: int) -> Iterator[list[int]]:
    """Raise KeyboardInterrupt before that bytecode of the package; yields a list with the count."""
    ran = [0]

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "opcode":
            ran[0] += 1
            if ran[0] == bytecode:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield ran
    finally:
        sys.settrace(before)


class CountingExecutor:
    """An `Executor` whose next token is always the last one plus 1; pages are the real table's."""

    prefill_chunk = 512

    def __init__(self) -> None:
        self.left = -1  # passes until one is cut short
        self.runs_ahead = False
        self.cache = SimpleNamespace(table=PageTable(BlockAllocator(PAGES), 16))

    def forward(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        rows: NDArray[np.int32],
    ) -> NDArray[np.float32]:
        extend(self.cache.table, sequences, counts)
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return np.eye(V, dtype=np.float32)[(tokens[rows] + 1) % V]

    def next_tokens(
        self,
        tokens: NDArray[np.int64],
        sequences: Sequence[int],
        counts: Sequence[int],
        draws: NDArray[Any],
        following: NDArray[Any] | None = None,
    ) -> list[int]:
        last = (np.cumsum(counts) - 1).astype(np.int32)
        logits = self.forward(tokens, sequences, counts, last)
        return [choose(row, draw) for row, draw in zip(logits, draws, strict=True)]

    def close(self) -> None:
        pass


@pytest.fixture
def engine() -> Engine:
    config, backend = SimpleNamespace(vocab_size=V), SimpleNamespace()
    return Engine(
        ExitStack(), cast(Any, config), cast(Any, CountingExecutor()), cast(Any, backend), 64, 0
    )


def tokens_of(generation: Generation) -> dict[int, list[int]]:
    out: dict[int, list[int]] = {}
    for token in generation:
        out.setdefault(token.prompt, []).append(token.id)
    return out


def n_free(engine: Engine) -> int:
    return engine.cache.table.allocator.n_free


def run_and_close(engine: Engine) -> None:
    generation = engine.generate(PROMPTS, PARAMS)
    try:
        tokens_of(generation)
    finally:
        sys.settrace(None)  # closing is not cut short a second time
        generation.close()


def close_in_the_middle(engine: Engine) -> None:
    generation = engine.generate(PROMPTS, PARAMS)
    try:
        for _ in range(4):
            next(generation)
        generation.close()
    finally:
        sys.settrace(None)
        generation.close()


def run_into_an_interrupt_and_close(engine: Engine) -> None:
    """The point is the second interrupt, in what the first one began, if it comes after that."""
    cast(Any, engine._executor).left = 4
    try:
        run_and_close(engine)
    finally:
        cast(Any, engine._executor).left = -1


def forget_in_the_middle(engine: Engine) -> None:
    """Nobody closes it; the engine mends what is left when a next sequence is added."""
    with suppress(KeyboardInterrupt):
        for _, _token in zip(range(4), engine.generate(PROMPTS, PARAMS), strict=False):
            pass
    sys.settrace(None)
    gc.collect(0)
    engine.remove_sequence(engine.add_sequence())


def logits(engine: Engine) -> None:
    with suppress(KeyboardInterrupt):
        engine.logits(PROMPTS[1])
    sys.settrace(None)
    engine.logits([1])


def conversation(engine: Engine) -> None:
    kept, executor = KeptSequence(engine), cast(Any, engine._executor)
    try:
        kept.prefill(0, [1, 2, 3])
        kept.decode([0], [4])
        kept.prefill(0, [1, 2, 3, 4, 5])
        kept.prefill(0, [7, 8])
        executor.left = 1
        with suppress(KeyboardInterrupt):
            kept.decode([0], [9])
        kept.prefill(0, [1, 2, 3])
        executor.left = 1
        kept.prefill(0, [1, 2, 3, 4, 5])
    finally:
        sys.settrace(None)
        executor.left = -1
        assert kept.prefill(0, [1, 2, 3, 4, 5, 6]).argmax() == 7
        assert engine.cache.table.length(kept._sequence or 0) == 6
        kept.clear()


@pytest.mark.parametrize(
    "run",
    [
        run_and_close,
        close_in_the_middle,
        run_into_an_interrupt_and_close,
        forget_in_the_middle,
        logits,
        conversation,
    ],
)
def test_an_interrupt_anywhere_loses_no_page(run: Callable[[Engine], None], engine: Engine) -> None:
    with interrupt_before(-1) as ran, suppress(KeyboardInterrupt):
        run(engine)
    for point in np.random.default_rng(0).integers(1, ran[0] + 1, 50).tolist():
        with interrupt_before(point), suppress(KeyboardInterrupt):
            run(engine)
        assert n_free(engine) == PAGES, point
        assert tokens_of(engine.generate(PROMPTS, PARAMS)) == WANTED, point
        assert n_free(engine) == PAGES, point


def test_an_interrupt_on_a_model_loses_no_page_and_changes_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCMFORGE_CPU_EXACT", "1")
    path = make_model(tmp_path / "m.gguf", "tiny", "Q8_0", layers=1)
    options = {"ctx": 64, "threads": 1, "page_size": 16}
    with Engine.from_gguf(path, "cpu", **cast(Any, options)) as fresh:
        wanted = tokens_of(fresh.generate(PROMPTS, PARAMS))
    with Engine.from_gguf(path, "cpu", **cast(Any, options)) as engine:
        with interrupt_before(-1) as ran:
            run_and_close(engine)
        for point in np.random.default_rng(1).integers(1, ran[0] + 1, 25).tolist():
            cast(Any, engine._executor)._passes.clear()  # they are recorded anew
            with interrupt_before(point), suppress(KeyboardInterrupt):
                run_and_close(engine)
            assert n_free(engine) == engine.cache.table.allocator.n_pages, point
            assert tokens_of(engine.generate(PROMPTS, PARAMS)) == wanted, point


@pytest.mark.parametrize("window", [None, 3])
def test_an_interrupt_while_prompts_share_pages_loses_none_and_changes_no_token(
    window: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCMFORGE_CPU_EXACT", "1")
    keys = {} if window is None else {"attention__sliding_window": window}
    path = written("gemma2", **keys)(tmp_path / "m.gguf")
    prompts = [[*range(20), text] for text in (30, 31)]

    def run(engine: Engine, share: bool) -> dict[int, list[int]]:
        generation = engine.generate(prompts, PARAMS, share_prefixes=share)
        try:
            return tokens_of(generation)
        finally:
            sys.settrace(None)  # closing is not cut short a second time
            generation.close()

    with Engine.from_gguf(path, "cpu", ctx=64, threads=1, page_size=16) as engine:
        wanted = run(engine, share=False)
        table = engine.cache.table
        with interrupt_before(-1) as ran:
            run(engine, share=True)
        for point in np.random.default_rng(2).integers(1, ran[0] + 1, 40).tolist():
            table.remove(table.add_sequence(table.page_size * table.allocator.n_pages))  # forgets
            with interrupt_before(point), suppress(KeyboardInterrupt):
                run(engine, share=True)
            use = page_use(table)
            assert (use.sequences, use.taken, use.kept + use.free) == (0, 0, use.pages), point
            assert use.kept <= 1, point
            for share in (True, False):
                assert run(engine, share) == wanted, point


def interrupted_logits(engine: Engine, point: int) -> list[int]:
    """Tokens that another thread gets while the interrupt's traceback, and so its frames, live."""
    got: list[int] = []
    try:
        with interrupt_before(point):
            engine.logits([1])
    except KeyboardInterrupt:
        other = threading.Thread(target=lambda: got.append(int(engine.logits([1]).argmax())))
        other.start()
        other.join()
    return got


def test_an_interrupt_leaves_the_engine_open_to_other_threads(engine: Engine) -> None:
    with interrupt_before(-1) as ran:
        engine.logits([1])
    for point in range(1, ran[0] + 1, 4):
        assert interrupted_logits(engine, point) == [2], point
