"""The public ops: arguments checked at the door, then one call of the backend.

Tests, benchmarks and users call these functions. Executors call the backend directly, with buffers
of their own. Letters of shapes: see rocmforge/array_types.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocmforge.array_types import Floats, Ints
from rocmforge.gguf.quants import describe
from rocmforge.kv import PAGE_SIZES
from rocmforge.kv.batch import Queries, Slots
from rocmforge.ops.matrix import Matrix
from rocmforge.plan.protocols import MAX_HEAD_DIM, Backend


@dataclass(frozen=True)
class Weights:
    """A matrix as one backend's matmul reads it. Made by `pack`."""

    backend: Backend[Any]
    packed: Any
    matrix: Matrix


def pack(matrix: Matrix, backend: Backend[Any]) -> Weights:
    """Bring a matrix to a device, in the layout that its `matmul` reads.

    Parameters
    ----------
    matrix
        (N, K) weights.
    backend
        The device.

    Returns
    -------
    Weights
        Holds the device's copy and the matrix itself.
    """
    return Weights(backend, backend.pack(matrix.data, matrix.format, matrix.columns), matrix)


def matmul(x: Floats, weights: Weights, bias: Floats | None = None) -> Floats:
    """Return x · Wᵀ + bias.

    Parameters
    ----------
    x
        (T, K) float32, T ≥ 1.
    weights
        (N, K), packed.
    bias
        (N,) float32.

    Returns
    -------
    (T, N) float32. Quantized weights meet activations rounded to int8 in blocks of 32 columns, on a
    CPU of 128 where the weights' blocks have 256 (relative error about 0.6 %), unless the backend
    is exact.

    Raises
    ------
    ValueError
        A shape or dtype is wrong.
    """
    matrix = weights.matrix
    _check("x", x, np.float32, (None, matrix.columns))
    if bias is not None:
        _check("bias", bias, np.float32, (matrix.rows,))
    out = np.empty((x.shape[0], matrix.rows), np.float32)
    weights.backend.matmul(x, [weights.packed], [out], [bias])
    return out


def dequantize(matrix: Matrix, backend: Backend[Any], out: Floats | None = None) -> Floats:
    """Return the weights of a matrix: (scale · code + minimum), as its format has it.

    Parameters
    ----------
    matrix
        (N, K) weights of any format; `Matrix` has checked its bytes.
    backend
        The device that computes them.
    out
        (N, K) float32 to write into, no memory of the matrix; None: a new array, whose pages the
        system must first map.

    Returns
    -------
    (N, K) float32, `out` if given, bit for bit what `rocmforge.gguf.quants.dequantize` gives, but
    that MXFP6 codes of −0 may read as 0; NaN where a scale is NaN.

    Raises
    ------
    ValueError
        The shape or dtype of `out` is wrong, or it is read-only or the matrix's. What can be wrong
        about a matrix was refused when it was made.

    Notes
    -----
    Block layouts are ggml's; those of MXFP4 and MXFP6 are of OCP MX v1.0.
    """
    out = _output(out, (matrix.rows, matrix.columns), matrix.data)
    backend.dequantize(matrix.data, matrix.format, out)
    return out


def rmsnorm(
    x: Floats, weight: Floats, eps: float, backend: Backend[Any], out: Floats | None = None
) -> Floats:
    """Return x / √(mean(x²) + eps) · weight.

    Parameters
    ----------
    x
        (T, K) float32.
    weight
        (K,) float32.
    eps
        Added to the mean square, 0 or more.
    backend
        The device.
    out
        (T, K) float32 to write into, no memory of the inputs; None: a new array.

    Returns
    -------
    (T, K) float32, `out` if given.

    Raises
    ------
    ValueError
        A shape or dtype is wrong, eps is negative, or `out` is read-only or an input.

    Notes
    -----
    Zhang and Sennrich 2019, arXiv:1910.07467.
    """
    _check("x", x, np.float32, (None, None))
    _check("weight", weight, np.float32, (x.shape[1],))
    if not 0.0 <= eps < float("inf"):
        raise ValueError(f"eps: got {eps}, wanted 0 or more")
    out = _output(out, x.shape, x, weight)
    backend.rmsnorm(x, weight, eps, out)
    return out


def rope(x: Floats, cos: Floats, sin: Floats, interleaved: bool, backend: Backend[Any]) -> Floats:
    """Return x with each pair (a, b) rotated to (a cos − b sin, a sin + b cos).

    Parameters
    ----------
    x
        (T, heads, D) float32.
    cos, sin
        (T, R/2) float32, of each token's angles; R ≤ D, dims from R on stay.
    interleaved
        Pairs are (2i, 2i + 1) if true (llama), (i, i + R/2) if not (qwen2, qwen3).
    backend
        The device.

    Returns
    -------
    (T, heads, D) float32.

    Raises
    ------
    ValueError
        A shape or dtype is wrong.

    Notes
    -----
    Su et al. 2021, arXiv:2104.09864.
    """
    _check("x", x, np.float32, (None, None, None))
    _check("cos", cos, np.float32, (x.shape[0], None))
    _check("sin", sin, np.float32, cos.shape)
    if 2 * cos.shape[1] > x.shape[2]:
        raise ValueError(f"cos: got {cos.shape[1]} pairs, wanted at most D / 2 = {x.shape[2] // 2}")
    out: Floats = x.copy()
    backend.rope(out, cos, sin, interleaved)
    return out


def softmax(x: Floats, backend: Backend[Any], out: Floats | None = None) -> Floats:
    """Return exp(x − max) / Σ exp(x − max), max and Σ over each row.

    Parameters
    ----------
    x
        (T, N) float32, N ≥ 1; −∞ has share 0.
    backend
        The device.
    out
        (T, N) float32 to write into, no memory of the inputs; None: a new array.

    Returns
    -------
    (T, N) float32, `out` if given: rows of sum 1; NaN where a row holds NaN or +∞, or nothing but
    −∞.

    Raises
    ------
    ValueError
        A shape or dtype is wrong, or `out` is read-only or an input.

    Notes
    -----
    Bridle 1990, "Probabilistic interpretation of feedforward classification network outputs"; the
    maximum is taken off so that exp cannot overflow.
    """
    _check("x", x, np.float32, (None, None))
    out = _output(out, x.shape, x)
    backend.softmax(x, out)
    return out


def swiglu(gate: Floats, up: Floats, backend: Backend[Any], out: Floats | None = None) -> Floats:
    """Return gate · sigmoid(gate) · up, element by element.

    Parameters
    ----------
    gate, up
        (T, N) float32 each: the two projections of a feed-forward part.
    backend
        The device.
    out
        (T, N) float32 to write into, no memory of the inputs; None: a new array.

    Returns
    -------
    (T, N) float32, `out` if given.

    Raises
    ------
    ValueError
        A shape or dtype is wrong, the shapes differ, or `out` is read-only or an input.

    Notes
    -----
    Shazeer 2020, arXiv:2002.05202.
    """
    _check("gate", gate, np.float32, (None, None))
    _check("up", up, np.float32, gate.shape)
    out = _output(out, gate.shape, gate, up)
    backend.swiglu(gate, up, out)
    return out


def kv_append(
    k: Floats,
    v: Floats,
    k_pages: NDArray[Any],
    v_pages: NDArray[Any],
    slots: Slots,
    backend: Backend[Any],
) -> None:
    """Write new keys and values into one layer of a paged KV cache.

    Parameters
    ----------
    k, v
        (T, G, D) float32.
    k_pages, v_pages
        (n, G, D, P) and (n, G, P, D), float16 or float32; written.
    slots
        Page 0 to n − 1, and slot in it, of each token.
    backend
        The device.

    Raises
    ------
    ValueError
        A shape, dtype, page or slot is wrong.
    """
    _check("k", k, np.float32, (None, None, None))
    _check("v", v, np.float32, k.shape)
    _check_pages(k_pages, v_pages, k.shape[1], k.shape[2])
    if not (k_pages.flags.writeable and v_pages.flags.writeable):
        raise ValueError("k_pages, v_pages: got read-only arrays, wanted writeable ones")
    _check("pages", slots.pages, np.int32, (k.shape[0],))
    _check("offsets", slots.offsets, np.int32, (k.shape[0],))
    _check_range("pages", slots.pages, k_pages.shape[0])
    _check_range("offsets", slots.offsets, k_pages.shape[3])
    backend.kv_append(k, v, k_pages, v_pages, slots)


def attention(
    q: Floats,
    k_pages: NDArray[Any],
    v_pages: NDArray[Any],
    queries: Queries,
    scale: float,
    backend: Backend[Any],
) -> Floats:
    """Return causal softmax(scale · q kᵀ) v of each sequence over its pages.

    Parameters
    ----------
    q
        (T, H, D) float32: queries of all sequences, one after another; D ≤ 256.
    k_pages, v_pages
        (n, G, D, P) and (n, G, P, D), float16 or float32; P is 16, 32 or 64; G divides H, and
        head h reads KV head h // (H / G).
    queries
        Which sequence each query belongs to, and which keys it sees.
    scale
        Usually 1 / √D.
    backend
        The device.

    Returns
    -------
    (T, H, D) float32.

    Raises
    ------
    ValueError
        A shape, dtype, page or length is wrong.

    Notes
    -----
    One pass with a running maximum: Milakov and Gimelshein 2018, arXiv:1805.02867; Dao et al.
    2022, arXiv:2205.14135.
    """
    _check("q", q, np.float32, (None, None, None))
    if q.shape[2] > MAX_HEAD_DIM:
        raise ValueError(f"q: got head dim {q.shape[2]}, wanted at most {MAX_HEAD_DIM}")
    if not math.isfinite(scale):
        raise ValueError(f"scale: got {scale}, wanted a finite number")
    _check_pages(k_pages, v_pages, None, q.shape[2])
    if q.shape[1] % k_pages.shape[1]:
        got, heads = k_pages.shape[1], q.shape[1]
        raise ValueError(f"k_pages: got {got} KV heads, wanted a divisor of {heads}")
    page_table, lengths, starts = queries.page_table, queries.lengths, queries.starts
    _check("lengths", lengths, np.int32, (None,))
    sequences, page_size = lengths.shape[0], k_pages.shape[3]
    _check("page_table", page_table, np.int32, (sequences, None))
    _check("starts", starts, np.int32, (sequences + 1,))
    counts = np.diff(starts)
    if starts[0] != 0 or starts[-1] != q.shape[0] or counts.min() < 0 or (lengths < counts).any():
        raise ValueError(
            f"starts: got {starts.tolist()} for lengths {lengths.tolist()}, wanted 0 to "
            f"{q.shape[0]} in order, no sequence with more queries than tokens"
        )
    used = -(-lengths // page_size)
    if used.max() > page_table.shape[1]:
        raise ValueError(f"page_table: got {page_table.shape[1]} columns, wanted {used.max()}")
    for row, n in zip(page_table, used, strict=True):
        _check_range("page_table", row[:n], k_pages.shape[0])
    out = np.empty_like(q)
    backend.attention(q, k_pages, v_pages, queries, scale, out)
    return out


def _output(out: Floats | None, shape: tuple[int, ...], *inputs: NDArray[Any]) -> Floats:
    """Return `out` once it is checked; None: a new array."""
    if out is None:
        return np.empty(shape, np.float32)
    _check("out", out, np.float32, shape)
    if not out.flags.writeable:
        raise ValueError("out: got an array that is read-only, wanted one to write into")
    if any(np.may_share_memory(out, array) for array in inputs):
        raise ValueError("out: got memory of an input, wanted an array of its own")
    return out


def _check_pages(k: NDArray[Any], v: NDArray[Any], kv_heads: int | None, head_dim: int) -> None:
    if (
        not isinstance(k, np.ndarray)
        or k.ndim != 4
        or k.dtype not in (np.float16, np.float32)
        or k.shape[3] not in PAGE_SIZES
    ):
        raise ValueError(
            f"k_pages: got {describe(k)}, wanted float16 or float32 (n, G, D, P) "
            f"with P one of {PAGE_SIZES}"
        )
    _check("k_pages", k, k.dtype, (None, kv_heads, head_dim, None))
    _check("v_pages", v, k.dtype, (k.shape[0], k.shape[1], k.shape[3], head_dim))


def _check_range(name: str, values: Ints, end: int) -> None:
    if values.size and (values.min() < 0 or values.max() >= end):
        raise ValueError(f"{name}: got {values.min()} to {values.max()}, wanted 0 to {end - 1}")


def _check(name: str, array: NDArray[Any], dtype: Any, shape: tuple[int | None, ...]) -> None:
    """Check type, dtype, shape (None: any size from 1) and C order, naming what differs."""
    wanted = f"{np.dtype(dtype)} ({', '.join('any' if n is None else str(n) for n in shape)})"
    fits = (
        isinstance(array, np.ndarray)
        and array.ndim == len(shape)
        and all(
            size == n if n is not None else size >= 1
            for size, n in zip(array.shape, shape, strict=False)
        )
    )
    if not fits or array.dtype != dtype:
        raise ValueError(f"{name}: got {describe(array)}, wanted {wanted}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name}: got a strided array, wanted a C-contiguous one")
