"""The engine on every model of the reference data: logits by every path, and decoding.

The reference is a float64 forward pass over the dequantized weights, with llama.cpp's logits
beside it. Run with `pytest -s` for the table of relative RMS errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from rocmforge.cpu.backend import instruction_sets
from rocmforge.engine import Engine

FOLDER = Path(__file__).resolve().parent.parent.parent / "shared" / "reference"
NAMES = sorted(path.stem for path in (FOLDER / "models").glob("*.gguf"))
ISAS = instruction_sets()
OTHER_ISAS = ISAS[1:]
SOME = [name for name in ("tiny-Q4_K_M", "tiny-qwen2-Q5_0", "tiny-MXFP4") if name in NAMES]

pytestmark = pytest.mark.skipif(not NAMES, reason=f"no reference models in {FOLDER}")


@dataclass(frozen=True)
class Known:
    """What a model's logits are known to be, (32, V) for the 32 ids."""

    ids: list[int]
    exact: NDArray[np.float64]
    llama_cpp: NDArray[np.float32]


def known(name: str) -> Known:
    with np.load(FOLDER / "logits" / f"{name}.npz") as data:
        return Known(data["ids"].tolist(), data["exact"], data["llama_cpp"])


def relative(got: NDArray[np.floating], wanted: NDArray[np.floating]) -> float:
    """‖got − wanted‖ / ‖wanted‖."""
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


def open_model(
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    exact: bool,
    kv_dtype: Literal["f16", "f32"] = "f16",
    isa: str = "",
    page_size: int = 32,
) -> Engine:
    monkeypatch.setenv("ROCMFORGE_CPU_EXACT", "1" if exact else "0")
    monkeypatch.setenv("ROCMFORGE_CPU_ISA", isa)
    path = FOLDER / "models" / f"{name}.gguf"
    return Engine.from_gguf(path, ctx=64, sequences=4, kv_dtype=kv_dtype, page_size=page_size)


@pytest.fixture(scope="module")
def table() -> Iterator[list[str]]:
    """Lines of the table of errors, printed at the end of the module."""
    head = f"{'model':18} {'ISA':9} {'exact, KV F32':>14} {'exact, KV F16':>14} {'int8':>10}"
    lines = [f"{head} {'llama.cpp':>10}"]
    yield lines
    print("\n\nrelative RMS error of the logits against float64\n" + "\n".join(lines))


def check_logits(name: str, isa: str, monkeypatch: pytest.MonkeyPatch, table: list[str]) -> None:
    want = known(name)
    errors = []
    for exact, kv_dtype in ((True, "f32"), (True, "f16"), (False, "f16")):
        with open_model(name, monkeypatch, exact=exact, kv_dtype=kv_dtype, isa=isa) as engine:
            logits = engine.logits(want.ids)
            assert engine.backend.isa == isa
        assert logits.dtype == np.float32
        assert logits.shape == want.exact.shape
        errors.append(relative(logits, want.exact))
    theirs = relative(want.llama_cpp, want.exact)
    wide, half, int8 = errors
    table.append(f"{name:18} {isa:9} {wide:14.1e} {half:14.1e} {int8:10.2e} {theirs:10.2e}")
    assert wide <= 1e-5
    assert half <= 1e-3
    assert int8 <= theirs


@pytest.mark.parametrize("name", NAMES)
def test_logits(name: str, monkeypatch: pytest.MonkeyPatch, table: list[str]) -> None:
    check_logits(name, ISAS[0], monkeypatch, table)


@pytest.mark.parametrize("isa", OTHER_ISAS)
@pytest.mark.parametrize("name", SOME)
def test_logits_on_other_instruction_sets(
    name: str, isa: str, monkeypatch: pytest.MonkeyPatch, table: list[str]
) -> None:
    check_logits(name, isa, monkeypatch, table)


def steps_alone(engine: Engine, ids: list[int]) -> NDArray[np.float32]:
    """(T, V) logits of a text fed token by token."""
    sequence = engine.add_sequence()
    rows = [engine.prefill(sequence, ids[:1])]
    rows += [engine.decode([sequence], [token])[0] for token in ids[1:]]
    engine.remove_sequence(sequence)
    return np.stack(rows)


def steps_together(engine: Engine, texts: list[list[int]], prompts: list[int]) -> list[NDArray]:
    """Logits of several texts: their prompts prefilled, then one token of each a step.

    Texts end at different steps; the others go on without them.
    """
    sequences = [engine.add_sequence() for _ in texts]
    rows = [
        [engine.prefill(sequence, text[:n])]
        for sequence, text, n in zip(sequences, texts, prompts, strict=True)
    ]
    at = list(prompts)
    while alive := [i for i, text in enumerate(texts) if at[i] < len(text)]:
        order = alive[::-1]  # not the order in which they were added
        logits = engine.decode([sequences[i] for i in order], [texts[i][at[i]] for i in order])
        for i, row in zip(order, logits, strict=True):
            rows[i].append(row)
            at[i] += 1
    for sequence in sequences:
        engine.remove_sequence(sequence)
    return [np.stack(r) for r in rows]


def check_decoding(engine: Engine, name: str, bound: float) -> None:
    ids = known(name).ids
    texts = [ids, ids[::-1][:23], ids[5:24]]
    prompts = [7, 1, 16]
    batch = [engine.logits(text) for text in texts]
    free = engine.cache.table.allocator.n_free
    alone = [steps_alone(engine, text) for text in texts]
    together = steps_together(engine, texts, prompts)
    assert engine.cache.table.allocator.n_free == free
    for i, n in enumerate(prompts):
        assert relative(alone[i], batch[i]) <= bound
        assert together[i].shape == batch[i][n - 1 :].shape
        assert relative(together[i], batch[i][n - 1 :]) <= bound
        assert relative(together[i], alone[i][n - 1 :]) <= bound
    # The texts differ: the bounds above could not hold for a sequence mixed up with another.
    assert relative(batch[1][:19], batch[2]) > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_decoding_is_one_batch_on_the_exact_path(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_model(name, monkeypatch, exact=True, kv_dtype="f32", page_size=16) as engine:
        check_decoding(engine, name, 1e-5)


@pytest.mark.parametrize("isa", OTHER_ISAS)
@pytest.mark.parametrize("name", SOME[:2])
def test_decoding_is_one_batch_on_other_instruction_sets(
    name: str, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_model(name, monkeypatch, exact=True, kv_dtype="f32", isa=isa) as engine:
        check_decoding(engine, name, 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_decoding_is_near_one_batch_by_default(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding to int8 and F16 turns the last digits of a sum into a step now and then."""
    with open_model(name, monkeypatch, exact=False) as engine:
        check_decoding(engine, name, 0.5 * relative(known(name).llama_cpp, known(name).exact))


@pytest.mark.parametrize("name", SOME)
def test_threads_do_not_change_the_logits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCMFORGE_CPU_EXACT", "0")
    path = FOLDER / "models" / f"{name}.gguf"
    ids = known(name).ids
    results = []
    for threads in (1, 2, 3):
        with Engine.from_gguf(path, ctx=64, threads=threads) as engine:
            assert engine.backend.threads == threads
            results.append(engine.logits(ids))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])
