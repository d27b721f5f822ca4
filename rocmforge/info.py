"""What a GGUF file says of itself: shape, formats, sizes, KV memory, vocabulary.

It is read from the header; no tensor is touched. A file that cannot be run is described as far as
it can be read, with the reason.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from typing import Any

from rocmforge.errors import shorten
from rocmforge.gguf.formats import FORMATS, PACKED_BITS
from rocmforge.gguf.header import StringArray
from rocmforge.gguf.reader import GGUFFile
from rocmforge.gpu.head_dims import wanted_head_dim
from rocmforge.model.architectures import ARCHITECTURES
from rocmforge.model.config import ModelConfig
from rocmforge.model.problems import config_problems
from rocmforge.model.tensor_shapes import tensor_problems
from rocmforge.text.pre_tokenizers import PRE_TOKENIZERS
from rocmforge.text.vocabulary import TOKENIZERS

CONTEXTS = (1024, 2048, 4096)
_STATED = {
    "layers": "block_count",
    "wide": "embedding_length",
    "heads": "attention.head_count",
    "KV heads": "attention.head_count_kv",
    "experts": "expert_count",
    "experts for each token": "expert_used_count",
    "tokens of context": "context_length",
}
MOST_PROBLEMS = 20  # of the metadata that are listed


@dataclass(frozen=True)
class FormatShare:
    """The tensors of one format.

    Parameters
    ----------
    format
        Its name.
    tensors, parameters, nbytes
        How many there are, weights in them, bytes in the file; None where nobody knows the format.
    """

    format: str
    tensors: int
    parameters: int
    nbytes: int | None


@dataclass(frozen=True)
class ContextSize:
    """Memory at one length of context.

    Parameters
    ----------
    tokens
        The length.
    kv_bytes
        Keys and values in f16, `ModelConfig.kv_bytes`.
    total_bytes
        With all tensors of the file.
    """

    tokens: int
    kv_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class ModelInfo:
    """A GGUF file described.

    Parameters
    ----------
    path, file_bytes, file_parts, gguf_version
        The file; the bytes are of all parts of a split one.
    architecture, name
        As the file states them; None where it does not.
    config
        The model's shape; None where `problems` say why there is none.
    stated
        Layers, width and so on as the metadata state them, unchecked.
    problems
        Every reason why the file cannot be run that its header shows; none: it can be.
    formats
        The formats of its tensors, most bytes first.
    rope_factors
        Whether it carries frequency factors (Llama 3).
    vocab_size
        Tokens listed; 0 without a vocabulary.
    tokenizer, pre_tokenizer
        ``tokenizer.ggml.model`` and ``tokenizer.ggml.pre``; None where the file has none.
    chat_template
        Whether it has one.
    """

    path: str
    file_bytes: int
    file_parts: int
    gguf_version: int
    architecture: str | None
    name: str | None
    config: ModelConfig | None
    stated: dict[str, int]
    problems: tuple[str, ...]
    formats: tuple[FormatShare, ...]
    rope_factors: bool
    vocab_size: int
    tokenizer: str | None
    pre_tokenizer: str | None
    chat_template: bool

    @property
    def tensors(self) -> int:
        """Tensors in the file."""
        return sum(share.tensors for share in self.formats)

    @property
    def parameters(self) -> int:
        """Weights in the file; a matrix that is used twice counts once."""
        return sum(share.parameters for share in self.formats)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors of a known format."""
        return sum(share.nbytes or 0 for share in self.formats)

    @property
    def memory_bytes(self) -> int:
        """Bytes of all weights in memory; IQ1, IQ2, IQ3, TQ and NVFP4 take more than in a file."""
        return sum(
            math.ceil(share.parameters * PACKED_BITS[share.format] / 8)
            if share.format in PACKED_BITS
            else share.nbytes or 0
            for share in self.formats
        )

    @property
    def bits_per_weight(self) -> float | None:
        """8 · weight_bytes / parameters; None without tensors, or where some have no known size."""
        known = self.formats and all(share.nbytes is not None for share in self.formats)
        return 8 * self.weight_bytes / self.parameters if known else None

    @property
    def kv_bytes_per_token(self) -> int | None:
        """`ModelConfig.kv_bytes_per_token`; None without a shape."""
        return self.config.kv_bytes_per_token if self.config else None

    @property
    def contexts(self) -> tuple[ContextSize, ...]:
        """Memory at 1k, 2k, 4k tokens as far as the model goes, and at its trained context."""
        if self.config is None:
            return ()
        trained = self.config.ctx_train
        lengths = [*(tokens for tokens in CONTEXTS if tokens < trained), trained]
        kv = [self.config.kv_bytes(tokens) for tokens in lengths]
        return tuple(
            ContextSize(n, nbytes, self.memory_bytes + nbytes)
            for n, nbytes in zip(lengths, kv, strict=True)
        )

    @property
    def cpu_only(self) -> str | None:
        """Why a file that CPUs run does not run on GPUs; None where it does."""
        head_dim = self.config.head_dim if self.config else 0
        wanted = wanted_head_dim(head_dim)
        return f"head dim {head_dim}, {wanted}" if wanted else None

    def as_json(self) -> dict[str, Any]:
        """Return everything in JSON's types."""
        computed = ("tensors", "parameters", "weight_bytes", "bits_per_weight")
        return {
            **asdict(self),
            "supported": not self.problems,
            "cpu_only": self.cpu_only,
            **{name: getattr(self, name) for name in computed},
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "contexts": [asdict(size) for size in self.contexts],
        }


def read_info(path: str | os.PathLike[str]) -> ModelInfo:
    """Describe a GGUF file.

    Raises
    ------
    GGUFError
        It is no GGUF file that can be read.
    """
    with GGUFFile(path, every_format=True) as file:
        formats = _formats(file)
        config, problems = _config(file)
        problems += [
            f"{share.format} in {share.tensors} tensor{'s' if share.tensors > 1 else ''}"
            for share in formats
            if share.format not in FORMATS
        ]
        tokens = file.metadata.get("tokenizer.ggml.tokens")
        return ModelInfo(
            path=str(file.path),
            file_bytes=file.nbytes,
            file_parts=file.parts,
            gguf_version=file.version,
            architecture=_text(file, "general.architecture"),
            name=_text(file, "general.name"),
            config=config,
            stated=_stated(file),
            problems=(*problems, *_tokenizer_problems(file)),
            formats=formats,
            rope_factors="rope_freqs.weight" in file.tensors,
            vocab_size=len(tokens) if isinstance(tokens, StringArray) else 0,
            tokenizer=_text(file, "tokenizer.ggml.model"),
            pre_tokenizer=_text(file, "tokenizer.ggml.pre"),
            chat_template=_text(file, "tokenizer.chat_template") is not None,
        )


def _config(file: GGUFFile) -> tuple[ModelConfig | None, list[str]]:
    if errors := config_problems(file):
        problems = [str(error).removeprefix(f"{file.path}: ") for error in errors]
        rest = len(problems) - MOST_PROBLEMS
        return None, problems[:MOST_PROBLEMS] + ([f"and {rest} more"] if rest > 0 else [])
    config = ModelConfig.from_gguf(file)
    if not file.tensors:
        return config, ["the file has no tensors, only a vocabulary"]
    return config, tensor_problems(file, config)


def _stated(file: GGUFFile) -> dict[str, int]:
    arch = file.metadata.get("general.architecture")
    values = {name: file.metadata.get(f"{arch}.{key}") for name, key in _STATED.items()}
    return {name: value for name, value in values.items() if type(value) is int}


def _tokenizer_problems(file: GGUFFile) -> list[str]:
    kind, pre = _text(file, "tokenizer.ggml.model"), _text(file, "tokenizer.ggml.pre")
    if kind not in (None, "none", *TOKENIZERS):
        return [f"tokenizer {kind}"]
    if kind != "gpt2":
        return []
    problems = [f"pre-tokenizer {pre}"] if pre is not None and pre not in PRE_TOKENIZERS else []
    if "tokenizer.ggml.merges" not in file.metadata:
        problems.append("tokenizer.ggml.merges: no such key")
    return problems


def _formats(file: GGUFFile) -> tuple[FormatShare, ...]:
    names = {info.format.name for info in file.tensors.values()}
    shares = []
    for name in names:
        own = [info for info in file.tensors.values() if info.format.name == name]
        weights = sum(math.prod(info.shape) for info in own)
        known = all(info.format.block_bytes for info in own)
        nbytes = sum(info.nbytes for info in own) if known else None
        shares.append(FormatShare(name, len(own), weights, nbytes))
    return tuple(sorted(shares, key=lambda share: (-(share.nbytes or 0), share.format)))


def supported() -> dict[str, list[dict[str, Any]]]:
    """Return what runs here: architectures, formats, kinds of tokenizers and pre-tokenizers."""
    return {
        "architectures": [
            {
                "architecture": row.name,
                "families": row.families,
                "experts": {"never": "no", "optional": "possible", "always": "yes"}[row.mixture],
            }
            for row in ARCHITECTURES.values()
        ],
        "formats": [
            {"format": fmt.name, "bits_per_weight": fmt.bits_per_weight}
            for fmt in FORMATS.values()
            if fmt.ggml_type is not None
        ],
        "tokenizers": [{"tokenizer": name, "kind": kind} for name, kind in TOKENIZERS.items()],
        "pre_tokenizers": [{"pre_tokenizer": name} for name in sorted(PRE_TOKENIZERS)],
    }


def _text(file: GGUFFile, key: str) -> str | None:
    """A string of the metadata, shortened; None where it is missing or of another type."""
    value = file.metadata.get(key)
    return shorten(value) if isinstance(value, str) else None
