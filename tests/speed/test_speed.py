"""What times an engine: depths are kept, tests repeat alike, the least time counts what is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocmforge.engine import Engine
from rocmforge.errors import OutOfMemoryError, OutOfPagesError
from rocmforge.gguf.reader import GGUFFile
from rocmforge.model.presets import find_preset
from rocmforge.model.synthetic import make_model
from rocmforge.sampling import Draw
from rocmforge.speed import measure as measuring
from rocmforge.speed.ideal import matrices, prefill_work, step_work
from rocmforge.speed.measure import SpeedTest, measure, speed_tests
from rocmforge.speed.sequences import Sequences, prefill_seconds, random_ids, ttft


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "tiny.gguf", "tiny", "Q4_K_M")


@pytest.fixture
def engine(model: Path) -> Iterator[Engine]:
    with Engine.from_gguf(model, "cpu", ctx=128, sequences=2) as engine:
        yield engine


def speeds(model: Path, tests: list[SpeedTest], repetitions: int = 2) -> list[Any]:
    def ignore(done: int, total: int) -> None:
        assert 0 <= done <= total

    return list(measure(model, "cpu", 1, tests, repetitions, ignore, ignore))


def test_each_measurement_begins_at_the_depth(engine: Engine) -> None:
    lengths = engine.cache.table.length
    with Sequences(engine, 20, 2, 8) as sequences:
        ids = list(sequences.ids)
        assert [lengths(one) for one in ids] == [20, 20]
        assert sequences.prefill_seconds(8) > 0
        assert [lengths(one) for one in ids] == [20, 20]
        assert sequences.step_seconds() > 0
        assert sequences.step_seconds(1) > 0
        assert [lengths(one) for one in ids] == [22, 21]
        sequences.rewind()
        assert [lengths(one) for one in ids] == [20, 20]
    with pytest.raises(ValueError, match="sequence: got id"):
        lengths(ids[0])


def test_what_is_decoded_again_is_the_same(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    decode, seen, ahead = engine.decode_tokens, [], []

    def noted(
        sequences: list[int], ids: list[int], draws: list[Draw], following: list[Draw] | None
    ) -> list[int]:
        tokens = decode(sequences, ids, draws, following)
        seen.append((list(ids), tokens))
        ahead.append(following is not None)
        return tokens

    monkeypatch.setattr(engine, "decode_tokens", noted)
    with Sequences(engine, 9, 2, 3) as sequences:
        for _ in range(3):
            sequences.step_seconds()
        sequences.rewind()
        sequences.steps_seconds(3)
        sequences.rewind()
    assert seen[:3] == seen[3:]
    assert ahead == [False] * 3 + [True, True, False]
    assert seen[0][1] == seen[1][0]


def test_too_many_sequences_leave_none_behind(engine: Engine) -> None:
    free = engine.cache.table.allocator.n_free
    with pytest.raises(OutOfPagesError):
        Sequences(engine, 100, 3)
    assert engine.cache.table.allocator.n_free == free


def test_a_prompt_leaves_no_sequence_behind(engine: Engine) -> None:
    free = engine.cache.table.allocator.n_free
    assert prefill_seconds(engine, 128) > 0
    assert ttft(engine, 32) > 0
    assert engine.cache.table.allocator.n_free == free


def test_token_ids_are_the_same_in_every_run(engine: Engine) -> None:
    assert random_ids(engine, 5) == random_ids(engine, 5) != random_ids(engine, 5, 1)


def test_tests_are_every_combination_named_as_llama_bench_does() -> None:
    found = speed_tests([512, 0], [128], [0, 4096], [1, 8])
    assert [(test.name, test.batch) for test in found] == [
        ("pp512", 1),
        ("tg128", 1),
        ("tg128", 8),
        ("pp512 @ d4096", 1),
        ("tg128 @ d4096", 1),
        ("tg128 @ d4096", 8),
    ]
    assert [test.tokens for test in found] == [512, 128, 1024] * 2
    assert found[-1].length == 4224


def test_repetitions_are_counted_without_the_one_that_warms_up(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    right = Sequences.steps_seconds

    def noted(self: Sequences, count: int, batch: int | None = None) -> float:
        calls.append(count)
        return right(self, count, batch)

    monkeypatch.setattr(Sequences, "steps_seconds", noted)
    (found,) = speeds(model, speed_tests([], [2], [0], [2]), repetitions=4)
    assert len(found.seconds) == 4
    assert calls == [1] + [2] * (-(-measuring.WARM_STEPS // 2) + 4)
    assert found.tokens_per_second == pytest.approx(sum(found.rates[1:3]) / 2)
    assert found.row()["ms_per_token"] == pytest.approx(1e3 / found.tokens_per_second)
    assert found.time_over_ideal > 1


def test_where_memory_is_short_the_largest_tests_are_left_out(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, opened = Engine.from_gguf, []

    def short(path: Path, device: str, **options: Any) -> Engine:
        opened.append(options["ctx"] * options["sequences"])
        if opened[-1] > 300:
            raise OutOfMemoryError("device: got 1 GB, wanted 2")
        return right(path, device, **options)

    monkeypatch.setattr(Engine, "from_gguf", short)
    found = speeds(model, speed_tests([], [8], [0, 192], [1, 4]))
    assert opened == [800, 200]
    assert [(f.test.name, f.test.batch, f.reason) for f in found] == [
        ("tg8 @ d192", 4, "device: got 1 GB, wanted 2"),
        ("tg8", 1, None),
        ("tg8", 4, None),
        ("tg8 @ d192", 1, None),
    ]


def test_many_short_sequences_have_pages_beside_one_long_prompt(model: Path) -> None:
    found = speeds(model, speed_tests([64], [2], [0], [1, 8]), repetitions=1)
    assert [(f.test.name, f.test.batch, len(f.seconds)) for f in found] == [
        ("pp64", 1, 1),
        ("tg2", 1, 1),
        ("tg2", 8, 1),
    ]


def test_a_test_whose_activations_do_not_fit_leaves_the_others(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Engine.prefill_token

    def short(self: Engine, sequence: int, ids: list[int], draw: Draw) -> int:
        token = right(self, sequence, ids, draw)  # the sequence has grown when memory runs out
        if len(ids) == 64:
            raise OutOfMemoryError("device memory: got 1 GB, wanted 2")
        return token

    monkeypatch.setattr(Engine, "prefill_token", short)
    found = speeds(model, speed_tests([64, 32], [2], [0], [1]), repetitions=1)
    assert [(f.test.name, len(f.seconds), f.reason) for f in found] == [
        ("pp64", 0, "device memory: got 1 GB, wanted 2"),
        ("pp32", 1, None),
        ("tg2", 1, None),
    ]


def test_the_least_time_counts_each_matrix_once_and_what_attention_reads(
    model: Path, engine: Engine
) -> None:
    config = find_preset("tiny").config
    layer = 256 * (256 + 128 + 128 + 256) + 3 * 256 * 512
    output = 1024 * 256
    found = matrices(model)
    assert (found.weights, found.output_weights, found.format) == (
        4 * layer + output,
        output,
        "Q4_K",
    )
    with GGUFFile(model) as file:
        named = [file.tensor(name) for name in file.tensors if name != "token_embd.weight"]
        assert found.nbytes == sum(m.nbytes for m in named if m.ndim == 2)
    per_token = 2 * config.n_layers * config.n_kv_heads * config.head_dim * 2
    pair = 4 * config.n_layers * config.n_heads * config.head_dim

    step = step_work(engine, found, 9, 3)
    assert step.nbytes == found.nbytes + 30 * per_token
    assert step.operations == 6 * found.weights + 30 * pair

    prompt = prefill_work(engine, found, 10, 4)
    assert found.expert_bytes == 0
    assert prompt.nbytes == found.nbytes + 14 * per_token
    pairs = 11 + 12 + 13 + 14
    assert prompt.operations == 8 * 4 * layer + 2 * output + pairs * pair


def test_of_experts_the_least_time_counts_those_that_tokens_choose(tmp_path: Path) -> None:
    path = make_model(tmp_path / "m.gguf", "tiny-moe", "F16", layers=2)  # 2 of 8 experts a token
    found = matrices(path)
    expert = 3 * 256 * 256
    assert (found.expert_weights, found.expert_share) == (2 * 8 * expert, 0.25)
    assert found.expert_bytes == 2 * found.expert_weights
    with Engine.from_gguf(path, "cpu", ctx=64) as engine:
        step = step_work(engine, found, 0, 1)
        assert step.nbytes == found.nbytes + found.expert_bytes // 4 + engine.cache.bytes_per_token
        two = step_work(engine, found, 0, 2)
        missed = (1 - 0.25) ** 2
        read = two.nbytes - found.nbytes - 2 * engine.cache.bytes_per_token
        assert read == round(found.expert_bytes * (1 - missed))
        pairs = 4 * 2 * engine.config.n_heads * engine.config.head_dim
        assert step.operations == 2 * (found.weights + 2 * 2 * expert) + pairs
