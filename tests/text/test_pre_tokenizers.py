"""Every pre-tokenizer on a vocabulary whose merges span all the places where text may be cut.

pre_tokenizers.json holds texts, merges that BPE learned from such texts without cutting any, and
the ids that llama_tokenize of llama-cpp-python 0.3.36 makes of each text. `make_golden` writes it.
"""

from __future__ import annotations

import json
import random
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizer_vocabularies import TokenType

from rocmforge.text.pre_tokenizers import PRE_TOKENIZERS
from rocmforge.text.subwords import BYTE_OF
from rocmforge.text.tokenizer import Tokenizer

GOLDEN_FILE = Path(__file__).with_name("pre_tokenizers.json")
WORDS = (
    *("hello", "Hello", "HELLO", "heLLo", "don't", "DON'T", "we'LL", "'s", "naïve", "Ünder"),
    *(
        "éCOLE",
        "straße",
        "ПРИВЕТ",
        "мирМир",
        "日本語",
        "かな",
        "カタ",
        "한국어",
        "العربية",
        "हिन्दी",
    ),
    *("ǅ", "ʰ", "ﬁ", "İ", "e\u0301", "क्", "12", "1234567", "½", "٣٤٥", "Ⅷ", "$1,234.56"),
    *("!", "!!", "...", "—", "«x»", "/", "//\n", "\\", "``", "^", "|", "<=>", "(a)", "_x", "#tag"),
    *("你好", "豈", "𠀀", "𫝀x", "𝐀b", "ໄທ", "ไทย", "ㄅㄆ", "ㆎ", "、", "！", "，", "‘", "－", "｡"),
    *("ƻ", "ǀ", "ʕ", "Ⴀ", "ꞏ", "１２３４", "12345678", "<sentinel:12>", "IMGIMGABZ", "İzmir'deki"),
    *("€", "😀", "\u200d", "\x00", "\x7f", "\x85", "\u2003", "\u3000", "\u2028", "\ufeff"),
)
BLANKS = (
    "",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    "\t",
    " \n",
    "\n ",
    "  \r\n ",
    "\u00a0 ",
    " " * 7,
    " " * 45,
)


def some_text(rng: random.Random) -> str:
    return "".join(
        rng.choice(WORDS) + rng.choice(BLANKS)
        if rng.random() < 0.85
        else rng.choice([*string.printable, chr(rng.randrange(0x80, 0xD800))])
        for _ in range(rng.randrange(1, 20))
    )


def metadata(pre: str, merges: list[str]) -> dict[str, Any]:
    tokens = [*BYTE_OF, *dict.fromkeys(merge.replace(" ", "") for merge in merges), "<|bos|>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(
            [TokenType.NORMAL] * (len(tokens) - 1) + [TokenType.CONTROL], np.int32
        ),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": len(tokens) - 1,
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
    }


def peer(path: Path, pre: str, merges: list[str]) -> Any:
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama.cpp is not installed (extra `peer`)")
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata(pre, merges).items():
        if isinstance(value, list | np.ndarray):
            writer.add_array(key, np.asarray(value).tolist())
        else:
            add = writer.add_string if isinstance(value, str) else writer.add_uint32
            add(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return llama_cpp.Llama(str(path), vocab_only=True, verbose=False)


def make_golden(folder: Path) -> None:
    """Write GOLDEN_FILE; needs llama.cpp."""
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    rng = random.Random(1)
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=list(BYTE_OF), show_progress=False
    )
    trained.train_from_iterator([some_text(rng) for _ in range(3000)], trainer)
    pairs = json.loads(trained.to_str())["model"]["merges"]
    merges = [" ".join(pair) for pair in pairs]
    texts = [some_text(rng) for _ in range(40)]
    ids = {}
    for pre in sorted(PRE_TOKENIZERS):
        theirs = peer(folder / f"{pre}.gguf", pre, merges)
        ids[pre] = [theirs.tokenize(t.encode(), add_bos=False) for t in texts]
    alike: dict[str, list[str]] = {}
    for pre, rows in ids.items():
        alike.setdefault(json.dumps(rows), []).append(pre)
    groups = [{"names": names, "ids": ids[names[0]]} for names in alike.values()]
    golden = {"merges": merges, "texts": texts, "groups": groups}
    GOLDEN_FILE.write_text(json.dumps(golden, separators=(",", ":")) + "\n", encoding="utf-8")


GOLDEN = json.loads(GOLDEN_FILE.read_text("utf-8"))
DIFFERENT = sorted({row.patterns: name for name, row in PRE_TOKENIZERS.items()}.values())
IDS = {name: group["ids"] for group in GOLDEN["groups"] for name in group["names"]}


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_golden(pre: str) -> None:
    ours = Tokenizer(metadata(pre, GOLDEN["merges"]), pre)
    for text, wanted in zip(GOLDEN["texts"], IDS[pre], strict=True):
        assert ours.encode(text, add_bos=False) == wanted, text


def test_different_pre_tokenizers_cut_differently() -> None:
    patterns = {row.patterns for row in PRE_TOKENIZERS.values()}
    assert len({json.dumps(ids) for ids in IDS.values()}) >= len(patterns)


@pytest.mark.peer
@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_llama_cpp_agrees(pre: str, tmp_path: Path) -> None:
    theirs = peer(tmp_path / "v.gguf", pre, GOLDEN["merges"])
    ours = Tokenizer(metadata(pre, GOLDEN["merges"]), pre)
    rng = random.Random(2)
    blanks = [f"{' ' * n}x" for n in (63, 511, 512, 513, 1030)]
    for text in (*blanks, *(some_text(rng) for _ in range(10_000))):
        wanted = theirs.tokenize(text.encode(), add_bos=False)
        assert ours.encode(text, add_bos=False) == wanted, text
    assert ours.encode("x") == theirs.tokenize(b"x", add_bos=True)


RUNS = ("a", "A", "é", "1", " ", "\n", "!", "字", "Éa", "\u0301")


@pytest.mark.parametrize("pre", DIFFERENT)
def test_a_long_run_exhausts_no_stack(pre: str) -> None:
    vocabulary = metadata(pre, GOLDEN["merges"])
    ours = Tokenizer(vocabulary, pre)
    letters = {byte: letter for letter, byte in BYTE_OF.items()}
    for run in RUNS:
        text = run * (60_000 // len(run))
        ids = ours.encode(text, add_bos=False)
        spelled = "".join(map(vocabulary["tokenizer.ggml.tokens"].__getitem__, ids))
        assert spelled == "".join(map(letters.__getitem__, text.encode())), run


@pytest.mark.parametrize("run", RUNS)
def test_a_long_run_comes_back(run: str) -> None:
    ours = Tokenizer(metadata(DIFFERENT[0], GOLDEN["merges"]), DIFFERENT[0])
    text = run * (60_000 // len(run))
    assert ours.decode(ours.encode(text, add_bos=False)) == text
