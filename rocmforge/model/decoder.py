"""The forward pass of a decoder-only transformer as a straight list of op records.

Letters of shapes: see rocmforge/array_types.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from rocmforge.array_types import Floats
from rocmforge.model.config import ExpertConfig, ModelConfig
from rocmforge.model.shards import Share
from rocmforge.model.weights import LayerWeights, ModelWeights
from rocmforge.plan.graph import Graph, Op
from rocmforge.plan.operands import Embedding, Rotation, Tensor
from rocmforge.plan.protocols import W
from rocmforge.plan.records import (
    AddExperts,
    AllGather,
    AllReduce,
    Attention,
    Embed,
    ExpertGateUp,
    ExpertMatmul,
    Gelu,
    KvAppend,
    Layernorm,
    Matmul,
    Receive,
    Rmsnorm,
    Rope,
    Route,
    SelectOutputs,
    Softcap,
    Swiglu,
)


def decoder_graph(
    config: ModelConfig,
    weights: ModelWeights[W],
    embedding: Embedding,
    ctx: int,
    share: Share | None = None,
) -> Graph:
    """Write a model down as a graph.

    Parameters
    ----------
    config, weights
        The model, or a stage of it (`ModelWeights.stage`); its matrices packed by the backend that
        will run the graph.
    embedding
        The token embedding.
    ctx
        Most tokens of a sequence: a window that is not smaller has no effect.
    share
        Which of several parts `weights` are: what they add to x is summed over all of them, and the
        first one alone has x itself in that sum. Each computes some logits, which all gather.

    Returns
    -------
    Graph
        New tokens in, their keys and values into the cache, logits (outputs, V) out. A stage begins
        and ends with activations (tokens, K) where it lacks the first or the last layer; the cache
        has its layers alone.
    """
    decoder = _Decoder(config, weights, ctx, share)
    result = decoder.x if weights.output is None else decoder.logits
    return Graph(list(decoder.ops(embedding)), result)


class _Decoder:
    def __init__(
        self, config: ModelConfig, weights: ModelWeights[W], ctx: int, share: Share | None
    ) -> None:
        self.config = config
        self.weights = weights
        self.ctx = ctx
        self.share = share
        self.partial = False  # whether x is a part of what it should be
        self.first = weights.layers[0].index
        self.x = Tensor("x", config.d_model)
        self.logits = Tensor("logits", config.vocab_size, "outputs")
        rope = config.rope
        frequencies = rope.frequencies(weights.rope_freqs)
        self.rotation = Rotation(frequencies, rope.magnitude, rope.layout == "interleaved")
        self.query_rotation = self.local_rotation = self.rotation
        if rope.temperature:
            temperature = rope.temperature, rope.original_ctx
            self.query_rotation = replace(self.rotation, temperature=temperature)
        local = config.window.rope if config.window else None
        if local is not None:
            self.local_rotation = replace(
                self.rotation, frequencies=local.frequencies(None), magnitude=local.magnitude
            )

    def ops(self, embedding: Embedding) -> Iterator[Op]:
        config, last = self.config, Tensor("last", self.config.d_model, "outputs")
        weights, scales = self.weights, config.scales
        if self.first == 0:
            yield Embed(embedding, self.x, scales.embedding)
        else:
            yield Receive(self.x)
        for layer in weights.layers:
            yield from self.layer(layer)
        if weights.output is None:
            return
        yield SelectOutputs(self.x, last)
        yield self.norm(last, weights.output_norm, weights.output_norm_bias, last)
        logits = self.logits
        if self.share is not None and self.share.logits != config.vocab_size:
            logits = Tensor("own_logits", self.share.logits, "outputs")
        yield Matmul(
            last, (weights.output,), (logits,), (None,), role="output", scale=scales.logits
        )
        if logits != self.logits:
            yield AllGather(logits, self.logits)
        if scales.logit_softcap is not None:
            yield Softcap(self.logits, scales.logit_softcap)

    def norm(self, x: Tensor, weight: Floats, bias: Floats | None, out: Tensor) -> Op:
        if self.config.row.layer_norms:
            return Layernorm(x, weight, bias, self.config.norm_eps, out)
        return Rmsnorm(x, weight, self.config.norm_eps, out)

    def layer(self, w: LayerWeights[W]) -> Iterator[Op]:
        """Attention and the feed-forward part, each with its norms; both add to x."""
        width, h = self.config.d_model, Tensor("h", self.config.d_model)
        read = self.x
        if w.attn_norm is not None:
            yield self.norm(self.x, w.attn_norm, w.attn_norm_bias, h)
            read = h
        yield from self.attention(w, read, Tensor("attended", width))
        if w.ffn_norm is not None:
            yield from self.whole()
            yield self.norm(self.x, w.ffn_norm, w.ffn_norm_bias, h)
            read = h
        fed = Tensor("fed", width)
        if self.config.experts is None:
            yield from self.feed_forward(w, read, fed)
        else:
            yield from self.mixture(self.config.experts, w, read, fed)
        yield from self.whole()

    def whole(self) -> Iterator[Op]:
        """Sum x over the parts of the model, where they have added to it."""
        if self.partial:
            yield AllReduce(self.x)
        self.partial = False

    def adds(self) -> bool:
        """Whether what comes next is added to x: not the first of what a later part adds."""
        adds = self.share is None or self.share.rank == 0 or self.partial
        self.partial = self.share is not None
        return adds

    def add(
        self,
        x: Tensor,
        weight: W,
        bias: Floats | None,
        role: str,
        post_norm: Floats | None,
        part: Tensor,
    ) -> Iterator[Op]:
        """Add a product to the residual stream, its norm where it has one."""
        scale = self.config.scales.residual
        if post_norm is None:
            yield Matmul(x, (weight,), (self.x,), (bias,), self.adds(), role, scale)
        else:
            yield Matmul(x, (weight,), (part,), (bias,), role=role)
            if self.share is not None:
                yield AllReduce(part)
            yield Rmsnorm(part, post_norm, self.config.norm_eps, self.x, accumulate=True)

    def attention(self, w: LayerWeights[W], h: Tensor, out: Tensor) -> Iterator[Op]:
        config, head_dim, kv_heads = self.config, self.config.head_dim, self.config.n_kv_heads
        q = Tensor("q", config.n_heads * head_dim)
        k = Tensor("k", kv_heads * head_dim)
        v = Tensor("v", kv_heads * head_dim)
        mixed = Tensor("mixed", config.n_heads * head_dim)
        biases = (w.attn_q_bias, w.attn_k_bias, w.attn_v_bias)
        yield Matmul(h, (w.attn_q, w.attn_k, w.attn_v), (q, k, v), biases, role="qkv")
        window = config.layer_window(w.index)
        rotations = self.query_rotation, self.rotation
        if window is not None and window.rope is not None:
            rotations = self.local_rotation, self.local_rotation
        norms = w.attn_q_norm, w.attn_k_norm
        for x, norm, rotation in zip((q, k), norms, rotations, strict=True):
            if norm is not None:
                yield Rmsnorm(x, norm, config.norm_eps, x)
            if config.uses_rope(w.index):
                yield Rope(x, rotation, head_dim)
        place = w.index - self.first  # of the layer in the cache
        yield KvAppend(k, v, place, head_dim)
        scales = config.scales
        yield Attention(
            q,
            place,
            mixed,
            scales.attention or 1.0 / math.sqrt(head_dim),
            kv_heads,
            head_dim,
            config.window_size(w.index, self.ctx),
            scales.attention_softcap,
            w.attn_sinks,
        )
        role = "attention_output"
        yield from self.add(mixed, w.attn_output, w.attn_output_bias, role, w.attn_post_norm, out)

    def feed_forward(self, w: LayerWeights[W], h: Tensor, out: Tensor) -> Iterator[Op]:
        gate, up = Tensor("gate", self.config.d_ff), Tensor("up", self.config.d_ff)
        if w.ffn_gate is None:
            yield Matmul(h, (w.ffn_up,), (gate,), (w.ffn_up_bias,), role="up")
            yield Gelu(gate, gate)
        else:
            biases = w.ffn_gate_bias, w.ffn_up_bias
            yield Matmul(h, (w.ffn_gate, w.ffn_up), (gate, up), biases, role="gate_up")
            yield Swiglu(gate, up, gate, self.config.row.gate_activation)
        yield from self.add(gate, w.ffn_down, w.ffn_down_bias, "down", w.ffn_post_norm, out)

    def mixture(
        self, mixture: ExpertConfig, w: LayerWeights[W], h: Tensor, out: Tensor
    ) -> Iterator[Op]:
        config, count, used = self.config, mixture.count, mixture.used
        residual = config.scales.residual
        scores = Tensor("scores", count)
        experts, shares = Tensor("experts", used), Tensor("shares", used)
        hidden = Tensor("hidden", used * config.d_ff)
        parts = Tensor("parts", used * config.d_model)
        yield Matmul(h, (w.ffn_router,), (scores,), (w.ffn_router_bias,), role="router")
        yield Route(scores, experts, shares, mixture.normalized, scale=residual)
        yield ExpertGateUp(
            h,
            w.ffn_gate,
            w.ffn_up,
            experts,
            count,
            hidden,
            w.ffn_gate_bias,
            w.ffn_up_bias,
            config.row.gate_activation,
        )
        yield ExpertMatmul(hidden, w.ffn_down, experts, count, parts, w.ffn_down_bias)
        if w.shared_up is not None:
            yield from self.shared_expert(mixture, w, h, out)
        yield AddExperts(parts, shares, self.x, self.adds())

    def shared_expert(
        self, mixture: ExpertConfig, w: LayerWeights[W], h: Tensor, out: Tensor
    ) -> Iterator[Op]:
        """Add what an expert gives that each token goes to: a share of it, or all."""
        gate, up = Tensor("gate", mixture.shared), Tensor("up", mixture.shared)
        none, residual = (None, None), self.config.scales.residual
        yield Matmul(h, (w.shared_gate, w.shared_up), (gate, up), none, role="shared_gate_up")
        yield Swiglu(gate, up, gate, self.config.row.gate_activation)
        if w.shared_router is None:
            yield Matmul(
                gate, (w.shared_down,), (self.x,), (None,), self.adds(), "shared_down", residual
            )
            return
        score, one = Tensor("shared_score", 1), Tensor("shared_expert", 1)
        share = Tensor("shared_share", 1)
        yield Matmul(gate, (w.shared_down,), (out,), (None,), role="shared_down")
        yield Matmul(h, (w.shared_router,), (score,), (None,), role="shared_router")
        yield Route(score, one, share, normalized=False, sigmoid=True, scale=residual)
        yield AddExperts(out, share, self.x, self.adds())
