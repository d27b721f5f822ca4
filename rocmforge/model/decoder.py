"""The forward pass of a decoder-only transformer as a straight list of op records.

It does not know which device runs the ops, which tokens come, how they are chosen, or what text
is. Letters: D head dim, H query heads, G KV heads, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rocmforge.backend import W
from rocmforge.model.config import ModelConfig
from rocmforge.model.weights import LayerWeights, ModelWeights
from rocmforge.plan.graph import (
    Attention,
    Embed,
    Embedding,
    Geometry,
    Graph,
    KvAppend,
    Matmul,
    Op,
    Rmsnorm,
    Rope,
    Rotation,
    SelectOutputs,
    Swiglu,
    Tensor,
)


def decoder_graph(config: ModelConfig, weights: ModelWeights[W], embedding: Embedding) -> Graph:
    """Write a model down as a graph.

    Parameters
    ----------
    config, weights
        The model; its matrices packed by the backend that will run the graph.
    embedding
        The token embedding.

    Returns
    -------
    Graph
        New tokens in, their keys and values into the cache, logits (outputs, V) out.
    """
    x = Tensor("x", config.d_model)
    last = Tensor("last", config.d_model, "outputs")
    logits = Tensor("logits", config.vocab_size, "outputs")
    ops: list[Op] = [Embed(embedding, x)]
    for index, layer in enumerate(weights.layers):
        ops.extend(_attention(config, x, layer, index))
        ops.extend(_feed_forward(config, x, layer))
    ops.append(SelectOutputs(x, last))
    ops.append(Rmsnorm(last, weights.output_norm, config.norm_eps, last))
    ops.append(Matmul(last, (weights.output,), (logits,), (None,)))
    rotation = Rotation(config.rope.frequencies(weights.rope_freqs), config.rope.magnitude)
    geometry = Geometry(
        config.n_heads,
        config.n_kv_heads,
        config.head_dim,
        config.rope.dim,
        config.rope.layout == "interleaved",
    )
    return Graph(ops, logits, rotation, geometry)


def _attention(config: ModelConfig, x: Tensor, w: LayerWeights[W], index: int) -> Iterator[Op]:
    h = Tensor("h", config.d_model)
    q = Tensor("q", config.n_heads * config.head_dim)
    k = Tensor("k", config.n_kv_heads * config.head_dim)
    v = Tensor("v", config.n_kv_heads * config.head_dim)
    mixed = Tensor("mixed", config.n_heads * config.head_dim)
    yield Rmsnorm(x, w.attn_norm, config.norm_eps, h)
    biases = (w.attn_q_bias, w.attn_k_bias, w.attn_v_bias)
    yield Matmul(h, (w.attn_q, w.attn_k, w.attn_v), (q, k, v), biases)
    for rotated, norm in ((q, w.attn_q_norm), (k, w.attn_k_norm)):
        if norm is not None:
            yield Rmsnorm(rotated, norm, config.norm_eps, rotated)
        yield Rope(rotated)
    yield KvAppend(k, v, index)
    yield Attention(q, index, mixed, 1.0 / math.sqrt(config.head_dim))
    yield Matmul(mixed, (w.attn_output,), (x,), (None,), accumulate=True)


def _feed_forward(config: ModelConfig, x: Tensor, w: LayerWeights[W]) -> Iterator[Op]:
    h = Tensor("h", config.d_model)
    gate, up = Tensor("gate", config.d_ff), Tensor("up", config.d_ff)
    yield Rmsnorm(x, w.ffn_norm, config.norm_eps, h)
    yield Matmul(h, (w.ffn_gate, w.ffn_up), (gate, up), (None, None))
    yield Swiglu(gate, up, gate)
    yield Matmul(gate, (w.ffn_down,), (x,), (None,), accumulate=True)
