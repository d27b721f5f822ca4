"""The forward pass of a decoder-only transformer as a straight list of op records.

Letters of shapes: see rocmforge/array_types.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rocmforge.model.config import ModelConfig
from rocmforge.model.weights import LayerWeights, ModelWeights
from rocmforge.plan.graph import (
    Attention,
    Embed,
    Embedding,
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
from rocmforge.plan.protocols import W


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
    frequencies = config.rope.frequencies(weights.rope_freqs)
    interleaved = config.rope.layout == "interleaved"
    rotation = Rotation(frequencies, config.rope.magnitude, interleaved)
    ops: list[Op] = [Embed(embedding, x)]
    for index, layer in enumerate(weights.layers):
        ops.extend(_attention(config, rotation, x, layer, index))
        ops.extend(_feed_forward(config, x, layer))
    ops.append(SelectOutputs(x, last))
    ops.append(Rmsnorm(last, weights.output_norm, config.norm_eps, last))
    ops.append(Matmul(last, (weights.output,), (logits,), (None,), role="output"))
    return Graph(ops, logits)


def _attention(
    config: ModelConfig, rotation: Rotation, x: Tensor, w: LayerWeights[W], index: int
) -> Iterator[Op]:
    kv_heads, head_dim = config.n_kv_heads, config.head_dim
    h = Tensor("h", config.d_model)
    q = Tensor("q", config.n_heads * head_dim)
    k = Tensor("k", kv_heads * head_dim)
    v = Tensor("v", kv_heads * head_dim)
    mixed = Tensor("mixed", config.n_heads * head_dim)
    yield Rmsnorm(x, w.attn_norm, config.norm_eps, h)
    biases = (w.attn_q_bias, w.attn_k_bias, w.attn_v_bias)
    yield Matmul(h, (w.attn_q, w.attn_k, w.attn_v), (q, k, v), biases, role="qkv")
    for rotated, norm in ((q, w.attn_q_norm), (k, w.attn_k_norm)):
        if norm is not None:
            yield Rmsnorm(rotated, norm, config.norm_eps, rotated)
        yield Rope(rotated, rotation, head_dim)
    yield KvAppend(k, v, index, head_dim)
    yield Attention(q, index, mixed, 1.0 / math.sqrt(head_dim), kv_heads, head_dim)
    yield Matmul(mixed, (w.attn_output,), (x,), (None,), accumulate=True, role="attention_output")


def _feed_forward(config: ModelConfig, x: Tensor, w: LayerWeights[W]) -> Iterator[Op]:
    h = Tensor("h", config.d_model)
    gate, up = Tensor("gate", config.d_ff), Tensor("up", config.d_ff)
    yield Rmsnorm(x, w.ffn_norm, config.norm_eps, h)
    yield Matmul(h, (w.ffn_gate, w.ffn_up), (gate, up), (None, None), role="gate_up")
    yield Swiglu(gate, up, gate)
    yield Matmul(gate, (w.ffn_down,), (x,), (None,), accumulate=True, role="down")
