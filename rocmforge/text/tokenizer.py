"""Text to token ids and back, with the vocabulary that a GGUF file carries.

`subwords.py` has the subword algorithms, `vocabulary.py` reads the metadata, `chat_template.py`
renders chat templates.
"""

from __future__ import annotations

import codecs
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from operator import itemgetter

import numpy as np

from rocmforge.errors import TokenizerError
from rocmforge.gguf.reader import GGUFFile
from rocmforge.text.chat_template import ChatTemplate
from rocmforge.text.pre_tokenizers import PRE_TOKENIZERS
from rocmforge.text.subwords import (
    BYTE_OF,
    SURROGATES,
    BytePairEncoder,
    SentencePieceEncoder,
)
from rocmforge.text.vocabulary import HIDDEN, Metadata, TokenType, Vocabulary


class SpecialTokens:
    """Cuts text at the special tokens that it spells out, the longest token first.

    Parameters
    ----------
    tokens
        (text, id, type) of every control, unknown and user-defined token.
    strip_right
        Ids of tokens that swallow the blanks behind them.
    """

    # While text is cut, three surrogates, which no text holds, stand for each token found.
    _MARK = re.compile(f"({SURROGATES}{{3}})")
    _BLANKS = "[ \t\n\v\f\r]*"

    def __init__(
        self, tokens: Iterable[tuple[str, int, TokenType]], strip_right: frozenset[int]
    ) -> None:
        ordered = sorted(
            tokens, key=lambda token: (-len(token[0].encode("utf-8", "replace")), token[1])
        )
        self._strip_right = strip_right
        self._ranks = {text: rank for rank, (text, _, _) in enumerate(ordered)}
        self._ids = {self._mark(rank): token_id for rank, (_, token_id, _) in enumerate(ordered)}
        self._all = sorted(self._ranks)
        self._user_defined = sorted(t for t, _, kind in ordered if kind == TokenType.USER_DEFINED)

    @staticmethod
    def _mark(rank: int) -> str:
        return "".join(chr(0xD800 + (rank >> shift) % 0x800) for shift in (22, 11, 0))

    def split(self, text: str, parse_special: bool) -> list[str | int]:
        """Return text fragments and ids in order; user-defined tokens are always found.

        `text` holds no surrogates. Each token that is found takes one pass over it.
        """
        found = _found(self._all if parse_special else self._user_defined, text)
        for special in sorted(found, key=self._ranks.__getitem__):
            mark = self._mark(self._ranks[special])
            if self._ids[mark] in self._strip_right:
                text = re.sub(re.escape(special) + self._BLANKS, mark, text)
            else:
                text = text.replace(special, mark)
        ids = self._ids
        return [ids.get(part, part) for part in self._MARK.split(text) if part]


def _found(tokens: Sequence[str], text: str) -> list[str]:
    """Return which of the sorted `tokens` occur in `text`.

    Vocabularies hold up to thousands of them, most of which begin alike: only where a beginning
    occurs are its continuations looked for.
    """
    found = []
    pending = [(0, len(tokens))] if tokens else []
    while pending:
        start, end = pending.pop()
        ends = zip(tokens[start], tokens[end - 1], strict=False)
        beginning = "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], ends))
        if beginning not in text:
            continue
        if tokens[start] == beginning:
            found.append(beginning)
            start += 1
        while start < end:
            cut = slice(len(beginning) + 1)
            behind = bisect_right(tokens, tokens[start][cut], start, end, key=itemgetter(cut))
            pending.append((start, behind))
            start = behind
    return found


class Tokenizer:
    """Vocabulary of one model: encode, decode, stream, render chats.

    Parameters
    ----------
    metadata
        Key → value, as in `GGUFFile.metadata`; it is not kept.
    name
        What error messages call it: the file's path.

    Attributes
    ----------
    vocab_size : int
    bos_id, eos_id : int or None
    end_ids : frozenset of int
        Ids that end generation: EOS, end of turn, end of message.
    add_bos, add_eos : bool
        What the file says that `encode` adds.
    chat_template : str or None
        Source of the Jinja template.

    Raises
    ------
    TokenizerError
        A part is missing, has another type or length, or contradicts another; the kind of
        vocabulary or its pre-tokenizer is not supported.
    """

    def __init__(self, metadata: Mapping[str, object], name: str = "metadata") -> None:
        source = Metadata(metadata, name)
        self._vocabulary = vocabulary = Vocabulary.from_metadata(source)
        self.vocab_size = len(vocabulary.tokens)
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.end_ids = vocabulary.end_ids
        self.add_bos = vocabulary.add_bos
        self.add_eos = vocabulary.add_eos
        self.chat_template = vocabulary.chat_template
        self._kinds = vocabulary.types.tobytes()  # one byte each, faster to index
        self._special = SpecialTokens(vocabulary.special(), vocabulary.strip_right)
        self._encoder = _encoder(source, vocabulary)

    @classmethod
    def from_gguf(cls, file: str | os.PathLike[str] | GGUFFile) -> Tokenizer:
        """Build the tokenizer of a GGUF file, given by path or open.

        Raises
        ------
        TokenizerError
            See the class.
        GGUFError
            The file cannot be read.
        """
        if isinstance(file, GGUFFile):
            return cls(file.metadata, str(file.path))
        with GGUFFile(file) as opened:
            return cls(opened.metadata, str(opened.path))

    def encode(
        self, text: str, add_bos: bool | None = None, parse_special: bool = False
    ) -> list[int]:
        """Return the token ids of `text`.

        Parameters
        ----------
        text
            Any string; lone surrogates count as U+FFFD.
        add_bos
            True: BOS stands first. None: as the file says (`add_bos`). False: bare text. EOS stands
            last where the file says so (`add_eos`), unless `add_bos` is False.
        parse_special
            Whether text that spells out a control token is that token: True for prompts made by
            `apply_chat_template`, False for text from outside. User-defined tokens are found
            always.

        Raises
        ------
        TokenizerError
            BOS is wanted of a vocabulary that has none.
        """
        if not isinstance(text, str):
            raise TypeError(f"text: got {type(text).__name__}, wanted str")
        ids: list[int] = []
        if self.add_bos if add_bos is None else add_bos:
            if self.bos_id is None:
                raise TokenizerError(
                    f"{self._vocabulary.name}: add_bos: this vocabulary has no BOS token"
                )
            ids.append(self.bos_id)
        after_special = True
        for fragment in self._special.split(_without_surrogates(text), parse_special):
            if isinstance(fragment, int):
                ids.append(fragment)
                after_special = True
                continue
            if self._vocabulary.is_spm:
                prefix = " " if self._vocabulary.space_prefix and after_special else ""
                fragment = (prefix + fragment).replace(" ", "▁")
            ids += self._encoder.encode(fragment)
            after_special = False
        if self.add_eos and self.eos_id is not None and add_bos is not False:
            ids.append(self.eos_id)
        return ids

    def decode(
        self,
        ids: Iterable[int],
        skip_special: bool = False,
        continuation: bool = False,
        shown: frozenset[int] = frozenset(),
    ) -> str:
        """Return the text of `ids`; bytes that are no UTF-8 become U+FFFD.

        Parameters
        ----------
        ids
            Token ids, each from 0 to `vocab_size` - 1.
        skip_special
            Leave control tokens and the unknown token out.
        continuation
            The ids continue a text, so that a leading blank is part of it. Otherwise the blank that
            `encode` puts before text (SentencePiece vocabularies with `add_space_prefix`) is taken
            off the first token that shows.
        shown
            Special tokens that `skip_special` leaves in.

        Raises
        ------
        ValueError
            An id that is not in the vocabulary.
        """
        stream = self.stream(skip_special, continuation, shown)
        return "".join([stream.push(i) for i in ids]) + stream.flush()

    def stream(
        self,
        skip_special: bool = False,
        continuation: bool = False,
        shown: frozenset[int] = frozenset(),
    ) -> StreamDecoder:
        """Return a decoder of one id at a time; the pieces joined are what `decode` returns."""
        return StreamDecoder(self, skip_special, continuation, shown)

    def piece(self, token_id: int, skip_special: bool = False) -> tuple[bytes, bool]:
        """Return the bytes of one token, and whether a space prefix may stand before them.

        Raises
        ------
        ValueError
            `token_id` is not in the vocabulary.
        """
        if not 0 <= token_id < self.vocab_size:
            raise ValueError(f"token id: got {token_id}, wanted 0 to {self.vocab_size - 1}")
        text, kind = self._vocabulary.tokens[token_id], self._kinds[token_id]
        if kind in HIDDEN:
            return (b"" if skip_special else text.encode("utf-8", "surrogateescape")), False
        if kind == TokenType.USER_DEFINED:
            return text.encode("utf-8", "surrogateescape"), False
        if kind == TokenType.BYTE:
            return bytes([int(text[3:5], 16)]), self._vocabulary.space_prefix
        if kind != TokenType.NORMAL:
            return b"", False
        if self._vocabulary.is_spm:
            data = text.replace("▁", " ").encode("utf-8", "surrogateescape")
            return data, self._vocabulary.space_prefix
        if BYTE_OF.keys() >= set(text):
            return bytes([BYTE_OF[c] for c in text]), False
        return text.encode("utf-8", "surrogateescape"), False

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, object]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Return `messages` as the prompt text that the model was trained on.

        The text spells out its special tokens, BOS among them where the template puts it: encode
        it with ``add_bos=False, parse_special=True``.

        Parameters
        ----------
        messages
            Each with ``"role"`` and ``"content"``, of what JSON can hold.
        add_generation_prompt
            End with the opening of the assistant's turn.
        tools
            JSON schemas of functions, for templates that know them.
        variables
            What the template reads besides, as ``{"enable_thinking": False}`` (Qwen 3) or
            ``{"reasoning_effort": "low"}`` (gpt-oss). Templates ignore what they do not know.

        Raises
        ------
        ValueError
            One of `variables` has a name that is given already.
        TokenizerError
            The file has no template, or the template fails or exceeds its limits.
        """
        given: dict[str, object] = {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self._text(self.bos_id),
            "eos_token": self._text(self.eos_id),
            "unk_token": self._text(self._vocabulary.unknown_id),
            "pad_token": self._text(self._vocabulary.padding_id),
        }
        if taken := given.keys() & (variables or {}).keys():
            raise ValueError(f"variables: got {min(taken)}, wanted names other than {list(given)}")
        return self._template.render(**given, **(variables or {}))

    @cached_property
    def special_ids(self) -> Mapping[str, int]:
        """Ids of the control, unknown and user-defined tokens by their texts."""
        return {text: token_id for text, token_id, _ in self._vocabulary.special()}

    @cached_property
    def _template(self) -> ChatTemplate:
        if self.chat_template is None:
            raise TokenizerError(
                f"{self._vocabulary.name}: tokenizer.chat_template: the file has none; use a model "
                "tuned for chat, or write the prompt's text yourself and call encode"
            )
        return ChatTemplate(self.chat_template, self._vocabulary.name)

    def _text(self, token_id: int | None) -> str:
        return "" if token_id is None else self._vocabulary.tokens[token_id]


class StreamDecoder:
    """Text of ids that come one by one, never with half a character.

    Bytes of an unfinished character are held back until they are whole.
    """

    def __init__(
        self, tokenizer: Tokenizer, skip_special: bool, continuation: bool, shown: frozenset[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._shown = shown
        self._at_start = not continuation
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Return the text that `token_id` completes, perhaps none; ValueError as `decode`."""
        skip = self._skip_special and token_id not in self._shown
        data, has_prefix = self._tokenizer.piece(token_id, skip)
        if data and self._at_start:
            self._at_start = False
            if has_prefix:
                data = data.removeprefix(b" ")
        return self._utf8.decode(data)

    def flush(self) -> str:
        """Return what is still held back, as U+FFFD."""
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text


def _encoder(source: Metadata, vocabulary: Vocabulary) -> BytePairEncoder | SentencePieceEncoder:
    n = len(vocabulary.tokens)
    if not vocabulary.is_spm:
        merges = source.strings("tokenizer.ggml.merges")
        return BytePairEncoder(vocabulary.ids, merges, PRE_TOKENIZERS[vocabulary.pre], source.name)
    scores = source.numbers("tokenizer.ggml.scores", n, "fi")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
        scores = np.zeros(n, np.float32) if scores is None else scores.astype(np.float32)
    if not np.isfinite(scores).all():
        raise source.fault("tokenizer.ggml.scores", "NaN or infinity", "finite numbers")
    return SentencePieceEncoder(vocabulary.ids, scores, vocabulary.unknown_id, source.name)


def _without_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return re.sub(SURROGATES, "\ufffd", text)
    return text
