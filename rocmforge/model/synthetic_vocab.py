"""A complete tokenizer of any size for a synthetic model, as GGUF metadata.

Real in kind (byte tokens, specials, merges, chat template), made up in content: the pieces are
combinations of letters.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from rocmforge.model.presets import Vocabulary

MetadataValue = bool | int | float | str | list[str] | list[int] | list[float]

_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # tokenizer.ggml.token_type

_LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
_SPM_SPACE = "▁"
_BPE_SPACE = "Ġ"

_SPM_SPECIALS = (("<unk>", _UNKNOWN), ("<s>", _CONTROL), ("</s>", _CONTROL))
_LLAMA3_SPECIALS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)
_QWEN2_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

_SPM_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}"
    "{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
_LLAMA3_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message['role'] }}"
    "<|end_header_id|>\n\n{{ message['content'] }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_QWEN2_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def vocabulary_metadata(kind: Vocabulary, size: int) -> dict[str, MetadataValue]:
    """Return the ``tokenizer.*`` keys of a vocabulary.

    Parameters
    ----------
    kind
        ``"llama-spm"`` (SentencePiece with byte fallback), ``"llama-bpe"`` (Llama 3) or
        ``"qwen2"``, both byte-level BPE.
    size
        Tokens in all, at least 512.

    Raises
    ------
    ValueError
        If `size` is too small for the bytes and the specials, or more than the pieces there are.
    """
    if not 512 <= size <= 400_000:
        raise ValueError(f"vocabulary size: got {size}, wanted 512 to 400000")
    if kind == "llama-spm":
        return _spm(size)
    if kind == "llama-bpe":
        keys = _bpe(size, _LLAMA3_SPECIALS, bos="<|begin_of_text|>", eos="<|eot_id|>")
        template, add_bos = _LLAMA3_TEMPLATE, True
    else:
        keys = _bpe(size, _QWEN2_SPECIALS, bos="<|endoftext|>", eos="<|im_end|>")
        template, add_bos = _QWEN2_TEMPLATE, False
    return keys | {
        "tokenizer.ggml.pre": kind,
        "tokenizer.ggml.add_bos_token": add_bos,
        "tokenizer.chat_template": template,
    }


def _merges(space: str) -> Iterator[tuple[str, str]]:
    """Yield pairs of pieces to join, each made of letters or of earlier joins; no result twice."""
    pairs = [a + b for a in _LETTERS for b in _LETTERS]
    yield from ((space, letter) for letter in _LETTERS)
    yield from ((a, b) for a in _LETTERS for b in _LETTERS)
    yield from ((space, pair) for pair in pairs)
    yield from ((pair, letter) for pair in pairs for letter in _LETTERS)
    yield from ((space, pair + letter) for pair in pairs for letter in _LETTERS)
    yield from ((first, second) for first in pairs for second in pairs)


def _spm(size: int) -> dict[str, MetadataValue]:
    tokens = [piece for piece, _ in _SPM_SPECIALS] + [f"<0x{byte:02X}>" for byte in range(256)]
    types = [kind for _, kind in _SPM_SPECIALS] + [_BYTE] * 256
    fixed = len(tokens)
    characters = [_SPM_SPACE, *(chr(code) for code in range(0x21, 0x7F))]
    joined = size - fixed - len(characters)
    tokens += [left + right for left, right in islice(_merges(_SPM_SPACE), joined)]
    tokens += characters
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * fixed + [-float(i) for i in range(size - fixed)],
        "tokenizer.ggml.token_type": types + [_NORMAL] * (size - fixed),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.chat_template": _SPM_TEMPLATE,
    }


def _byte_characters() -> list[str]:
    """Return the 256 characters by which byte-level BPE writes bytes, printable ones first."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(byte) for byte in printable] + [chr(0x100 + i) for i in range(256 - len(printable))]


def _bpe(size: int, specials: tuple[str, ...], *, bos: str, eos: str) -> dict[str, MetadataValue]:
    characters = _byte_characters()
    merges = list(islice(_merges(_BPE_SPACE), size - len(characters) - len(specials)))
    tokens = [*characters, *(left + right for left, right in merges), *specials]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [_NORMAL] * (size - len(specials))
        + [_CONTROL] * len(specials),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
        "tokenizer.ggml.bos_token_id": tokens.index(bos),
        "tokenizer.ggml.eos_token_id": tokens.index(eos),
        "tokenizer.ggml.add_eos_token": False,
    }
