"""The numpy reference of every op: the formula itself, in float64, one function an op.

What kernels are checked against, in tests and before a benchmark times anything. Slow on purpose.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge.kv.batch import Queries, Slots
from rocmforge.ops.matrix import Matrix
from rocmforge.plan.operands import Activation

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


def layernorm(x: Array, weight: Array, bias: Array | None, eps: float) -> Result:
    """(x (T, K) − mean) / √(variance + eps) · weight (K,) + bias (K,), both over K."""
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    scale = np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + eps)
    normalized: Result = centred / scale * weight + (0.0 if bias is None else bias)
    return normalized


def sigmoid(x: Array) -> Result:
    """1 / (1 + exp(−x))."""
    share: Result = np.exp(-np.logaddexp(0.0, -x.astype(np.float64)))
    return share


def gelu(x: Array) -> Result:
    """x / 2 · (1 + tanh(√(2 / π) · (x + 0.044715 · x³)))."""
    wide = x.astype(np.float64)
    curve: Result = wide / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
    return curve


def softcap(x: Array, cap: float) -> Result:
    """cap · tanh(x / cap)."""
    capped: Result = cap * np.tanh(x.astype(np.float64) / cap)
    return capped


def swiglu(gate: Array, up: Array, activation: Activation = "silu") -> Result:
    """Gate · sigmoid(gate) · up, or as another `Activation` has it."""
    g, u = gate.astype(np.float64), up.astype(np.float64)
    if activation == "gelu":
        product: Result = gelu(g) * u
    elif activation == "clamped":
        g = np.minimum(g, 7.0)
        product = g * sigmoid(1.702 * g) * (np.clip(u, -7.0, 7.0) + 1.0)
    else:
        product = g * sigmoid(g) * u
    return product


def route(
    scores: Array,
    chosen: int,
    normalized: bool,
    by_sigmoid: bool = False,
    scale: float = 1.0,
    bias: Array | None = None,
) -> tuple[NDArray[np.int32], Result]:
    """Indices (T, k) of the k largest scores (T, E), the first of equal ones, and their shares.

    The shares are scale · softmax(scores) over all E experts, or scale · sigmoid(scores); if
    `normalized`, divided by their sum. A bias (E,) counts for choosing alone.
    """
    wide = scores.astype(np.float64)
    odds = sigmoid(wide) if by_sigmoid else softmax(wide)
    ranks = wide if bias is None else (odds if by_sigmoid else wide) + bias
    experts = np.argsort(-ranks, axis=-1, kind="stable")[:, :chosen]
    shares = np.take_along_axis(odds, experts, axis=-1)
    if normalized:
        shares = shares / shares.sum(axis=-1, keepdims=True)
    return experts.astype(np.int32), scale * shares


def add_experts(parts: Array, shares: Array) -> Result:
    """Σ_i shares (T, k) · parts (T, k · K), over the k experts of a token: (T, K)."""
    wide = parts.astype(np.float64).reshape(*shares.shape, -1)
    total: Result = np.einsum("tk,tkn->tn", shares.astype(np.float64), wide)
    return total


def kv_append(k: Array, v: Array, k_pages: Array, v_pages: Array, slots: Slots) -> None:
    """Write k, v (T, G, D) to k_pages (n, G, D, P) and v_pages (n, G, P, D)."""
    k_pages[slots.pages, :, :, slots.offsets] = k
    v_pages[slots.pages, :, slots.offsets, :] = v


def attention(
    q: Array,
    k_pages: Array,
    v_pages: Array,
    queries: Queries,
    scale: float,
    window: int | None = None,
    cap: float | None = None,
    sinks: Array | None = None,
) -> Result:
    """Causal softmax(scale · q kᵀ) v for each sequence; query j of n is at length − n + j.

    It sees the last `window` tokens, itself included; scores are soft-capped; a sink (H,) is one
    more score without a value.
    """
    heads, head_dim = q.shape[1], q.shape[2]
    kv_heads, page_size = k_pages.shape[1], k_pages.shape[3]
    out = np.empty(q.shape, np.float64)
    for s, length in enumerate(queries.lengths):
        used = queries.page_table[s, : -(-int(length) // page_size)]
        k = k_pages[used].transpose(1, 0, 3, 2).reshape(kv_heads, -1, head_dim)[:, :length]
        v = v_pages[used].transpose(1, 0, 2, 3).reshape(kv_heads, -1, head_dim)[:, :length]
        rows = slice(int(queries.starts[s]), int(queries.starts[s + 1]))
        n = rows.stop - rows.start
        ago = int(length) - n + np.arange(n)[:, None] - np.arange(length)[None, :]
        visible = (ago >= 0) & (ago < (window or int(length)))
        for h in range(heads):
            g = h // (heads // kv_heads)
            scores = scale * q[rows, h].astype(np.float64) @ k[g].astype(np.float64).T
            scores = np.where(visible, scores if cap is None else softcap(scores, cap), -np.inf)
            if sinks is not None:
                scores = np.column_stack([scores, np.full(n, sinks[h], np.float64)])
            weights = softmax(scores)[:, :length]
            out[rows, h] = weights @ v[g].astype(np.float64)
    return out
