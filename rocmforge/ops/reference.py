"""The numpy reference of every op: the formula itself, in float64, one function an op.

What kernels are checked against, in tests and before a benchmark times anything. Slow on purpose.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge.kv.batch import Queries, Slots
from rocmforge.ops.matrix import Matrix

Array = NDArray[Any]
Result = NDArray[np.float64]


def dequantize(matrix: Matrix) -> Result:
    """Weights (N, K)."""
    return matrix.to_floats().astype(np.float64)


def matmul(x: Array, matrix: Matrix, bias: Array | None = None) -> Result:
    """x (T, K) · weightsᵀ (K, N) + bias (N,)."""
    product: Result = x.astype(np.float64) @ dequantize(matrix).T
    return product if bias is None else product + bias


def rmsnorm(x: Array, weight: Array, eps: float) -> Result:
    """x (T, K) / √(mean over K of x² + eps) · weight (K,)."""
    wide = x.astype(np.float64)
    scale: Result = np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + eps)
    normalized: Result = wide / scale * weight
    return normalized


def rope(x: Array, cos: Array, sin: Array, interleaved: bool) -> Result:
    """Pairs (a, b) of x (T, heads, D) become (a cos − b sin, a sin + b cos)."""
    out = x.astype(np.float64)
    rotated = 2 * cos.shape[1]
    first, second = (
        (slice(0, rotated, 2), slice(1, rotated, 2))
        if interleaved
        else (slice(0, rotated // 2), slice(rotated // 2, rotated))
    )
    a, b = out[..., first].copy(), out[..., second].copy()
    c, s = cos[:, None, :].astype(np.float64), sin[:, None, :].astype(np.float64)
    out[..., first] = a * c - b * s
    out[..., second] = a * s + b * c
    return out


def softmax(x: Array) -> Result:
    """exp(x − max) / Σ exp(x − max), over the last axis."""
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(axis=-1, keepdims=True))
    share: Result = e / e.sum(axis=-1, keepdims=True)
    return share


def swiglu(gate: Array, up: Array) -> Result:
    """Gate · sigmoid(gate) · up."""
    g = gate.astype(np.float64)
    product: Result = g * np.exp(-np.logaddexp(0.0, -g)) * up
    return product


def kv_append(k: Array, v: Array, k_pages: Array, v_pages: Array, slots: Slots) -> None:
    """Write k, v (T, G, D) to k_pages (n, G, D, P) and v_pages (n, G, P, D)."""
    k_pages[slots.pages, :, :, slots.offsets] = k
    v_pages[slots.pages, :, slots.offsets, :] = v


def attention(q: Array, k_pages: Array, v_pages: Array, queries: Queries, scale: float) -> Result:
    """Causal softmax(scale · q kᵀ) v for each sequence; query j of n is at length − n + j."""
    heads, head_dim = q.shape[1], q.shape[2]
    kv_heads, page_size = k_pages.shape[1], k_pages.shape[3]
    out = np.empty(q.shape, np.float64)
    for s, length in enumerate(queries.lengths):
        used = queries.page_table[s, : -(-int(length) // page_size)]
        k = k_pages[used].transpose(1, 0, 3, 2).reshape(kv_heads, -1, head_dim)[:, :length]
        v = v_pages[used].transpose(1, 0, 2, 3).reshape(kv_heads, -1, head_dim)[:, :length]
        rows = slice(int(queries.starts[s]), int(queries.starts[s + 1]))
        n = rows.stop - rows.start
        visible = np.arange(length)[None, :] <= int(length) - n + np.arange(n)[:, None]
        for h in range(heads):
            g = h // (heads // kv_heads)
            scores = scale * q[rows, h].astype(np.float64) @ k[g].astype(np.float64).T
            weights = softmax(np.where(visible, scores, -np.inf))
            out[rows, h] = weights @ v[g].astype(np.float64)
    return out
