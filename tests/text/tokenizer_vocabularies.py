"""Small made-up vocabularies, and texts that show where each cuts: for the tokenizer's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from rocmforge.text.subwords import BYTE_OF
from rocmforge.text.vocabulary import TokenType

MAIN_PRES = ("llama-bpe", "qwen2", "gpt-2", "default")

# Merges that show where words are cut: blanks, line ends, digits, contractions, punctuation.
MERGES = [
    *("Ġ Ġ", "ĠĠ Ġ", "ĠĠ ĠĠ", "Ċ Ċ", "Ġ Ċ", "č Ċ", "Ċ Ġ", "Ġ ĉ"),
    *("1 2", "12 3", "123 4", "Ġ 1", "Ġ1 2", "2 a"),
    *("l l", "h e", "he ll", "hell o", "Ġ hello", "Ġ h", "Ġh e", "e Ġ", "hello Ġ", "o Ċ"),
    *("' s", "' S", "' ll", "a '", "s e", "! !", "!! Ċ", "Ġ !", "! h", "- -", ". Ċ", ". h"),
    *(
        "Ã ©",
        "c Ã©",
        "Ġ Ã©",
        "Ì ģ",
        "e Ì",
        "eÌ ģ",
        "ä ½",
        "ä½ ł",
        "Â ł",
        "Â Ń",
        "$ 1",
        "< |",
        "| >",
    ),
]
SPECIAL = [
    ("<|bos|>", TokenType.CONTROL),
    ("<|im_end|>", TokenType.NORMAL),  # a control token by its text
    ("<|im_end|>ed", TokenType.CONTROL),
    ("<b>", TokenType.USER_DEFINED),
    ("b><", TokenType.USER_DEFINED),
    ("<|unused|>", TokenType.UNUSED),
    ("he12", TokenType.NORMAL),  # a word that no merge makes
]
TEXTS = [
    *(
        "",
        " ",
        "  ",
        "    ",
        "\n",
        "\n\n\n",
        " \n",
        "\n ",
        "  \n\n  x",
        "x   y",
        "x \t y",
        "\r\n\r\n x",
    ),
    *("hello hello", "  hello", "hello\n", "hello!!\n\n", "hello !! h", "!hello", "!\n\nhello"),
    *("1", "12345", "a1234 12", "12a", "$1234.", "½12", "a's he'S 'll's'", "a 's", "se's"),
    *("é cé é", "e\u0301e", "你你", "a\u00a0\u00a0b", "\u00ad x", "-- --", "x.\nh.h", "a\x85b"),
    *("<|im_end|>ed<|im_end|>", "<b><b>", "h<b> h", "<|unused|>", "<|bos|> h", "he12 he12"),
    "🙂\u200d\x00\ufffd",
]

# SentencePiece: score, then leftmost; the pieces in order of score.
PIECES = [
    *(
        "▁he",
        "▁h",
        "he",
        "ll",
        "hell",
        "▁hello",
        "o▁",
        "▁▁",
        "▁▁▁",
        "lo",
        "12",
        "123",
        "\n\n",
        "你",
        "▁a",
        "é",
    ),
    *("▁", "h", "e", "l", "o", "a", "1", "2", "3", "<", ">", "b", "s", "/", "!", "<s", "</", "s>"),
]
SPM_SPECIAL = [
    ("<|im_end|>", TokenType.CONTROL),
    ("<b>", TokenType.USER_DEFINED),
    ("  ", TokenType.USER_DEFINED),
    ("b><", TokenType.USER_DEFINED),
]
SPM_TEXTS = [
    *(
        "",
        " ",
        "  ",
        "   ",
        "    h",
        "hello",
        " hello",
        "hello hello",
        "hello  hello",
        "hellllo ",
        "123 123",
    ),
    *(
        "\n\n\n",
        "你好",
        "é e\u0301",
        "▁a ▁",
        "a\x00\t",
        "<s>hello</s>",
        "<s> a",
        "<unk>",
        "<0x41>",
        "🙂",
    ),
    *("a<b>a", "<b><b> a", "a<|im_end|> a", "<|im_end|>", "!h !"),
]


def bpe_metadata(pre: str | None, **extra: Any) -> dict[str, Any]:
    tokens = [*BYTE_OF, *dict.fromkeys(merge.replace(" ", "") for merge in MERGES)]
    types = [TokenType.NORMAL] * len(tokens) + [kind for _, kind in SPECIAL]
    tokens += [text for text, _ in SPECIAL]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": tokens.index("<|bos|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
    }
    if pre is not None:
        metadata["tokenizer.ggml.pre"] = pre
    return metadata | extra


def spm_metadata(byte_tokens: bool = True, **extra: Any) -> dict[str, Any]:
    rows = [("<unk>", TokenType.UNKNOWN), ("<s>", TokenType.CONTROL), ("</s>", TokenType.CONTROL)]
    if byte_tokens:
        rows += [(f"<0x{b:02X}>", TokenType.BYTE) for b in range(256)]
    rows += [(piece, TokenType.NORMAL) for piece in PIECES] + SPM_SPECIAL
    scores = [-float(i) for i in range(len(rows))]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [text for text, _ in rows],
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array([kind for _, kind in rows], np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return metadata | extra


VOCABULARIES: dict[str, dict[str, Any]] = {
    **{pre: bpe_metadata(pre) for pre in MAIN_PRES},
    "spm": spm_metadata(),
    "spm-no-prefix": spm_metadata(**{"tokenizer.ggml.add_space_prefix": False}),
}


def texts_of(name: str) -> list[str]:
    return SPM_TEXTS if name.startswith("spm") else TEXTS


def write_gguf(path: Path, metadata: dict[str, Any]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for key in ("context_length", "embedding_length", "block_count", "feed_forward_length"):
        writer.add_uint32(f"llama.{key}", 8)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value.tolist() if isinstance(value, np.ndarray) else value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path
