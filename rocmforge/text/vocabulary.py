"""What a GGUF file says of its vocabulary, read and checked: texts, types, ids, flags.

Every fault is a TokenizerError that names the key, what it got and what it wanted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from rocmforge.errors import TokenizerError, brief
from rocmforge.text.pre_tokenizers import PRE_TOKENIZERS

T = TypeVar("T")
TOKENIZERS: Mapping[str, str] = MappingProxyType(
    {"gpt2": "byte-level BPE", "llama": "SentencePiece BPE"}
)
"""The kinds of vocabularies, as ``tokenizer.ggml.model`` names them."""


class TokenType(IntEnum):
    """Kind of a vocabulary entry, as ``tokenizer.ggml.token_type`` stores it."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


HIDDEN = (TokenType.CONTROL, TokenType.UNKNOWN)  # `skip_special` drops their text
STRIKE_END = "</s>"  # EOS in some vocabularies, where the file says so; in others plain HTML

_HARMONY_ENDS = ("<|return|>", "<|call|>")  # of a turn in gpt-oss, whose <|end|> ends a message
# Files give these tokens a wrong type, or leave out their ids. Their text says that they end a
# turn, or at least that they are control tokens (fill in the middle, repositories, padding).
END_TEXTS = frozenset(
    (
        *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>"),
        *("<end_of_turn>", "<end_of_utterance>", "<｜end▁of▁sentence｜>"),
        *("<eos>", "[EOS]", "<EOT>", "_<EOT>", "[EOT]", *_HARMONY_ENDS),
    )
)
CONTROL_TEXTS = END_TEXTS | frozenset(
    (
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<PRE>", "▁<PRE>"),
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<SUF>", "▁<SUF>"),
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<MID>", "▁<MID>"),
        *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
        *("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>"),
    )
)


class Metadata:
    """Typed access to the tokenizer's keys.

    Parameters
    ----------
    values
        Key → value, as `GGUFFile.metadata` holds them.
    name
        What error messages call the file.
    """

    def __init__(self, values: Mapping[str, object], name: str) -> None:
        self._values = values
        self.name = name

    def fault(self, key: str, got: object, wanted: object) -> TokenizerError:
        """Return the error for `key`."""
        return TokenizerError(f"{self.name}: {key}: got {got}, wanted {wanted}")

    def scalar(self, key: str, kind: type[T]) -> T | None:
        """Return a value of exactly this type, None where the key is missing."""
        value = self._values.get(key)
        if value is None or type(value) is kind:  # not isinstance: a bool is no int here
            return value
        raise self.fault(key, f"a value of type {type(value).__name__}", f"one of {kind.__name__}")

    def strings(self, key: str) -> list[str]:
        """Return an array of strings, which must be there."""
        value = self._values.get(key)
        if value is None:
            raise self.fault(key, "no such key", "an array of strings")
        texts = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else None
        if texts is None or not all(type(text) is str for text in texts):
            raise self.fault(key, f"a value of type {type(value).__name__}", "an array of strings")
        return texts

    def numbers(self, key: str, length: int, kinds: str) -> np.ndarray[Any, Any] | None:
        """Return a copy of a numeric array (length,) whose dtype is of one of `kinds`, or None."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in kinds:
            got = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
            raise self.fault(key, f"a value of type {got}", "an array of numbers")
        if len(value) != length:
            raise self.fault(key, f"{len(value)} entries", f"{length}, one for each token")
        return np.array(value)

    def token_id(self, name: str, n_tokens: int, default: int | None = None) -> int | None:
        """Return ``tokenizer.ggml.{name}_token_id``, or the default where that is a token."""
        key = f"tokenizer.ggml.{name}_token_id"
        token_id = self.scalar(key, int)
        if token_id is None:
            return default if default is not None and default < n_tokens else None
        if not 0 <= token_id < n_tokens:
            raise self.fault(key, token_id, f"an id from 0 to {n_tokens - 1}")
        return token_id

    def adds(self, name: str, token_id: int | None, default: bool) -> bool:
        """Return ``tokenizer.ggml.add_{name}_token``; True only where there is such a token."""
        key = f"tokenizer.ggml.add_{name}_token"
        flag = self.scalar(key, bool)
        if flag is None:
            return default and token_id is not None
        if flag and token_id is None:
            wanted = f"an id, since {key} is true"
            raise self.fault(f"tokenizer.ggml.{name}_token_id", "no such key", wanted)
        return flag


@dataclass(frozen=True)
class Vocabulary:
    """The checked vocabulary, with llama.cpp's defaults where a file does not say.

    Attributes
    ----------
    is_spm
        SentencePiece BPE (``tokenizer.ggml.model`` = ``llama``); else byte-level BPE (``gpt2``).
    tokens, ids
        Texts by id, and back; distinct, not empty.
    types
        (V,) uint8 of `TokenType`.
    end_ids
        EOS, end of turn, end of message.
    space_prefix
        Text gets a blank in front (SentencePiece BPE only).
    strip_right
        Special tokens that swallow the blanks behind them.
    """

    name: str
    is_spm: bool
    pre: str
    tokens: list[str]
    ids: dict[str, int]
    types: np.ndarray[Any, np.dtype[np.uint8]]
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    padding_id: int | None
    end_ids: frozenset[int]
    add_bos: bool
    add_eos: bool
    space_prefix: bool
    strip_right: frozenset[int]
    chat_template: str | None

    @classmethod
    def from_metadata(cls, source: Metadata) -> Vocabulary:
        """Read and check everything but scores and merges, which only the encoders need."""
        model = source.scalar("tokenizer.ggml.model", str)
        if model not in TOKENIZERS:
            raise source.fault(
                "tokenizer.ggml.model", brief(model), " or ".join(map(repr, TOKENIZERS))
            )
        spm = model == "llama"
        pre = source.scalar("tokenizer.ggml.pre", str) or "default"
        if not spm and pre not in PRE_TOKENIZERS:
            wanted = f"one of {', '.join(sorted(PRE_TOKENIZERS))}"
            raise source.fault("tokenizer.ggml.pre", brief(pre), wanted)

        texts = source.strings("tokenizer.ggml.tokens")
        tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(texts)]
        ids = {text: i for i, text in enumerate(tokens)}
        n = len(tokens)
        if n == 0:
            raise source.fault("tokenizer.ggml.tokens", "no entries", "at least one")
        if len(ids) != n:
            i = next(i for i, text in enumerate(tokens) if ids[text] != i)
            got = f"{brief(tokens[i])} at {i} and {ids[tokens[i]]}"
            raise source.fault("tokenizer.ggml.tokens", got, "distinct texts")
        types = _token_types(source, tokens, ids)

        bos_id = source.token_id("bos", n, 1 if spm else None)
        eos_id = source.token_id("eos", n, 2 if spm else None)
        ends = {eos_id, source.token_id("eot", n), source.token_id("eom", n)}
        prefix = source.scalar("tokenizer.ggml.add_space_prefix", bool)
        return cls(
            name=source.name,
            is_spm=spm,
            pre=pre,
            tokens=tokens,
            ids=ids,
            types=types,
            bos_id=bos_id,
            eos_id=eos_id,
            unknown_id=source.token_id("unknown", n, 0 if spm else None),
            padding_id=source.token_id("padding", n),
            end_ids=frozenset(i for i in ends if i is not None) | _end_ids(ids),
            add_bos=source.adds("bos", bos_id, spm or PRE_TOKENIZERS[pre].add_bos),
            add_eos=source.adds("eos", eos_id, False),
            space_prefix=spm and prefix is not False,
            strip_right=_strip_right(source, tokens),
            chat_template=source.scalar("tokenizer.chat_template", str),
        )

    def special(self) -> list[tuple[str, int, TokenType]]:
        """Return (text, id, type) of each token that is found in text before any merging."""
        types = self.types.copy()
        if STRIKE_END in self.ids:
            types[self.ids[STRIKE_END]] = TokenType.CONTROL
        special = np.isin(types, (*HIDDEN, TokenType.USER_DEFINED)).nonzero()[0].tolist()
        return [(self.tokens[i], i, TokenType(types[i])) for i in special]


def _end_ids(ids: Mapping[str, int]) -> frozenset[int]:
    """Return the tokens that end a turn by their texts."""
    texts = END_TEXTS & ids.keys()
    if texts.issuperset(_HARMONY_ENDS):
        texts -= {"<|end|>"}
    return frozenset(ids[text] for text in texts)


def _token_types(
    source: Metadata, tokens: list[str], ids: Mapping[str, int]
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    key = "tokenizer.ggml.token_type"
    types = source.numbers(key, len(tokens), "iu")
    if types is None:
        types = np.full(len(tokens), TokenType.NORMAL)
    if types.min() < min(TokenType) or types.max() > max(TokenType):
        raise source.fault(key, f"types from {types.min()} to {types.max()}", "types from 0 to 6")
    for i in (types == TokenType.BYTE).nonzero()[0].tolist():
        if not re.fullmatch("<0x[0-9A-Fa-f]{2}>", tokens[i]):
            raise source.fault(f"tokenizer.ggml.tokens[{i}]", brief(tokens[i]), "a byte <0xNN>")
    types[[ids[text] for text in CONTROL_TEXTS & ids.keys()]] = TokenType.CONTROL
    return types.astype(np.uint8)


def _strip_right(source: Metadata, tokens: list[str]) -> frozenset[int]:
    """Return the tokens of Phi-3 that swallow blanks: its files have no key that would say so."""
    model_name = (source.scalar("general.name", str) or "").lower()
    if "phi-3" not in model_name and "phi3" not in model_name:
        return frozenset()
    kept = ("<unk>", "<s>", "<|endoftext|>")
    return frozenset(i for i, text in enumerate(tokens) if text not in kept)
