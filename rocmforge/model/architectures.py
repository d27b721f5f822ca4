"""The supported architectures: one row each, with what their forward passes differ in.

An architecture that needs more than a row adds it to `metadata` (keys), `config` (fields),
`weights` (tensors) and `decoder` (ops); CONTRIBUTING.md has the list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from rocmforge.plan.operands import Activation

RopeLayout = Literal["interleaved", "halves"]
QkNorm = Literal["head", "whole"]
Norms = Literal["before", "after", "both"]
Mixture = Literal["never", "optional", "always"]
_GRANITE = (
    "attention.scale",
    "embedding_scale",
    "logit_scale",
    "residual_scale",
    "rope.scaling.finetuned",
)


@dataclass(frozen=True)
class Architecture:
    """A row of `ARCHITECTURES`.

    Parameters
    ----------
    name
        ``general.architecture`` of the file, and the prefix of its metadata keys.
    families
        Published models of it.
    rope_layout
        Which dimensions of a head are rotated together: ``"interleaved"``: 2i and 2i + 1;
        ``"halves"``: i and i + R / 2.
    required_biases
        Matrices and norms that always have a bias, as their tensors are called. Others have one
        where the file does.
    qk_norm
        Queries and keys are RMS-normalized before rotation, by ``"head"`` or as a ``"whole"``.
    rope_factors
        The file may have ``rope_freqs.weight``, which divides the rotary frequencies (Llama 3).
    mixture
        Whether the feed-forward part is a mixture of experts.
    normalized_shares
        The shares of the experts that a token goes to add up to 1.
    fused_gate_up
        The rows of gate stand above those of up in one matrix.
    long_rope
        The file may have two tables of frequency factors, for contexts up to the original one and
        for longer ones (LongRoPE).
    no_rope_layer_interval
        Every n-th layer has no rotary embedding; None: all have it.
    layer_norms
        The norms are LayerNorms, not RMSNorms.
    norm_places
        Where attention and the feed-forward part of a layer have a norm: ``"before"`` them,
        ``"after"`` them, before what they give is added, or ``"both"``.
    ffn_norm_tensor
        Tensor of the norm before the feed-forward part.
    parallel_residual
        The feed-forward part reads what attention reads, and both are added at once.
    gate_activation, has_gate
        What becomes of gate and up; without a gate GELU of up alone.
    attention_sinks
        Each head has a sink, see `rocmforge.plan.records.Attention`.
    global_every
        Where the file states a window, every n-th layer has none; None: all have it. The file may
        state another n.
    unscaled_window_rope
        Layers with a window have a rotary embedding without scaling.
    window_rope_base
        The base of theirs, where the file states none; None: that of the other layers.
    scaled_embedding
        Embedding rows are multiplied by √d_model.
    query_scale_by_width
        The model of so many layers divides scores by √(d_model / heads), not by √head_dim.
    own_keys
        Metadata keys that have an effect in this architecture alone, or in few.
    divided_logits
        Logits are divided by ``logit_scale``, else multiplied.
    always_tied
        The output matrix is always the token embedding.
    """

    name: str
    families: str
    rope_layout: RopeLayout
    required_biases: tuple[str, ...] = ()
    qk_norm: QkNorm | None = None
    rope_factors: bool = False
    mixture: Mixture = "never"
    normalized_shares: bool = True
    fused_gate_up: bool = False
    long_rope: bool = False
    no_rope_layer_interval: int | None = None
    layer_norms: bool = False
    norm_places: Norms = "before"
    ffn_norm_tensor: str = "ffn_norm"
    parallel_residual: bool = False
    gate_activation: Activation = "silu"
    has_gate: bool = True
    attention_sinks: bool = False
    global_every: int | None = None
    unscaled_window_rope: bool = False
    window_rope_base: float | None = None
    scaled_embedding: bool = False
    query_scale_by_width: int | None = None
    own_keys: tuple[str, ...] = ()
    divided_logits: bool = False
    always_tied: bool = False


_QKV = ("attn_q", "attn_k", "attn_v")
_WINDOWS = ("attention.sliding_window_pattern", "rope.freq_base_swa")

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        row.name: row
        for row in (
            Architecture(
                "llama",
                "Llama 1 to 3, Mistral, Mixtral, TinyLlama",
                "interleaved",
                rope_factors=True,
                mixture="optional",
            ),
            Architecture("qwen2", "Qwen 2, Qwen 2.5", "halves", required_biases=_QKV),
            Architecture("qwen3", "Qwen 3", "halves", qk_norm="head"),
            Architecture(
                "qwen3moe",
                "Qwen 3 30B A3B and 235B A22B",
                "halves",
                qk_norm="head",
                mixture="always",
            ),
            Architecture(
                "olmoe",
                "OLMoE",
                "halves",
                qk_norm="whole",
                mixture="always",
                normalized_shares=False,
            ),
            Architecture(
                "phi3", "Phi 3, Phi 3.5, Phi 4", "halves", fused_gate_up=True, long_rope=True
            ),
            Architecture("smollm3", "SmolLM 3", "interleaved", no_rope_layer_interval=4),
            Architecture("ernie4_5", "ERNIE 4.5 without experts", "interleaved"),
            Architecture("exaone", "EXAONE 3", "halves", rope_factors=True),
            Architecture("internlm2", "InternLM 2 and 2.5", "interleaved"),
            Architecture(
                "gemma",
                "Gemma 1",
                "halves",
                gate_activation="gelu",
                scaled_embedding=True,
                always_tied=True,
            ),
            Architecture(
                "gemma2",
                "Gemma 2",
                "halves",
                norm_places="both",
                gate_activation="gelu",
                global_every=2,
                scaled_embedding=True,
                query_scale_by_width=46,
                always_tied=True,
                own_keys=("attn_logit_softcapping", "final_logit_softcapping", *_WINDOWS),
            ),
            Architecture(
                "gemma3",
                "Gemma 3, text",
                "halves",
                qk_norm="head",
                norm_places="both",
                gate_activation="gelu",
                global_every=6,
                unscaled_window_rope=True,
                window_rope_base=10000.0,
                scaled_embedding=True,
                query_scale_by_width=62,
                own_keys=("final_logit_softcapping", *_WINDOWS),
            ),
            Architecture(
                "gpt-oss",
                "gpt-oss 20B and 120B",
                "halves",
                required_biases=(
                    *_QKV,
                    "attn_output",
                    "ffn_gate_inp",
                    "ffn_gate_exps",
                    "ffn_up_exps",
                    "ffn_down_exps",
                ),
                mixture="always",
                ffn_norm_tensor="post_attention_norm",
                gate_activation="clamped",
                attention_sinks=True,
                global_every=2,
                own_keys=_WINDOWS,
            ),
            Architecture(
                "qwen2moe",
                "Qwen 1.5 MoE, Qwen 2 57B A14B",
                "halves",
                mixture="always",
                normalized_shares=False,
                own_keys=("expert_shared_feed_forward_length",),
            ),
            Architecture(
                "granite",
                "Granite 3, dense",
                "interleaved",
                rope_factors=True,
                own_keys=_GRANITE,
                divided_logits=True,
            ),
            Architecture(
                "granitemoe",
                "Granite 3 with experts",
                "interleaved",
                rope_factors=True,
                mixture="always",
                own_keys=(*_GRANITE, "expert_shared_feed_forward_length"),
                divided_logits=True,
            ),
            Architecture(
                "olmo2",
                "OLMo 2, OLMo 3",
                "halves",
                qk_norm="whole",
                norm_places="after",
                global_every=4,
                unscaled_window_rope=True,
                own_keys=_WINDOWS,
            ),
            Architecture(
                "glm4",
                "GLM 4 9B and 32B of 2025",
                "interleaved",
                norm_places="both",
                fused_gate_up=True,
            ),
            Architecture(
                "cohere2",
                "Command R7B, Command A",
                "interleaved",
                layer_norms=True,
                parallel_residual=True,
                global_every=4,
                no_rope_layer_interval=4,
                own_keys=("logit_scale", *_WINDOWS),
                always_tied=True,
            ),
            Architecture(
                "command-r",
                "Command R",
                "interleaved",
                layer_norms=True,
                parallel_residual=True,
                own_keys=("logit_scale",),
                always_tied=True,
            ),
            Architecture(
                "starcoder2",
                "StarCoder 2",
                "halves",
                required_biases=(
                    "attn_norm",
                    *_QKV,
                    "attn_output",
                    "ffn_norm",
                    "ffn_up",
                    "ffn_down",
                    "output_norm",
                ),
                layer_norms=True,
                has_gate=False,
            ),
            Architecture(
                "mistral3",
                "Ministral 3, Mistral Small and Large of 2025",
                "interleaved",
                rope_factors=True,
                mixture="optional",
                own_keys=("attention.temperature_scale", "rope.scaling.yarn_log_multiplier"),
            ),
            Architecture(
                "seed_oss", "Seed-OSS 36B", "halves", ffn_norm_tensor="post_attention_norm"
            ),
        )
    }
)
"""Every supported architecture by name."""
