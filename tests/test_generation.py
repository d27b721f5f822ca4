"""Generation: stop strings, scheduling over a small KV cache, stop rules, timings, early ends."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from counting_engine import END, CountingEngine, Letters, Stream
from hypothesis import given
from hypothesis import strategies as st

from rocmforge.engine import Engine
from rocmforge.errors import OutOfPagesError
from rocmforge.generation import GeneratedToken, Generation, GenerationStats, StopText
from rocmforge.model.synthetic import make_model
from rocmforge.sampling import Sampler, SamplingParams
from rocmforge.text.tokenizer import Tokenizer


def start(
    engine: CountingEngine,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams],
    tokenizer: Any = None,
) -> Generation:
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    return Generation(engine, prompts, each, tokenizer)


def ids_of(tokens: Sequence[GeneratedToken], prompt: int = 0) -> list[int]:
    return [token.id for token in tokens if token.prompt == prompt]


def text_of(tokens: Sequence[GeneratedToken], prompt: int = 0) -> str:
    return "".join(token.text for token in tokens if token.prompt == prompt)


# --- stop strings


def run_stop(
    pieces: Sequence[str], stop: tuple[str, ...], tail: str = ""
) -> tuple[list[str], bool]:
    text = StopText(Stream(pieces, tail), stop)  # type: ignore[arg-type]
    out = []
    for token in range(len(pieces)):
        out.append(text.push(token))
        if text.stopped:
            return out, True
    out.append(text.flush())
    return out, text.stopped


def test_text_without_stop_strings_passes_at_once() -> None:
    assert run_stop(["ab", "", "c"], ()) == (["ab", "", "c", ""], False)


def test_the_beginning_of_a_stop_string_is_held_back_until_it_is_certain() -> None:
    assert run_stop(["x<", "/", "b>"], ("</a>",)) == (["x", "", "</b>", ""], False)
    assert run_stop(["x<", "/", "a>y"], ("</a>",)) == (["x", "", ""], True)


def test_what_is_held_back_comes_with_flush() -> None:
    assert run_stop(["x<", "/"], ("</a>",)) == (["x", "", "</"], False)
    assert run_stop(["x<"], ("</a>",), tail="\ufffd") == (["x", "<\ufffd"], False)


def test_a_stop_string_may_be_completed_by_the_flush() -> None:
    assert run_stop(["x<"], ("<!",), tail="!y") == (["x", ""], True)


def test_the_earliest_of_several_stop_strings_cuts() -> None:
    assert run_stop(["one two three"], ("three", "two")) == (["one "], True)
    assert run_stop(["aab"], ("ab", "aab")) == ([""], True)


def test_a_repeated_beginning_is_not_lost() -> None:
    assert run_stop(["aa", "a", "b", "c"], ("aab",)) == (["", "a", ""], True)


def test_nothing_comes_after_the_stop() -> None:
    text = StopText(Stream(["a!", "b"], "tail"), ("!",))  # type: ignore[arg-type]
    assert [text.push(0), text.push(1), text.flush()] == ["a", "", ""]


@given(
    pieces=st.lists(st.text("abc", max_size=4), max_size=12),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3).map(tuple),
)
def test_stop_text_against_the_whole_text(pieces: list[str], stop: tuple[str, ...]) -> None:
    whole = "".join(pieces)
    parts, stopped = run_stop(pieces, stop)
    out = "".join(parts)
    assert whole.startswith(out)
    assert not any(s in out for s in stop)
    assert stopped == any(s in whole for s in stop)
    if stopped:
        assert whole.startswith(stop, len(out))
    else:
        assert out == whole


# --- stop rules


def test_max_tokens_ends_with_length() -> None:
    engine, letters = CountingEngine(), Letters()
    tokens = list(start(engine, [[1, 2]], SamplingParams(max_tokens=3), letters))
    assert ids_of(tokens) == [3, 4, 5]
    assert text_of(tokens) == "def"
    assert [t.finish_reason for t in tokens] == [None, None, "length"]
    assert letters.asked == [(True, True)]  # no special tokens; a continuation
    assert engine.held == {}


def test_one_token_needs_no_decode() -> None:
    engine = CountingEngine()
    tokens = list(start(engine, [[1]], SamplingParams(max_tokens=1)))
    assert [(t.id, t.text, t.finish_reason) for t in tokens] == [(2, "", "length")]
    assert engine.batches == []
    assert engine.held == {}


def test_the_context_ends_it() -> None:
    # 6 of 8 positions are the prompt's; two more tokens are run, and a third is sampled of them.
    tokens = list(start(CountingEngine(ctx=8), [[1, 2, 3, 4, 5, 6]], SamplingParams()))
    assert ids_of(tokens) == [7, 8, 9]
    assert tokens[-1].finish_reason == "length"


@pytest.mark.parametrize("tokenizer", [Letters(), None])
def test_stop_ids_end_with_stop_and_have_no_text(tokenizer: Letters | None) -> None:
    params = SamplingParams(stop_ids=frozenset({4}))
    tokens = list(start(CountingEngine(), [[1]], params, tokenizer))
    assert ids_of(tokens) == [2, 3, 4]
    assert tokens[-1].finish_reason == "stop"
    assert text_of(tokens) == ("cd" if tokenizer else "")


def test_the_models_end_tokens_end_it_unless_ignored() -> None:
    ended = list(start(CountingEngine(), [[28]], SamplingParams(max_tokens=5), Letters()))
    assert ids_of(ended) == [29, 30, END]
    assert ended[-1].finish_reason == "stop"
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    ignored = list(start(CountingEngine(), [[28]], params, Letters()))
    assert ids_of(ignored) == [29, 30, END, 0, 1]
    without_tokenizer = list(start(CountingEngine(), [[28]], SamplingParams(max_tokens=5)))
    assert ids_of(without_tokenizer) == [29, 30, END, 0, 1]


def test_stop_strings_end_with_stop() -> None:
    tokens = list(start(CountingEngine(), [[1]], SamplingParams(stop=("ef", "zz")), Letters()))
    assert ids_of(tokens) == [2, 3, 4, 5]
    assert [t.text for t in tokens] == ["c", "d", "", ""]
    assert tokens[-1].finish_reason == "stop"


def test_held_text_comes_with_the_last_token() -> None:
    params = SamplingParams(max_tokens=3, stop=("efg",))
    tokens = list(start(CountingEngine(), [[1]], params, Letters()))
    assert [t.text for t in tokens] == ["c", "d", "e"]
    params = SamplingParams(stop=("efg",), stop_ids=frozenset({5}))
    tokens = list(start(CountingEngine(), [[1]], params, Letters()))
    assert [t.text for t in tokens] == ["c", "d", "", "e"]


def test_the_sampler_sees_prompt_and_continuation() -> None:
    # The penalty makes the one likely token less likely than the others once it was seen.
    params = SamplingParams(max_tokens=2, repetition_penalty=2.0)
    engine = CountingEngine()
    seen = list(start(engine, [[0, 2, 1]], params))
    assert ids_of(seen) == [2, 3]  # 1.0 / 2 still beats 0


# --- scheduling


def test_prompts_decode_together_each_to_its_own_limit() -> None:
    engine = CountingEngine()
    params = [SamplingParams(max_tokens=n) for n in (4, 2, 3)]
    tokens = list(start(engine, [[1], [10], [20]], params))
    assert [ids_of(tokens, p) for p in range(3)] == [[2, 3, 4, 5], [11, 12], [21, 22, 23]]
    assert [t.prompt for t in tokens[:3]] == [0, 1, 2]
    assert engine.batches == [3, 2, 1]
    assert engine.held == {}


def test_prompts_wait_for_room() -> None:
    engine = CountingEngine(room=8)  # each wants 2 + 3 - 1 = 4
    tokens = list(start(engine, [[1, 2], [5, 6], [9, 10]], SamplingParams(max_tokens=3)))
    assert [ids_of(tokens, p) for p in range(3)] == [[3, 4, 5], [7, 8, 9], [11, 12, 13]]
    assert engine.batches == [2, 2, 1, 1]
    first_of_last = next(i for i, t in enumerate(tokens) if t.prompt == 2)
    assert {t.prompt for t in tokens[:first_of_last] if t.finish_reason} == {0, 1}


def test_a_prompt_takes_the_room_of_one_that_ended_in_prefill() -> None:
    engine = CountingEngine(room=2)
    tokens = list(start(engine, [[1, 2], [5, 6]], SamplingParams(max_tokens=1)))
    assert [(t.prompt, t.id) for t in tokens] == [(0, 3), (1, 7)]


def test_a_prompt_that_never_fits_is_an_error_after_the_others() -> None:
    engine = CountingEngine(room=4)
    generation = start(engine, [[1, 2], [1] * 9], SamplingParams(max_tokens=2))
    done = [next(generation), next(generation)]
    assert ids_of(done) == [3, 4]
    with pytest.raises(OutOfPagesError, match="wanted 10"):
        next(generation)
    assert engine.held == {}


def test_no_prompts_no_tokens() -> None:
    generation = start(CountingEngine(), [], [])
    assert list(generation) == []
    assert generation.stats.generated_tokens == 0
    assert math.isnan(generation.stats.ttft)


# --- early ends


def test_close_frees_the_sequences() -> None:
    engine = CountingEngine()
    generation = start(engine, [[1], [2]], SamplingParams())
    assert ids_of([next(generation) for _ in range(3)]) == [2, 3]
    assert len(engine.held) == 2
    generation.close()
    assert engine.held == {}
    assert list(generation) == []
    assert generation.stats.generated_tokens == 3  # of the second step, what was taken


def test_an_interrupt_frees_the_sequences_and_leaves_the_stats() -> None:
    engine = CountingEngine()
    engine.fail_at = 2
    generation = start(engine, [[1]], SamplingParams())
    tokens = []
    with pytest.raises(KeyboardInterrupt):
        tokens.extend(iter(generation))
    assert engine.held == {}
    assert generation.stats.generated_tokens == 3
    assert generation.stats.decode_tokens == 2


# --- timings


def test_stats_count_what_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = CountingEngine()
    clock = SimpleNamespace(perf_counter=lambda: engine.clock)
    monkeypatch.setattr("rocmforge.generation.time", clock)
    generation = start(engine, [[1, 2, 3], [4]], SamplingParams(max_tokens=5))
    assert len(list(generation)) == 10
    assert generation.stats == GenerationStats(
        prompt_tokens=4,
        generated_tokens=10,
        ttft=2.0,
        prefill_seconds=4.0,
        decode_seconds=1.0,
        decode_tokens=8,
    )
    assert generation.stats.prefill_tokens_per_second == 1.0
    assert generation.stats.decode_tokens_per_second == 8.0


def test_the_readers_time_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = CountingEngine()
    clock = SimpleNamespace(perf_counter=lambda: engine.clock)
    monkeypatch.setattr("rocmforge.generation.time", clock)
    generation = start(engine, [[1]], SamplingParams(max_tokens=3))
    for _ in generation:
        engine.clock += 100.0
    assert (generation.stats.prefill_seconds, generation.stats.decode_seconds) == (2.0, 0.5)


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_draws_are_the_same_whether_steps_run_ahead_or_not(runs_ahead: bool) -> None:
    engine = CountingEngine()
    engine.runs_ahead = runs_ahead
    params = [SamplingParams(max_tokens=n, temperature=1.0, seed=n) for n in (3, 6)]
    list(start(engine, [[1], [2]], params))
    samplers = [Sampler(p) for p in params]
    for sampler in samplers:
        sampler.draw()  # of the prompts
    wanted = [s.draw() for _ in range(2) for s in samplers]  # while both run
    wanted += [samplers[1].draw() for _ in range(3)]
    assert engine.draws == wanted
    assert engine.ahead == ([True, False, True, True, False] if runs_ahead else [False] * 5)


def test_a_step_that_runs_ahead_counts_from_when_it_could_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = CountingEngine()
    engine.runs_ahead = True
    monkeypatch.setattr(
        "rocmforge.generation.time", SimpleNamespace(perf_counter=lambda: engine.clock)
    )
    generation = start(engine, [[1]], SamplingParams(max_tokens=4))
    for _ in generation:
        engine.clock += 100.0  # a step may have run meanwhile: nothing says how fast
    assert generation.stats.decode_seconds == 3 * 0.25 + 2 * 100.0


def test_rates_without_a_measurement_are_nan() -> None:
    stats = GenerationStats()
    assert math.isnan(stats.ttft)
    assert math.isnan(stats.prefill_tokens_per_second)
    assert math.isnan(stats.decode_tokens_per_second)
    assert math.isnan(GenerationStats(decode_tokens=3, decode_seconds=0.0).decode_tokens_per_second)


# --- on a model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "tiny.gguf", "tiny", "Q8_0", layers=2)


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.from_gguf(model)


@pytest.fixture
def engine(model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setenv("ROCMFORGE_CPU_EXACT", "1")
    with Engine.from_gguf(model, "cpu", ctx=64, threads=1, sequences=2, page_size=16) as engine:
        yield engine


PROMPTS = [[1, 300, 301], [1, 500, 501, 502, 503, 504, 505, 506], [1, 700]]


def test_prompts_together_get_what_each_gets_alone(engine: Engine, tokenizer: Tokenizer) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    alone = [ids_of(list(engine.generate([p], params, tokenizer))) for p in PROMPTS]
    together = list(engine.generate(PROMPTS, params, tokenizer))
    assert [ids_of(together, p) for p in range(3)] == alone
    assert len({tuple(ids) for ids in alone}) == 3
    for p, ids in enumerate(alone):
        assert text_of(together, p) == tokenizer.decode(ids, skip_special=True, continuation=True)
    table = engine.cache.table
    assert table.allocator.n_free == table.allocator.n_pages


def test_greedy_follows_the_logits(engine: Engine) -> None:
    ids = ids_of(list(engine.generate([PROMPTS[0]], SamplingParams(max_tokens=6))))
    logits = engine.logits(PROMPTS[0] + ids)
    assert logits[len(PROMPTS[0]) - 1 : -1].argmax(axis=1).tolist() == ids


def test_a_seed_repeats_and_another_does_not(engine: Engine) -> None:
    def run(seed: int) -> list[int]:
        params = SamplingParams(max_tokens=12, temperature=1.5, seed=seed)
        return ids_of(list(engine.generate([PROMPTS[0]], params)))

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_a_cache_too_small_for_all_serves_them_in_turn(engine: Engine) -> None:
    # 128 tokens of room; each wants 56 to 62: two at a time.
    params = SamplingParams(max_tokens=40)
    tokens = list(engine.generate([p + [9] * 15 for p in PROMPTS], params))
    assert [len(ids_of(tokens, p)) for p in range(3)] == [40, 40, 40]
    last = next(i for i, t in enumerate(tokens) if t.prompt == 2)
    assert any(t.finish_reason == "length" for t in tokens[:last])


def test_the_door_of_generate_checks(engine: Engine) -> None:
    with pytest.raises(ValueError, match="params: got 1, wanted one, or 2"):
        engine.generate([[1], [2]], [SamplingParams()])
    with pytest.raises(ValueError, match="no tokenizer"):
        engine.generate([[1]], SamplingParams(stop=("x",)))
    with pytest.raises(ValueError, match="at most 64"):
        engine.generate([[1] * 65])
    with pytest.raises(ValueError, match="at least one id"):
        engine.generate([[]])
    with pytest.raises(ValueError, match="got 1024, wanted 0 to 1023"):
        engine.generate([[1024]])


def test_random_numbers_are_ready_before_the_clock_starts(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numpy loads what makes them in some 10 ms, as long as a short prompt takes."""
    made: list[SamplingParams] = []

    def spy(params: SamplingParams) -> Sampler:
        made.append(params)
        return Sampler(params)

    monkeypatch.setattr("rocmforge.generation.Sampler", spy)
    drawn, greedy = SamplingParams(max_tokens=1, temperature=1.0, seed=3), SamplingParams()
    generation = engine.generate([[1], [2]], [drawn, greedy])
    assert made == [drawn, greedy]
    generation.close()
    assert Sampler(greedy)._random is None
