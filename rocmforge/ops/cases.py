"""The one list of shapes per op that correctness tests and benchmarks run, with their arithmetic.

Each case makes its own seeded inputs and states flops, bytes and tolerance, so that a test and a
benchmark of the same name mean the same work. It knows no device and measures nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rocmforge.gguf.formats import FORMATS
from rocmforge.ops.matrix import Matrix

DENSE_FORMATS = ("F32", "F16", "BF16", "MXFP6_E3M2")
"""Formats whose matmul keeps activations in float32."""

INT8_TOLERANCE = 0.012
"""Relative RMS that rounding activations to int8 may cost a matmul; Gaussian data costs 0.005."""

EXACT_TOLERANCE = 2e-6


def relative_rms(got: NDArray[np.floating], wanted: NDArray[np.floating]) -> float:
    """‖got − wanted‖ / ‖wanted‖, in float64; the distance itself where `wanted` is all zero."""
    difference = float(np.linalg.norm(got.astype(np.float64) - wanted))
    size = float(np.linalg.norm(wanted.astype(np.float64)))
    return difference / size if size else difference


@dataclass(frozen=True)
class MatmulCase:
    """x (tokens, columns) times weights (rows, columns) of one format."""

    tokens: int
    rows: int
    columns: int
    format: str

    @property
    def flops(self) -> int:
        """Two a product."""
        return 2 * self.tokens * self.rows * self.columns

    @property
    def bytes(self) -> int:
        """Weights once, activations in and out, in bytes."""
        weights = FORMATS[self.format].nbytes((self.rows, self.columns))
        return weights + 4 * self.tokens * (self.rows + self.columns)

    def tolerance(self, exact: bool) -> float:
        """Largest relative RMS against the reference; more for few outputs, which may cancel."""
        exact = exact or self.format in DENSE_FORMATS
        few = 1.0 + 4.0 / math.sqrt(self.tokens * self.rows)
        return few * (EXACT_TOLERANCE if exact else INT8_TOLERANCE)

    def inputs(self) -> tuple[NDArray[np.float32], Matrix]:
        """Gaussian activations, and Gaussian weights of standard deviation 1/√columns."""
        random = np.random.default_rng(self.rows * 31 + self.columns)
        x = random.standard_normal((self.tokens, self.columns), np.float32)
        w = random.standard_normal((self.rows, self.columns), np.float32)
        return x, Matrix.from_floats(w / np.float32(math.sqrt(self.columns)), self.format)


@dataclass(frozen=True)
class AttentionCase:
    """Causal attention of the last `queries` tokens of each of some sequences."""

    lengths: tuple[int, ...]
    queries: tuple[int, ...]
    heads: int
    kv_heads: int
    head_dim: int
    page_size: int = 32
    dtype: str = "float16"

    @property
    def flops(self) -> int:
        """Two matrix products over the visible pairs of query and token."""
        pairs = sum(
            n * length - n * (n - 1) // 2
            for n, length in zip(self.queries, self.lengths, strict=True)
        )
        return 4 * pairs * self.heads * self.head_dim

    @property
    def bytes(self) -> int:
        """Keys and values once, queries in and out, in bytes."""
        cache = 2 * sum(self.lengths) * self.kv_heads * self.head_dim
        return (
            cache * np.dtype(self.dtype).itemsize
            + 8 * sum(self.queries) * self.heads * self.head_dim
        )

    @property
    def tolerance(self) -> float:
        """Largest relative RMS against the reference over the same cache contents."""
        return 2e-6

    def inputs(self) -> AttentionInputs:
        """Gaussian queries and cache, pages in shuffled order, unused slots filled with NaN."""
        random = np.random.default_rng(sum(self.lengths))
        used = [-(-n // self.page_size) for n in self.lengths]
        order = random.permutation(sum(used) + 1).astype(np.int32)
        shape = (len(order), self.kv_heads, self.head_dim, self.page_size)
        k = np.full(shape, np.nan, self.dtype)
        v = np.full((*shape[:2], shape[3], shape[2]), np.nan, self.dtype)
        table = np.full((len(used), max(used)), -1, np.int32)
        at = 0
        for s, n in enumerate(used):
            table[s, :n] = order[at : at + n]
            at += n
            for i, page in enumerate(table[s, :n]):
                tokens = min(self.page_size, self.lengths[s] - i * self.page_size)
                k[page, ..., :tokens] = random.standard_normal((*shape[1:3], tokens))
                v[page, :, :tokens] = random.standard_normal((shape[1], tokens, shape[2]))
        starts = np.concatenate(([0], np.cumsum(self.queries))).astype(np.int32)
        q = random.standard_normal((int(starts[-1]), self.heads, self.head_dim), np.float32)
        lengths = np.array(self.lengths, np.int32)
        return AttentionInputs(q, k, v, table, lengths, starts, 1.0 / math.sqrt(self.head_dim))


@dataclass(frozen=True)
class AttentionInputs:
    """Arguments of `ops.attention`, in its order."""

    q: NDArray[np.float32]
    k_pages: NDArray[np.floating]
    v_pages: NDArray[np.floating]
    page_table: NDArray[np.int32]
    lengths: NDArray[np.int32]
    starts: NDArray[np.int32]
    scale: float


@dataclass(frozen=True)
class RowsCase:
    """A rowwise op (rmsnorm, softmax, swiglu) on float32 (rows, columns)."""

    rows: int
    columns: int

    @property
    def bytes(self) -> int:
        """One array read and one written, in bytes."""
        return 8 * self.rows * self.columns

    def inputs(self, n: int = 1) -> list[NDArray[np.float32]]:
        """`n` Gaussian arrays."""
        random = np.random.default_rng(self.rows + self.columns)
        return [random.standard_normal((self.rows, self.columns), np.float32) for _ in range(n)]


def _matmuls(name: str) -> tuple[MatmulCase, ...]:
    block = FORMATS[name].block_len
    small = max(block, 32)
    return (
        MatmulCase(1, 1, small, name),
        MatmulCase(1, 17, 3 * small, name),
        MatmulCase(2, 31, 2 * small, name),
        MatmulCase(3, 64, 5 * small, name),
        MatmulCase(5, 100, small, name),
        MatmulCase(9, 48, 9 * small, name),
        MatmulCase(17, 33, 2 * small, name),
        MatmulCase(131, 40, 2 * small, name),
    )


MATMUL_CHECKS: dict[str, tuple[MatmulCase, ...]] = {name: _matmuls(name) for name in FORMATS}
"""Awkward shapes of every format: 1, primes, one past a tile, one past a block of tokens."""

MATMUL_DENSE = tuple(
    MatmulCase(tokens, rows, columns, name)
    for name in ("F32", "F16")
    for tokens, columns, rows in (
        (512, 512, 512),
        (1024, 1024, 1024),
        (2048, 2048, 2048),
        (4096, 4096, 4096),
        (2048, 4096, 2048),
        (1, 4096, 4096),
        (32, 128, 4096),
        (128, 128, 1024),
        (32, 32, 768),
    )
)
"""R2's dense shapes, (tokens, columns, rows)."""

MATMUL_QUANTIZED = tuple(
    MatmulCase(tokens, 4096, 4096, name) for name in FORMATS for tokens in (1, 4, 8, 128)
)
"""R2's quantized shapes: every format at 4096 × 4096, decode batches and a prompt."""

ATTENTION_CHECKS = (
    AttentionCase((1,), (1,), 1, 1, 64),
    AttentionCase((17,), (17,), 4, 4, 32, page_size=16),
    AttentionCase((33,), (1,), 8, 2, 64, page_size=32),
    AttentionCase((65, 7, 130), (1, 1, 1), 6, 2, 80, page_size=64),
    AttentionCase((40, 70), (40, 3), 8, 1, 128, page_size=32, dtype="float32"),
    AttentionCase((129,), (100,), 14, 2, 64, page_size=64),
    AttentionCase((31,), (31,), 3, 3, 256, page_size=16),
    AttentionCase((20,), (5,), 40, 1, 24, page_size=16, dtype="float32"),
)
"""Awkward attention: one token, odd lengths, several sequences, MQA, head dims 24 to 256."""

ATTENTION_PREFILL = tuple(
    AttentionCase((n,), (n,), heads, heads, head_dim)
    for n, heads, head_dim in ((128, 4, 32), (256, 8, 32), (512, 8, 64), (1024, 16, 64))
)
"""R2's (sequence, heads, head dim)."""

ATTENTION_DECODE = tuple(
    AttentionCase((context,), (1,), 32, 4, 64) for context in (1024, 2048, 4096)
)
"""One token of the 1.1B shape over a growing context."""

ROWS_CHECKS = (
    RowsCase(1, 1),
    RowsCase(1, 17),
    RowsCase(3, 64),
    RowsCase(7, 100),
    RowsCase(130, 896),
    RowsCase(2, 11008),
)
