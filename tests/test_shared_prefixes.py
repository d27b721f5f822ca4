"""Prompts that begin alike share pages of the KV cache where that is asked for, and only there."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model.small_models import written
from numpy.typing import NDArray
from shared_prompts import (
    GREEDY,
    PROMPTS,
    SHARED,
    check_divergence,
    check_logits,
    check_tokens,
    tokens_of,
)

from rocmforge.cpu.cache import DTYPES
from rocmforge.engine import Engine
from rocmforge.errors import OutOfPagesError
from rocmforge.generation import GenerationStats
from rocmforge.kv.page_use import page_use
from rocmforge.model.synthetic import make_model
from rocmforge.sampling import SamplingParams
from rocmforge.speed.sequences import prefill_seconds, ttft

Open = Callable[..., Engine]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "m.gguf", "tiny", "Q8_0", layers=2)


@pytest.fixture
def open_engine(path: Path) -> Open:
    options = {"ctx": 64, "sequences": 4, "page_size": 16, "threads": 2}
    return lambda **more: Engine.from_gguf(path, "cpu", **{**options, **more})


def identical(got: NDArray[np.float32], wanted: NDArray[np.float32]) -> None:
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_shared_pages_change_no_bit(kv_dtype: str, open_engine: Open) -> None:
    with open_engine(kv_dtype=kv_dtype) as engine:
        check_logits(engine, identical)
        check_divergence(engine, identical)


@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_tokens_are_those_of_prompts_that_ran_whole(kv_dtype: str, open_engine: Open) -> None:
    with open_engine(kv_dtype=kv_dtype) as engine:
        check_tokens(engine)


def test_windows_keep_what_prompts_share(tmp_path: Path) -> None:
    """Of other pages that windows have passed, they keep nothing."""

    def close(got: NDArray[np.float32], wanted: NDArray[np.float32]) -> None:
        np.testing.assert_allclose(got, wanted, atol=1e-4)

    small = written("gemma2", attention__sliding_window=9, block_count=3)(tmp_path / "m.gguf")
    ids = [i * i % 97 for i in range(60)]
    with Engine.from_gguf(small, "cpu", ctx=64, sequences=3, page_size=16) as engine:
        windows, table = engine.cache.table.windows, engine.cache.table
        assert windows is not None
        wanted = engine.logits(ids)
        first, _ = engine.add_prompt(ids[:41])
        engine.prefill(first, ids[:41])
        for at in range(41, 60):
            close(engine.decode([first], [ids[at]])[0], wanted[at])
        pages = np.array(table.pages(first))
        assert windows.without(pages).tolist() == [pages[2]]  # those before are full
        alone = engine.add_sequence()
        engine.prefill(alone, ids)
        assert windows.without(np.array(table.pages(alone))).size == 0  # it came in one pass
        close(engine.decode([alone], [5])[0], engine.logits([*ids, 5])[-1])
        assert windows.without(np.array(table.pages(alone))).size == 3
        engine.remove_sequence(alone)
        for length in (17, 40):  # within the window's reach of the first page, and of the second
            later, held = engine.add_prompt(ids[:length])
            assert held == length // 16 * 16
            close(engine.prefill(later, ids[held:length]), wanted[length - 1])
            engine.remove_sequence(later)


def test_ids_that_change_after_they_were_given_are_not_what_later_prompts_find(
    open_engine: Open,
) -> None:
    ids, other = np.array(PROMPTS[0]), np.array(PROMPTS[0])
    other[0] += 1
    with open_engine() as engine:
        wanted = engine.logits(other)[-1]
        sequence, held = engine.add_prompt(ids)
        rest = ids[held:].copy()
        ids[0] += 1
        engine.prefill(sequence, rest)
        later, found = engine.add_prompt(other)
        assert found == 0
        np.testing.assert_array_equal(engine.prefill(later, other), wanted)


def test_a_repetition_penalty_sees_the_whole_prompt(open_engine: Open) -> None:
    params = SamplingParams(max_tokens=6, repetition_penalty=1.5)
    with open_engine() as engine:
        wanted = [token.id for token in engine.generate(PROMPTS[:1], params)]
        for cached in (0, SHARED):
            generation = engine.generate(PROMPTS[:1], params, share_prefixes=True)
            assert [token.id for token in generation] == wanted
            assert generation.stats.cached_tokens == cached


def test_prompts_that_share_fit_where_whole_ones_must_wait(open_engine: Open) -> None:
    """Three sequences of 50 tokens are 12 pages of 16; they share two, so 8 are enough."""
    with open_engine(sequences=2) as engine:
        generation = engine.generate(PROMPTS, GREEDY, share_prefixes=True)
        seen = [page_use(engine.cache.table) for _ in generation]
        assert max(use.sequences for use in seen) == 3
        assert max(use.taken for use in seen) == 8
        use = page_use(engine.cache.table)
        assert (use.sequences, use.taken, use.kept, use.free) == (0, 0, 2, 6)


def test_what_is_kept_makes_room_before_anything_is_refused(open_engine: Open) -> None:
    with open_engine(sequences=1) as engine:  # 4 pages
        texts = [[first] * 45 for first in range(1, 6)]
        wanted = [tokens_of(engine, [text], share=False) for text in texts]
        for text, tokens in zip(texts, wanted, strict=True):
            assert tokens_of(engine, [text], share=True) == tokens
        assert page_use(engine.cache.table).kept == 2
        held = engine.add_sequence(64)  # all pages
        assert page_use(engine.cache.table).kept == 0
        with pytest.raises(OutOfPagesError, match="wanted 1, 0 of 4 free"):
            engine.add_prompt(texts[-1], 1)
        engine.remove_sequence(held)


class Counted:
    """Counts the tokens that an engine's executor runs."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tokens = 0
        self._forward = engine._executor.forward  # `next_tokens` calls it too
        monkeypatch.setattr(engine._executor, "forward", self._count)

    def _count(self, tokens: NDArray[np.int64], *args: Any) -> NDArray[np.float32]:
        self.tokens += tokens.size
        return self._forward(tokens, *args)

    def take(self) -> int:
        ran, self.tokens = self.tokens, 0
        return ran


@pytest.fixture
def shared_engine(open_engine: Open) -> Iterator[Engine]:
    """An engine that keeps pages of PROMPTS."""
    with open_engine() as engine:
        tokens_of(engine, PROMPTS, share=True)
        yield engine


def test_only_what_differs_is_run(shared_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(shared_engine, monkeypatch)
    generation = shared_engine.generate(PROMPTS, GREEDY, share_prefixes=True)
    next(generation)
    assert counted.take() == 45 - SHARED
    assert (generation.stats.prompt_tokens, generation.stats.cached_tokens) == (45, SHARED)
    generation.close()


def test_without_being_asked_for_nothing_is_shared(
    shared_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is measured runs whole, however often, even where pages of the same prompt are kept."""
    counted = Counted(shared_engine, monkeypatch)
    for _ in range(2):
        generation = shared_engine.generate(PROMPTS[:1], SamplingParams(max_tokens=1))
        list(generation)
        assert counted.take() == 45
        assert generation.stats.cached_tokens == 0
        sequence = shared_engine.add_sequence()
        shared_engine.prefill(sequence, PROMPTS[0])
        shared_engine.remove_sequence(sequence)
        assert counted.take() == 45
        shared_engine.logits(PROMPTS[0])
        assert counted.take() == 45
        ttft(shared_engine, 48)
        assert counted.take() == 48
        prefill_seconds(shared_engine, 48)
        assert counted.take() == 48


def asks_for_sharing(code: str) -> bool:
    """Whether code passes `share_prefixes`, or names `add_prompt`."""
    return any(
        (isinstance(node, ast.keyword) and node.arg == "share_prefixes")
        or (isinstance(node, ast.Attribute) and node.attr == "add_prompt")
        for node in ast.walk(ast.parse(code))
    )


def test_nothing_that_measures_asks_for_sharing(repo: Path) -> None:
    folders = ("benchmarks", "tools", "studies", "rocmforge/speed", "rocmforge/profiling")
    files = [file for folder in folders for file in (repo / folder).rglob("*.py")]
    files += (repo / "rocmforge").glob("*.py")
    asking = {file.name for file in files if asks_for_sharing(file.read_text("utf-8"))}
    assert asking == {"engine.py", "generation.py"}


def test_the_rate_of_prefill_is_of_the_tokens_that_ran() -> None:
    stats = GenerationStats(prompt_tokens=45, cached_tokens=32, prefill_seconds=0.5)
    assert stats.prefill_tokens_per_second == 26


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "ids: got shape"),
        ([1] * 65, "ids: got 65, wanted at most 64"),
        ([1024], "ids: got 1024, wanted 0 to 1023"),
    ],
)
def test_a_wrong_prompt_is_named(ids: list[int], message: str, open_engine: Open) -> None:
    with open_engine() as engine:
        with pytest.raises(ValueError, match=message):
            engine.add_prompt(ids)
        assert page_use(engine.cache.table).sequences == 0
