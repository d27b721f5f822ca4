"""The forward pass of a decoder-only transformer: a straight list of ops over a ragged batch.

A batch is some new tokens of one or more sequences: whole prompts, single tokens, or both. The
decoder writes their keys and values into the paged KV cache and returns logits. It does not know
which device runs the ops, how tokens are chosen, or what text is.

Letters: T tokens of the batch, S sequences, D head dim, H query heads, G KV heads, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from rocmforge.backend import Backend, Floats, Ints, W
from rocmforge.gguf.formats import Format
from rocmforge.kv.cache import PagedKVCache
from rocmforge.model.config import ModelConfig
from rocmforge.model.weights import LayerWeights, ModelWeights


@dataclass(frozen=True)
class Embedding:
    """The token embedding as it lies in the file: `rows` (V, row_bytes) uint8 of `format`."""

    rows: NDArray[np.uint8]
    format: Format


@dataclass(frozen=True)
class _Batch:
    """Where the tokens of one forward pass stand; all arrays are int32."""

    positions: Ints  # (T,) in their sequences
    pages: Ints  # (T,) that take their keys and values
    offsets: Ints  # (T,) slot inside the page
    page_table: Ints  # (S, M)
    lengths: Ints  # (S,) with the new tokens
    starts: Ints  # (S + 1,) first token of each sequence


class Decoder(Generic[W]):
    """A model's forward pass on one backend.

    Parameters
    ----------
    config, weights, embedding
        The model; `weights` packed by `backend`.
    backend
        Runs the ops.
    cache
        Keys and values of every sequence; the decoder lengthens sequences as it runs.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights[W],
        embedding: Embedding,
        backend: Backend[W],
        cache: PagedKVCache,
    ) -> None:
        self.config = config
        self.weights = weights
        self.embedding = embedding
        self.backend = backend
        self.cache = cache
        self._frequencies = config.rope.frequencies(weights.rope_freqs)
        self._buffers: dict[str, Floats] = {}

    def forward(
        self, tokens: NDArray[np.int64], sequences: Sequence[int], counts: Sequence[int], rows: Ints
    ) -> Floats:
        """Run the new tokens of some sequences through the model.

        Parameters
        ----------
        tokens
            (T,) ids, those of the first sequence first.
        sequences, counts
            S ids of the cache's page table, and how many of the tokens belong to each.
        rows
            (R,) indices into the T tokens: those whose logits are wanted.

        Returns
        -------
        (R, V) float32 logits, the caller's own.

        Raises
        ------
        OutOfPagesError
            The KV cache cannot hold the new tokens; nothing is changed.
        """
        batch = self._extend(sequences, counts)
        config, backend, weights = self.config, self.backend, self.weights
        n = tokens.size
        x = self._buffer("x", n, config.d_model)
        backend.dequantize(self.embedding.rows[tokens], self.embedding.format, x)
        angles = batch.positions[:, None].astype(np.float64) * self._frequencies
        cos = (np.cos(angles) * config.rope.magnitude).astype(np.float32)
        sin = (np.sin(angles) * config.rope.magnitude).astype(np.float32)
        for index, layer in enumerate(weights.layers):
            self._attend(x, layer, index, batch, cos, sin)
            self._feed_forward(x, layer)
        last = np.ascontiguousarray(x[rows])
        backend.rmsnorm(last, weights.output_norm, config.norm_eps, last)
        logits = np.empty((rows.size, config.vocab_size), np.float32)
        backend.matmul(last, [weights.output], [logits])
        return logits

    def _attend(
        self, x: Floats, w: LayerWeights[W], index: int, batch: _Batch, cos: Floats, sin: Floats
    ) -> None:
        config, backend, n = self.config, self.backend, x.shape[0]
        head, heads, kv_heads = config.head_dim, config.n_heads, config.n_kv_heads
        h = self._buffer("h", n, config.d_model)
        q = self._buffer("q", n, heads * head)
        k = self._buffer("k", n, kv_heads * head)
        v = self._buffer("v", n, kv_heads * head)
        mixed = self._buffer("mixed", n, heads * head)
        backend.rmsnorm(x, w.attn_norm, config.norm_eps, h)
        biases = (w.attn_q_bias, w.attn_k_bias, w.attn_v_bias)
        backend.matmul(h, (w.attn_q, w.attn_k, w.attn_v), (q, k, v), biases)
        for rotated, norm in ((q, w.attn_q_norm), (k, w.attn_k_norm)):
            if norm is not None:
                per_head = rotated.reshape(-1, head)
                backend.rmsnorm(per_head, norm, config.norm_eps, per_head)
            interleaved = config.rope.layout == "interleaved"
            backend.rope(rotated.reshape(n, -1, head), cos, sin, interleaved)
        k_pages, v_pages = self.cache.k[index], self.cache.v[index]
        shape = (n, kv_heads, head)
        backend.kv_append(
            k.reshape(shape), v.reshape(shape), k_pages, v_pages, batch.pages, batch.offsets
        )
        backend.attention(
            q.reshape(n, heads, head),
            k_pages,
            v_pages,
            batch.page_table,
            batch.lengths,
            batch.starts,
            1.0 / math.sqrt(head),
            mixed.reshape(n, heads, head),
        )
        backend.matmul(mixed, (w.attn_output,), (x,), accumulate=True)

    def _feed_forward(self, x: Floats, w: LayerWeights[W]) -> None:
        config, backend, n = self.config, self.backend, x.shape[0]
        h = self._buffer("h", n, config.d_model)
        gate = self._buffer("gate", n, config.d_ff)
        up = self._buffer("up", n, config.d_ff)
        backend.rmsnorm(x, w.ffn_norm, config.norm_eps, h)
        backend.matmul(h, (w.ffn_gate, w.ffn_up), (gate, up))
        backend.swiglu(gate, up, gate)
        backend.matmul(gate, (w.ffn_down,), (x,), accumulate=True)

    def _extend(self, sequences: Sequence[int], counts: Sequence[int]) -> _Batch:
        """Lengthen the sequences, all or none, and say where each new token goes."""
        table = self.cache.table
        lengths = [table.length(s) + n for s, n in zip(sequences, counts, strict=True)]
        table.reserve_all(sequences, lengths)
        first = [table.extend(s, n) for s, n in zip(sequences, counts, strict=True)]
        page_table, total = table.as_array(sequences)
        starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        row = np.repeat(np.arange(len(counts)), counts)
        positions = np.arange(starts[-1]) - starts[:-1][row] + np.array(first)[row]
        slot, offsets = np.divmod(positions, self.cache.page_size)
        return _Batch(
            positions=positions.astype(np.int32),
            pages=page_table[row, slot],
            offsets=offsets.astype(np.int32),
            page_table=page_table,
            lengths=total,
            starts=starts,
        )

    def _buffer(self, name: str, rows: int, columns: int) -> Floats:
        """Return scratch memory (rows, columns), kept between calls and grown as needed."""
        held = self._buffers.get(name)
        if held is None or held.size < rows * columns:
            held = self._buffers[name] = np.empty(rows * columns, np.float32)
        return held[: rows * columns].reshape(rows, columns)
