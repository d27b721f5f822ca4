"""What a model's arithmetic needs to know, read from GGUF metadata, range-checked and frozen.

Metadata is read totally: a key of the architecture that is neither honoured nor known to be
without effect is refused by name. Of the tensors, only names and shapes are read here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rocmforge.errors import UnsupportedModelError, brief
from rocmforge.gguf.reader import GGUFFile, StringArray
from rocmforge.model.architectures import ARCHITECTURES, RopeLayout
from rocmforge.model.metadata import Keys
from rocmforge.plan.protocols import MAX_HEAD_DIM

RopeScaling = Literal["none", "linear", "yarn"]

_SCALINGS: Mapping[str, RopeScaling] = MappingProxyType(
    {"none": "none", "linear": "linear", "yarn": "yarn"}
)

# Upper bounds far above every published model: hostile metadata must not size an allocation.
_MAX_LAYERS = 1024
_MAX_WIDTH = 1 << 20
_MAX_HEADS = 1024
_MAX_VOCAB = 1 << 22
_MAX_CONTEXT = 1 << 24
_MAX_FACTOR = 1e6


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding: dimension pair i of a head is turned by position · frequency[i].

    Parameters
    ----------
    dim
        Rotated dimensions of a head, even; here always the whole head.
    base
        b in frequency[i] = b^(−2i / dim).
    layout
        ``"interleaved"``: pair i is (2i, 2i + 1); ``"halves"``: pair i is (i, i + dim / 2).
    scaling
        How positions beyond the original context are reached: not, by linear interpolation, or
        by YaRN (Peng et al. 2023, arXiv:2309.00071).
    factor
        s, by which the context was stretched; 1 without scaling.
    original_ctx
        Tokens of context before stretching (YaRN).
    attn_factor
        Multiplies `magnitude`.
    beta_fast, beta_slow
        Turns within the original context above which a pair is not interpolated at all, and
        below which it is interpolated fully (YaRN). Honoured where a file states them, although
        llama.cpp takes its defaults, 32 and 1, for these architectures.
    """

    dim: int
    base: float
    layout: RopeLayout
    scaling: RopeScaling = "none"
    factor: float = 1.0
    original_ctx: int = 0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def frequencies(self, freq_factors: NDArray[np.floating[Any]] | None) -> NDArray[np.float64]:
        """Return the angle by which each pair turns from one position to the next.

        f[i] = base^(−2i / dim) / freq_factors[i]; linear: f / s;
        YaRN: f·r + (f / s)·(1 − r), where r = 1 − clamp((i − low) / (high − low), 0, 1),
        low = ⌊c(beta_fast)⌋, high = ⌈c(beta_slow)⌉, and c(β) = dim · ln(original_ctx / 2πβ)
        / (2 ln base) is the pair that makes β turns in the original context.

        Parameters
        ----------
        freq_factors
            ``(dim / 2,)``, positive: the tensor ``rope_freqs.weight`` (Llama 3); None without.

        Returns
        -------
        ``(dim / 2,)`` float64, radians per position.

        Raises
        ------
        ValueError
            If `freq_factors` has another shape.
        """
        pair = np.arange(self.dim // 2, dtype=np.float64)
        plain = self.base ** (-2.0 * pair / self.dim)
        if freq_factors is not None:
            if freq_factors.shape != pair.shape:
                raise ValueError(
                    f"freq_factors: got shape {freq_factors.shape}, wanted {pair.shape}"
                )
            plain = plain / freq_factors.astype(np.float64)
        if self.scaling == "none":
            return plain
        interpolated = plain / self.factor
        if self.scaling == "linear":
            return interpolated
        low = max(0, math.floor(self._pair_of_turns(self.beta_fast)))
        high = min(self.dim - 1, math.ceil(self._pair_of_turns(self.beta_slow)))
        kept = 1.0 - np.clip((pair - low) / max(0.001, high - low), 0.0, 1.0)
        return interpolated * (1.0 - kept) + plain * kept

    def _pair_of_turns(self, turns: float) -> float:
        return (
            self.dim
            * math.log(self.original_ctx / (2.0 * math.pi * turns))
            / (2.0 * math.log(self.base))
        )

    @property
    def magnitude(self) -> float:
        """What cos and sin are multiplied by: attn_factor, for YaRN with s > 1 · (1 + 0.1 ln s)."""
        if self.scaling != "yarn" or self.factor <= 1.0:
            return self.attn_factor
        return self.attn_factor * (1.0 + 0.1 * math.log(self.factor))


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder-only transformer with RMSNorm, rotary positions, GQA and SwiGLU.

    Parameters
    ----------
    architecture
        A name of `ARCHITECTURES`.
    n_layers, d_model, d_ff, vocab_size
        Blocks, width of the residual stream, inner width of the feed-forward part, tokens.
    n_heads, n_kv_heads, head_dim
        Query heads, key/value heads (a divisor of them), dimensions of each.
    ctx_train
        Positions that may be used: the trained context, or the sliding window where that is
        smaller, since full attention is exact up to there and wrong beyond.
    norm_eps
        Epsilon of every RMSNorm.
    rope
        Rotary embedding.
    tied_output
        The output matrix is the token embedding.
    qkv_bias
        The q, k and v projections have biases.
    qk_norm
        Each head of q and k is RMS-normalized before rotation.
    sliding_window
        The file's attention window where it is what limits `ctx_train`, else None. With it,
        positions at or above `ctx_train` must be refused.
    """

    architecture: str
    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    vocab_size: int
    ctx_train: int
    norm_eps: float
    rope: RopeConfig
    tied_output: bool
    qkv_bias: bool
    qk_norm: bool
    sliding_window: int | None = None

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> ModelConfig:
        """Read and check the configuration that a file's metadata states.

        Parameters
        ----------
        file
            An open GGUF file.

        Raises
        ------
        GGUFError
            A key is missing or of another type.
        UnsupportedModelError
            The architecture, a feature or a key is one that is not supported; names key, value
            and what is supported.
        ModelError
            A value is out of range or contradicts another.
        """
        arch = _architecture(file)
        keys = Keys(file, arch)
        keys.refuse_unsupported()
        n_layers = keys.integer("block_count", 1, _MAX_LAYERS)
        d_model = keys.integer("embedding_length", 1, _MAX_WIDTH)
        d_ff = keys.per_layer("feed_forward_length", n_layers, _MAX_WIDTH)
        n_heads = keys.per_layer("attention.head_count", n_layers, _MAX_HEADS)
        n_kv_heads = n_heads
        if keys.has("attention.head_count_kv"):
            n_kv_heads = keys.per_layer("attention.head_count_kv", n_layers, _MAX_HEADS)
        if n_heads % n_kv_heads:
            raise keys.error("attention.head_count_kv", n_kv_heads, f"a divisor of {n_heads} heads")
        head_dim = _head_dim(keys, d_model, n_heads)
        ctx = keys.integer("context_length", 1, _MAX_CONTEXT)
        window = keys.integer("attention.sliding_window", 0, _MAX_CONTEXT, default=0)
        windowed = 0 < window < ctx
        eps = keys.number("attention.layer_norm_rms_epsilon", 0.0, 0.1)
        names = file.tensors.keys()
        has_bias = any(name.endswith((".attn_q.bias", ".attn_k.bias")) for name in names)
        return cls(
            architecture=arch,
            n_layers=n_layers,
            d_model=d_model,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            d_ff=d_ff,
            vocab_size=_vocab_size(keys),
            ctx_train=window if windowed else ctx,
            norm_eps=eps,
            rope=_rope(keys, head_dim, ctx),
            tied_output="output.weight" not in names,
            qkv_bias=ARCHITECTURES[arch].qkv_bias or has_bias,
            qk_norm=ARCHITECTURES[arch].qk_norm,
            sliding_window=window if windowed else None,
        )


def _architecture(file: GGUFFile) -> str:
    arch = file.get("general.architecture", str)
    if arch not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{file.path}: architecture {brief(arch)} is not supported; "
            f"supported: {', '.join(ARCHITECTURES)}"
        )
    kind = file.get("general.type", str, "model")
    if kind != "model":
        raise UnsupportedModelError(
            f"{file.path}: general.type = {brief(kind)} is not supported; supported: 'model'"
        )
    parts = file.get("split.count", int, 1)
    if parts > 1:
        raise UnsupportedModelError(
            f"{file.path}: split.count = {parts}: one part of a split model is not supported; "
            "supported: one file (merge the parts with llama-gguf-split --merge)"
        )
    return arch


def _head_dim(keys: Keys, d_model: int, n_heads: int) -> int:
    if not keys.has("attention.key_length") and d_model % n_heads:
        raise keys.error("attention.head_count", n_heads, f"a divisor of the width {d_model}")
    head_dim = keys.integer("attention.key_length", 1, _MAX_WIDTH, default=d_model // n_heads)
    if head_dim > MAX_HEAD_DIM:
        supported = f"head dims up to {MAX_HEAD_DIM}"
        raise keys.unsupported("attention.key_length", head_dim, supported)
    if head_dim % 2:
        raise keys.error(
            "attention.key_length", head_dim, f"an even number from 2 to {MAX_HEAD_DIM}"
        )
    # llama.cpp's default for values is not the key length but the same quotient.
    default = d_model // n_heads
    value_length = keys.integer("attention.value_length", 1, _MAX_WIDTH, default=default)
    if value_length != head_dim:
        raise keys.unsupported(
            "attention.value_length", value_length, f"the length of the keys ({head_dim})"
        )
    return head_dim


def _vocab_size(keys: Keys) -> int:
    """Return V: the tokens listed, else what `vocab_size` says, else the rows of the embedding.

    Files exist whose `vocab_size` was left behind when tokens were added; the list and the
    embedding are then right, and the shape check of the weights holds them against each other.
    """
    tokens = keys.file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, StringArray) and len(tokens):
        size = len(tokens)
    elif not keys.has("vocab_size") and "token_embd.weight" in keys.file.tensors:
        size = keys.file.tensors["token_embd.weight"].shape[0]
    else:
        size = keys.integer("vocab_size", 1, _MAX_VOCAB)
    if not 1 <= size <= _MAX_VOCAB:
        raise keys.error("vocab_size", size, f"from 1 to {_MAX_VOCAB} tokens")
    return size


def _rope(keys: Keys, head_dim: int, ctx: int) -> RopeConfig:
    dim = keys.integer("rope.dimension_count", 0, _MAX_WIDTH, default=head_dim)
    if dim != head_dim:
        raise keys.unsupported("rope.dimension_count", dim, f"the whole head ({head_dim})")
    kind = keys.file.get(f"{keys.arch}.rope.scaling.type", str, "linear")
    if kind not in _SCALINGS:
        raise keys.unsupported("rope.scaling.type", kind, ", ".join(_SCALINGS))
    # A factor without a type means linear, and a factor of 0 means that there is none; both
    # are llama.cpp's reading. rope.scale_linear is the key's name in old files.
    name = "rope.scaling.factor" if keys.has("rope.scaling.factor") else "rope.scale_linear"
    factor = keys.number(name, -1.0, _MAX_FACTOR, default=1.0) or 1.0
    if factor < 0.0:
        raise keys.error(name, factor, "0 (none) or a positive number")
    scaling = _SCALINGS[kind]
    if scaling == "none" or (scaling == "linear" and factor == 1.0):
        scaling, factor = "none", 1.0
    return RopeConfig(
        dim=dim,
        base=keys.number("rope.freq_base", 1.0, 1e12, default=10000.0),
        layout=ARCHITECTURES[keys.arch].rope_layout,
        scaling=scaling,
        factor=factor,
        original_ctx=keys.integer(
            "rope.scaling.original_context_length", 1, _MAX_CONTEXT, default=ctx
        ),
        attn_factor=keys.number("rope.scaling.attn_factor", 0.0, _MAX_FACTOR, default=1.0),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 0.0, _MAX_FACTOR, default=32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 0.0, _MAX_FACTOR, default=1.0),
    )
