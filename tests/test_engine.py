"""The engine's API: arguments, limits of context and pages, generation, closing.

Logits themselves are the business of test_reference_models.py and model/test_decoder.py; rules of
stopping and scheduling, that of test_generation.py.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from rocmforge.cpu.executor import HostExecutor
from rocmforge.engine import Engine
from rocmforge.errors import DeviceError, GGUFError, OutOfPagesError
from rocmforge.generation import GeneratedToken, Generation
from rocmforge.model.synthetic import make_model
from rocmforge.sampling import SamplingParams

VOCAB = 1024
PROMPTS = [[5, 9, 700], list(range(40, 60)), [1], [17] * 33, [3, 2, 1, 0, 1023]]
Open = Callable[..., Engine]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "m.gguf", "tiny", "Q8_0", layers=2)


@pytest.fixture
def open_engine(path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Open the model on the exact path, where alone and batched differ by rounding alone."""
    monkeypatch.setenv("ROCMFORGE_CPU_EXACT", "1")
    monkeypatch.setenv("ROCMFORGE_DEVICE", "cpu")
    for name in ("ROCMFORGE_THREADS", "ROCMFORGE_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    return lambda **options: Engine.from_gguf(path, **{"ctx": 128, "threads": 2, **options})


@pytest.fixture
def engine(open_engine: Open) -> Iterator[Engine]:
    with open_engine(sequences=8, page_size=16) as engine:
        yield engine


def n_free(engine: Engine) -> int:
    return engine.cache.table.allocator.n_free


def relative(got: NDArray[np.floating], wanted: NDArray[np.floating]) -> float:
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


def held(path: Path) -> int:
    """How often this process holds ``path`` open, mappings included (each has a descriptor)."""
    gc.collect()
    return [file.path for file in psutil.Process().open_files()].count(str(path))


# Opening


def test_what_an_engine_says_of_itself(open_engine: Open, path: Path) -> None:
    engine = open_engine(ctx=100, sequences=3, page_size=64, kv_dtype="f32")
    assert engine.ctx == 100
    assert (engine.config.architecture, engine.config.n_layers) == ("llama", 2)
    assert (engine.cache.n_pages, engine.cache.page_size, engine.cache.dtype) == (6, 64, "f32")
    assert engine.backend.name == "cpu"
    assert 0.9 * path.stat().st_size < engine.weight_bytes + VOCAB * 272 < path.stat().st_size


def test_the_default_context_is_what_the_model_was_trained_for(open_engine: Open) -> None:
    assert open_engine(ctx=None).ctx == 2048
    assert open_engine(ctx=2048).ctx == 2048
    assert open_engine(ctx=1).logits([3]).shape == (1, VOCAB)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ctx": 0}, "ctx: got 0, wanted 1 to 2048"),
        ({"ctx": -5}, "ctx: got -5, wanted 1 to 2048"),
        ({"ctx": 2049}, "ctx: got 2049, wanted 1 to 2048, what the model was trained for"),
        ({"sequences": 0}, "sequences: got 0, wanted at least 1"),
        ({"page_size": 48}, r"page_size: got 48, wanted one of \(16, 32, 64\)"),
        ({"page_size": 0}, "page_size: got 0"),
        ({"prefill_chunk": 0}, "prefill_chunk: got 0, wanted at least 1"),
        ({"kv_dtype": "q8"}, "KV dtype: got 'q8', wanted one of f16, f32"),
        ({"threads": 0}, "threads: got 0, wanted 1 to 1024"),
        ({"threads": 1025}, "threads: got 1025, wanted 1 to 1024"),
        ({"device": "tpu"}, "device: got 'tpu', wanted one of auto, cpu, hip, cuda"),
        ({"device": ""}, "device: got ''"),
        ({"device": "CPU"}, "device: got 'CPU'"),
    ],
)
def test_wrong_arguments_are_named(
    options: dict[str, Any], message: str, open_engine: Open, path: Path
) -> None:
    before = held(path)
    with pytest.raises(ValueError, match=message):
        open_engine(**options)
    assert held(path) == before


@pytest.mark.parametrize("name", ["ctx", "threads", "sequences", "page_size", "prefill_chunk"])
@pytest.mark.parametrize("wrong", [1.5, "4", True])
def test_numbers_are_integers(name: str, wrong: Any, open_engine: Open) -> None:
    with pytest.raises(TypeError, match=f"{name}: got {wrong!r}, wanted an integer"):
        open_engine(**{name: wrong})


@pytest.mark.parametrize("device", ["hip:99", "cuda:99"])
def test_a_device_without_backend_is_an_error_and_no_other_device(
    device: str, open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DeviceError, match=f"device '{device[:3]}"):
        open_engine(device=device)
    monkeypatch.setenv("ROCMFORGE_DEVICE", device)
    with pytest.raises(DeviceError, match=f"device '{device[:3]}"):
        open_engine()
    assert open_engine(device="cpu").backend.name == "cpu"
    monkeypatch.setattr("rocmforge.devices._LISTS", {})
    monkeypatch.setenv("ROCMFORGE_DEVICE", "auto")
    assert open_engine().backend.name == "cpu"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match=r"nothing\.gguf"):
        Engine.from_gguf(tmp_path / "nothing.gguf")


def test_progress_rises_to_all_bytes(open_engine: Open, path: Path) -> None:
    calls: list[tuple[int, int]] = []
    open_engine(progress=lambda done, total: calls.append((done, total)))
    done = [d for d, _ in calls]
    totals = {t for _, t in calls}
    assert len(calls) > 10
    assert done == sorted(set(done))
    assert totals == {done[-1]}
    # All tensors but the embedding, of which rows are read as they are needed.
    assert 0.6 * path.stat().st_size < done[-1] < path.stat().st_size


def test_an_error_while_loading_closes_the_file(open_engine: Open, path: Path) -> None:
    before = held(path)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_engine(progress=stop)
    assert held(path) == before


def test_closing_is_idempotent_and_the_last_reference_frees_the_file(
    open_engine: Open, path: Path
) -> None:
    before = held(path)
    with open_engine() as engine:
        assert held(path) > before
        engine.logits([1, 2])
    engine.close()
    engine.close()
    del engine
    assert held(path) == before


# Token ids and context


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ("The moon is", "ids: got text, 'The moon is', wanted token ids"),
        ([], r"ids: got shape \(0,\), wanted \(T,\) with at least one id"),
        ([[1, 2]], r"ids: got shape \(1, 2\)"),
        (3, r"ids: got shape \(\)"),
        ([1.0, 2.0], "ids: got float64, wanted integer token ids"),
        (["a"], "ids: got <U1, wanted integer"),
        ([True], "ids: got bool, wanted integer"),
        ([2**70], "ids: got object, wanted integer"),
        ([4, -1], "ids: got -1, wanted 0 to 1023"),
        ([4, 1024], "ids: got 1024, wanted 0 to 1023"),
        (np.array([2**64 - 1], np.uint64), "ids: got 18446744073709551615, wanted 0 to 1023"),
        ([1] * 129, r"ids: got 129, wanted at most 128 \(ctx 128\)"),
    ],
)
def test_wrong_ids_are_named_and_change_nothing(ids: Any, message: str, engine: Engine) -> None:
    sequence = engine.add_sequence()
    free = n_free(engine)
    for call in (engine.logits, lambda i: engine.prefill(sequence, i)):
        with pytest.raises(ValueError, match=message):
            call(ids)
    with pytest.raises(ValueError, match=message):
        engine.generate([[1], ids])
    assert n_free(engine) == free
    assert engine.cache.table.length(sequence) == 0


def test_ids_may_be_of_any_integer_type(engine: Engine) -> None:
    wanted = engine.logits([5, 9, 200])
    for kind in (np.uint8, np.int16, np.int32, np.uint64):
        np.testing.assert_array_equal(engine.logits(np.array([5, 9, 200], kind)), wanted)
    np.testing.assert_array_equal(engine.logits((5, 9, 200)), wanted)


def test_the_context_is_a_limit(engine: Engine) -> None:
    ids = [i * 7 % VOCAB for i in range(128)]
    whole = engine.logits(ids)
    assert whole.shape == (128, VOCAB)
    sequence = engine.add_sequence()
    engine.prefill(sequence, ids[:100])
    with pytest.raises(ValueError, match=r"ids: got 29, wanted at most 28 \(ctx 128\)"):
        engine.prefill(sequence, [1] * 29)
    assert relative(engine.prefill(sequence, ids[100:127]), whole[126]) < 1e-5
    assert relative(engine.decode([sequence], [ids[127]])[0], whole[127]) < 1e-5
    with pytest.raises(ValueError, match="ctx: got a sequence of 128 tokens, wanted below 128"):
        engine.decode([sequence], [1])
    with pytest.raises(ValueError, match="ids: got 1, wanted at most 0"):
        engine.prefill(sequence, [1])
    assert engine.cache.table.length(sequence) == 128


@pytest.mark.parametrize(
    ("sequences", "ids", "message"),
    [
        ([], [], r"sequences: got \[\], wanted different ids, at least 1"),
        ([0, 0], [1, 1], r"sequences: got \[0, 0\], wanted different"),
        ([0, 1], [1], "ids: got 1, wanted 2, one a sequence"),
        ([0], [1, 2], "ids: got 2, wanted at most 1|ids: got 2, wanted 1"),
        ([0, 7], [1, 1], "sequence: got id 7, wanted one of the 2 that exist"),
        ([0, 1], [1, 1024], "ids: got 1024, wanted 0 to 1023"),
        ([0, 1], [1, -1], "ids: got -1"),
    ],
)
def test_wrong_decode_arguments_are_named_and_change_nothing(
    sequences: list[int], ids: list[int], message: str, engine: Engine
) -> None:
    for prompt in ([1, 2, 3], [4] * 16):
        engine.prefill(engine.add_sequence(), prompt)
    free = n_free(engine)
    with pytest.raises(ValueError, match=message):
        engine.decode(sequences, ids)
    assert n_free(engine) == free
    assert [engine.cache.table.length(s) for s in (0, 1)] == [3, 16]


def test_a_removed_sequence_is_gone(engine: Engine) -> None:
    sequence = engine.add_sequence(40)
    assert n_free(engine) == 64 - 3
    engine.prefill(sequence, [1, 2])
    engine.remove_sequence(sequence)
    assert n_free(engine) == 64
    for call in (
        lambda: engine.prefill(sequence, [1]),
        lambda: engine.decode([sequence], [1]),
        lambda: engine.remove_sequence(sequence),
    ):
        with pytest.raises(ValueError, match=f"sequence: got id {sequence}, wanted one of the 0"):
            call()


def test_logits_are_the_callers_own(engine: Engine) -> None:
    first = engine.logits([1, 2, 3])
    kept = first.copy()
    sequence = engine.add_sequence()
    row = engine.prefill(sequence, [7])
    row_kept = row.copy()
    engine.decode([sequence], [8])
    engine.logits([9, 9, 9])
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(row, row_kept)
    assert first.flags.writeable


# Out of pages


def test_logits_without_pages_leave_no_sequence_behind(open_engine: Open) -> None:
    engine = open_engine(ctx=64, page_size=16)
    held = engine.add_sequence(40)
    with pytest.raises(OutOfPagesError, match="wanted 2, 1 of 4 free; raise ctx"):
        engine.logits([1] * 17)
    assert n_free(engine) == 1
    assert engine.logits([1] * 16).shape == (16, VOCAB)
    engine.remove_sequence(held)
    assert n_free(engine) == 4


def test_prefill_without_pages_changes_nothing(open_engine: Open) -> None:
    engine = open_engine(ctx=64, page_size=16)
    texts = [[i * 3 % VOCAB for i in range(20)], [i * 5 % VOCAB for i in range(30)]]
    wanted = [engine.logits(text) for text in texts]
    a, b = engine.add_sequence(), engine.add_sequence()
    engine.prefill(a, texts[0][:10])
    engine.prefill(b, texts[1])
    with pytest.raises(OutOfPagesError) as caught:
        engine.prefill(a, [1] * 40)
    assert (caught.value.wanted, caught.value.free, caught.value.total) == (3, 1, 4)
    assert n_free(engine) == 1
    assert engine.cache.table.length(a) == 10
    assert relative(engine.prefill(a, texts[0][10:]), wanted[0][-1]) < 1e-4


def test_decode_without_pages_changes_nothing(open_engine: Open) -> None:
    """Three sequences stand at the end of a page, and one page is left."""
    engine = open_engine(ctx=64, page_size=16)
    wanted = engine.logits([3] * 16 + [1])[-1]
    full = [engine.add_sequence() for _ in range(3)]
    for sequence, token in zip(full, (1, 2, 3), strict=True):
        engine.prefill(sequence, [token] * 16)
    before = [engine.cache.table.pages(s) for s in full]
    with pytest.raises(OutOfPagesError):
        engine.decode(full, [1, 1, 1])
    assert [engine.cache.table.length(s) for s in full] == [16, 16, 16]
    assert [engine.cache.table.pages(s) for s in full] == before
    assert n_free(engine) == 1
    # Any one of them can still go on: the last in line no less than the first.
    assert relative(engine.decode(full[2:], [1])[0], wanted) < 1e-4


# Long prompts


def test_a_prompt_longer_than_a_chunk(open_engine: Open) -> None:
    n = HostExecutor.prefill_chunk + 90
    ids = np.random.default_rng(0).integers(0, VOCAB, n)
    engine = open_engine(ctx=1024, kv_dtype="f32", sequences=2)
    whole = engine.logits(ids)
    assert whole.shape == (n, VOCAB)
    sequence, other = engine.add_sequence(), engine.add_sequence()
    last = engine.prefill(sequence, ids)
    assert relative(last, whole[-1]) < 1e-6
    rows = [engine.prefill(other, ids[:400])]
    rows += [engine.decode([other], [token])[0] for token in ids[400:]]
    for got, wanted in zip(rows, whole[399:], strict=True):
        assert relative(got, wanted) < 1e-5
    assert engine.cache.table.length(sequence) == engine.cache.table.length(other) == n
    for layer in range(2):
        one, two = engine.cache.gather(layer, sequence), engine.cache.gather(layer, other)
        for mine, theirs in zip(one, two, strict=True):
            assert relative(mine, theirs) < 1e-5


@pytest.mark.parametrize("chunk", [1, 7, 64, 10_000])
def test_a_prompt_in_chunks_of_a_chosen_size(
    chunk: int, open_engine: Open, pass_sizes: list[int]
) -> None:
    ids = np.random.default_rng(0).integers(0, VOCAB, 100)
    wanted = open_engine(kv_dtype="f32").logits(ids)
    pass_sizes.clear()
    engine = open_engine(kv_dtype="f32", prefill_chunk=chunk)
    assert engine.prefill_chunk == min(chunk, HostExecutor.prefill_chunk)
    assert relative(engine.prefill(engine.add_sequence(), ids), wanted[-1]) < 1e-5
    assert sum(pass_sizes) == ids.size
    assert max(pass_sizes) == min(chunk, ids.size)
    engine = open_engine(kv_dtype="f32", prefill_chunk=chunk)
    pass_sizes.clear()
    assert relative(engine.logits(ids), wanted) < 1e-5
    assert max(pass_sizes) == min(chunk, ids.size)


def test_the_chunk_holds_for_prompts_and_not_for_steps(open_engine: Open) -> None:
    engine = open_engine(sequences=4, prefill_chunk=2)
    sequences = [engine.add_sequence() for _ in range(4)]
    step = engine.timed_pass(sequences, [[5]] * 4)
    assert step.seconds() > 0
    step.close()
    with pytest.raises(ValueError, match="ids: got 3, wanted at most 2 in one pass"):
        engine.timed_pass(sequences[:1], [[1, 2, 3]])


def test_numbers_of_numpy_become_pythons(open_engine: Open) -> None:
    engine = open_engine(ctx=np.int64(64), prefill_chunk=np.int32(7))
    assert [type(engine.ctx), type(engine.prefill_chunk)] == [int, int]
    assert [engine.ctx, engine.prefill_chunk] == [64, 7]


# Generation


def continuations(generation: Generation, n: int) -> list[list[GeneratedToken]]:
    out: list[list[GeneratedToken]] = [[] for _ in range(n)]
    for token in generation:
        out[token.prompt].append(token)
    return out


def ids_of(tokens: list[GeneratedToken]) -> list[int]:
    return [token.id for token in tokens]


def greedy(engine: Engine, prompt: list[int], n: int) -> list[int]:
    """The likeliest continuation by repeated whole passes."""
    ids = list(prompt)
    for _ in range(n):
        ids.append(int(engine.logits(ids)[-1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_greedy_output_is_the_same_alone_and_among_others(n: int, engine: Engine) -> None:
    params = SamplingParams(max_tokens=12)
    generation = engine.generate(PROMPTS[:n], params)
    together = continuations(generation, n)
    for prompt, tokens in zip(PROMPTS[:n], together, strict=True):
        assert ids_of(tokens) == greedy(engine, prompt, 12)
        assert [t.finish_reason for t in tokens] == [None] * 11 + ["length"]
        assert {t.text for t in tokens} == {""}
        alone = engine.generate([prompt], params)
        assert ids_of(list(alone)) == ids_of(tokens)
    stats = generation.stats
    assert stats.prompt_tokens == sum(map(len, PROMPTS[:n]))
    assert stats.generated_tokens == 12 * n
    assert stats.decode_tokens == 11 * n
    assert 0 < stats.ttft <= stats.prefill_seconds + 0.5
    assert stats.prefill_tokens_per_second > 0
    assert stats.decode_tokens_per_second > 0
    assert n_free(engine) == 64


def test_a_seed_decides_whatever_runs_beside(engine: Engine) -> None:
    def run(prompts: list[list[int]], seed: int | None) -> list[list[int]]:
        params = SamplingParams(max_tokens=20, temperature=1.0, seed=seed)
        return list(map(ids_of, continuations(engine.generate(prompts, params), len(prompts))))

    alone = run(PROMPTS[:1], 7)
    assert run(PROMPTS[:1], 7) == alone
    assert run(PROMPTS[:3], 7)[0] == alone[0]
    assert run(PROMPTS[:1], 8) != alone
    assert run(PROMPTS[:1], None) != run(PROMPTS[:1], None)
    assert alone[0] != greedy(engine, PROMPTS[0], 20)


def test_prompts_wait_for_pages(open_engine: Open) -> None:
    engine = open_engine(ctx=64, page_size=16)  # 4 pages
    prompts = [[i + 1] * 14 for i in range(5)]  # and 2 each, with 10 more tokens
    params = SamplingParams(max_tokens=10)
    least = 4
    out: list[list[int]] = [[] for _ in prompts]
    finished: list[int] = []
    for token in engine.generate(prompts, params):
        least = min(least, n_free(engine))
        out[token.prompt].append(token.id)
        if token.finish_reason:
            finished.append(token.prompt)
    assert least == 0
    assert n_free(engine) == 4
    assert finished == [0, 1, 2, 3, 4]
    for prompt, ids in zip(prompts, out, strict=True):
        assert ids == ids_of(list(engine.generate([prompt], params)))


def test_a_prompt_for_which_there_is_never_room(open_engine: Open) -> None:
    engine = open_engine(ctx=64, page_size=16)
    held = engine.add_sequence(32)
    with pytest.raises(OutOfPagesError, match="wanted 3, 2 of 4 free"):
        list(engine.generate([[1] * 5], SamplingParams(max_tokens=40)))
    assert n_free(engine) == 2
    # The first fits and runs to its end before the second is seen to be too long.
    generation = engine.generate(
        [[1] * 5, [2] * 40], [SamplingParams(max_tokens=3), SamplingParams(max_tokens=20)]
    )
    assert [next(generation).prompt for _ in range(3)] == [0, 0, 0]
    with pytest.raises(OutOfPagesError):
        next(generation)
    assert n_free(engine) == 2
    engine.remove_sequence(held)


def test_generation_ends_with_the_context(open_engine: Open) -> None:
    engine = open_engine(ctx=32, page_size=16)
    params = SamplingParams(max_tokens=100)
    (tokens,) = continuations(engine.generate([[1] * 30], params), 1)
    # Two tokens have a place in the cache; the third needs none.
    assert [t.finish_reason for t in tokens] == [None, None, "length"]
    (tokens,) = continuations(engine.generate([[1] * 32], params), 1)
    assert [t.finish_reason for t in tokens] == ["length"]
    assert tokens[0].id == int(engine.logits([1] * 32)[-1].argmax())
    with pytest.raises(ValueError, match="ids: got 33, wanted at most 32"):
        engine.generate([[1] * 33], params)


def test_stop_ids_end_a_continuation(engine: Engine) -> None:
    plain = greedy(engine, PROMPTS[1], 12)
    stop = plain[5]
    first = plain.index(stop)
    params = SamplingParams(max_tokens=12, stop_ids=frozenset({stop, VOCAB + 5}))
    (tokens,) = continuations(engine.generate([PROMPTS[1]], params), 1)
    assert ids_of(tokens) == plain[: first + 1]
    assert tokens[-1].finish_reason == "stop"


def consume_badly(generation: Generation) -> None:
    """Take tokens until one of prompt 3, and fail on it."""
    for token in generation:
        _ = 1 / (token.prompt - 3)


@pytest.mark.parametrize("how", ["close", "forget", "raise"])
def test_leaving_early_frees_the_pages(how: str, engine: Engine) -> None:
    generation = engine.generate(PROMPTS, SamplingParams(max_tokens=20))
    if how == "raise":
        with pytest.raises(ZeroDivisionError):
            consume_badly(generation)
        del generation
    else:
        for _ in range(9):
            next(generation)
        assert n_free(engine) < 64
        if how == "close":
            generation.close()
            generation.close()
            assert list(generation) == []
        else:
            del generation
    gc.collect()
    assert n_free(engine) == 64
    assert engine.logits([1]).shape == (1, VOCAB)


def test_two_generations_side_by_side(engine: Engine) -> None:
    params = SamplingParams(max_tokens=6)
    one, two = engine.generate([PROMPTS[0]], params), engine.generate([PROMPTS[1]], params)
    pairs = list(zip(one, two, strict=True))
    assert [a.id for a, _ in pairs] == greedy(engine, PROMPTS[0], 6)
    assert [b.id for _, b in pairs] == greedy(engine, PROMPTS[1], 6)


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        ([[1], []], None, r"ids: got shape \(0,\)"),
        ([[1]], [SamplingParams()] * 2, "params: got 2, wanted one, or 1"),
        ([[1]], [], "params: got 0, wanted one, or 1"),
        ([[1]], SamplingParams(stop=("x",)), "stop: got stop strings but no tokenizer"),
    ],
)
def test_wrong_generate_arguments_are_named_at_once(
    prompts: list[list[int]], params: Any, message: str, engine: Engine
) -> None:
    with pytest.raises(ValueError, match=message):
        engine.generate(prompts, params)


def test_weights_in_another_format(open_engine: Open) -> None:
    own = open_engine().logits(range(3, 40))
    q8 = open_engine(weight_format="Q8_0").logits(range(3, 40))
    q2 = open_engine(weight_format="Q2_K").logits(range(3, 40))
    error = [float(np.linalg.norm(x - own) / np.linalg.norm(own)) for x in (q8, q2)]
    assert 0 < error[0] < error[1]
    with pytest.raises(ValueError, match="weight_format: got 'Q9', wanted one of F32"):
        open_engine(weight_format="Q9")


def test_importing_the_engine_imports_nothing_slow_that_it_may_not_need() -> None:
    slow = ("gguf", "yaml", "importlib.metadata", "rich", "jinja2", "scipy", "asv", "matplotlib")
    slow += ("tokenizers", "sentencepiece", "psutil", "hip", "cuda", "rocmforge.bench")
    code = f"import sys, rocmforge.engine; print([m for m in {slow} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
