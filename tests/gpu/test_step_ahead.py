"""Steps that a GPU runs before the host asks for them: the same tokens, whatever is asked then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.engine import Engine
from rocmforge.errors import DeviceError
from rocmforge.gpu.compiler import Kernels
from rocmforge.model.synthetic import make_model
from rocmforge.sampling import Draw, Sampler, SamplingParams

pytestmark = pytest.mark.either_wave

IDS = [3 + (7 * i * i + 11 * i) % 250 for i in range(12)]
GREEDY = Sampler(SamplingParams()).draw()
PARAMS = [
    SamplingParams(max_tokens=9),
    SamplingParams(max_tokens=13, temperature=0.9, seed=1),
    SamplingParams(max_tokens=6, temperature=0.8, top_k=40, top_p=0.95, seed=2),
]
CTX = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "tiny.gguf", "tiny", "Q8_0", layers=1)


@pytest.fixture
def engine(kernels: Kernels, model: Path) -> Iterator[Engine]:
    device = f"{kernels.runtime.platform}:{kernels.runtime.properties.index}"
    with Engine.from_gguf(model, device, ctx=CTX, sequences=8, page_size=16) as engine:
        yield engine


def queued(engine: Engine) -> bool:
    executor: Any = engine._executor
    return executor._queued is not None


def begun(engine: Engine, count: int, room: int = CTX) -> tuple[list[int], list[int]]:
    """Sequences that hold prompts, with the tokens behind them."""
    ids = [engine.add_sequence(room) for _ in range(count)]
    return ids, [engine.prefill_token(s, IDS[: 5 + i], GREEDY) for i, s in enumerate(ids)]


def steps(engine: Engine, count: int, sequences: int, ahead: bool) -> list[list[int]]:
    """Greedy tokens of some steps."""
    ids, last = begun(engine, sequences)
    found = []
    for _ in range(count):
        draws = [GREEDY] * sequences
        last = engine.decode_tokens(ids, last, draws, draws if ahead else None)
        assert queued(engine) == ahead
        found.append(last)
    for sequence in ids:
        engine.remove_sequence(sequence)
    return found


@pytest.mark.parametrize("sequences", [1, 3])
def test_the_tokens_are_the_same_over_the_ends_of_pages(engine: Engine, sequences: int) -> None:
    assert steps(engine, 13, sequences, ahead=True) == steps(engine, 13, sequences, ahead=False)


def test_a_generation_is_the_same_and_asks_ahead(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    plain = Engine.decode_tokens

    def noted(
        self: Engine,
        sequences: Sequence[int],
        ids: Any,
        draws: Sequence[Draw],
        following: Sequence[Draw] | None = None,
    ) -> list[int]:
        asked.append(following is not None)
        return plain(self, sequences, ids, draws, following)

    monkeypatch.setattr(Engine, "decode_tokens", noted)
    prompts = [IDS[:5], IDS[:7], IDS]
    ahead = [(t.prompt, t.id, t.finish_reason) for t in engine.generate(prompts, PARAMS)]
    assert asked.count(True) == 9  # of 12 steps
    assert asked.count(False) == 3  # the last step of each
    monkeypatch.setattr(engine._executor, "runs_ahead", False)
    assert ahead == [(t.prompt, t.id, t.finish_reason) for t in engine.generate(prompts, PARAMS)]
    assert asked.count(False) == 3 + 12


def ends(engine: Engine, ids: list[int], last: list[int]) -> list[int]:
    engine.remove_sequence(ids.pop())
    return last[:-1]


def begins(engine: Engine, ids: list[int], last: list[int]) -> list[int]:
    ids.append(engine.add_sequence(CTX))
    return [*last, engine.prefill_token(ids[-1], IDS[3:9], GREEDY)]


def is_told_another(engine: Engine, ids: list[int], last: list[int]) -> list[int]:
    return [7, *last[1:]]


def goes_back(engine: Engine, ids: list[int], last: list[int]) -> list[int]:
    engine.cache.table.truncate(ids[0], 4)
    return last


def is_replaced(engine: Engine, ids: list[int], last: list[int]) -> list[int]:
    engine.remove_sequence(ids[0])
    ids[0] = engine.add_sequence(CTX)
    return [engine.prefill_token(ids[0], IDS[2:], GREEDY), *last[1:]]


def asks_for_logits(engine: Engine, ids: list[int], last: list[int]) -> list[int]:
    return [int(np.argmax(row)) for row in engine.decode(ids, last)]


def changes_order(engine: Engine, ids: list[int], last: list[int]) -> list[int]:
    ids.reverse()
    return last[::-1]


@pytest.mark.parametrize(
    "change",
    [ends, begins, is_told_another, goes_back, is_replaced, asks_for_logits, changes_order],
)
def test_a_step_that_nobody_wants_leaves_nothing_behind(engine: Engine, change: Any) -> None:
    found = []
    for ahead in (True, False):
        ids, last = begun(engine, 3)
        tokens = []
        for step in range(7):
            draws = [GREEDY] * len(ids)
            last = engine.decode_tokens(ids, last, draws, draws if ahead else None)
            tokens.append(last)
            if step in (2, 4):
                assert queued(engine) == ahead
                last = change(engine, ids, last)
        logits = engine.decode(ids, last)
        found.append((tokens, logits))
        for sequence in ids:
            engine.remove_sequence(sequence)
    assert found[0][0] == found[1][0]
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_other_draws_than_announced_are_followed(engine: Engine) -> None:
    announced, other = Sampler(PARAMS[1]), Sampler(PARAMS[1])
    ids, last = begun(engine, 1)
    plain_ids, plain_last = begun(engine, 1)
    first = announced.draw()
    assert other.draw() == first
    last = engine.decode_tokens(ids, last, [first], [GREEDY])
    plain_last = engine.decode_tokens(plain_ids, plain_last, [first])
    drawn = announced.draw()
    assert engine.decode_tokens(ids, last, [drawn]) == engine.decode_tokens(
        plain_ids, plain_last, [drawn]
    )


def test_no_step_is_begun_behind_the_context_or_without_a_page(engine: Engine) -> None:
    [sequence], last = begun(engine, 1)
    engine.decode_tokens([sequence], last, [GREEDY])
    engine.prefill(sequence, IDS * 4 + IDS[:8])
    assert engine.cache.table.length(sequence) == CTX - 2
    last = engine.decode_tokens([sequence], [5], [GREEDY], [GREEDY])
    assert queued(engine)
    last = engine.decode_tokens([sequence], last, [GREEDY], [GREEDY])
    assert engine.cache.table.length(sequence) == CTX
    assert not queued(engine)
    engine.remove_sequence(sequence)
    [bare], last = begun(engine, 1, room=0)
    engine.prefill(bare, IDS[:10])
    assert engine.cache.table.length(bare) == 15
    engine.decode_tokens([bare], [5], [GREEDY], [GREEDY])
    assert not queued(engine)  # position 16 has no page yet


def test_logits_that_are_not_numbers_are_refused_though_the_next_step_ran(engine: Engine) -> None:
    executor: Any = engine._executor
    ids, last = begun(engine, 2)
    for address, array in executor._constants._held.values():
        if array.dtype == np.float32 and array.ndim == 1:  # weights of norms
            executor._runtime.copy_to_device(address, np.full_like(array, np.nan))
    for _ in range(3):
        with pytest.raises(ValueError, match="logits: got NaN for token 0"):
            engine.decode_tokens(ids, last, [GREEDY] * 2, [GREEDY] * 2)
        assert not queued(engine)


def test_an_interrupt_behind_a_launch_is_waited_for_by_the_next_call(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor: Any = engine._executor
    wanted = steps(engine, 3, 1, ahead=False)
    ids, last = begun(engine, 1)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(executor, "_queue", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.decode_tokens(ids, last, [GREEDY], [GREEDY])
    assert executor._busy
    for sequence in ids:
        engine.remove_sequence(sequence)
    assert steps(engine, 3, 1, ahead=True) == wanted


def test_a_step_that_cannot_be_begun_costs_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = steps(engine, 4, 1, ahead=False)
    ids, last = begun(engine, 1)

    def refused(*_: object) -> None:
        raise DeviceError("no")

    monkeypatch.setattr(engine._executor, "_queue", refused)
    found = []
    for _ in range(4):
        last = engine.decode_tokens(ids, last, [GREEDY], [GREEDY])
        found.append(last)
    assert found == wanted


def test_following_draws_are_one_a_sequence(engine: Engine) -> None:
    ids, last = begun(engine, 2)
    with pytest.raises(ValueError, match="following: got 1, wanted 2, one a sequence"):
        engine.decode_tokens(ids, last, [GREEDY] * 2, [GREEDY])


def test_an_engine_closes_over_a_step_that_runs(kernels: Kernels, model: Path) -> None:
    device = f"{kernels.runtime.platform}:{kernels.runtime.properties.index}"
    before = kernels.runtime.memory_info()[0]
    with Engine.from_gguf(model, device, ctx=CTX) as engine:
        ids, last = begun(engine, 1)
        engine.decode_tokens(ids, last, [GREEDY], [GREEDY])
        assert queued(engine)
    assert kernels.runtime.memory_info()[0] == before
