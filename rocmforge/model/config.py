"""What a model's arithmetic needs to know, read from GGUF metadata, range-checked and frozen.

Metadata is read totally: a key of the architecture that is neither honoured nor known to be
without effect is refused by name. Of the tensors, only names and shapes are read here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from rocmforge.errors import UnsupportedModelError, brief
from rocmforge.gguf.header import StringArray
from rocmforge.gguf.reader import GGUFFile
from rocmforge.kv.windows import held_tokens
from rocmforge.model.architectures import ARCHITECTURES, Architecture, QkNorm
from rocmforge.model.metadata import Keys
from rocmforge.model.rope import MAX_CONTEXT, RopeConfig, read_rope
from rocmforge.plan.protocols import EXPERT_ROWS, MAX_EXPERTS, MAX_HEAD_DIM

# Upper bounds far above every published model: hostile metadata must not size an allocation.
MAX_LAYERS = 1024
MAX_WIDTH = 1 << 20
MAX_HEADS = 1024
_MAX_VOCAB = 1 << 22


@dataclass(frozen=True)
class ExpertConfig:
    """A feed-forward part that is a mixture of experts.

    Parameters
    ----------
    count
        E, experts of a layer.
    used
        k, experts that a token goes to.
    normalized
        The shares of these add up to 1.
    shared
        Inner width of an expert that each token goes to besides; 0 without.
    shared_gate
        What it gives is multiplied by the sigmoid of a score.
    """

    count: int
    used: int
    normalized: bool
    shared: int = 0
    shared_gate: bool = False


@dataclass(frozen=True)
class WindowConfig:
    """Layers whose tokens see only the last ones.

    Parameters
    ----------
    size
        Tokens that a token sees, itself included.
    global_every
        Every n-th layer has no window; None: all have it.
    rope
        Rotary embedding of the layers with a window; None: as in the others.
    """

    size: int
    global_every: int | None
    rope: RopeConfig | None


@dataclass(frozen=True)
class Scales:
    """Numbers that some models multiply by; 1 and None have no effect.

    Parameters
    ----------
    embedding, residual, logits
        Of embedding rows, of what attention and the feed-forward part add, of the logits.
    attention
        Of the products of queries and keys; None: 1 / √head_dim.
    attention_softcap, logit_softcap
        c: x becomes c · tanh(x / c), of attention's scores and of logits; None: it stays.
    """

    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0
    attention: float | None = None
    attention_softcap: float | None = None
    logit_softcap: float | None = None


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder-only transformer with rotary positions and GQA.

    What does not follow from a file's metadata alone, but from its architecture, is a field of
    `rocmforge.model.architectures.Architecture`, see `row`.

    Parameters
    ----------
    architecture
        A name of `ARCHITECTURES`.
    n_layers, d_model, d_ff, vocab_size
        Blocks, width of the residual stream, inner width of the feed-forward part or of an
        expert, tokens.
    n_heads, n_kv_heads, head_dim
        Query heads, key/value heads (a divisor of them), dimensions of each.
    ctx_train
        Positions that may be used.
    norm_eps
        Epsilon of every norm.
    rope
        Rotary embedding.
    tied_output
        The output matrix is the token embedding.
    biases
        Matrices and norms that have a bias, as their tensors are called.
    qk_norm
        q and k are RMS-normalized before rotation, each head or as a whole; None: not at all.
    experts
        The mixture of experts; None without.
    no_rope_layer_interval
        Every n-th layer has no rotary embedding; None: all have it.
    fused_qkv
        One matrix holds the rows of q, k and v.
    window
        The layers with a sliding window; None: no layer has one.
    scales
        What is multiplied.
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
    biases: tuple[str, ...] = ()
    qk_norm: QkNorm | None = None
    experts: ExpertConfig | None = None
    no_rope_layer_interval: int | None = None
    fused_qkv: bool = False
    window: WindowConfig | None = None
    scales: Scales = Scales()

    @property
    def row(self) -> Architecture:
        """Its architecture."""
        return ARCHITECTURES[self.architecture]

    @property
    def kv_bytes_per_token(self) -> int:
        """2 · L · G · D · 2 bytes: keys and values of one token in f16, the default."""
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim * 2

    def kv_bytes(self, tokens: int) -> int:
        """Bytes of the keys and values of so many tokens in f16, fewer where layers have windows.

        Those have memory for a window and the tokens of a pass at most.
        """
        sizes = (self.window_size(layer, tokens) for layer in range(self.n_layers))
        held = sum(held_tokens(size, tokens) for size in sizes)
        return held * (self.kv_bytes_per_token // self.n_layers)

    def layer_window(self, layer: int) -> WindowConfig | None:
        """Return the window of a layer, None where it has none."""
        every = self.window.global_every if self.window else None
        return None if every and (layer + 1) % every == 0 else self.window

    def window_size(self, layer: int, ctx: int) -> int | None:
        """Return how many tokens a query of a layer sees at most; None: all of up to `ctx`."""
        window = self.layer_window(layer)
        return window.size if window is not None and window.size < ctx else None

    def uses_rope(self, layer: int) -> bool:
        """Return whether a layer has a rotary embedding."""
        return self.no_rope_layer_interval is None or (layer + 1) % self.no_rope_layer_interval != 0

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
        row = ARCHITECTURES[arch]
        keys.refuse_unsupported(row.own_keys)
        n_layers = keys.integer("block_count", 1, MAX_LAYERS)
        d_model = keys.integer("embedding_length", 1, MAX_WIDTH)
        names = file.tensors.keys()
        experts = _experts(keys, n_layers, names)
        inner = inner_width_key(keys, n_layers)
        d_ff = keys.per_layer(inner, n_layers, MAX_WIDTH)
        for name, rows in ((inner, d_ff), ("embedding_length", d_model)):
            if experts and rows % EXPERT_ROWS:
                wanted = f"a multiple of {EXPERT_ROWS} where there are experts"
                raise keys.unsupported(name, rows, wanted)
        n_heads = keys.per_layer("attention.head_count", n_layers, MAX_HEADS)
        n_kv_heads = n_heads
        if keys.has("attention.head_count_kv"):
            n_kv_heads = keys.per_layer("attention.head_count_kv", n_layers, MAX_HEADS)
        if n_heads % n_kv_heads:
            raise keys.error("attention.head_count_kv", n_kv_heads, f"a divisor of {n_heads} heads")
        head_dim = head_dim_of(keys, d_model, n_heads)
        ctx = keys.integer("context_length", 1, MAX_CONTEXT)
        rope = read_rope(keys, row, head_dim, ctx)
        without_rope = row.no_rope_layer_interval
        has_rope = "rope.scaling.finetuned"  # as llama.cpp reads it in these architectures
        if has_rope in row.own_keys and not file.get(f"{arch}.{has_rope}", bool, True):
            without_rope = 1
        return cls(
            architecture=arch,
            n_layers=n_layers,
            d_model=d_model,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            d_ff=d_ff,
            vocab_size=vocab_size_of(keys),
            ctx_train=ctx,
            norm_eps=norm_eps_of(keys, row),
            rope=rope,
            tied_output="output.weight" not in names,
            biases=_biases(row, names),
            qk_norm=row.qk_norm,
            experts=experts,
            no_rope_layer_interval=without_rope,
            fused_qkv="blk.0.attn_qkv.weight" in names,
            window=window_of(keys, row, n_layers, ctx, rope),
            scales=scales_of(keys, row, n_layers, d_model, n_heads),
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
    return arch


def _biases(row: Architecture, names: Collection[str]) -> tuple[str, ...]:
    """Return which matrices and norms have a bias: those that must, and those that do."""
    found = (re.fullmatch(r"(?:blk\.\d+\.)?(\w+)\.bias", name) for name in names)
    stated = {match[1] for match in found if match}
    always = set(row.required_biases)
    if "blk.0.attn_qkv.weight" in names and "attn_q" in always:
        always = always - {"attn_q", "attn_k", "attn_v"} | {"attn_qkv"}
    return tuple(sorted(stated | always))


def norm_eps_of(keys: Keys, row: Architecture) -> float:
    """Return the epsilon of every norm."""
    norm = "layer_norm_epsilon" if row.layer_norms else "layer_norm_rms_epsilon"
    return keys.number(f"attention.{norm}", 0.0, 0.1)


def window_of(
    keys: Keys, row: Architecture, n_layers: int, ctx: int, rope: RopeConfig
) -> WindowConfig | None:
    """Return the sliding window; None where it is as long as the context, or there is none."""
    size = keys.integer("attention.sliding_window", 0, MAX_CONTEXT, default=0)
    if not 0 < size < ctx:
        return None
    plain = replace(rope, scaling="none", factor=1.0, attn_factor=1.0)
    local = plain if row.unscaled_window_rope else rope
    base = keys.number("rope.freq_base_swa", 1.0, 1e12, default=row.window_rope_base or rope.base)
    local = replace(local, base=base)
    every = _global_every(keys, row, n_layers)
    return WindowConfig(size, every, None if local == rope else local)


def _global_every(keys: Keys, row: Architecture, n_layers: int) -> int | None:
    """Return n where every n-th layer sees all tokens, None where none does."""
    name = "attention.sliding_window_pattern"
    pattern = keys.file.metadata.get(f"{keys.arch}.{name}") if name in row.own_keys else None
    every = row.global_every
    if isinstance(pattern, np.ndarray):  # one value for each layer, true where it has a window
        windowed = [bool(value) for value in pattern[:n_layers]]
        every = windowed.index(False) + 1 if False in windowed else None
        wanted = [every is None or (i + 1) % every != 0 for i in range(n_layers)]
        if windowed != wanted:
            supported = f"{n_layers} values, false in every n-th layer"
            raise keys.unsupported(name, pattern.tolist(), supported)
    elif pattern is not None:
        every = keys.integer(name, 0, MAX_LAYERS) or None
    if (
        row.no_rope_layer_interval is not None
        and row.global_every == row.no_rope_layer_interval != every
    ):
        raise keys.unsupported(name, every, f"{row.no_rope_layer_interval} in this architecture")
    return every


def scales_of(keys: Keys, row: Architecture, n_layers: int, d_model: int, n_heads: int) -> Scales:
    """Return what is multiplied, and the soft caps."""

    def scale(key: str) -> float:
        return keys.optional(key, 1.0) if key in row.own_keys else 1.0

    def cap(key: str) -> float | None:
        return (keys.optional(key) or None) if key in row.own_keys else None

    attention = cap("attention.scale")
    if n_layers == row.query_scale_by_width:
        attention = (d_model // n_heads) ** -0.5
    logits = scale("logit_scale")
    return Scales(
        embedding=math.sqrt(d_model) if row.scaled_embedding else scale("embedding_scale"),
        residual=scale("residual_scale"),
        logits=1.0 / logits if row.divided_logits else logits,
        attention=attention,
        attention_softcap=cap("attn_logit_softcapping"),
        logit_softcap=cap("final_logit_softcapping"),
    )


def inner_width_key(keys: Keys, n_layers: int) -> str:
    """Return the key of d_ff: that of an expert where there are any and the file states it."""
    own = "expert_feed_forward_length"
    return own if _expert_counts(keys, n_layers) and keys.has(own) else "feed_forward_length"


def _expert_counts(keys: Keys, n_layers: int) -> tuple[int, int] | None:
    """Return how many experts there are and how many a token takes; None without a mixture."""
    count, used = (
        keys.per_layer(f"expert_{name}", n_layers, MAX_EXPERTS, low=0, default=0)
        for name in ("count", "used_count")
    )
    row = ARCHITECTURES.get(keys.arch)
    always = row is not None and row.mixture == "always"
    return (count, used) if count or used or always else None


def _experts(keys: Keys, n_layers: int, names: Collection[str]) -> ExpertConfig | None:
    counts = _expert_counts(keys, n_layers)
    if counts is None:
        return None
    count, used = counts
    row = ARCHITECTURES[keys.arch]
    if row.mixture == "never":
        raise keys.unsupported("expert_count", count, "0 in this architecture")
    if not 1 <= used <= count:
        raise keys.error("expert_used_count", used, f"1 to expert_count, which is {count}")
    width = "expert_shared_feed_forward_length"
    shared = keys.integer(width, 0, MAX_WIDTH, default=0) if width in row.own_keys else 0
    gate = "blk.0.ffn_gate_inp_shexp.weight"
    if not shared and gate in names and "blk.0.ffn_up_shexp.weight" in keys.file.tensors:
        shared = keys.file.tensors["blk.0.ffn_up_shexp.weight"].shape[0]
    return ExpertConfig(count, used, row.normalized_shares, shared, bool(shared) and gate in names)


def head_dim_of(keys: Keys, d_model: int, n_heads: int) -> int:
    """Return D, which keys and values share."""
    if not keys.has("attention.key_length") and d_model % n_heads:
        raise keys.error("attention.head_count", n_heads, f"a divisor of the width {d_model}")
    head_dim = keys.integer("attention.key_length", 1, MAX_WIDTH, default=d_model // n_heads)
    if head_dim > MAX_HEAD_DIM:
        supported = f"head dims up to {MAX_HEAD_DIM}"
        raise keys.unsupported("attention.key_length", head_dim, supported)
    if head_dim % 2:
        raise keys.error(
            "attention.key_length", head_dim, f"an even number from 2 to {MAX_HEAD_DIM}"
        )
    # llama.cpp's default for values is not the key length but the same quotient.
    default = d_model // n_heads
    value_length = keys.integer("attention.value_length", 1, MAX_WIDTH, default=default)
    if value_length != head_dim:
        raise keys.unsupported(
            "attention.value_length", value_length, f"the length of the keys ({head_dim})"
        )
    return head_dim


def vocab_size_of(keys: Keys) -> int:
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
