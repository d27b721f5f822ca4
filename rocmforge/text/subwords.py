"""The two subword algorithms of GGUF vocabularies: byte-level BPE and SentencePiece BPE.

They encode one text fragment that holds no special token. BPE runs on Hugging Face `tokenizers`,
SentencePiece BPE on `sentencepiece`; ids are those of llama.cpp for the same vocabulary.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rocmforge.errors import TokenizerError, brief
from rocmforge.text.pre_tokenizers import PreTokenizer

CHUNK = 8192  # characters, at least
SURROGATES = "[\ud800-\udfff]"  # no text in UTF-8 holds these
_NO_TOKEN = "\0no token"  # not in the byte alphabet, so that no text can spell it


def _byte_alphabet() -> dict[str, int]:
    """Return the character that byte-level BPE writes for each byte: character → byte.

    Bytes that print in Latin-1 stand for themselves; the others take U+0100, U+0101, … in turn.
    """
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printing))
    return {chr(b): b for b in printing} | {chr(256 + i): b for i, b in enumerate(others)}


BYTE_OF = _byte_alphabet()


def _chunks(text: str, cut: re.Pattern[str]) -> Iterator[str]:
    """Cut a long text behind matches of `cut`: both libraries are faster on what fits the cache."""
    start = 0
    while len(text) - start > CHUNK and (found := cut.search(text, start + CHUNK)):
        yield text[start : found.end()]
        start = found.end()
    yield text[start:]


class BytePairEncoder:
    """Byte-level BPE of one text fragment that holds no special token.

    Bytes without a token of their own in the vocabulary are dropped, as llama.cpp drops them.

    Parameters
    ----------
    token_ids
        Text (in the byte alphabet) → id.
    merges
        ``"left right"`` in order of rank; the first of equal merges counts.
    pre
        How words are cut.
    name
        What error messages call the vocabulary.

    Raises
    ------
    TokenizerError
        A merge is no pair, or names a piece that is not in the vocabulary.
    """

    def __init__(
        self, token_ids: dict[str, int], merges: list[str], pre: PreTokenizer, name: str
    ) -> None:
        import tokenizers  # here: a start needs one of the two packages
        from tokenizers import models, pre_tokenizers

        pairs = [merge.partition(" ")[::2] for merge in dict.fromkeys(merges)]
        missing = [c for c in BYTE_OF if c not in token_ids]
        # A byte without a token must still keep its neighbours from merging: it becomes an unknown
        # token with an id past the vocabulary, which encode() takes out again.
        self._n_tokens = len(token_ids)
        self._drops = bool(missing)
        self._cut = re.compile(pre.cut)
        vocabulary = _encodable(token_ids)
        if missing:
            vocabulary = vocabulary | {_NO_TOKEN: self._n_tokens}
        try:
            model = models.BPE(
                vocab=vocabulary,
                merges=pairs,
                ignore_merges=pre.whole_words,
                unk_token=_NO_TOKEN if missing else None,
            )
        except Exception as error:  # `tokenizers` has no type of its own for this
            fault = _merge_fault(vocabulary, merges) or str(error)
            raise TokenizerError(f"{name}: {fault}") from error
        self._tokenizer = tokenizers.Tokenizer(model)
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                *(
                    pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")
                    for pattern in pre.patterns
                ),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`."""
        ids: list[int] = []
        for chunk in _chunks(text, self._cut):
            ids += self._tokenizer.encode(chunk, add_special_tokens=False).ids
        return [i for i in ids if i < self._n_tokens] if self._drops else ids


def _encodable(token_ids: dict[str, int]) -> dict[str, int]:
    """Return the tokens that are valid Unicode: no text can hold the others."""
    try:
        "".join(token_ids).encode()
    except UnicodeEncodeError:
        return {text: i for text, i in token_ids.items() if not re.search(SURROGATES, text)}
    return token_ids


def _merge_fault(token_ids: Mapping[str, int], merges: Sequence[str]) -> str | None:
    for rank, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        for piece in (left, right, left + right):
            if not left or not right or piece not in token_ids:
                return (
                    f"tokenizer.ggml.merges[{rank}]: got {brief(merge)}, wanted two pieces of the "
                    f"vocabulary whose union {left + right!r} is one too"
                )
    return None


class SentencePieceEncoder:
    """SentencePiece BPE of one text fragment that holds no special token; blanks come as ``▁``.

    ``sentencepiece`` itself encodes, from a model that is written here from pieces and scores
    without a protobuf package: its merge rule (highest score, then leftmost) is the right one.
    ``tokenizers`` would need a merge list, which a GGUF file of this kind does not have and which
    scores with ties do not determine. Entries of every type take part in merging, as in llama.cpp;
    bytes of characters without a token become ``<0xNN>``, or the unknown token where those are
    missing.

    Parameters
    ----------
    token_ids
        Text → id, ids 0 … V-1.
    scores
        (V,) float32, finite.
    unknown_id
        Id for a character that has neither token nor bytes; None drops it.
    name
        What error messages call the vocabulary.

    Raises
    ------
    TokenizerError
        `sentencepiece` refuses the vocabulary.
    """

    _NORMAL, _UNKNOWN, _BYTE = 1, 2, 6  # ModelProto.SentencePiece.Type
    _CUT = re.compile(r"\w(?=▁)")

    def __init__(
        self,
        token_ids: Mapping[str, int],
        scores: np.ndarray[Any, np.dtype[np.float32]],
        unknown_id: int | None,
        name: str,
    ) -> None:
        import sentencepiece

        byte_texts = [f"<0x{b:02X}>" for b in range(256)]
        is_byte = frozenset(byte_texts)
        model = bytearray()
        for (text, _), score in zip(token_ids.items(), scores.tolist(), strict=True):
            kind = self._BYTE if text in is_byte else self._NORMAL
            model += self._piece(text.encode("utf-8", "surrogateescape"), score, kind)
        self._pieces_span_cuts = any(map(self._CUT.search, token_ids))
        # sentencepiece wants one unknown piece and all 256 bytes: those that the file lacks get
        # ids past the vocabulary, which encode() replaces. 0xFF cannot occur in UTF-8 text.
        self._n_tokens = len(token_ids)
        model += self._piece(b"\xff", 0.0, self._UNKNOWN)
        self._replace: dict[int, int | None] = {self._n_tokens: unknown_id}
        for byte, text in enumerate(byte_texts):
            if text not in token_ids:
                model += self._piece(text.encode(), 0.0, self._BYTE)
                continues = 0x80 <= byte < 0xC0
                self._replace[self._n_tokens + len(self._replace)] = (
                    None if continues else unknown_id
                )
        trainer = (  # model_type = BPE, byte_fallback, unk_id, no bos, eos, pad; unk_piece
            self._number(3, 2)
            + self._number(35, 1)
            + self._number(40, self._n_tokens)
            + b"".join(self._number(field, 2**64 - 1) for field in (41, 42, 43))
            + self._bytes(45, b"\xff")
        )
        normalizer = (  # identity; no dummy prefix, no removal of blanks, no escaping of blanks
            self._bytes(1, b"identity") + b"".join(self._number(field, 0) for field in (3, 4, 5))
        )
        model += self._bytes(2, trainer) + self._bytes(3, normalizer)
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=bytes(model))
        except (RuntimeError, ValueError) as error:
            raise TokenizerError(f"{name}: sentencepiece refuses it: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`."""
        # A place that no piece spans is one that no merge crosses.
        chunks = [text] if self._pieces_span_cuts else _chunks(text, self._CUT)
        ids: list[int] = []
        for chunk in chunks:
            ids += self._processor.encode(chunk)
        if max(ids, default=0) < self._n_tokens:
            return ids
        replaced = (self._replace.get(i, i) for i in ids)
        return [i for i in replaced if i is not None]

    # Protocol buffer fields: a varint key (field number << 3 | wire type), then the value.
    @staticmethod
    def _varint(value: int) -> bytes:
        if value <= 0x7F:
            return value.to_bytes(1, "little")
        out = bytearray()
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
        return bytes(out)

    @classmethod
    def _number(cls, field: int, value: int) -> bytes:
        return cls._varint(field << 3) + cls._varint(value)

    @classmethod
    def _bytes(cls, field: int, value: bytes) -> bytes:
        return cls._varint(field << 3 | 2) + cls._varint(len(value)) + value

    @classmethod
    def _piece(cls, text: bytes, score: float, kind: int) -> bytes:
        # Keys of fields 1, 2 and 3 are written here: most of a tokenizer's time is 32,000 of these.
        score_kind = b"\x15" + struct.pack("<f", score) + b"\x18" + kind.to_bytes(1, "little")
        body = b"\x0a" + cls._varint(len(text)) + text + score_kind
        return b"\x0a" + cls._varint(len(body)) + body
