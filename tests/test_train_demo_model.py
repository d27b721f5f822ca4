"""The demo model's maker without its GPU: batches, the file that it writes, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import pre_tokenizers
from tool_modules import tool_module

from rocmforge.engine import Engine
from rocmforge.text.tokenizer import Tokenizer

BYTES = 256


@pytest.fixture(scope="module")
def tool() -> Any:
    """The script as a module."""
    return tool_module("train_demo_model")


def test_batches_hold_every_document_once_an_epoch(tool: Any) -> None:
    rng = np.random.default_rng(1)
    documents = [[0, *rng.integers(2, 99, n).tolist(), 1] for n in rng.integers(3, 40, 200)]
    tokens = np.array([token for document in documents for token in document], np.uint16)
    shape = tool.Shape(ctx=15)
    per_epoch = len(tokens) // (4 * 16)
    found = list(tool.batches(tokens, shape, 4, 2, seed=3))
    assert len(found) == 2 * len(tokens) // (4 * 16)
    assert {batch.shape for batch in found} == {(4, 16)}
    first = np.concatenate([batch.ravel() for batch in found])[: per_epoch * 64]
    whole = np.split(first, np.flatnonzero(first == 0)[1:])[:-1]  # the last one may be cut
    assert len(whole) > 190
    assert {tuple(d) for d in whole} <= {tuple(d) for d in documents}
    again = list(tool.batches(tokens, shape, 4, 2, seed=3))
    other = list(tool.batches(tokens, shape, 4, 2, seed=4))
    assert np.array_equal(found, again)
    assert not np.array_equal(found, other)


def test_export_writes_a_model_that_runs(tool: Any, tmp_path: Path) -> None:
    sizes = {"d_model": 256, "d_ff": 256, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2}
    shape = tool.Shape(**sizes, vocab=BYTES + 3, ctx=64)
    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray[Any, Any]:
        return (rng.standard_normal((rows, columns)) / 16).astype(np.float16)

    d, kv = shape.d_model, shape.n_kv_heads * shape.head_dim
    weights = {
        "token_embd.weight": matrix(shape.vocab, d),
        "output_norm.weight": np.ones(d, np.float16),
        **{f"blk.0.{name}_norm.weight": np.ones(d, np.float16) for name in ("attn", "ffn")},
        **{f"blk.0.attn_{name}.weight": matrix(d, d) for name in ("q", "output")},
        **{f"blk.0.attn_{name}.weight": matrix(kv, d) for name in ("k", "v")},
        **{f"blk.0.ffn_{name}.weight": matrix(d, d) for name in ("gate", "up", "down")},
    }
    np.savez(tmp_path / "weights.npz", **weights)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = [tool.BOS, tool.EOS, *letters, "he"]
    model = {"vocab": {t: i for i, t in enumerate(vocabulary)}, "merges": [["h", "e"]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model}))
    for name in ("held_out.txt", "training.log"):
        (tmp_path / name).write_text(name)
    target = tmp_path / "out" / "demo.gguf"
    options = ["--work", str(tmp_path), "--output", str(target), *_options(shape)]
    assert tool.main(["export", *options]) == 0
    assert (target.parent / "held_out.txt").read_text() == "held_out.txt"
    tokenizer = Tokenizer.from_gguf(target)
    ids = tokenizer.encode("he is")
    assert ids[:2] == [0, vocabulary.index("he")]
    question = [{"role": "user", "content": "What?"}]
    assert tokenizer.apply_chat_template(question).endswith("Question: What?\nAnswer:\n")
    with (
        Engine.from_gguf(tmp_path / "demo-F16.gguf", "cpu") as exact,
        Engine.from_gguf(target, "cpu") as rounded,
    ):
        wanted, got = exact.logits(ids), rounded.logits(ids)
    assert np.isfinite(wanted).all()
    assert np.linalg.norm(got - wanted) < 0.03 * np.linalg.norm(wanted)


def _options(shape: Any) -> list[str]:
    names = ("d_model", "d_ff", "n_layers", "n_heads", "n_kv_heads", "vocab", "ctx")
    return [part for n in names for part in (f"--{n.replace('_', '-')}", str(getattr(shape, n)))]


def test_what_is_missing_is_named(
    tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = ["--work", str(tmp_path / "work")]
    assert tool.main(["text", *work, "--wordnet", str(tmp_path)]) == 2
    assert "apt-get install wordnet-base" in capsys.readouterr().err
    assert tool.main(["export", *work, "--output", str(tmp_path / "out" / "demo.gguf")]) == 2
    assert "tokenizer.json" in capsys.readouterr().err
    assert not (tmp_path / "out" / "demo.gguf").exists()
